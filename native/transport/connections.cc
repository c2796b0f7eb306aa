#include "transport/connections.h"

#include <algorithm>
#include <utility>

#include "base/hmac.h"
#include "transport/setup_timeout.h"

namespace farandole::transport {
namespace {

base::Digest digest_of(const World& world) {
  std::string all;
  for (const std::string& contact : world.contacts) {
    all += contact + '\n';
  }
  return base::sha256({reinterpret_cast<const std::byte*>(all.data()), all.size()});
}

Hello hello_of(const World& world) {
  return {.channel = Channel::kControl,
          .generation = world.generation,
          .from = world.rank,
          .to = -1,
          .world = digest_of(world)};
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

Connections::Connections(std::span<const Listener> listeners, const World& world, std::vector<Contact> contacts)
    : contacts_(std::move(contacts)),
      secret_(world.secret),
      hello_(hello_of(world)),
      incoming_(listeners, world.secret, hello_, static_cast<int>(contacts_.size())) {}

void Connections::dial(int peer, const base::Deadline& deadline) {
  const Contact& self = contacts_[static_cast<size_t>(hello_.from)];
  dial(peer, Channel::kControl, addresses_of(self, contacts_[static_cast<size_t>(peer)]), deadline);
}

void Connections::dial(int peer, Channel channel, const std::vector<Address>& addresses,
                       const base::Deadline& deadline) {
  Hello hello = hello_;
  hello.to = peer;
  hello.channel = channel;
  dials_.push_back({.peer = peer, .channel = channel, .dial = Dial(addresses, secret_, hello, deadline)});
}

void Connections::prepare_wait(std::vector<pollfd>& polled) {
  waited_for_.clear();
  for (Dialled& dialled : dials_) {
    dialled.dial.start(base::now_ns());
    dialled.dial.collect(waited_for_);
  }
  incoming_.collect(waited_for_);
  for (const Attempt* const attempt : waited_for_) {
    polled.push_back({.fd = attempt->fd(), .events = attempt->events(), .revents = 0});
  }
  incoming_.collect(polled);
}

void Connections::finish_wait(std::span<const pollfd> polled) {
  for (size_t i = 0; i < waited_for_.size(); ++i) {
    if (polled[i].revents != 0) {
      waited_for_[i]->advance();
    }
  }
  waited_for_.clear();
  incoming_.accept_all();
}

int64_t Connections::left_ns() const {
  int64_t left_ns = incoming_.left_ns();
  const int64_t now = base::now_ns();
  for (const Dialled& dialled : dials_) {
    if (const int64_t turn = dialled.dial.next_turn_ns(); turn != INT64_MAX) {
      left_ns = std::min(left_ns, std::max<int64_t>(0, turn - now));
    }
  }
  return left_ns;
}

void Connections::settle(const Events& events) {
  settle_dials(events);
  settle_incoming(events);
}

void Connections::settle_dials(const Events& events) {
  for (Dialled& dialled : dials_) {
    if (auto reached = dialled.dial.settle(base::now_ns()); reached.has_value()) {
      dialled.over = true;
      events.proven({.peer = dialled.peer,
                     .channel = dialled.channel,
                     .fd = std::move(reached->fd),
                     .address = reached->address,
                     .over_unix = reached->address.is_unix(),
                     .connector = true});
    } else if (dialled.dial.refusal() != Refusal::kNone) {
      events.refused(dialled.peer, dialled.dial.refusal());
    }
  }
  dials_.remove_if([](const Dialled& dialled) { return dialled.over; });
}

void Connections::settle_incoming(const Events& events) {
  incoming_.settle(
      events.wants,
      [&](Attempt& attempt, bool over_unix) {
        const Hello& hello = attempt.handshake().hello();
        events.proven({.peer = hello.from,
                       .channel = hello.channel,
                       .fd = attempt.take_fd(),
                       .address = {},
                       .over_unix = over_unix,
                       .connector = false});
      },
      // The refused hello may contain anything.
      [&](const Handshake& handshake) {
        const int from = handshake.hello().from;
        if (is_explained(handshake.refusal()) && from > hello_.from && from < static_cast<int>(contacts_.size())) {
          events.refused(from, handshake.refusal());
        }
      });
}

LinkedPeer Connections::begin_link(const LinkContext& context, Proven control, const base::Deadline& deadline) {
  const Contact& contact = contacts_[static_cast<size_t>(control.peer)];
  const LinkKind& kind = kind_of_link(contacts_[static_cast<size_t>(hello_.from)], contact, control.over_unix);
  LinkedPeer linked{
      .control = ControlChannel(std::move(control.fd)), .link = nullptr, .shares_memory = kind.shares_memory};
  linked.link = kind.begin(context, contact, linked.control, control.connector);
  if (control.connector && linked.link->wants_data_connection()) {
    dial(control.peer, Channel::kData, {control.address}, deadline);
  }
  return linked;
}

}  // namespace farandole::transport
