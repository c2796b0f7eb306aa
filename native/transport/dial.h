// Reaching one worker from below: it may have several addresses, may not listen yet, or may be in an earlier
// generation. All ways are tried at once and again, until one has brought a proven connection.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/attempt.h"
#include "transport/socket.h"

namespace farandole::transport {

class Dial {
 public:
  // A Unix address comes first, if there is one, and is tried alone: the others serve when it is refused,
  // because the worker is on another machine or in another network namespace.
  Dial(const std::vector<Address>& addresses, std::string secret, const Hello& hello, const base::Deadline& deadline);

  // Begins every attempt that is due. Throws Error(kUnavailable) when no descriptor is left.
  void start();
  void collect(std::vector<Attempt*>& attempts) const;
  // When start() has something to do next, in the time of now_ns(); INT64_MAX: only after settle().
  int64_t next_start_ns() const noexcept;

  struct Reached {
    PrivateFd fd;
    Address address;
  };
  // Looks at how the attempts came out. Gives the connection once there is one; the dial is over then.
  std::optional<Reached> settle();

  // Why the last attempt that had a reason was refused.
  Refusal refusal() const noexcept { return refusal_; }

 private:
  struct Route {
    Address address;
    std::unique_ptr<Attempt> attempt;
    int64_t next_start_ns = 0;
    int64_t pause_ns = 0;
  };

  bool open(const Route& route) const noexcept;
  void start(Route& route);
  void put_off(Route& route);
  void choose(Route& route);

  std::vector<Route> routes_;
  std::string secret_;
  Hello hello_;
  base::Deadline deadline_;
  bool unix_refused_ = false;
  bool over_ = false;
  Route* chosen_ = nullptr;  // the only one that goes on after the challenge
  Refusal refusal_ = Refusal::kNone;
};

}  // namespace farandole::transport
