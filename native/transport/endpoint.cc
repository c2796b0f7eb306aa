#include "transport/endpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "transport/carry_over.h"
#include "transport/contact.h"
#include "transport/descriptor_limit.h"
#include "transport/event_fd.h"
#include "transport/host_key.h"
#include "transport/lifeline.h"
#include "transport/link_kind.h"
#include "transport/mesh_setup.h"
#include "transport/pending_world.h"
#include "transport/shm/shm_exchange.h"
#include "transport/socket_mesh.h"
#include "transport/start_graph.h"

namespace farandole::transport {
namespace {

using base::Code;
using base::Error;

}  // namespace

struct Endpoint::Impl {
  explicit Impl(EndpointSettings given);

  std::vector<Contact> read_contacts(const World& world) const;
  void fence(const std::vector<Contact>& contacts);
  void begin_generation(uint64_t generation);
  std::unique_ptr<Mesh> form(const World& world, const base::Deadline& deadline);

  const EndpointSettings settings;
  Arena arena;
  const Lifeline lifeline;
  const PrivateFd doorbell_fd;
  std::vector<Listener> listeners;
  Contact contact;
  MappingCache mappings;
  EndpointCarryOver carry_over;
  PendingWorlds pending_worlds;
};

Endpoint::Impl::Impl(EndpointSettings given)
    : settings(std::move(given)), arena(settings.arena_bytes), lifeline(arena.view()), doorbell_fd(make_event_fd()) {
  contact.id = random_id();
  contact.host_key = make_host_key(settings.host_key);
  for (const LinkKind& kind : link_kinds()) {
    kind.listen(settings, listeners, contact);
  }
}

// Checks the caller's description of the world.
std::vector<Contact> Endpoint::Impl::read_contacts(const World& world) const {
  std::vector<Contact> contacts;
  for (const std::string& text : world.contacts) {
    contacts.push_back(parse_contact(text));
  }
  if (contacts.empty()) {
    contacts.push_back(contact);  // a world of one needs no contacts
  }
  const auto rank = static_cast<size_t>(world.rank);
  if (world.rank < 0 || rank >= contacts.size() || contacts[rank].id != contact.id) {
    throw Error(Code::kInvalidArgument, "rank " + std::to_string(world.rank) +
                                            " of the new world is not this worker; its list of contacts is "
                                            "out of date or out of order");
  }
  std::set<std::string> ids;
  for (const Contact& other : contacts) {
    ids.insert(other.id);
  }
  if (ids.size() != contacts.size()) {
    throw Error(Code::kInvalidArgument, "a world has each worker once; in this list of " +
                                            std::to_string(contacts.size()) + " contacts, one comes twice");
  }
  return contacts;
}

// Keeps workers that are not in this world any more from writing to our memory. A stopped process, for example, can be
// continued at any time, in the middle of what it was writing; only new memory is safe from it. The blocks keep their
// addresses, because users' tensors lie in them.
void Endpoint::Impl::fence(const std::vector<Contact>& contacts) {
  const bool harmless =
      std::all_of(carry_over.possible_writers.begin(), carry_over.possible_writers.end(), [&](const auto& entry) {
        const auto& [id, memory] = entry;
        return (memory != nullptr && has_died(memory->view())) ||
               std::any_of(contacts.begin(), contacts.end(), [&](const Contact& other) { return other.id == id; });
      });
  if (!harmless) {
    arena.renew();
    carry_over.possible_writers.clear();
  }
}

// Must be done before any worker of the new generation gets our memory.
void Endpoint::Impl::begin_generation(uint64_t generation) {
  // This comes first, so that a worker that still reads for the last generation notices.
  arena.view().serve(kNoGeneration);
  ArenaHeader& header = arena.view().header();
  header.sleeping.store(0);
  header.mail.store(0);
  header.sequence.store(0);
  for (std::atomic<uint64_t>& offset : header.offset) {
    offset.store(0);
  }
  for (std::atomic<uint64_t>& word : header.shm_agreement) {
    word.store(0);
  }
  header.shm_agreement_forbidden.store(0);
  arena.view().serve(generation);
}

std::unique_ptr<Mesh> Endpoint::Impl::form(const World& world, const base::Deadline& deadline) {
  if (carry_over.mesh_lives) {
    throw Error(Code::kInvalidArgument, "the mesh of the last generation must be gone before the next one forms");
  }
  const double patience_seconds = static_cast<double>(deadline.left_ns()) * 1e-9;
  const std::vector<Contact> contacts = read_contacts(world);
  reserve_descriptors(contacts.size(), start_peers(world.rank, hosts_of(contacts)).size());
  const auto pending_world =
      std::make_shared<PendingWorld>(world.generation, arena.view().header().sleeping, doorbell_fd.get());
  pending_worlds.begin(pending_world);
  pending_world->world_status.throw_if_revoked();  // before the fence, which may take its time
  fence(contacts);
  begin_generation(world.generation);

  const std::vector<void*> old_buffers = std::exchange(carry_over.ring_buffers, {});
  MemoryHolders memory_holders;
  const SetupContext context = {.listeners = listeners,
                                .pending_world = *pending_world,
                                .links = {.generation = world.generation,
                                          .failure_deadline_seconds = settings.failure_deadline_seconds,
                                          .arena = arena,
                                          .doorbell_fd = doorbell_fd.get(),
                                          .mappings = mappings,
                                          .ring_buffers = carry_over.ring_buffers,
                                          .memory_holders = memory_holders}};
  std::vector<std::string> ids;
  for (const Contact& other : contacts) {
    ids.push_back(other.id);
  }
  try {
    LinkedWorld linked = MeshSetup(context, world, contacts, deadline).run();
    auto mesh = std::make_unique<SocketMesh>(context.links, world, std::move(linked), pending_world, std::move(ids),
                                             carry_over, patience_seconds);
    // All members have left the last generation, so no worker reads or writes its ring buffers any more.
    std::for_each(old_buffers.begin(), old_buffers.end(), [this](void* block) { arena.release(block); });
    carry_over.possible_writers.clear();
    mappings.drop_unused();
    return mesh;
  } catch (...) {
    carry_over.ring_buffers.insert(carry_over.ring_buffers.end(), old_buffers.begin(), old_buffers.end());
    carry_over.possible_writers.merge(memory_holders);
    throw;
  }
}

Endpoint::Endpoint(EndpointSettings settings) : impl_(std::make_unique<Impl>(std::move(settings))) {}

Endpoint::~Endpoint() = default;

std::string Endpoint::contact() const { return impl_->contact.to_text(); }

std::unique_ptr<Mesh> Endpoint::form(const World& world, const base::Deadline& deadline) {
  return impl_->form(world, deadline);
}

void Endpoint::revoke(uint64_t generation, const Cause& cause) { impl_->pending_worlds.revoke(generation, cause); }

Arena& Endpoint::arena() { return impl_->arena; }

}  // namespace farandole::transport
