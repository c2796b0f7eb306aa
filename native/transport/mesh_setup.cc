#include "transport/mesh_setup.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "transport/setup_timeout.h"

namespace farandole::transport {
namespace {

using base::Error;

// Most worlds have formed before this, and do not need a thread.
constexpr double kDeathWatchAfterSeconds = 0.02;

// The time before the deadline: a tenth of the whole, and no more than the upper bound.
constexpr double kEarlyPart = 0.1;
constexpr double kMostEarlySeconds = 0.5;

constexpr int64_t kLongestWaitMs = 60'000;

base::Digest digest_of(const World& world) {
  std::string all;
  for (const std::string& contact : world.contacts) {
    all += contact + '\n';
  }
  return base::sha256({reinterpret_cast<const std::byte*>(all.data()), all.size()});
}

base::Deadline shortly_before(const base::Deadline& deadline) {
  const double left = static_cast<double>(deadline.left_ns()) * 1e-9;
  return base::Deadline::after_seconds(left - std::min(kEarlyPart * left, kMostEarlySeconds));
}

Hello hello_of(const World& world) {
  return {.channel = Channel::kControl,
          .generation = world.generation,
          .from = world.rank,
          .to = -1,
          .world = digest_of(world)};
}

Hello hello_to(Hello hello, int peer, Channel channel) {
  hello.to = peer;
  hello.channel = channel;
  return hello;
}

// The addresses for all kinds of links that the two can have, the preferred kind first.
std::vector<Address> addresses_of(const Contact& self, const Contact& peer) {
  std::vector<Address> all;
  for (const LinkKind& kind : link_kinds()) {
    const std::vector<Address> addresses = kind.addresses(self, peer);
    all.insert(all.end(), addresses.begin(), addresses.end());
  }
  return all;
}

}  // namespace

MeshSetup::MeshSetup(const SetupContext& context, const World& world, const std::vector<Contact>& contacts,
                     const Contact& self, const base::Deadline& deadline)
    : context_(context),
      world_(world),
      self_(self),
      deadline_(deadline),
      early_deadline_(shortly_before(deadline)),
      hello_(hello_of(world)),
      peers_(contacts.size()),
      incoming_(context_.listeners, world.secret, hello_, size(), deadline),
      core_(world.rank, static_cast<int>(contacts.size()), world.generation),
      death_watch_start_(base::Deadline::after_seconds(kDeathWatchAfterSeconds)) {
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    peer.rank = rank;
    peer.contact = &contacts[static_cast<size_t>(rank)];
    if (rank < world_.rank) {
      peer.control_dial.emplace(addresses_of(self_, *peer.contact), world_.secret,
                                hello_to(hello_, rank, Channel::kControl), deadline_);
    }
  }
}

LinkedWorld MeshSetup::run() {
  const WorldStatus& world_status = context_.pending_world.world_status;
  try {
    world_status.throw_if_revoked();
    announce();
    while (!complete()) {
      if (give_up().passed()) {
        throw core_.timeout();
      }
      watch_next_peer();
      wait();
      // A worker that has just been proven joins before any loss is found, and so learns of that loss, too.
      settle_dials();
      settle_incoming();
      read_controls();
      handle_deaths();
      world_status.throw_if_revoked();
      announce();
    }
    return finish();
  } catch (const Error& error) {
    send_failure(error);
    throw;
  }
}

bool MeshSetup::complete() const {
  return core_.all_are_ready() &&
         std::ranges::none_of(peers_, [](const Peer& peer) { return peer.linked.control.has_unsent(); });
}

// A worker that lacks a link knows which rank is missing, and tells the others a little before they run out of time:
// they see only that some ranks are not ready, and would blame ranks that wait like themselves.
const base::Deadline& MeshSetup::give_up() const { return core_.lacks_a_link() ? early_deadline_ : deadline_; }

