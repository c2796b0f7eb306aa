#include "transport/watch_core.h"

#include <algorithm>

#include "transport/revocation_graph.h"

namespace farandole::transport {
namespace {

// Heartbeats fit many times into the deadline, however short that is. But each costs two threads a wake-up.
constexpr int64_t kBeatsInDeadline = 10;
// How long the cause may take to come from others when a process has certainly ended.
constexpr int64_t kMostPatienceAfterDeathNs = 100'000'000;
constexpr int kNeighbourDistance = 2;

bool is_neighbour(int rank, int other, int size) {
  return rank != other && distance_of(rank, other, size) <= kNeighbourDistance;
}

}  // namespace

WatchCore::WatchCore(int rank, int size, const std::vector<int>& peers, double deadline_seconds, int64_t now_ns)
    : rank_(rank),
      size_(size),
      deadline_ns_(std::max<int64_t>(static_cast<int64_t>(deadline_seconds * 1e9), 1'000'000)),
      next_beat_ns_(now_ns),
      next_tick_ns_(now_ns) {
  for (const int peer : peers) {
    peers_.push_back({.rank = peer});
    if (is_neighbour(rank, peer, size)) {
      neighbours_.push_back({peer, now_ns});
    }
  }
}

void WatchCore::add(int peer) {
  peers_.insert(std::ranges::lower_bound(peers_, peer, {}, &PeerState::rank), {.rank = peer});
}

std::optional<Cause> WatchCore::receive(int from, const ControlFrame& frame, int64_t now_ns) {
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.rank == from) {
      neighbour.heard_ns = now_ns;
    }
  }
  if (frame.kind == ControlKind::kGoodbye) {
    state(from).left = true;
  } else if (frame.kind == ControlKind::kRevoke && !left_) {
    return cause_of(frame);
  } else if (frame.kind == ControlKind::kAbandon && !left_) {
    // The world formed here, but not there: a rank fell silent when it had told some that it was ready, and some not.
    return Cause{.rank = frame.rank, .sign = Sign::kSilent, .text = frame.text};
  }
  return std::nullopt;
}

bool WatchCore::tells_us(int rank) const noexcept { return tell_each_other(rank, rank_, size_); }

std::optional<Cause> WatchCore::end(int rank, Sign sign, int64_t now_ns) {
  state(rank).ended = true;
  if (sign == Sign::kClosed && !tells_us(rank)) {
    suspect(rank, sign, now_ns);
    return std::nullopt;
  }
  return loss_of(rank, sign);
}

std::optional<Cause> WatchCore::die(int rank, int64_t now_ns) {
  state(rank).ended = true;
  if (tells_us(rank)) {
    return loss_of(rank, Sign::kClosed);
  }
  add_suspect({.rank = rank,
               .sign = Sign::kClosed,
               .since_ns = now_ns,
               .patience_ns = std::min(kMostPatienceAfterDeathNs, deadline_ns_ / 5),
               .has_died = true});
  return std::nullopt;
}

// A worker that does not tell this one and has closed its connection may have left a world that has ended, and be
// alive. If no revocation comes, all that is known is that nothing more comes from that worker.
void WatchCore::suspect(int rank, Sign sign, int64_t now_ns) {
  const bool may_have_left = sign == Sign::kClosed && !tells_us(rank);
  add_suspect({.rank = rank,
               .sign = may_have_left ? Sign::kSilent : sign,
               .since_ns = now_ns,
               .patience_ns = may_have_left ? deadline_ns_ : deadline_ns_ / 2});
}

void WatchCore::add_suspect(const Suspect& suspect) {
  const auto at = std::ranges::lower_bound(suspects_, suspect.rank, {}, &Suspect::rank);
  if (at == suspects_.end() || at->rank != suspect.rank) {
    suspects_.insert(at, suspect);
  } else if (suspect.has_died) {
    *at = suspect;
  } else if (!at->has_died) {
    at->sign = suspect.sign;
  }
  next_tick_ns_ = std::min(next_tick_ns_, suspect.since_ns + suspect.patience_ns);
}

