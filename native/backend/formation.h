// A backend that runs in a group only after its members have formed something there, such as a communicator of NCCL.
// Forming it may take long, so it goes on beside the work of other backends, and it can fail without harm to them.
//
//   introduce()  on each member, at its first request: what the others must know about it
//   prepare()    on rank 0, when all have introduced themselves: a key for all, or the reason why there is none
//   form()       on each member: begins to form it
//   formed()     on each member: what has been formed, or has failed
//   drop()       on each member, when that failed on one of them; and when the group is removed
//
// When all have formed it, rank 0 says so in a decision: the backend runs what is agreed on after that decision.
//
// Threads: as a backend's methods. None of these waits for other workers or for a GPU, but for await_end().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "collective/group.h"
#include "device/gpu.h"

namespace farandole::backend {

class Formation {
 public:
  virtual ~Formation() = default;

  // The tensors of this group are in the memory of this GPU.
  virtual base::Bytes introduce(const collective::Group& group, device::Gpu& gpu) = 0;
  // `introductions` are by index in the group. Throws Error(kUnavailable) with the reason.
  virtual base::Bytes prepare(const collective::Group& group, std::span<const base::Bytes> introductions) = 0;
  virtual void form(const collective::Group& group, std::span<const std::byte> key) = 0;
  struct Formed {
    uint32_t group;
    std::string error;  // empty: it is formed
  };
  // Each one once.
  virtual std::vector<Formed> formed() = 0;
  // Whether formed() has more, or will have.
  virtual bool is_forming() const noexcept = 0;
  virtual void drop(uint32_t group) noexcept = 0;

  // Throws Error(kUnavailable) when one of those in use has failed.
  virtual void check() = 0;
  // After revoke(): waits until nothing that was launched uses memory of the program any more. If that never happens,
  // it ends the process, with a message.
  virtual void await_end() noexcept = 0;
};

}  // namespace farandole::backend
