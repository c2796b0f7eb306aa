#include "backend/nccl/visitors.h"

#include <numeric>
#include <utility>
#include <variant>

namespace farandole::backend::nccl {

void Visitors::send_back() {
  for (const Return& each : returns_) {
    home_.copy(each.target, each.source, each.bytes, home_.collectives());
  }
}

// Returns null if the memory is on the communicator's GPU already.
std::byte* Visitors::place(const void* memory, size_t bytes) {
  if (memory == nullptr || bytes == 0 || home_.device_of(memory) == home_.device()) {
    return nullptr;
  }
  auto guest = guests_.find(memory);
  if (guest == guests_.end()) {
    guest = guests_.emplace(memory, device::Memory(home_, bytes, home_.collectives())).first;
  }
  return static_cast<std::byte*>(guest->second.data());
}

const void* Visitors::input(const void* memory, size_t bytes) {
  std::byte* const here = place(memory, bytes);
  if (here == nullptr) {
    return memory;
  }
  home_.copy(here, memory, bytes, home_.collectives());
  return here;
}

void* Visitors::output(void* memory, size_t bytes) {
  std::byte* const here = place(memory, bytes);
  if (here == nullptr) {
    return memory;
  }
  // Memory for received rows is allocated in the order of that stream.
  home_.delay(home_.collectives(), *gpus_.get(home_.device_of(memory)).mark_to_device());
  returns_.push_back({memory, here, bytes});
  return here;
}

void Visitors::bring(collective::AllreduceJob& job) {
  for (collective::Piece& piece : job.pieces) {
    const size_t bytes = piece.count * reduce::size_of(job.dtype);
    piece.input = input(piece.input, bytes);
    piece.output = output(piece.output, bytes);
  }
}

void Visitors::bring(collective::AlltoallJob& job) {
  const auto rows = static_cast<size_t>(std::reduce(job.rows.begin(), job.rows.end()));
  job.input = input(job.input, rows * job.row_bytes);
  job.output = [this, give = std::move(job.output), row_bytes = job.row_bytes](const std::vector<int64_t>& received) {
    const auto coming = static_cast<size_t>(std::reduce(received.begin(), received.end()));
    return output(give(received), coming * row_bytes);
  };
}

template <typename OneJob>
void Visitors::bring(OneJob& job) {
  job.input = input(job.input, job.input_bytes(rank_));
  job.output = output(job.output, job.output_bytes(rank_));
}

collective::Job Visitors::bring(collective::Job job) {
  std::visit([this](auto& each) { bring(each); }, job);
  return job;
}

}  // namespace farandole::backend::nccl
