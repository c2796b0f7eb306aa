#include "transport/mesh_setup.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"

namespace farandole::transport {
namespace {

using base::Code;
using base::Error;

// How long a connection may take to prove itself. A worker needs milliseconds.
constexpr double kProofSeconds = 5.0;
// So many unproven connections are held besides those that may be workers; of more, the oldest goes.
constexpr size_t kMostUnproven = 64;
// Accepted in one turn, so that a flood of strangers does not starve the workers.
constexpr int kAcceptsPerTurn = 64;

base::Digest digest_of(const World& world) {
  std::string all;
  for (const std::string& contact : world.contacts) {
    all += contact + '\n';
  }
  return base::sha256({reinterpret_cast<const std::byte*>(all.data()), all.size()});
}

// Most worlds have formed before, and need not pay for a thread.
constexpr double kDeathWatchAfterSeconds = 0.02;

// Before the deadline, by a tenth of the time, and no more than the upper bound.
constexpr double kEarlyPart = 0.1;
constexpr double kMostEarlySeconds = 0.5;

base::Deadline shortly_before(const base::Deadline& deadline) {
  const double left = static_cast<double>(deadline.left_ns()) * 1e-9;
  return base::Deadline::after_seconds(left - std::min(kEarlyPart * left, kMostEarlySeconds));
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

const char* explain(Refusal refusal) {
  switch (refusal) {
    case Refusal::kSecret:
      return "authentication failed: it holds another secret than this worker";
    case Refusal::kOtherWorld:
      return "it was told another list of workers than this one";
    case Refusal::kOtherGeneration:
      return "it is forming another generation";
    default:
      return nullptr;
  }
}

}  // namespace

MeshSetup::MeshSetup(SetupContext context, const World& world, const std::vector<Contact>& contacts,
                     const Contact& self, const base::Deadline& deadline)
    : context_(context),
      world_(world),
      self_(self),
      deadline_(deadline),
      early_deadline_(shortly_before(deadline)),
      size_(static_cast<int>(contacts.size())),
      digest_(digest_of(world)),
      peers_(contacts.size()),
      shares_(contacts.size(), std::vector<bool>(contacts.size())),
      death_watch_start_(base::Deadline::after_seconds(kDeathWatchAfterSeconds)) {
  for (int rank = 0; rank < size_; ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    const Contact& contact = contacts[static_cast<size_t>(rank)];
    peer.rank = rank;
    peer.id = contact.id;
    if (rank < world_.rank) {
      peer.control_dial.emplace(addresses_of(contact), world_.secret, hello_to(rank, Channel::kControl), deadline_);
    }
  }
}

Hello MeshSetup::hello_to(int peer, Channel channel) const {
  return {.channel = channel, .generation = world_.generation, .from = world_.rank, .to = peer, .world = digest_};
}

std::vector<Address> MeshSetup::addresses_of(const Contact& contact) const {
  std::vector<Address> addresses;
  if (!self_.unix_name.empty() && !contact.unix_name.empty() && self_.host_key == contact.host_key) {
    addresses.push_back(unix_address(contact.unix_name));
  }
  for (const Address& address : contact.tcp) {
    const std::vector<Address> routes = as_reached_from_here(address);
    addresses.insert(addresses.end(), routes.begin(), routes.end());
  }
  return addresses;
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
      start_dials();
      wait();
      // Who has just been proven is joined before anybody is found lost: then he is told of it.
      settle_dials();
      settle_unproven();
      read_controls();
      handle_deaths();
      world_status.throw_if_revoked();
      announce();
    }
    return finish();
  } catch (const Error& error) {
    tell(error);
    throw;
  }
}

bool MeshSetup::complete() const {
  return std::all_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
    return peer.rank == world_.rank || (peer.ready && announced_ && !peer.joined.control.has_unsent());
  });
}

bool MeshSetup::lacks_a_link() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [this](const Peer& peer) { return peer.rank != world_.rank && !peer.linked(); });
}

// Who lacks a link knows which rank does not come, and says so a little before the others run out of time: they see
// only that some are not ready, and would blame those who wait as they do.
const base::Deadline& MeshSetup::give_up() const { return lacks_a_link() ? early_deadline_ : deadline_; }

void MeshSetup::start_dials() {
  for (Peer& peer : peers_) {
    for (auto* dial : {&peer.control_dial, &peer.data_dial}) {
      if (dial->has_value()) {
        (*dial)->start(base::now_ns());
      }
    }
  }
}

