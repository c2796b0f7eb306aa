#include "transport/setup_core.h"

#include "transport/setup_timeout.h"

namespace farandole::transport {

using base::Code;
using base::Error;

SetupCore::SetupCore(int rank, int size, uint64_t generation)
    : rank_(rank), generation_(generation), peers_(static_cast<size_t>(size)), shares_(static_cast<size_t>(size)) {}

void SetupCore::reset(PeerState& peer) {
  linked_ -= peer.linked ? 1 : 0;
  ready_ -= peer.ready ? 1 : 0;
  peer = {.refusal = peer.refusal};
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
      ready_ += from.ready ? 0 : 1;
      from.ready = true;
      shares_[static_cast<size_t>(peer)] = unpack_row(frame.text, others() + 1);
      break;
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

// The worker that has made this connection may have given up before it knew that it is proven here. Then it lives, and
// is only not linked. If it has died instead, those that have met it know, and its launcher does.
//
// When both are linked to all, the world may have formed for the other one, and have ended again. Then the cause is
// on its way, though perhaps not from there (revocation_graph.h).
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

std::optional<ControlFrame> SetupCore::announce() {
  if (announced_ || lacks_a_link()) {
    return std::nullopt;
  }
  announced_ = true;
  std::vector<bool> row;
  for (const PeerState& peer : peers_) {
    row.push_back(peer.shares_memory);
  }
  row[static_cast<size_t>(rank_)] = true;
  shares_[static_cast<size_t>(rank_)] = row;
  return ControlFrame(ControlKind::kReady, pack_row(row));
}

Error SetupCore::timeout() const {
  std::vector<UnreadyRank> unready;
  for (int rank = 0; rank <= others(); ++rank) {
    if (const PeerState& peer = state(rank); rank != rank_ && !peer.ready) {
      unready.push_back({.rank = rank, .linked = peer.linked, .refusal = peer.refusal});
    }
  }
  return setup_timeout(generation_, rank_, unready);
}

}  // namespace farandole::transport
