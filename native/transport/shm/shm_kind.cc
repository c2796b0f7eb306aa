#include "transport/shm/shm_kind.h"

#include <new>
#include <utility>

#include "base/error.h"
#include "transport/endpoint.h"
#include "transport/shm/ring_buffer.h"
#include "transport/shm/shm_exchange.h"
#include "transport/shm/shm_link.h"

namespace farandole::transport {
namespace {

class ShmSetup final : public LinkSetup {
 public:
  ShmSetup(const LinkContext& context, std::string peer_id, int control_fd);

  bool exchanging() const noexcept override { return memory_ == nullptr; }
  Exchange advance(int control_fd) override;
  bool complete() const noexcept override { return memory_ != nullptr; }
  std::shared_ptr<const Mapping> memory() const override { return memory_; }
  PeerLink finish(int peer, Watch& watch, WorldStatus& world_status) override;

 private:
  Exchange accept(ReceivedShmOffer received);

  const LinkContext context_;
  const std::string peer_id_;
  RingBuffer* outgoing_ = nullptr;  // in our arena
  RingBuffer* incoming_ = nullptr;  // in the other one's
  std::shared_ptr<const Mapping> memory_;
  PrivateFd doorbell_;
};

// Sends the offer: from now on the other worker may have our memory.
ShmSetup::ShmSetup(const LinkContext& context, std::string peer_id, int control_fd)
    : context_(context), peer_id_(std::move(peer_id)) {
  void* const block = context_.arena.allocate(sizeof(RingBuffer));
  if (block == nullptr) {
    throw base::Error(base::Code::kUnavailable,
                      "the arena is too full for the links of this world; set FARANDOLE_ARENA_BYTES to more");
  }
  context_.ring_buffers.push_back(block);
  outgoing_ = new (block) RingBuffer;
  context_.memory_holders[peer_id_] = nullptr;
  const ArenaView& view = context_.arena.view();
  const ShmOffer offer = {.generation = context_.generation,
                          .arena_bytes = view.bytes,
                          .ring_offset = view.offset_of(block),
                          .ring_bytes = sizeof(RingBuffer)};
  send_shm_offer(control_fd, offer, context_.arena.fd(), context_.doorbell_fd);
}

Exchange ShmSetup::advance(int control_fd) {
  ReceivedShmOffer received;
  const Exchange came = receive_shm_offer(control_fd, received);
  return came == Exchange::kDone ? accept(std::move(received)) : came;
}

Exchange ShmSetup::accept(ReceivedShmOffer received) {
  const ShmOffer& offer = received.offer;
  if (offer.generation != context_.generation || offer.ring_bytes != sizeof(RingBuffer) ||
      offer.ring_offset % alignof(RingBuffer) != 0 || offer.arena_bytes < sizeof(RingBuffer) ||
      offer.ring_offset > offer.arena_bytes - sizeof(RingBuffer)) {
    return Exchange::kBroken;
  }
  auto memory = context_.mappings.map(received.memory.get(), offer.arena_bytes);
  if (memory == nullptr || memory->view().header().magic != kArenaMagic) {
    return Exchange::kBroken;
  }
  memory_ = std::move(memory);
  context_.memory_holders[peer_id_] = memory_;
  incoming_ = reinterpret_cast<RingBuffer*>(memory_->view().base + offer.ring_offset);
  doorbell_ = std::move(received.doorbell);
  return Exchange::kDone;
}

PeerLink ShmSetup::finish(int peer, Watch& /*watch*/, WorldStatus& world_status) {
  PeerLink made;
  made.kind = kShmKind.name;
  made.route = "shared memory";
  made.memory = memory_;
  made.doorbell_fd = std::move(doorbell_);
  made.doorbell = std::make_unique<Doorbell>(&memory_->view().header().sleeping, made.doorbell_fd.get());
  made.link = std::make_unique<ShmLink>(peer, *outgoing_, *incoming_, memory_->view().header().mail, *made.doorbell,
                                        world_status);
  return made;
}

}  // namespace

void shm_listen(const EndpointSettings& settings, std::vector<Listener>& listeners, Contact& contact) {
  if (settings.shared_memory) {
    contact.unix_name = "farandole-" + random_id();
    listeners.push_back(listen_on(unix_address(contact.unix_name)));
  }
}

std::vector<Address> shm_addresses(const Contact& self, const Contact& peer) {
  if (self.unix_name.empty() || peer.unix_name.empty() || self.host_key != peer.host_key) {
    return {};
  }
  return {unix_address(peer.unix_name)};
}

bool shm_fits(const Contact& /*self*/, const Contact& /*peer*/, bool over_unix) { return over_unix; }

// The offer is what the connector sends at once.
std::unique_ptr<LinkSetup> begin_shm(const LinkContext& context, const Contact& peer, ControlChannel& control,
                                     bool /*connector*/) {
  return std::make_unique<ShmSetup>(context, peer.id, control.fd());
}

}  // namespace farandole::transport