// Begins the dials that are due, waits for the next event, then moves what is not yet proven.
void MeshSetup::wait() {
  std::vector<Attempt*> attempts;
  for (Peer& peer : peers_) {
    for (auto* dial : {&peer.control_dial, &peer.data_dial}) {
      if (dial->has_value()) {
        (*dial)->start(base::now_ns());
        (*dial)->collect(attempts);
      }
    }
  }
  incoming_.collect(attempts);
  std::vector<pollfd> polled;
  for (const Attempt* attempt : attempts) {
    polled.push_back({.fd = attempt->fd(), .events = attempt->events(), .revents = 0});
  }
  for (const Peer& peer : peers_) {
    const short events = peer.linked.control.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({.fd = peer.is_gone() ? -1 : peer.linked.control.fd(), .events = events, .revents = 0});
  }
  polled.push_back({.fd = context_.pending_world.watch_fd.get(), .events = POLLIN, .revents = 0});
  incoming_.collect(polled);
  if (::poll(polled.data(), polled.size(), timeout_ms()) <= 0) {
    return;
  }
  size_t at = 0;
  for (Attempt* const attempt : attempts) {
    if (polled[at++].revents != 0) {
      attempt->advance();
    }
  }
  for (Peer& peer : peers_) {
    peer.readable = polled[at++].revents != 0;
  }
  if (polled[at].revents != 0) {
    context_.pending_world.drain();
  }
  incoming_.accept_all();
}