std::optional<Cause> WatchCore::loss_of(int rank, Sign sign) const {
  if (!may_be_lost(rank)) {
    return std::nullopt;
  }
  return Cause{.rank = rank, .sign = sign, .text = describe_loss(rank, sign)};
}

WatchCore::Tick WatchCore::tick(int64_t now_ns) {
  if (now_ns - next_tick_ns_ > deadline_ns_ / 2) {
    restart_clocks(now_ns);
  }
  const bool beats = now_ns >= next_beat_ns_;
  if (beats) {
    next_beat_ns_ = now_ns + deadline_ns_ / kBeatsInDeadline;
  }
  Tick tick{.cause = over_ ? std::nullopt : first_loss(now_ns), .beats = {}};
  for (const Neighbour& neighbour : neighbours_) {
    if (beats && !over_ && !has_ended(neighbour.rank)) {
      tick.beats.push_back(neighbour.rank);
    }
  }
  next_tick_ns_ = next_due();
  return tick;
}

template <typename Visit>
void WatchCore::for_each_pending_loss(const Visit& visit) const {
  for (const Suspect& suspect : suspects_) {
    if (may_be_lost(suspect.rank)) {
      visit(suspect.rank, suspect.sign, suspect.since_ns + suspect.patience_ns);
    }
  }
  for (const Neighbour& neighbour : neighbours_) {
    if (may_be_lost(neighbour.rank)) {
      visit(neighbour.rank, Sign::kSilent, neighbour.heard_ns + deadline_ns_);
    }
  }
}

// The suspicion about the lowest rank; if there are two signs for one rank, the end of its link, which says more than
// silence.
std::optional<Cause> WatchCore::first_loss(int64_t now_ns) const {
  std::optional<Cause> first;
  for_each_pending_loss([&](int rank, Sign sign, int64_t due_ns) {
    if (due_ns <= now_ns && (!first || rank < first->rank)) {
      first = loss_of(rank, sign);
    }
  });
  return first;
}

int64_t WatchCore::next_due() const {
  int64_t first_ns = next_beat_ns_;
  if (!over_) {
    for_each_pending_loss([&](int, Sign, int64_t due_ns) { first_ns = std::min(first_ns, due_ns); });
  }
  return first_ns;
}

// A tick that comes far too late: this machine or process was stopped, not the others. What they
// sent meanwhile may not be read yet.
void WatchCore::restart_clocks(int64_t now_ns) {
  for (Neighbour& neighbour : neighbours_) {
    neighbour.heard_ns = now_ns;
  }
  for (Suspect& suspect : suspects_) {
    suspect.since_ns = now_ns;
  }
}

// A worker that has said goodbye has nothing to do with it any more; the others may still finish their last work.
std::optional<WatchCore::Outgoing> WatchCore::spread(const Cause& cause) {
  if (over_) {
    return std::nullopt;
  }
  over_ = true;
  if (left_) {
    return std::nullopt;
  }
  return Outgoing{.frame = revoke_frame(cause), .to = connected(/*only_told=*/!lacks_forwarder())};
}

std::optional<WatchCore::Outgoing> WatchCore::leave() {
  if (left_) {
    return std::nullopt;
  }
  left_ = true;
  return Outgoing{.frame = ControlFrame(ControlKind::kGoodbye), .to = connected(/*only_told=*/false)};
}

// A worker that has said goodbye passes nothing on. Perhaps it was the only way to some of the remaining workers.
bool WatchCore::lacks_forwarder() const {
  return std::ranges::any_of(peers_, [this](const PeerState& peer) { return peer.left && tells_us(peer.rank); });
}

std::vector<int> WatchCore::connected(bool only_told) const {
  std::vector<int> ranks;
  for (const PeerState& peer : peers_) {
    if (!peer.ended && (!only_told || tells_us(peer.rank))) {
      ranks.push_back(peer.rank);
    }
  }
  return ranks;
}

std::vector<int> WatchCore::running() const {
  std::vector<int> ranks;
  for (const PeerState& peer : peers_) {
    if (!peer.ended && !peer.left) {
      ranks.push_back(peer.rank);
    }
  }
  return ranks;
}

}  // namespace farandole::transport
