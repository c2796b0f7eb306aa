#include "transport/mesh_setup.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "transport/setup_timeout.h"

namespace farandole::transport {
namespace {

using base::Code;
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
      shares_(contacts.size(), std::vector<bool>(contacts.size())),
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
        run_out_of_time();
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
  return std::all_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
    return peer.rank == world_.rank || (peer.ready && announced_ && !peer.linked.control.has_unsent());
  });
}

bool MeshSetup::lacks_a_link() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [this](const Peer& peer) { return peer.rank != world_.rank && !peer.is_linked(); });
}

// A worker that lacks a link knows which rank does not come, and says so a little before the others run out of time:
// they see only that some are not ready, and would blame those that wait as they do.
const base::Deadline& MeshSetup::give_up() const { return lacks_a_link() ? early_deadline_ : deadline_; }

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
// memory is here by now. The others are watched by other workers, which tell all.
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

// What a worker said before it died has been read by now, perhaps a goodbye.
void MeshSetup::handle_deaths() {
  for (const Peer& peer : peers_) {
    const auto memory = peer.linked.link == nullptr ? nullptr : peer.linked.link->memory();
    if (memory != nullptr && !peer.linked.left && has_died(memory->view())) {
      lose(peer, Sign::kClosed);
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
      peer.refusal = peer.control_dial->refusal();
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

// Only a hint for the message at the deadline, because a refused hello may contain anything.
void MeshSetup::note_refusal(const Handshake& handshake) {
  const int from = handshake.hello().from;
  if (is_explained(handshake.refusal()) && from > world_.rank && from < size()) {
    peers_[static_cast<size_t>(from)].refusal = handshake.refusal();
  }
}

// A later connection replaces an earlier one: the other side makes one only when the earlier failed for it.
void MeshSetup::join_control(Peer& peer, PrivateFd fd, bool over_unix, bool connector) {
  peer.linked = LinkedPeer{};
  peer.linked.control = ControlChannel(std::move(fd));
  peer.mutual = connector;
  peer.ready = false;
  peer.readable = false;
  peer.kind = &kind_of_link(self_, *peer.contact, over_unix);
  peer.linked.link = peer.kind->begin(context_.links, *peer.contact, peer.linked.control, connector);
}

// A data connection without a control connection belongs to one that has ended since.
void MeshSetup::join_data(Peer& peer, PrivateFd fd) {
  if (peer.linked.link != nullptr && peer.linked.link->wants_data_connection()) {
    peer.linked.link->take_data_connection(std::move(fd));
    peer.mutual = true;
  }
}

void MeshSetup::read(Peer& peer) {
  if (!finish_exchange(peer)) {
    return;
  }
  while (const auto frame = peer.linked.control.receive()) {
    peer.mutual = true;
    handle_frame(peer, *frame);
  }
  if (const auto sign = peer.linked.control.ended(); sign.has_value() && !peer.linked.left) {
    handle_end(peer, *sign);
  }
}

// The kind's own exchange comes before any control frame. True when there is none, or it is over.
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
      lose(peer, Sign::kBroken);
    case Exchange::kDone:
      peer.mutual = true;
  }
  return true;
}

// The worker that has made this connection may have given up before it knew that it is proven here. Then it lives, and
// is only not linked. If it has died instead, those that have met it know, and its launcher does.
void MeshSetup::handle_end(Peer& peer, Sign sign) {
  if (peer.mutual) {
    lose(peer, sign);
  }
  peer.linked = LinkedPeer{};
}

void MeshSetup::handle_frame(Peer& peer, const ControlFrame& frame) {
  switch (frame.kind) {
    case ControlKind::kReady:
      peer.ready = true;
      shares_[static_cast<size_t>(peer.rank)] = unpack_row(frame.text, size());
      break;
    case ControlKind::kRevoke:
      lose(cause_of(frame));
    case ControlKind::kAbandon:
      throw Error(Code::kTimeout, frame.text, frame.rank);
    case ControlKind::kGoodbye:
      peer.linked.left = true;
      break;
    case ControlKind::kHeartbeat:
      break;
  }
}

// Called once, when there is a link to every other worker.
void MeshSetup::announce() {
  if (announced_ || lacks_a_link()) {
    return;
  }
  announced_ = true;
  std::vector<bool> row(peers_.size());
  for (const Peer& peer : peers_) {
    row[static_cast<size_t>(peer.rank)] = peer.rank == world_.rank || peer.kind->shares_memory;
  }
  shares_[static_cast<size_t>(world_.rank)] = row;
  for (Peer& peer : peers_) {
    if (peer.rank != world_.rank) {
      peer.linked.control.send(ControlFrame(ControlKind::kReady, pack_row(row)));
    }
  }
}

LinkedWorld MeshSetup::finish() {
  LinkedWorld world;
  world.hosts = group_hosts(shares_);
  for (Peer& peer : peers_) {
    world.peers.push_back(std::move(peer.linked));
  }
  return world;
}

void MeshSetup::lose(Cause cause) {
  context_.pending_world.world_status.revoke(std::move(cause));
  throw context_.pending_world.world_status.error();
}

void MeshSetup::lose(const Peer& peer, Sign sign) {
  lose({.rank = peer.rank, .sign = sign, .text = describe_loss(peer.rank, sign)});
}

void MeshSetup::run_out_of_time() {
  std::vector<UnreadyRank> unready;
  for (const Peer& peer : peers_) {
    if (peer.rank != world_.rank && !peer.ready) {
      unready.push_back({.rank = peer.rank, .linked = peer.is_linked(), .refusal = peer.refusal});
    }
  }
  throw setup_timeout(world_.generation, world_.rank, unready);
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
