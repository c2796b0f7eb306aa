#include "backend/nccl/nccl.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "backend/nccl/introduction.h"
#include "base/log.h"

namespace farandole::backend {
namespace nccl {
namespace {

using base::Code;
using base::Error;
using collective::Choice;
using collective::Group;

// The time between two checks of a call that is not over.
constexpr int64_t kPauseNs = 20'000;
// The first version in which several communicators of one process can be aborted together.
constexpr int kGroupAbortVersion = 22200;

bool may_share_gpus() {
  const char* const value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::string_view(value) == "1";
}

// Returns whether everything in the stream of collectives is done by the deadline. False, too, when the GPU has failed.
bool is_idle(device::Gpu& gpu, const base::Deadline& deadline) noexcept {
  try {
    return device::wait_until_reached(*gpu.mark(gpu.collectives()), deadline);
  } catch (const Error&) {
    return false;
  }
}

[[noreturn]] void end_process(const std::string& why) {
  base::log(base::Level::kError, -1, why);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

Nccl::Nccl(const World& world) : frames_(world.frames), gpu_(*world.gpu), host_(*world.host) {}

Nccl::~Nccl() {
  if (aborting_.joinable()) {
    aborting_.join();
  }
  if (is_revoked_) {
    // NCCL may still use what could not be aborted, until the process ends.
    launch_.release();  // NOLINT(bugprone-unused-return-value)
    return;
  }
  drop_all();
  for (const auto& communicator : dropped_) {
    // A communicator that was never used may have failed on another member, and its end would wait for that member.
    if (communicator->is_usable() && communicator->last != nullptr) {
      communicator->end();
    }
  }
}

Choice Nccl::choose(const Group&, const Need& need) const {
  return {&algorithm_of(need.operation), kNoRow, "the tensors are in the memory of GPUs, so NCCL moves them"};
}

std::vector<int64_t> Nccl::exchange(const Group& group, const std::vector<int64_t>& sent) {
  std::vector<int64_t> received(sent.size());
  collective::AlltoallJob job;
  job.input = sent.data();
  job.rows.assign(sent.size(), 1);
  job.row_bytes = sizeof(int64_t);
  job.output = [&](const std::vector<int64_t>&) -> void* { return received.data(); };
  Need need;
  need.operation = Operation::kAlltoall;
  need.bytes = sent.size() * sizeof(int64_t);
  host_.run(group, host_.choose(group, need), job, {});
  return received;
}

device::MarkPointer Nccl::run(const Group& group, const Choice& choice, const collective::Job& job,
                              std::span<const device::MarkPointer> after) {
  Communicator& communicator = *communicators_.at(group.id);
  device::Gpu& gpu = communicator.gpu();
  Peers peers{gpu,
              communicator.handle(),
              communicator.group().index,
              static_cast<int>(communicator.group().size()),
              {},
              choice.algorithm == &algorithm_of(Operation::kTransfer)};
  for (const int member : group.members) {
    peers.ranks.push_back(communicator.group().index_of(member));
  }
  const device::Gpu::Current current(gpu);
  for (const device::MarkPointer& mark : after) {
    gpu.delay(gpu.collectives(), *mark);
  }
  launch_ = std::make_unique<Launch>(*library_, gpu_.gpus, std::move(peers),
                                     [&](const std::vector<int64_t>& sent) { return exchange(group, sent); });
  const auto is_here = [&](const device::MarkPointer& mark) { return &mark->gpu() == &gpu; };
  launch_->begin(std::ranges::all_of(after, is_here) ? job : launch_->visitors().bring(job));
  const auto deadline = base::Deadline::after_seconds(gpu_.patience.launch);
  frames_.wait([&] {
    frames_.set_pause(kPauseNs);
    if (deadline.passed()) {
      throw Error(Code::kUnavailable, "NCCL does not start a collective; NCCL_DEBUG=INFO shows what it waits for");
    }
    return communicator.is_settled("a collective");
  });
  launch_->finish();
  launch_.reset();
  communicator.last = gpu.mark(gpu.collectives());
  return communicator.last;
}

// --- forming

base::Bytes Nccl::introduce(const Group& group, device::Gpu& gpu) {
  Introduction introduction;
  try {
    library_ = &library(gpu_.library);
    introduction.version = library_->version;
  } catch (const Error& error) {
    introduction.problem = error.what();
  }
  introduction.gpu = gpu.uuid();
  introduction.shares = may_share_gpus();
  communicators_[group.id] = std::make_unique<Communicator>(group, gpu);
  return encode(introduction);
}

base::Bytes Nccl::prepare(const Group& group, std::span<const base::Bytes> introductions) {
  std::vector<Introduction> members;
  for (const base::Bytes& bytes : introductions) {
    members.push_back(decode_introduction(bytes));
  }
  if (const std::string obstacle = find_obstacle(group.members, members); !obstacle.empty()) {
    throw Error(Code::kUnavailable, obstacle);
  }
  UniqueId id;
  const Library& known = library(gpu_.library);
  known.check(known.functions.get_unique_id(&id), "making an id", nullptr);
  return {id.bytes.begin(), id.bytes.end()};
}

void Nccl::form(const Group& group, std::span<const std::byte> key) {
  UniqueId id;
  if (key.size() != id.bytes.size()) {
    throw Error(Code::kInternal, "malformed message: an id of NCCL has " + std::to_string(id.bytes.size()) + " bytes");
  }
  std::ranges::copy(key, id.bytes.begin());
  try {
    communicators_.at(group.id)->form(*library_, id, gpu_.patience.forming);
    ++forming_;
  } catch (const Error& error) {
    failed_.push_back({group.id, error.what()});
  }
}

std::vector<Formation::Formed> Nccl::formed() {
  std::vector<Formed> formed = std::exchange(failed_, {});
  for (auto& [group, communicator] : communicators_) {
    if (!communicator->is_forming()) {
      continue;
    }
    try {
      if (communicator->look()) {
        formed.push_back({group, ""});
        --forming_;
      }
    } catch (const Error& error) {
      formed.push_back({group, error.what()});
      --forming_;
      communicator->give_up();  // an abort could wait for it
    }
  }
  return formed;
}

void Nccl::drop(uint32_t group) noexcept {
  if (const auto found = communicators_.find(group); found != communicators_.end()) {
    forming_ -= found->second->is_forming() ? 1 : 0;
    dropped_.push_back(std::move(found->second));
    communicators_.erase(found);
  }
}

void Nccl::drop_all() noexcept {
  for (auto& [group, communicator] : communicators_) {
    dropped_.push_back(std::move(communicator));
  }
  communicators_.clear();
}

void Nccl::check() {
  for (const auto& [group, communicator] : communicators_) {
    if (communicator->is_usable()) {
      const device::Gpu::Current current(communicator->gpu());
      communicator->is_settled("a collective");
    }
  }
}

// --- the end of a world

void Nccl::revoke() noexcept {
  is_revoked_ = true;
  drop_all();
  if (gpu_.is_elastic) {
    begin_abort();
  }
}

// An abort may take any time, so another thread calls it.
void Nccl::begin_abort() noexcept {
  for (const auto& communicator : dropped_) {
    if (const Comm comm = communicator->give_up(); comm != nullptr) {
      aborted_.push_back({&communicator->gpu(), comm});
    }
  }
  if (aborted_.empty()) {
    is_aborted_ = true;
    return;
  }
  aborting_ = std::thread([this] {
    const Functions& nccl = library_->functions;
    const bool together = library_->version >= kGroupAbortVersion;
    if (together) {
      nccl.group_start();
    }
    for (const Aborted& each : aborted_) {
      try {
        const device::Gpu::Current current(*each.gpu);
        nccl.comm_abort(each.comm);
      } catch (const Error& error) {
        base::log(base::Level::kWarning, -1, error.what());  // the GPU has failed, which await_end() sees
      }
    }
    if (together) {
      nccl.group_end();
    }
    is_aborted_ = true;
  });
}

void Nccl::await_end() noexcept {
  if (!is_revoked_) {
    return;
  }
  if (gpu_.is_elastic) {
    await_aborted();
  } else {
    await_launched();
  }
}

void Nccl::await_aborted() noexcept {
  auto deadline = base::Deadline::after_seconds(gpu_.patience.abort);
  while (!is_aborted_) {
    if (deadline.passed()) {
      end_process("NCCL does not abort its collectives. This worker ends, so that the others can go on");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  launch_.reset();
  // The marks of launches do not serve here: a launch that was broken off has none.
  deadline = base::Deadline::after_seconds(gpu_.patience.stuck);
  for (const Aborted& each : aborted_) {
    if (!is_idle(*each.gpu, deadline)) {
      end_process(
          "GPU " + std::to_string(each.gpu->device()) +
          " does not end what was put into its streams, or has failed. This worker ends, so that the others can "
          "go on");
    }
  }
}

void Nccl::await_launched() noexcept {
  const auto deadline = base::Deadline::after_seconds(gpu_.patience.stuck);
  for (const auto& communicator : dropped_) {
    if (communicator->last != nullptr && !device::wait_until_reached(*communicator->last, deadline)) {
      end_process("the world has ended while GPU " + std::to_string(communicator->gpu().device()) +
                  " waits for another rank in a collective of NCCL, which cannot end. This worker ends");
    }
  }
}

}  // namespace nccl

namespace {

std::unique_ptr<Backend> make_nccl(const World& world) { return std::make_unique<nccl::Nccl>(world); }

std::string probe_nccl(const std::string& path) {
  const nccl::Library& found = nccl::library(path);
  return "NCCL " + nccl::version_text(found.version) + " (" + found.path + ")";
}

constexpr uint32_t kNcclOperations =
    kAllOperations & ~(bit_of(Operation::kAdasum) | bit_of(Operation::kCompressedAllreduce));

}  // namespace

extern const Row kNccl;
const Row kNccl = {"nccl",
                   "collectives among GPUs by NVIDIA's library",
                   nullptr,
                   {.memory = bit_of(MemoryKind::kDevice),
                    .operations = kNcclOperations,
                    .across_hosts = true,
                    .takes = nccl::takes,
                    .launches = true},
                   make_nccl,
                   nullptr,
                   probe_nccl};

}  // namespace farandole::backend
