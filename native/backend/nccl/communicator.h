// A communicator of NCCL, from its formation to its end. No function here waits.
//
// Threads: only the thread that makes progress uses it.
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
  // A communicator for the tensors of this group, which are in the memory of this GPU.
  Communicator(const collective::Group& group, device::Gpu& gpu) : group_(group), gpu_(gpu) {}
  // The communicator must have ended, or stays until the process ends because NCCL may still use it.
  ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const collective::Group& group() const noexcept { return group_; }
  device::Gpu& gpu() const noexcept { return gpu_; }
  Comm handle() const noexcept { return comm_; }

  // Begins to form the communicator, together with the other members of the group. Throws Error(kUnavailable).
  void form(const Library& library, const UniqueId& id, double patience_seconds);
  // Whether form() was called, and the formation is not over.
  bool is_forming() const noexcept { return state_ == State::kForming; }
  // Returns whether the formation is over. Throws Error(kUnavailable) when it has failed or takes too long.
  bool look();
  bool is_usable() const noexcept { return state_ == State::kFormed; }
  // Whether the last non-blocking call is over. Throws Error(kUnavailable) when it has failed; `what` names the call,
  // for people.
  bool is_settled(const char* what) const;

  // A mark after the last launch, or null.
  device::MarkPointer last;

  // Ends the communicator in order, together with the other members, when nothing runs any more. If it cannot be ended
  // in time, it stays until the process ends.
  void end() noexcept;
  // Gives the communicator up. The caller aborts the returned handle; null: there is nothing to abort.
  Comm give_up() noexcept;

 private:
  enum class State : uint8_t { kNew, kForming, kFormed, kOver };

  const collective::Group group_;
  device::Gpu& gpu_;
  const Library* library_ = nullptr;
  Comm comm_ = nullptr;
  State state_ = State::kNew;
  base::Deadline deadline_ = base::Deadline::after_seconds(0);  // of the formation
};

}  // namespace farandole::backend::nccl