// Waits for the next event, then moves what is not yet proven.
void MeshSetup::wait() {
  std::vector<Attempt*> attempts;
  for (const Peer& peer : peers_) {
    for (const auto* dial : {&peer.control_dial, &peer.data_dial}) {
      if (dial->has_value()) {
        (*dial)->collect(attempts);
      }
    }
  }
  for (const Unproven& stranger : unproven_) {
    attempts.push_back(stranger.attempt.get());
  }
  std::vector<pollfd> polled;
  for (const Listener& listener : context_.listeners) {
    polled.push_back({.fd = listener.fd.get(), .events = POLLIN, .revents = 0});
  }
  for (const Attempt* attempt : attempts) {
    polled.push_back({.fd = attempt->fd(), .events = attempt->events(), .revents = 0});
  }
  for (const Peer& peer : peers_) {
    const short events = peer.joined.control.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({.fd = peer.gone() ? -1 : peer.joined.control.fd(), .events = events, .revents = 0});
  }
  polled.push_back({.fd = context_.pending_world.watch_fd.get(), .events = POLLIN, .revents = 0});
  if (::poll(polled.data(), polled.size(), patience_ms()) <= 0) {
    return;
  }
  size_t at = context_.listeners.size();
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
  accept_all();
}

void MeshSetup::read_controls() {
  for (Peer& peer : peers_) {
    if (std::exchange(peer.readable, false)) {
      peer.joined.control.flush();
      read(peer);
    }
  }
}

// The next worker of this host above this one in cyclic order, as in a world that has formed: of those whose memory is
// here by now. Others will be seen by others, who tell.
void MeshSetup::watch_next_peer() {
  if (!death_watch_start_.passed()) {
    return;
  }
  for (int distance = 1; distance < size_; ++distance) {
    const Peer& next = peers_[static_cast<size_t>((world_.rank + distance) % size_)];
    if (!next.shm_linked) {
      continue;
    }
    if (next.joined.memory.get() != watched_memory_) {
      watched_memory_ = next.joined.memory.get();
      death_watcher_ =
          std::make_unique<PeerDeathWatcher>(next.joined.memory, [this] { context_.pending_world.wake(); });
    }
    return;
  }
}

// What the dead said before has been read by now, perhaps a goodbye.
void MeshSetup::handle_deaths() {
  for (const Peer& peer : peers_) {
    if (peer.shm_linked && !peer.joined.left && has_died(peer.joined.memory->view())) {
      lose(peer, Sign::kClosed);
    }
  }
}

int MeshSetup::patience_ms() const {
  int64_t left_ns = give_up().left_ns();
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
  for (const Unproven& stranger : unproven_) {
    left_ns = std::min(left_ns, stranger.attempt->give_up().left_ns());
  }
  return static_cast<int>(std::min<int64_t>((left_ns + 999'999) / 1'000'000, 60'000));
}

void MeshSetup::accept_all() {
  for (const Listener& listener : context_.listeners) {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      int error = 0;
      PrivateFd fd = accept_from(listener, error);
      if (error == EAGAIN || error == EWOULDBLOCK) {
        break;
      }
      if (!fd) {
        refuse_for_lack_of_descriptors(error);
        continue;
      }
      // A worker has one on the way to each listener, while it sees which of them is best, or one for data.
      if (unproven_.size() >= kMostUnproven + (1 + context_.listeners.size()) * peers_.size()) {
        unproven_.pop_front();
      }
      const auto give_up =
          base::Deadline::after_seconds(std::min(kProofSeconds, static_cast<double>(deadline_.left_ns()) * 1e-9));
      auto handshake = Handshake::accepting(world_.secret, hello_to(-1, Channel::kControl), size_);
      unproven_.push_back(
          {std::make_unique<Attempt>(std::move(fd), false, std::move(handshake), give_up), listener.address.is_unix()});
    }
  }
}

// Makes room by dropping the oldest stranger, if that can help. Other errors are those of a connection that
// ended before it was accepted.
void MeshSetup::refuse_for_lack_of_descriptors(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) {
    return;
  }
  if (unproven_.empty()) {
    throw Error(Code::kUnavailable, std::string("no connection can be accepted: ") + std::strerror(error) +
                                        "; raise the limit of open files (ulimit -n)");
  }
  unproven_.pop_front();
}

