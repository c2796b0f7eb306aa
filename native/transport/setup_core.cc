#include "transport/setup_core.h"

#include <algorithm>
#include <string>

#include "transport/setup_timeout.h"
#include "transport/start_graph.h"

namespace farandole::transport {

using base::Code;
using base::Error;

namespace {

constexpr const char* kSetHostKeys = "; give the workers of each host a text of their own in FARANDOLE_HOST_KEY";

}  // namespace

SetupCore::SetupCore(int rank, uint64_t generation, std::span<const int> hosts)
    : rank_(rank), generation_(generation), hosts_(hosts), ranks_(start_peers(rank, hosts)), peers_(ranks_.size()) {
  for (const int peer : ranks_) {
    state(peer).is_child = peer > 0 && start_parent(peer, size()) == rank_;
  }
}

bool SetupCore::is_peer(int rank) const noexcept { return std::ranges::binary_search(ranks_, rank); }

size_t SetupCore::index_of(int peer) const noexcept {
  return static_cast<size_t>(std::ranges::lower_bound(ranks_, peer) - ranks_.begin());
}

int SetupCore::parent() const noexcept { return start_parent(rank_, size()); }

std::vector<int> SetupCore::children() const {
  std::vector<int> children;
  std::ranges::copy_if(ranks_, std::back_inserter(children), [this](int peer) { return state(peer).is_child; });
  return children;
}

std::vector<int> SetupCore::unready_children() const {
  std::vector<int> unready = children();
  std::erase_if(unready, [this](int peer) { return state(peer).ready; });
  return unready;
}

void SetupCore::reset(PeerState& peer) {
  linked_ -= peer.linked ? 1 : 0;
  peer = {.is_child = peer.is_child, .refusal = peer.refusal};
}

void SetupCore::join(int peer, bool connector, bool shares_memory) {
  PeerState& joined = state(peer);
  reset(joined);
  joined.mutual = connector;
  joined.shares_memory = shares_memory;
}

void SetupCore::link(int peer) noexcept {
  PeerState& linked = state(peer);
  linked_ += linked.linked ? 0 : 1;
  linked.linked = true;
}

std::optional<Cause> SetupCore::receive(int peer, const ControlFrame& frame) {
  PeerState& from = state(peer);
  from.mutual = true;
  switch (frame.kind) {
    case ControlKind::kReady:
    case ControlKind::kFormed:
      return take_corrections(peer, frame);
    case ControlKind::kRevoke:
      return cause_of(frame);
    case ControlKind::kAbandon:
      throw Error(Code::kTimeout, frame.text, frame.rank);
    case ControlKind::kGoodbye:
      from.left = true;
      break;
    case ControlKind::kHeartbeat:
      break;
  }
  return std::nullopt;
}

std::optional<Cause> SetupCore::take_corrections(int peer, const ControlFrame& frame) {
  PeerState& from = state(peer);
  const bool is_answer = frame.kind == ControlKind::kFormed;
  const bool expected = is_answer ? rank_ > 0 && peer == parent() && stage_ == Stage::kReady : from.is_child;
  const auto corrections = parse_host_corrections(frame.text, size());
  if (!expected || !corrections) {
    return Cause{.rank = peer, .sign = Sign::kBroken, .text = describe_loss(peer, Sign::kBroken)};
  }
  if (is_answer) {
    stage_ = Stage::kAgreed;
    corrections_ = *corrections;
    return std::nullopt;
  }
  from.ready = true;
  for (const auto& [rank, lowest] : *corrections) {
    corrections_.insert_or_assign(rank, lowest);
  }
  return std::nullopt;
}

// The worker that has made this connection may have given up before it knew that it is proven here. Then it lives, and
// is only not linked. If it has died instead, those that have met it know, and its launcher does.
//
// When this worker is ready, the world may have formed for the other one, and have ended again. Then the cause is on
// its way, though perhaps not from there (revocation_graph.h).
std::optional<Cause> SetupCore::end(int peer, Sign sign) {
  PeerState& ended = state(peer);
  if (ended.left || (sign == Sign::kClosed && may_have_left(peer))) {
    return std::nullopt;
  }
  if (ended.mutual) {
    return Cause{.rank = peer, .sign = sign, .text = describe_loss(peer, sign)};
  }
  reset(ended);
  return std::nullopt;
}

// A worker that may have left a world that had formed may also have died: in a job of fixed size, programs end when
// their world has ended. If it has died before that instead, it is the loss, and others report it: its host's watch
// where the one that watches it passes causes on to it, as the rank below it does, and otherwise those workers that it
// would have told, when the kernel closes its connections. Each of them takes the end for a loss, whether the world has
// formed there or not, and what it passes on ends the set-up here. If the world forms here before, the watch judges the
// death.
std::optional<Cause> SetupCore::die(int peer) const {
  if (keeps(peer)) {
    return std::nullopt;
  }
  return Cause{.rank = peer, .sign = Sign::kClosed, .text = describe_loss(peer, Sign::kClosed)};
}

std::optional<SetupCore::Outgoing> SetupCore::take_outgoing() {
  if (stage_ == Stage::kLinking && !lacks_a_link() && unready_children().empty()) {
    correct_own_host();
    stage_ = rank_ == 0 ? Stage::kAgreed : Stage::kReady;
    if (rank_ != 0) {
      return Outgoing{.frame = frame_with_corrections(ControlKind::kReady), .to = {parent()}};
    }
  }
  if (stage_ == Stage::kAgreed) {
    stage_ = Stage::kFormed;
    if (auto below = children(); !below.empty()) {
      return Outgoing{.frame = frame_with_corrections(ControlKind::kFormed), .to = std::move(below)};
    }
  }
  return std::nullopt;
}

bool SetupCore::shares_memory(int rank) const { return rank == rank_ || (is_peer(rank) && state(rank).shares_memory); }

void SetupCore::correct_own_host() {
  const auto mate = std::ranges::find_if(ranks_, [this](int rank) { return shares_memory(rank); });
  const int lowest = mate == ranks_.end() ? rank_ : std::min(rank_, *mate);
  if (lowest != hosts_[static_cast<size_t>(rank_)]) {
    corrections_.insert_or_assign(rank_, lowest);
  }
}

ControlFrame SetupCore::frame_with_corrections(ControlKind kind) const {
  ControlFrame frame(kind, to_text(corrections_));
  if (frame.text.size() > ControlFrame::kLongestText) {
    throw Error(Code::kUnavailable,
                "too many workers share no memory although their hosts seem to be the same, such as rank " +
                    std::to_string(corrections_.begin()->first) + kSetHostKeys);
  }
  return frame;
}

std::vector<int> SetupCore::hosts() const {
  std::vector<int> hosts(hosts_.begin(), hosts_.end());
  for (const auto& [rank, lowest] : corrections_) {
    hosts[static_cast<size_t>(rank)] = lowest;
  }
  const int own = hosts[static_cast<size_t>(rank_)];
  for (int rank = 0; rank < size(); ++rank) {
    if (hosts[static_cast<size_t>(rank)] == own && !shares_memory(rank)) {
      throw Error(Code::kUnavailable, "rank " + std::to_string(own) + " shares memory with the ranks " +
                                          std::to_string(rank_) + " and " + std::to_string(rank) +
                                          ", which do not share any with each other" + kSetHostKeys);
    }
  }
  return hosts;
}

// A worker that lacks a link knows which rank is missing. After these, a worker that waits for others below it gives up
// before the workers above it, and at last a worker that waits for its answer before those below it.
double SetupCore::give_up_part() const {
  const double edges = deepest_start(size());
  const double depth = start_depth(rank_, size());
  if (lacks_a_link()) {
    return 0;
  }
  return stage_ == Stage::kLinking ? 0.5 * (1 - depth / edges) : 0.5 * (1 + depth / edges);
}

Error SetupCore::timeout() const {
  std::vector<MissingRank> missing;
  for (const int peer : ranks_) {
    if (!state(peer).linked) {
      missing.push_back({.rank = peer, .refusal = state(peer).refusal});
    }
  }
  if (!missing.empty()) {
    return missing_links(generation_, rank_, missing);
  }
  if (stage_ == Stage::kLinking) {
    return missing_reports(generation_, rank_, unready_children());
  }
  return missing_answer(generation_, rank_, parent());
}

}  // namespace farandole::transport
