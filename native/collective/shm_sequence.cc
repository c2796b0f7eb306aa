#include "collective/shm_sequence.h"

#include <algorithm>

namespace farandole::collective {
namespace {

// A bit of an announcement, beside the offset. No arena is that long.
constexpr uint64_t kInPlace = uint64_t{1} << 63;

}  // namespace

uint64_t ShmSequence::publish(std::span<const int> team) {
  transport::Mesh& mesh = frames_.mesh();
  mesh.arena(mesh.rank())->header().sequence.store(++current_, std::memory_order_release);
  for (const int rank : team) {
    if (rank != mesh.rank()) {
      mesh.wake(rank, transport::Sleep::kMidway);
    }
  }
  return current_;
}

void ShmSequence::place(int window, size_t offset, bool in_place) {
  settle(window);
  transport::Mesh& mesh = frames_.mesh();
  mesh.arena(mesh.rank())->header().offset[window].store(offset | (in_place ? kInPlace : 0), std::memory_order_relaxed);
}

uint64_t ShmSequence::publish_at(std::span<const int> team, int window, size_t offset, bool in_place) {
  place(window, offset, in_place);
  return publish(team);
}

void ShmSequence::wait_for(std::span<const int> team, uint64_t number) {
  transport::Mesh& mesh = frames_.mesh();
  size_t arrived = 0;
  frames_.wait([&] {
    while (arrived < team.size() &&
           mesh.arena(team[arrived])->header().sequence.load(std::memory_order_acquire) >= number) {
      ++arrived;
    }
    if (arrived < team.size()) {
      frames_.set_awaited(team[arrived]);
    }
    return arrived == team.size();
  });
}

bool ShmSequence::reached(std::span<const int> team, uint64_t number) const noexcept {
  return std::ranges::all_of(team, [&](int rank) {
    return frames_.mesh().arena(rank)->header().sequence.load(std::memory_order_acquire) >= number;
  });
}

std::byte* ShmSequence::data_of(int rank, int window) const {
  const transport::ArenaView& arena = *frames_.mesh().arena(rank);
  return arena.base + (arena.header().offset[window].load(std::memory_order_relaxed) & ~kInPlace);
}

bool ShmSequence::is_in_place(int rank, int window) const {
  const transport::ArenaView& arena = *frames_.mesh().arena(rank);
  return (arena.header().offset[window].load(std::memory_order_relaxed) & kInPlace) != 0;
}

void ShmSequence::lend(int window, std::span<const int> team, uint64_t until) {
  loans_[static_cast<size_t>(window)] = {{team.begin(), team.end()}, until};
}

void ShmSequence::settle(int window) {
  Loan& loan = loans_[static_cast<size_t>(window)];
  if (loan.until != 0) {
    wait_for(loan.team, loan.until);
    loan.until = 0;
  }
}

}  // namespace farandole::collective
