// The listening sockets and the arena by which other workers reach this one. An endpoint outlives generations; form()
// makes the Mesh of one world from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/arena.h"
#include "transport/mesh.h"
#include "transport/world_status.h"

namespace farandole::transport {

struct EndpointSettings {
  size_t arena_bytes = size_t{1} << 36;
  // Addresses to listen on for workers of other hosts, IPv4 or IPv6; none: this host only. Others take the first one
  // of them that leads here, see Dial.
  std::vector<std::string> listen_addresses;
  bool shared_memory = true;  // false: TCP even within a host
  // Workers with different keys never share memory. Others do if they are in one network namespace of one machine
  // (host_key.h). Set by tests to make several hosts of one.
  std::string host_key;
  double failure_deadline_seconds = 1.0;  // silence after which a worker counts as lost
};

struct World {
  uint64_t generation = 0;
  int rank = 0;
  std::vector<std::string> contacts;  // of every rank, as each endpoint's contact() gave it
  std::string secret;                 // of the job; raw bytes
};

class Endpoint {
 public:
  // Throws Error(kUnavailable) when an address cannot be listened on.
  explicit Endpoint(EndpointSettings settings);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // The contact by which others reach this worker: printable, without white space, stable for the endpoint's life.
  std::string contact() const;

  // Connects to the workers to which this one has links from the start, in small worlds to all, and waits until all
  // workers have theirs. Blocks until done or until the deadline. Throws Error(kTimeout) naming the ranks that did not
  // come, Error(kWorkerLost) when one of them died meanwhile, or the world was revoked. At most one Mesh of an endpoint
  // exists at a time, and the endpoint outlives it.
  //
  // A worker of the last generation that may still run, and is not in this one, may still write to the arena.
  // Then the arena gets new memory with the same content behind the same addresses (Arena::renew). So no thread may
  // write to blocks of the arena during form(). Blocks into which other workers write are to be released only
  // when the next form() has returned, or not at all.
  std::unique_ptr<Mesh> form(const World& world, const base::Deadline& deadline);

  // Ends the world of that generation at once, for everyone in it, from the moment that its forming begins: form()
  // throws this cause then, within milliseconds. It may come before form() is called; for a generation that is over, it
  // has no effect. The first cause wins. Any thread; does not block.
  void revoke(uint64_t generation, const Cause& cause);

  Arena& arena();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace farandole::transport
