// Simulated time and a simulated network between ranks: one queue of events in the order of (time, number), so that the
// same seed gives the same run. No threads, no clock.
//
// A message takes the latency of its way, more by chance, and waits at its receiver, which takes messages one after the
// other. What one rank sends to another comes in order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "transport/control.h"
#include "transport/handshake.h"

namespace farandole::scale {

inline constexpr int64_t kMicrosecond = 1'000;
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

struct Layout {
  int size = 2;
  int ranks_per_host = 8;
  int hosts_per_rack = 16;
  std::optional<int> fanout{};  // of agreement: see engine::choose_fanout()

  int host_of(int rank) const noexcept { return rank / ranks_per_host; }
  bool share_a_host(int a, int b) const noexcept { return host_of(a) == host_of(b); }
  bool share_a_rack(int a, int b) const noexcept { return host_of(a) / hosts_per_rack == host_of(b) / hosts_per_rack; }
  int hosts() const noexcept { return (size + ranks_per_host - 1) / ranks_per_host; }
};

struct Costs {
  int64_t within_host = 2 * kMicrosecond;
  int64_t within_rack = 10 * kMicrosecond;
  int64_t across = 50 * kMicrosecond;
  int64_t handling = 1'500;  // of a message, by its receiver, and by its sender
  double jitter = 0;         // the sigma of a factor of the latency, lognormal
};

enum class MessageKind : uint8_t {
  kHello,  // the four of the handshake
  kChallenge,
  kProof,
  kWelcome,
  kShmOffer,  // the exchange of two workers that share memory
  kControl,
  kReady,     // agreement: a rank to its parent
  kDecision,  // and a rank to its children
  kEnd,       // the connection has ended: the kernel says so, no message is sent
  kLifeline,  // the sender's lifeline has broken, as the workers of its host see in its memory
};

struct Message {
  MessageKind kind = MessageKind::kControl;
  transport::Channel channel = transport::Channel::kControl;            // of a handshake
  transport::ControlFrame control{transport::ControlKind::kHeartbeat};  // of kControl
  base::Bytes bytes{};                                                  // of agreement
};
using MessagePointer = std::shared_ptr<const Message>;

// What is on the network: told of what happens, in order. `now_ns` is when the receiver has handled what came before.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void receive(int to, int from, const Message& message, int64_t now_ns) = 0;
  virtual void tick(int rank, int64_t now_ns) = 0;
};

class Network {
 public:
  // True: what is sent now from one to the other is lost, as if the network were cut.
  using Cut = std::function<bool(int from, int to, const Message& message, int64_t now_ns)>;

  Network(Layout layout, Costs costs, uint64_t seed, Receiver& receiver);

  const Layout& layout() const noexcept { return layout_; }
  int64_t now_ns() const noexcept { return now_ns_; }
  void set_cut(Cut cut) { cut_ = std::move(cut); }

  void send(int from, int to, MessagePointer message, int64_t at_ns) { send_to(from, {to}, std::move(message), at_ns); }
  // To these ranks, one after the other.
  void send_to(int from, std::vector<int> to, MessagePointer message, int64_t at_ns);
  // The process of this rank is gone: what it has not sent yet is lost, and these ranks see its connections end.
  void end(int rank, const std::vector<int>& peers, int64_t at_ns);
  // The same in good order: what it has not sent yet goes first.
  void close(int rank, std::vector<int> peers, int64_t at_ns);
  // The process of this rank dies: these ranks see it after what they were sent before.
  void break_lifeline(int rank, const std::vector<int>& mates, int64_t at_ns);
  // This rank gets no processor until then.
  void delay(int rank, int64_t until_ns) noexcept;
  void call_tick(int rank, int64_t at_ns);
  void call(std::function<void()> action, int64_t at_ns);

  // Until nothing is left, or until then.
  void run(int64_t until_ns);

 private:
  // What a rank sends goes through its outbox, from which one event of the queue takes the next one: so a message to
  // all is one entry, however many they are.
  struct Outgoing {
    std::vector<int> to;
    size_t next;
    MessagePointer message;
  };
  enum class Happens : uint8_t { kSend, kArrive, kTick, kAction };
  struct Event {
    int64_t at_ns;
    uint64_t number;
    Happens what;
    int rank;  // to which it happens
    int from = -1;
    MessagePointer message{};
    std::shared_ptr<std::function<void()>> action{};

    bool operator>(const Event& other) const noexcept {
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };

  void push(Event event);
  void put_on_the_way(int from, int to, MessagePointer message, int64_t at_ns);
  void handle(const Event& event);
  void send_next(int rank, int64_t at_ns);
  int64_t latency(int from, int to);
  int64_t occupy(int rank, int64_t at_ns) noexcept;

  const Layout layout_;
  const Costs costs_;
  Receiver& receiver_;
  Cut cut_;
  std::mt19937_64 random_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::deque<Outgoing>> outboxes_;             // by rank
  std::vector<int64_t> busy_until_ns_;                     // by rank
  std::unordered_map<uint64_t, int64_t> last_arrival_ns_;  // of a pair, where latencies differ
  uint64_t next_number_ = 0;
  int64_t now_ns_ = 0;
};

}  // namespace farandole::scale
