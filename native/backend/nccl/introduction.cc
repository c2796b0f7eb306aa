#include "backend/nccl/introduction.h"

#include "backend/nccl/library.h"

namespace farandole::backend::nccl {
namespace {

// The first version that can put several ranks on one GPU.
constexpr int kSharingVersion = 23000;

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

base::Bytes encode(const Introduction& introduction) {
  base::Writer writer;
  writer.put_string(introduction.problem);
  writer.put(static_cast<int32_t>(introduction.version));
  for (const std::byte byte : introduction.gpu.bytes) {
    writer.put(byte);
  }
  writer.put(introduction.shares);
  return writer.take();
}

Introduction decode_introduction(std::span<const std::byte> bytes) {
  base::Reader reader(bytes);
  Introduction introduction;
  introduction.problem = reader.get_string();
  introduction.version = reader.get<int32_t>();
  for (std::byte& byte : introduction.gpu.bytes) {
    byte = reader.get<std::byte>();
  }
  introduction.shares = reader.get<bool>();
  if (!reader.done()) {
    throw base::Error(base::Code::kInternal, "malformed message: it is longer than expected");
  }
  return introduction;
}

std::string find_obstacle(std::span<const int> ranks, std::span<const Introduction> introductions) {
  const Introduction& first = introductions.front();
  for (size_t i = 0; i < introductions.size(); ++i) {
    if (!introductions[i].problem.empty()) {
      return rank_text(ranks[i]) + ": " + introductions[i].problem;
    }
  }
  for (size_t i = 1; i < introductions.size(); ++i) {
    if (introductions[i].version != first.version) {
      return rank_text(ranks[0]) + " has NCCL " + version_text(first.version) + " and " + rank_text(ranks[i]) +
             " NCCL " + version_text(introductions[i].version) + ". Install the same version on all hosts";
    }
    for (size_t other = 0; other < i; ++other) {
      const bool may_share = introductions[i].shares && introductions[other].shares && first.version >= kSharingVersion;
      if (introductions[i].gpu == introductions[other].gpu && !may_share) {
        return rank_text(ranks[other]) + " and " + rank_text(ranks[i]) +
               " use the same GPU. Give each rank its own (torch.cuda.set_device(hvd.local_rank())); NCCL 2.30 and "
               "newer take several with NCCL_MULTI_RANK_GPU_ENABLE=1";
      }
    }
  }
  return "";
}

}  // namespace farandole::backend::nccl