void MeshSetup::settle_dials() {
  for (Peer& peer : peers_) {
    if (peer.control_dial.has_value()) {
      if (auto reached = peer.control_dial->settle(base::now_ns()); reached.has_value()) {
        join_control(peer, std::move(reached->fd), reached->address.is_unix());
        peer.mutual = true;
        if (!reached->address.is_unix()) {
          peer.joined.control.send(ControlFrame(ControlKind::kHeartbeat));
          peer.data_dial.emplace(std::vector<Address>{reached->address}, world_.secret,
                                 hello_to(peer.rank, Channel::kData), deadline_);
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

void MeshSetup::settle_unproven() {
  for (Unproven& stranger : unproven_) {
    Attempt& attempt = *stranger.attempt;
    if (attempt.failed()) {
      note(attempt.handshake());
      stranger.attempt = nullptr;
    } else if (attempt.proven()) {
      const Hello hello = attempt.handshake().hello();
      Peer& peer = peers_[static_cast<size_t>(hello.from)];
      if (hello.channel == Channel::kControl) {
        join_control(peer, attempt.take_fd(), stranger.over_unix);
      } else {
        join_data(peer, attempt.take_fd());
      }
      stranger.attempt = nullptr;
    }
  }
  std::erase_if(unproven_, [](const Unproven& stranger) { return stranger.attempt == nullptr; });
}

// Only a hint for the message at the deadline: a refused hello may say what it likes.
void MeshSetup::note(const Handshake& handshake) {
  const int from = handshake.hello().from;
  if (explain(handshake.refusal()) != nullptr && from > world_.rank && from < size_) {
    peers_[static_cast<size_t>(from)].refusal = handshake.refusal();
  }
}

// A later connection replaces an earlier one: the other side makes one only when the earlier failed for it.
void MeshSetup::join_control(Peer& peer, PrivateFd fd, bool over_unix) {
  peer.joined = LinkedPeer{};
  peer.joined.control = ControlChannel(std::move(fd));
  peer.over_unix = over_unix;
  peer.shm_linked = false;
  peer.mutual = false;
  peer.ready = false;
  peer.readable = false;
  if (over_unix) {
    offer_shm(peer);
  } else {
    tune_control(peer.joined.control.fd(), context_.settings.failure_deadline_seconds);
  }
}

void MeshSetup::join_data(Peer& peer, PrivateFd fd) {
  tune_data(fd.get(), context_.settings.failure_deadline_seconds);
  peer.joined.data = std::move(fd);
  peer.mutual = true;
}

void MeshSetup::offer_shm(Peer& peer) {
  void* const block = context_.arena.allocate(sizeof(RingBuffer));
  if (block == nullptr) {
    throw Error(Code::kUnavailable,
                "the arena is too full for the links of this world; set FARANDOLE_ARENA_BYTES to more");
  }
  context_.ring_buffers.push_back(block);
  peer.joined.outgoing = new (block) RingBuffer;
  context_.memory_holders[peer.id] = nullptr;
  const ArenaView& view = context_.arena.view();
  const ShmOffer offer = {.generation = world_.generation,
                          .arena_bytes = view.bytes,
                          .ring_offset = view.offset_of(block),
                          .ring_bytes = sizeof(RingBuffer)};
  send_shm_offer(peer.joined.control.fd(), offer, context_.arena.fd(), context_.doorbell_fd);
}

void MeshSetup::read(Peer& peer) {
  if (peer.over_unix && !peer.shm_linked) {
    read_shm_offer(peer);
    if (!peer.shm_linked) {
      return;
    }
  }
  while (const auto frame = peer.joined.control.receive()) {
    peer.mutual = true;
    hear(peer, *frame);
  }
  if (const auto sign = peer.joined.control.ended(); sign.has_value() && !peer.joined.left) {
    hear_end(peer, *sign);
  }
}

// Who has made this connection may have failed to form before it knew that it is proven here. Then it lives, and is
// only not linked; if it has died, those know who have met it, and its launcher.
void MeshSetup::hear_end(Peer& peer, Sign sign) {
  if (peer.mutual) {
    lose(peer, sign);
  }
  peer.joined = LinkedPeer{};
}

void MeshSetup::read_shm_offer(Peer& peer) {
  ReceivedShmOffer shm_linked;
  switch (receive_shm_offer(peer.joined.control.fd(), shm_linked)) {
    case Arrival::kNotYet:
      return;
    case Arrival::kClosed:
      return hear_end(peer, Sign::kClosed);
    case Arrival::kBroken:
      lose(peer, Sign::kBroken);
    case Arrival::kCame:
      adopt(peer, std::move(shm_linked));
  }
}

void MeshSetup::adopt(Peer& peer, ReceivedShmOffer shm_linked) {
  const ShmOffer& said = shm_linked.offer;
  if (said.generation != world_.generation || said.ring_bytes != sizeof(RingBuffer) ||
      said.ring_offset % alignof(RingBuffer) != 0 || said.arena_bytes < sizeof(RingBuffer) ||
      said.ring_offset > said.arena_bytes - sizeof(RingBuffer)) {
    lose(peer, Sign::kBroken);
  }
  peer.joined.memory = context_.mappings.map(shm_linked.memory.get(), said.arena_bytes);
  if (peer.joined.memory == nullptr || peer.joined.memory->view().header().magic != kArenaMagic) {
    lose(peer, Sign::kBroken);
  }
  context_.memory_holders[peer.id] = peer.joined.memory;
  peer.joined.incoming = reinterpret_cast<RingBuffer*>(peer.joined.memory->view().base + said.ring_offset);
  peer.joined.doorbell = std::move(shm_linked.doorbell);
  peer.shm_linked = peer.mutual = true;
}

void MeshSetup::hear(Peer& peer, const ControlFrame& frame) {
  switch (frame.kind) {
    case ControlKind::kReady:
      peer.ready = true;
      shares_[static_cast<size_t>(peer.rank)] = unpack_row(frame.text, size_);
      break;
    case ControlKind::kRevoke:
      lose(cause_of(frame));
    case ControlKind::kAbandon:
      throw Error(Code::kTimeout, frame.text, frame.rank);
    case ControlKind::kGoodbye:
      peer.joined.left = true;
      break;
    case ControlKind::kHeartbeat:
      break;
  }
}

// Once, when there is a link to everybody.
void MeshSetup::announce() {
  if (announced_ || lacks_a_link()) {
    return;
  }
  announced_ = true;
  std::vector<bool> row(peers_.size());
  for (const Peer& peer : peers_) {
    row[static_cast<size_t>(peer.rank)] = peer.rank == world_.rank || peer.over_unix;
  }
  shares_[static_cast<size_t>(world_.rank)] = row;
  for (Peer& peer : peers_) {
    if (peer.rank != world_.rank) {
      peer.joined.control.send(ControlFrame(ControlKind::kReady, pack_row(row)));
    }
  }
}

LinkedWorld MeshSetup::finish() {
  LinkedWorld formed;
  formed.hosts = group_hosts(shares_);
  for (Peer& peer : peers_) {
    formed.peers.push_back(std::move(peer.joined));
  }
  return formed;
}

void MeshSetup::lose(Cause cause) {
  context_.pending_world.world_status.revoke(std::move(cause));
  throw context_.pending_world.world_status.error();
}

void MeshSetup::lose(const Peer& peer, Sign sign) {
  lose({.rank = peer.rank, .sign = sign, .text = describe_loss(peer.rank, sign)});
}

void MeshSetup::run_out_of_time() {
  std::vector<int> missing;
  std::vector<int> waiting;
  std::string reasons;
  for (const Peer& peer : peers_) {
    if (peer.rank == world_.rank || peer.ready) {
      continue;
    }
    (peer.linked() ? waiting : missing).push_back(peer.rank);
    if (const char* reason = explain(peer.refusal); reason != nullptr && !peer.linked()) {
      reasons += " Rank " + std::to_string(peer.rank) + ": " + reason + ".";
    }
  }
  const std::string what = "the world of generation " + std::to_string(world_.generation) + " did not form in time: ";
  if (missing.empty()) {
    throw Error(Code::kTimeout, what + list_ranks(waiting) + " could not connect to all others", waiting.front());
  }
  throw Error(Code::kTimeout,
              what + list_ranks(missing) + " did not connect to rank " + std::to_string(world_.rank) + "." + reasons +
                  " Check that these workers run, and that their addresses can be reached from here",
              missing.front());
}

// Best effort: the frames are small, and these sockets have carried next to nothing.
void MeshSetup::tell(const Error& error) {
  ControlFrame frame(ControlKind::kAbandon, error.what());
  frame.rank = error.lost_rank();
  if (const auto cause = context_.pending_world.world_status.cause(); cause.has_value()) {
    frame = revoke_frame(*cause);
  }
  for (Peer& peer : peers_) {
    if (peer.joined.control && !peer.gone()) {
      peer.joined.control.send(frame);
    }
  }
}

}  // namespace farandole::transport