int MeshSetup::timeout_ms() const {
  int64_t left_ns = std::min(give_up().left_ns(), incoming_.left_ns());
  if (!death_watch_start_.passed()) {
    left_ns = std::min(left_ns, death_watch_start_.left_ns());
  }
  const int64_t now = base::now_ns();
  for (const Peer& peer : peers_) {
    for (const auto* dial : {&peer.control_dial, &peer.data_dial}) {
      if (dial->has_value() && (*dial)->next_turn_ns() != INT64_MAX) {
        left_ns = std::min(left_ns, std::max<int64_t>(0, (*dial)->next_turn_ns() - now));
      }
    }
  }
  return static_cast<int>(std::min<int64_t>((left_ns + 999'999) / 1'000'000, kLongestWaitMs));
}

void MeshSetup::read_controls() {
  for (Peer& peer : peers_) {
    if (std::exchange(peer.readable, false)) {
      peer.linked.control.flush();
      read(peer);
    }
  }
}

// Watches the next worker of this host above this one in cyclic order, as in a world that has formed, among those whose
// memory is mapped by now. The other workers are watched by others, which tell all.
void MeshSetup::watch_next_peer() {
  if (!death_watch_start_.passed()) {
    return;
  }
  for (int distance = 1; distance < size(); ++distance) {
    const Peer& next = peers_[static_cast<size_t>((world_.rank + distance) % size())];
    const auto memory = next.linked.link == nullptr ? nullptr : next.linked.link->memory();
    if (memory == nullptr) {
      continue;
    }
    if (memory.get() != watched_memory_) {
      watched_memory_ = memory.get();
      death_watcher_ = std::make_unique<PeerDeathWatcher>(memory, [this] { context_.pending_world.wake(); });
    }
    return;
  }
}

// Its channel is read first: what it sent before it died, perhaps a cause or a goodbye, may have come since poll(2).
void MeshSetup::handle_deaths() {
  for (Peer& peer : peers_) {
    const auto memory = peer.linked.link == nullptr ? nullptr : peer.linked.link->memory();
    if (memory != nullptr && has_died(memory->view())) {
      read(peer);
      obey(core_.die(peer.rank));
    }
  }
}

void MeshSetup::settle_dials() {
  for (Peer& peer : peers_) {
    if (peer.control_dial.has_value()) {
      if (auto reached = peer.control_dial->settle(base::now_ns()); reached.has_value()) {
        join_control(peer, std::move(reached->fd), reached->address.is_unix(), /*connector=*/true);
        if (peer.linked.link->wants_data_connection()) {
          peer.data_dial.emplace(std::vector<Address>{reached->address}, world_.secret,
                                 hello_to(hello_, peer.rank, Channel::kData), deadline_);
        }
      }
      core_.refuse(peer.rank, peer.control_dial->refusal());
    }
    if (peer.data_dial.has_value()) {
      if (auto reached = peer.data_dial->settle(base::now_ns()); reached.has_value()) {
        join_data(peer, std::move(reached->fd));
      }
    }
  }
}

void MeshSetup::settle_incoming() {
  incoming_.settle(
      [this](Attempt& attempt, bool over_unix) {
        const Hello& hello = attempt.handshake().hello();
        Peer& peer = peers_[static_cast<size_t>(hello.from)];
        if (hello.channel == Channel::kControl) {
          join_control(peer, attempt.take_fd(), over_unix, /*connector=*/false);
        } else {
          join_data(peer, attempt.take_fd());
        }
      },
      [this](const Handshake& handshake) { note_refusal(handshake); });
}

// The refused hello may contain anything.
void MeshSetup::note_refusal(const Handshake& handshake) {
  const int from = handshake.hello().from;
  if (is_explained(handshake.refusal()) && from > world_.rank && from < size()) {
    core_.refuse(from, handshake.refusal());
  }
}

// A later connection replaces an earlier one: the other side makes one only when the earlier failed for it.
void MeshSetup::join_control(Peer& peer, PrivateFd fd, bool over_unix, bool connector) {
  const LinkKind& kind = kind_of_link(self_, *peer.contact, over_unix);
  peer.linked = LinkedPeer{};
  peer.linked.control = ControlChannel(std::move(fd));
  peer.readable = false;
  core_.join(peer.rank, connector, kind.shares_memory);
  peer.linked.link = kind.begin(context_.links, *peer.contact, peer.linked.control, connector);
}

// A data connection without a control connection: the control connection has ended since.
void MeshSetup::join_data(Peer& peer, PrivateFd fd) {
  if (peer.linked.link != nullptr && peer.linked.link->wants_data_connection()) {
    peer.linked.link->take_data_connection(std::move(fd));
    core_.prove(peer.rank);
    core_.link(peer.rank);
  }
}

void MeshSetup::read(Peer& peer) {
  if (!finish_exchange(peer)) {
    return;
  }
  while (const auto frame = peer.linked.control.receive()) {
    obey(core_.receive(peer.rank, *frame));
  }
  if (const auto sign = peer.linked.control.ended(); sign.has_value()) {
    handle_end(peer, *sign);
  }
}

// The kind's own exchange comes before any control frame. Returns true if there is none, or it is over.
bool MeshSetup::finish_exchange(Peer& peer) {
  if (peer.linked.link == nullptr || !peer.linked.link->exchanging()) {
    return true;
  }
  switch (peer.linked.link->advance(peer.linked.control.fd())) {
    case Exchange::kNotYet:
      return false;
    case Exchange::kClosed:
      handle_end(peer, Sign::kClosed);
      return false;
    case Exchange::kBroken:
      core_.prove(peer.rank);  // only a worker with the job's secret sends an exchange that could be broken
      handle_end(peer, Sign::kBroken);
      return false;
    case Exchange::kDone:
      core_.prove(peer.rank);
      core_.link(peer.rank);
  }
  return true;
}

void MeshSetup::handle_end(Peer& peer, Sign sign) {
  obey(core_.end(peer.rank, sign));
  if (!core_.keeps(peer.rank)) {
    peer.linked = LinkedPeer{};
  }
}

void MeshSetup::announce() {
  const auto frame = core_.announce();
  for (Peer& peer : peers_) {
    if (frame.has_value() && peer.rank != world_.rank) {
      peer.linked.control.send(*frame);
    }
  }
}

LinkedWorld MeshSetup::finish() {
  LinkedWorld world;
  world.hosts = core_.hosts();
  for (Peer& peer : peers_) {
    world.left.push_back(core_.has_left(peer.rank));
    world.peers.push_back(std::move(peer.linked));
  }
  return world;
}

void MeshSetup::obey(std::optional<Cause> cause) {
  if (cause.has_value()) {
    context_.pending_world.world_status.revoke(*std::move(cause));
    throw context_.pending_world.world_status.error();
  }
}

// Best effort: the frames are small, and these sockets have carried very little.
void MeshSetup::send_failure(const Error& error) {
  ControlFrame frame(ControlKind::kAbandon, error.what());
  frame.rank = error.lost_rank();
  if (const auto cause = context_.pending_world.world_status.cause(); cause.has_value()) {
    frame = revoke_frame(*cause);
  }
  for (Peer& peer : peers_) {
    if (peer.linked.control && !peer.is_gone()) {
      peer.linked.control.send(frame);
    }
  }
}

}  // namespace farandole::transport
