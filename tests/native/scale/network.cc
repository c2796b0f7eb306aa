#include "scale/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace farandole::scale {

Network::Network(Layout layout, Costs costs, uint64_t seed, Receiver& receiver)
    : layout_(layout),
      costs_(costs),
      receiver_(receiver),
      random_(seed),
      outboxes_(static_cast<size_t>(layout.size)),
      busy_until_ns_(static_cast<size_t>(layout.size)) {}

void Network::push(Event event) {
  event.number = next_number_++;
  events_.push(std::move(event));
}

int64_t Network::latency(int from, int to) {
  const int64_t least = layout_.share_a_host(from, to)   ? costs_.within_host
                        : layout_.share_a_rack(from, to) ? costs_.within_rack
                                                         : costs_.across;
  if (costs_.jitter == 0) {
    return least;
  }
  const double factor = std::lognormal_distribution<double>(0, costs_.jitter)(random_);
  return static_cast<int64_t>(static_cast<double>(least) * std::max(1.0, factor));
}

int64_t Network::occupy(int rank, int64_t at_ns) noexcept {
  int64_t& until_ns = busy_until_ns_[static_cast<size_t>(rank)];
  until_ns = std::max(until_ns, at_ns) + costs_.handling;
  return until_ns;
}

void Network::put_on_the_way(int from, int to, MessagePointer message, int64_t at_ns) {
  if (cut_ && cut_(from, to, *message, at_ns)) {
    return;
  }
  int64_t arrival_ns = at_ns + latency(from, to);
  if (costs_.jitter != 0) {
    int64_t& last_ns = last_arrival_ns_[static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to)];
    arrival_ns = last_ns = std::max(last_ns, arrival_ns);
  }
  push({.at_ns = arrival_ns,
        .number = 0,
        .what = Happens::kArrive,
        .rank = to,
        .from = from,
        .message = std::move(message)});
}

void Network::send_to(int from, std::vector<int> to, MessagePointer message, int64_t at_ns) {
  if (to.empty()) {
    return;
  }
  std::deque<Outgoing>& outbox = outboxes_[static_cast<size_t>(from)];
  outbox.push_back({std::move(to), 0, std::move(message)});
  if (outbox.size() == 1) {
    push({.at_ns = at_ns, .number = 0, .what = Happens::kSend, .rank = from});
  }
}

void Network::send_next(int rank, int64_t at_ns) {
  std::deque<Outgoing>& outbox = outboxes_[static_cast<size_t>(rank)];
  if (outbox.empty()) {
    return;
  }
  Outgoing& outgoing = outbox.front();
  const int64_t sent_ns = occupy(rank, at_ns);
  put_on_the_way(rank, outgoing.to[outgoing.next++], outgoing.message, sent_ns);
  if (outgoing.next == outgoing.to.size()) {
    outbox.pop_front();
  }
  if (!outbox.empty()) {
    push({.at_ns = sent_ns, .number = 0, .what = Happens::kSend, .rank = rank});
  }
}

void Network::end(int rank, const std::vector<int>& peers, int64_t at_ns) {
  outboxes_[static_cast<size_t>(rank)].clear();
  const auto message = std::make_shared<const Message>(Message{.kind = MessageKind::kEnd});
  for (const int peer : peers) {
    put_on_the_way(rank, peer, message, at_ns);
  }
}

void Network::close(int rank, std::vector<int> peers, int64_t at_ns) {
  send_to(rank, std::move(peers), std::make_shared<const Message>(Message{.kind = MessageKind::kEnd}), at_ns);
}

void Network::break_lifeline(int rank, const std::vector<int>& mates, int64_t at_ns) {
  const auto message = std::make_shared<const Message>(Message{.kind = MessageKind::kLifeline});
  for (const int mate : mates) {
    put_on_the_way(rank, mate, message, at_ns);
  }
}

void Network::delay(int rank, int64_t until_ns) noexcept {
  int64_t& busy_until_ns = busy_until_ns_[static_cast<size_t>(rank)];
  busy_until_ns = std::max(busy_until_ns, until_ns);
}

void Network::call_tick(int rank, int64_t at_ns) {
  push({.at_ns = std::max(at_ns, now_ns_), .number = 0, .what = Happens::kTick, .rank = rank});
}

void Network::call(std::function<void()> action, int64_t at_ns) {
  push({.at_ns = at_ns,
        .number = 0,
        .what = Happens::kAction,
        .rank = -1,
        .action = std::make_shared<std::function<void()>>(std::move(action))});
}

void Network::run(int64_t until_ns) {
  while (!events_.empty() && events_.top().at_ns <= until_ns) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.at_ns;
    handle(event);
  }
}

void Network::handle(const Event& event) {
  switch (event.what) {
    case Happens::kSend:
      send_next(event.rank, event.at_ns);
      break;
    case Happens::kArrive:
      receiver_.receive(event.rank, event.from, *event.message, occupy(event.rank, event.at_ns));
      break;
    case Happens::kTick:
      receiver_.tick(event.rank, event.at_ns);
      break;
    case Happens::kAction:
      (*event.action)();
      break;
  }
}

}  // namespace farandole::scale
