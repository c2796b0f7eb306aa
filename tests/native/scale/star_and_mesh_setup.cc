// The set-up of a simulated mesh: what MeshSetup does with sockets, for every rank.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "scale/star_and_mesh.h"

namespace farandole::scale {

using transport::Channel;
using transport::ControlFrame;
using transport::ControlKind;
using transport::Sign;

namespace {

constexpr int64_t kDeathWatchAfter = 20 * kMillisecond;
constexpr int64_t kMostLastMoments = 500 * kMillisecond;

}  // namespace

void StarAndMesh::connect(const std::function<int64_t(int)>& starts_ns, int64_t patience_ns) {
  for (int rank = 0; rank < network_.layout().size; ++rank) {
    const int64_t at_ns = starts_ns ? starts_ns(rank) : 0;
    worker(rank).deadline_ns = at_ns + patience_ns;
    network_.call([this, rank, patience_ns] { begin_setup(rank, patience_ns, network_.now_ns()); }, at_ns);
  }
}

void StarAndMesh::begin_setup(int rank, int64_t patience_ns, int64_t now_ns) {
  Worker& self = worker(rank);
  if (!self.hears() || self.is_over()) {
    return;
  }
  self.starts_ns = now_ns;
  self.last_moments_ns = std::min(patience_ns / 10, kMostLastMoments);
  self.setup.emplace(rank, /*generation=*/1, hosts_);
  for (const int peer : self.peers) {
    if (peer < rank) {
      send_handshake(rank, peer, MessageKind::kHello, Channel::kControl, now_ns);
    }
  }
  network_.call([this, rank] { advance_setup(rank, network_.now_ns()); }, now_ns + kDeathWatchAfter);
  await_giving_up(rank);
  advance_setup(rank, now_ns);
}

int64_t StarAndMesh::gives_up_ns(int rank) const {
  const Worker& self = worker(rank);
  const double after = 1 - self.setup->give_up_part();
  return self.deadline_ns - static_cast<int64_t>(after * static_cast<double>(self.last_moments_ns));
}

// Meanwhile the time may have changed, with what the worker waits for.
void StarAndMesh::await_giving_up(int rank) {
  network_.call(
      [this, rank] {
        if (sets_up(rank) && worker(rank).hears()) {
          advance_setup(rank, network_.now_ns());
        }
        if (sets_up(rank) && worker(rank).hears()) {
          await_giving_up(rank);
        }
      },
      gives_up_ns(rank));
}

void StarAndMesh::send_handshake(int from, int to, MessageKind kind, Channel channel, int64_t now_ns) {
  network_.send(from, to, std::make_shared<const Message>(Message{.kind = kind, .channel = channel}), now_ns);
}

// A worker that does not listen yet is dialled again: here its connection waits until it does. One whose set-up is over
// does not answer.
void StarAndMesh::take_handshake(int to, int from, const Message& message, int64_t now_ns) {
  const auto answer = [&](MessageKind kind) { send_handshake(to, from, kind, message.channel, now_ns); };
  Worker& self = worker(to);
  if (!self.setup && self.hears() && !self.is_over()) {
    network_.call([this, to, from, message] { take_handshake(to, from, message, network_.now_ns()); },
                  now_ns + kMillisecond);
    return;
  }
  if (!sets_up(to)) {
    return;
  }
  switch (message.kind) {
    case MessageKind::kHello:
      answer(MessageKind::kChallenge);
      break;
    case MessageKind::kChallenge:
      answer(MessageKind::kProof);
      break;
    case MessageKind::kProof:
      answer(MessageKind::kWelcome);
      prove(to, from, message.channel, /*connector=*/false, now_ns);
      break;
    case MessageKind::kWelcome:
      prove(to, from, message.channel, /*connector=*/true, now_ns);
      break;
    default:
      // The offers of shared memory: the link is complete with the other one's.
      if (self.channels.contains(from)) {
        self.memories.insert(from);
        self.setup->prove(from);
        self.setup->link(from);
      }
  }
}

void StarAndMesh::prove(int to, int from, Channel channel, bool connector, int64_t now_ns) {
  Worker& self = worker(to);
  const bool shares_memory = network_.layout().share_a_host(to, from);
  if (!connector) {
    ++(shares_memory ? counts_.unix_connections : counts_.tcp_connections);
  }
  if (channel == Channel::kData) {
    if (self.channels.contains(from)) {
      self.setup->prove(from);
      self.setup->link(from);
    }
    return;
  }
  self.setup->join(from, connector, shares_memory);
  self.channels.insert(from);
  if (shares_memory) {
    send_handshake(to, from, MessageKind::kShmOffer, channel, now_ns);
  } else if (connector) {
    send_handshake(to, from, MessageKind::kHello, Channel::kData, now_ns);
  }
}

void StarAndMesh::advance_setup(int rank, int64_t now_ns) {
  Worker& self = worker(rank);
  if (!self.hears() || !sets_up(rank)) {
    return;
  }
  handle_deaths(rank, now_ns);
  if (!sets_up(rank)) {
    return;
  }
  while (const auto outgoing = self.setup->take_outgoing()) {
    send_control(rank, outgoing->to, outgoing->frame, now_ns);
  }
  if (self.setup->has_formed()) {
    begin_watch(rank, now_ns);
  } else if (now_ns >= gives_up_ns(rank)) {
    obey_timeout(rank, self.setup->timeout(), now_ns);
  }
}

void StarAndMesh::obey_timeout(int rank, const base::Error& error, int64_t now_ns) {
  worker(rank).timeout = error;
  worker(rank).ended_ns = now_ns;
  ControlFrame frame(ControlKind::kAbandon, error.what());
  frame.rank = error.lost_rank();
  fail_setup(rank, frame, now_ns);
  leave(rank, now_ns);
}

// It tells all to which it is connected, and closes all connections.
void StarAndMesh::fail_setup(int rank, const ControlFrame& frame, int64_t now_ns) {
  Worker& self = worker(rank);
  if (!self.setup) {
    return;
  }
  std::vector<int> connected;
  for (const int other : self.peers) {
    if (self.channels.contains(other)) {
      connected.push_back(other);
    }
  }
  send_control(rank, std::move(connected), frame, now_ns);
  network_.close(rank, self.peers, now_ns);
}

void StarAndMesh::see_end_during_setup(int to, int from, int64_t now_ns) {
  Worker& self = worker(to);
  if (!sets_up(to)) {
    return;
  }
  self.channels.erase(from);
  if (const auto cause = self.setup->end(from, Sign::kClosed)) {
    end_world(to, *cause, now_ns);
  } else if (self.setup->keeps(from)) {
    self.ended.push_back(from);
  } else {
    self.memories.erase(from);
  }
}

// A death wakes only the worker that watches that lifeline: the next one of its host whose memory is here.
bool StarAndMesh::sleeps_on(int to, int from, const Message& message, int64_t now_ns) const {
  const Worker& self = worker(to);
  if (message.kind != MessageKind::kLifeline || !sets_up(to)) {
    return false;
  }
  const std::vector<int> all = mates(to);
  const auto watched = std::ranges::find_if(all, [&](int mate) { return self.memories.contains(mate); });
  return now_ns < self.starts_ns + kDeathWatchAfter || watched == all.end() || *watched != from;
}

// A worker that is awake looks at the lifelines of all whose memory is here.
void StarAndMesh::handle_deaths(int rank, int64_t now_ns) {
  const Worker& self = worker(rank);
  for (const int mate : mates(rank)) {
    if (!self.dead.contains(mate) || !self.memories.contains(mate)) {
      continue;
    }
    if (const auto cause = self.setup->die(mate)) {
      end_world(rank, *cause, now_ns);
      return;
    }
  }
}

}  // namespace farandole::scale
