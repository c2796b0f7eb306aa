#include "collective/steps.h"

#include <algorithm>

namespace farandole::collective {
namespace {

// Of what a slot says. No arena is that long.
constexpr uint64_t kInPlace = uint64_t{1} << 63;

}  // namespace

uint64_t Steps::publish(std::span<const int> team) {
  transport::Mesh& mesh = pump_.mesh();
  mesh.arena(mesh.rank())->header().step.store(++step_, std::memory_order_release);
  for (const int rank : team) {
    if (rank != mesh.rank()) {
      mesh.wake(rank);
    }
  }
  return step_;
}

void Steps::place(int slot, size_t offset, bool in_place) {
  settle(slot);
  transport::Mesh& mesh = pump_.mesh();
  mesh.arena(mesh.rank())->header().offset[slot].store(offset | (in_place ? kInPlace : 0), std::memory_order_relaxed);
}

uint64_t Steps::publish_at(std::span<const int> team, int slot, size_t offset, bool in_place) {
  place(slot, offset, in_place);
  return publish(team);
}

void Steps::wait_for(std::span<const int> team, uint64_t step) {
  transport::Mesh& mesh = pump_.mesh();
  size_t arrived = 0;
  pump_.wait([&] {
    while (arrived < team.size() && mesh.arena(team[arrived])->header().step.load(std::memory_order_acquire) >= step) {
      ++arrived;
    }
    return arrived == team.size();
  });
}

bool Steps::reached(std::span<const int> team, uint64_t step) const noexcept {
  return std::ranges::all_of(
      team, [&](int rank) { return pump_.mesh().arena(rank)->header().step.load(std::memory_order_acquire) >= step; });
}

std::byte* Steps::data_of(int rank, int slot) const {
  const transport::ArenaView& arena = *pump_.mesh().arena(rank);
  return arena.base + (arena.header().offset[slot].load(std::memory_order_relaxed) & ~kInPlace);
}

bool Steps::is_in_place(int rank, int slot) const {
  const transport::ArenaView& arena = *pump_.mesh().arena(rank);
  return (arena.header().offset[slot].load(std::memory_order_relaxed) & kInPlace) != 0;
}

void Steps::lend(int slot, std::span<const int> team, uint64_t step) {
  loans_[static_cast<size_t>(slot)] = {{team.begin(), team.end()}, step};
}

void Steps::settle(int slot) {
  Loan& loan = loans_[static_cast<size_t>(slot)];
  if (loan.until_step != 0) {
    wait_for(loan.team, loan.until_step);
    loan.until_step = 0;
  }
}

std::byte* Staging::private_memory(int lane, size_t bytes) {
  Private& own = private_[static_cast<size_t>(lane)];
  if (own.bytes < bytes) {
    own.memory.reset();
    own.memory = std::make_unique_for_overwrite<std::byte[]>(bytes + transport::kArenaAlignment);
    own.bytes = bytes;
  }
  void* address = own.memory.get();
  size_t room = own.bytes + transport::kArenaAlignment;
  return static_cast<std::byte*>(std::align(transport::kArenaAlignment, own.bytes, address, room));
}

}  // namespace farandole::collective
