// The kinds of links between two workers: one folder and one row of the table for each (shm, tcp).
//
// In each pair the higher rank connects and the lower one accepts. The first proven connection is the control channel.
// Its type and the contacts of both workers decide which kind of link the pair gets: the first row that fits.
// Both sides see the same and so decide alike. From then on a LinkSetup of that kind does the rest:
//
//   1. Its own exchange over the control connection, if it has one, before any control frame: for example the
//      descriptors of shared memory, or the address of a queue pair.
//   2. A second proven connection for data, if it asks for one.
//   3. When all of the world are linked, finish() makes the Link.
//
// A loss is reported by what the functions return; the caller revokes the world. (The loopback of tests,
// transport/loopback, is not a row: a test makes such a world as a whole, without a set-up.)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/arena.h"
#include "transport/contact.h"
#include "transport/control.h"
#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/watch.h"

namespace farandole::transport {

struct EndpointSettings;
class MappingCache;

// Workers that got our memory: by contact id, with their memory, or null while that has not come.
using MemoryHolders = std::map<std::string, std::shared_ptr<const Mapping>>;

// The parts of an endpoint that the links of one world use. All of it outlives their set-up.
struct LinkContext {
  uint64_t generation;
  double failure_deadline_seconds;
  Arena& arena;
  int doorbell_fd;
  MappingCache& mappings;
  std::vector<void*>& ring_buffers;  // the arena's blocks of all ring buffers that are made are added here
  MemoryHolders& memory_holders;     // processes that get our memory are added here
};

// A link that is ready, and the facts that the mesh keeps beside it.
struct PeerLink {
  std::string_view kind;                  // name of the row
  std::string route;                      // how the bytes go, for people: "shared memory", "10.0.0.1 -> 10.0.0.2"
  std::shared_ptr<const Mapping> memory;  // of a worker with which memory is shared, and its doorbell; or null
  PrivateFd doorbell_fd;
  std::unique_ptr<Doorbell> doorbell;
  std::unique_ptr<Link> link;  // last: it refers to the others
};

// The outcome of one step of the kind's own exchange.
enum class Exchange : uint8_t { kNotYet, kDone, kClosed, kBroken };

// One side of the set-up of one link, from its proven control connection on. Used by the thread that sets up the mesh.
class LinkSetup {
 public:
  virtual ~LinkSetup() = default;

  // Whether the kind's own exchange is still under way: then the control socket carries no frames yet, and advance()
  // reads what has come. advance() throws Error(kUnavailable) when the system refuses what it needs.
  virtual bool exchanging() const noexcept { return false; }
  virtual Exchange advance(int) { return Exchange::kDone; }

  // Whether the connector makes a second connection, for data, to the address of the first. The acceptor gets it, too.
  virtual bool wants_data_connection() const noexcept { return false; }
  virtual void take_data_connection(PrivateFd) {}

  // Whether everything that finish() needs is available.
  virtual bool complete() const noexcept = 0;
  // The memory of the other worker, once it is there, if the kind shares memory.
  virtual std::shared_ptr<const Mapping> memory() const { return nullptr; }
  // Requires complete(). `watch` and `world_status` outlive the link.
  virtual PeerLink finish(int peer, Watch& watch, WorldStatus& world_status) = 0;
};

struct LinkKind {
  std::string_view name;         // for people, such as Mesh::describe()
  std::string_view description;  // one sentence
  bool shares_memory;            // both sides map each other's arena
  // Opens the listeners that links of this kind need, and enters them in the contact. Throws Error(kUnavailable).
  void (*listen)(const EndpointSettings& settings, std::vector<Listener>& listeners, Contact& contact);
  // Where the other worker can be reached for a link of this kind, the best address first; none: this pair cannot
  // have one.
  std::vector<Address> (*addresses)(const Contact& self, const Contact& peer);
  // Whether a control connection between these two leads to a link of this kind; `over_unix`: over a Unix socket.
  // Must be the same on both sides.
  bool (*fits)(const Contact& self, const Contact& peer, bool over_unix);
  // Begins, on a fresh control connection. `connector`: this side has connected; it must send something at once, so
  // that the other side knows that both take the connection for proven. Throws Error(kUnavailable).
  std::unique_ptr<LinkSetup> (*begin)(const LinkContext& context, const Contact& peer, ControlChannel& control,
                                      bool connector);
};

// All kinds, the preferred one first.
std::span<const LinkKind> link_kinds() noexcept;

// The kind of link that a control connection between these two leads to.
const LinkKind& kind_of_link(const Contact& self, const Contact& peer, bool over_unix) noexcept;

}  // namespace farandole::transport
