// Reaching one worker of a lower rank: it may have several addresses, may not listen yet, or may be in an earlier
// generation. All ways to it, its *routes*, are tried at once and again, until one has brought a proven connection.
//
// The addresses come in the worker's order of preference. A route on which it has proven itself
// is *convinced*. The first one of these is not always the best one: while one that is preferred to it is still under
// way, it gets a short grace period. An address without any answer, such as one behind a firewall that
// drops packets, costs that period and no more.
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

  // A dial has no clock: `now_ns` is the time of base::now_ns().

  // Begins every attempt that is due. Throws Error(kUnavailable) when no descriptor is left.
  void start(int64_t now_ns);
  void collect(std::vector<Attempt*>& attempts) const;
  // Returns when start() or settle() has something to do next, even if no attempt moves; INT64_MAX: never.
  int64_t next_turn_ns() const noexcept;

  struct Reached {
    PrivateFd fd;
    Address address;
  };
  // Checks the outcomes of the attempts. Returns the connection once there is one; the dial is over then.
  std::optional<Reached> settle(int64_t now_ns);

  // The reason of the last attempt that was refused with one.
  Refusal refusal() const noexcept { return refusal_; }

 private:
  struct Route {
    Address address;
    std::unique_ptr<Attempt> attempt;
    int64_t started_ns = 0;
    int64_t next_start_ns = 0;
    int64_t pause_ns = 0;
    bool connected = false;  // the last attempt that ended had come as far as a connection
  };
  static constexpr int64_t kNever = INT64_MAX;

  bool open(const Route& route) const noexcept;
  bool may_come(const Route& route) const noexcept;
  void start(Route& route, int64_t now_ns);
  void put_off(Route& route, bool connected, int64_t now_ns);
  void put_off_failed(int64_t now_ns);
  void choose(int64_t now_ns);
  void prove(Route& route);

  std::vector<Route> routes_;
  std::string secret_;
  Hello hello_;
  base::Deadline deadline_;
  bool unix_refused_ = false;
  bool over_ = false;
  int64_t grace_end_ns_ = kNever;  // until when the convinced routes wait for a better one; kNever: there are none
  Route* chosen_ = nullptr;        // the only one that goes on after the challenge
  Refusal refusal_ = Refusal::kNone;
};

}  // namespace farandole::transport
