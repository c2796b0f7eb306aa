// The one exception type of the native core. It is turned into a status code and a message at the
// C ABI and nowhere else. A broken invariant is not an Error but an assert.
#pragma once

#include <stdexcept>
#include <string>

namespace farandole::base {

// The values are part of the C ABI (FARANDOLE_* in capi/farandole.h).
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // this call is wrong, whatever the other ranks do
  kMismatch = 2,         // the ranks asked for different things under one name; the job goes on
  kWorkerLost = 3,       // a worker died, fell silent or was cut off; this generation is over
  kShutDown = 4,         // a worker left in good order; this generation is over
  kTimeout = 5,
  kUnavailable = 6,  // the operating system refused: memory, descriptors, addresses
  kInternal = 7,     // a bug of ours, reported instead of a wrong number
  kStalled = 8,      // some ranks did not ask for what others waited for; this generation is over
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message, int lost_rank = -1)
      : std::runtime_error(message), code_(code), lost_rank_(lost_rank) {}

  Code code() const noexcept { return code_; }
  // The rank that was lost or left, in the world whose generation ended; -1 where that has no meaning.
  int lost_rank() const noexcept { return lost_rank_; }

 private:
  Code code_;
  int lost_rank_;
};

}  // namespace farandole::base
