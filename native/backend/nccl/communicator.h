// A communicator of NCCL, from its forming to its end. Nothing here waits.
//
// Threads: for the thread that makes progress.
#pragma once

#include <span>
#include <string>

#include "backend/nccl/library.h"
#include "base/clock.h"
#include "collective/group.h"
#include "device/gpu.h"

namespace farandole::backend::nccl {

class Communicator {
 public:
  // For the tensors of this group, which are in the memory of this GPU.
  Communicator(const collective::Group& group, device::Gpu& gpu) : group_(group), gpu_(gpu) {}
  // An ended one, or one that stays until the process ends because NCCL may still use it.
  ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const collective::Group& group() const noexcept { return group_; }
  device::Gpu& gpu() const noexcept { return gpu_; }
  Comm handle() const noexcept { return comm_; }

  // Begins, with the others of the group. Throws Error(kUnavailable).
  void form(const Library& library, const UniqueId& id, double patience_seconds);
  // Whether form() was called, and what was begun is not over.
  bool is_forming() const noexcept { return state_ == State::kForming; }
  // Whether it is over. Throws Error(kUnavailable) when it has failed or takes too long.
  bool look();
  bool is_usable() const noexcept { return state_ == State::kFormed; }
  // Whether the last call, which did not block, is over. Throws Error(kUnavailable) when it has failed; `what` it was,
  // for people.
  bool is_settled(const char* what) const;

  // After the last launch, or null.
  device::MarkPointer last;

  // In good order, together with the others, when nothing runs any more. What cannot be ended in time stays until the
  // process ends.
  void end() noexcept;
  // Takes it out of NCCL's hands: the caller aborts what it gets; null: there is nothing to abort.
  Comm give_up() noexcept;

 private:
  enum class State : uint8_t { kNew, kForming, kFormed, kOver };

  const collective::Group group_;
  device::Gpu& gpu_;
  const Library* library_ = nullptr;
  Comm comm_ = nullptr;
  State state_ = State::kNew;
  base::Deadline deadline_ = base::Deadline::after_seconds(0);  // for forming
};

}  // namespace farandole::backend::nccl
