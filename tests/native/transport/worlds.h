// Worlds of endpoints in one process, ranks as threads, for the tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/endpoint.h"

namespace farandole::transport::testing {

inline constexpr size_t kArenaBytes = size_t{1} << 26;
// Seconds after which a test calls a wait a hang. No working case comes near it.
inline constexpr double kPatience = 30.0;

enum class Wiring { kShm, kTcp4, kTcp6, kTwoHosts };
inline constexpr Wiring kAllWirings[] = {Wiring::kShm, Wiring::kTcp4, Wiring::kTcp6, Wiring::kTwoHosts};
std::string name_of(Wiring wiring);

// For worker number `index`; kTwoHosts puts even and odd ones on different hosts.
EndpointSettings settings_for(Wiring wiring, int index = 0);

// Runs body(i) for i < count, each in its own thread. What a body throws fails the test.
void in_threads(int count, const std::function<void(int)>& body);

// True when `fact` came true in time.
bool eventually(const std::function<bool()>& fact, double seconds = kPatience);

int open_descriptors();

class Workers {
 public:
  Workers(Wiring wiring, int count);

  Endpoint& endpoint(int index) { return *endpoints_[static_cast<size_t>(index)]; }
  // The world of these workers, in this order, as the one at `rank` is told of it.
  World world(const std::vector<int>& members, int rank, uint64_t generation) const;
  // Forms it, each member in its own thread; by rank.
  std::vector<std::unique_ptr<Mesh>> form(const std::vector<int>& members, uint64_t generation);
  // Of all workers.
  std::vector<std::unique_ptr<Mesh>> form(uint64_t generation = 1);

 private:
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

// Sends `count` bytes from each rank to each other at the same time, in pieces of odd sizes, and checks that
// they come in order.
void exchange_bytes(const std::vector<std::unique_ptr<Mesh>>& meshes, size_t count);

}  // namespace farandole::transport::testing
