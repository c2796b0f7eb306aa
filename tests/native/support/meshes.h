// Meshes of worlds of threads for tests, joined by the transport of choice.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/patience.h"
#include "transport/endpoint.h"
#include "transport/loopback/loopback.h"

namespace farandole::testing {

inline constexpr size_t kArenaBytes = size_t{1} << 26;
// The sizes of worlds that are tried. What ThreadSanitizer looks for shows between a few threads as well as between
// eight, which would take it minutes.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 5};
#else
inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 8};
#endif

enum class Kind { kLoopback, kLoopbackLinks, kShm, kTcp, kTwoHosts, kTree };

inline std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::kLoopback:
      return "loopback";
    case Kind::kLoopbackLinks:
      return "loopback_links";
    case Kind::kShm:
      return "shm";
    case Kind::kTcp:
      return "tcp";
    case Kind::kTwoHosts:
      return "two_hosts";
    case Kind::kTree:
      return "tree";
  }
  return "?";
}

// Runs body(rank) for every rank in a thread of its own. What a body throws fails the test.
inline void on_all_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// The meshes of one world, and what they stand on.
class Meshes {
 public:
  // kTwoHosts: TCP between two hosts, shared memory within: even ranks on the one, odd ranks on the other.
  // kTree: the same between hosts of two ranks. in_world() lets them agree over a tree, in which each host has one
  // below.
  Meshes(Kind kind, int size, transport::FaultInjector injector = nullptr) : size_(size) {
    if (kind == Kind::kLoopback || kind == Kind::kLoopbackLinks) {
      transport::LoopbackSettings settings;
      settings.size = size;
      settings.shared_memory = kind == Kind::kLoopback;
      settings.arena_bytes = kArenaBytes;
      loopback_ = std::make_unique<transport::LoopbackWorld>(settings, std::move(injector));
      return;
    }
    for (int rank = 0; rank < size; ++rank) {
      transport::EndpointSettings settings;
      settings.arena_bytes = kArenaBytes;
      settings.shared_memory = kind != Kind::kTcp;
      if (kind == Kind::kTwoHosts) {
        settings.host_key = rank % 2 == 0 ? "even" : "odd";
      } else if (kind == Kind::kTree) {
        settings.host_key = "host " + std::to_string(rank / 2);
      }
      if (kind != Kind::kShm) {
        settings.listen_addresses = {"127.0.0.1"};
      }
      settings.failure_deadline_seconds = 10;  // the machine of a test may be very busy
      endpoints_.push_back(std::make_unique<transport::Endpoint>(settings));
    }
  }

  int size() const { return size_; }
  transport::LoopbackWorld& loopback() { return *loopback_; }

  // Blocks until all ranks, each in its thread, have called it.
  std::unique_ptr<transport::Mesh> form(int rank, uint64_t generation = 1) {
    if (loopback_) {
      return loopback_->mesh(rank);
    }
    transport::World world;
    world.generation = generation;
    world.rank = rank;
    for (const auto& endpoint : endpoints_) {
      world.contacts.push_back(endpoint->contact());
    }
    world.secret = "the secret of a test";
    return endpoints_[static_cast<size_t>(rank)]->form(world, base::Deadline::after_seconds(kPatience));
  }

  transport::Arena& arena(int rank) {
    return loopback_ ? loopback_->arena(rank) : endpoints_[static_cast<size_t>(rank)]->arena();
  }

 private:
  const int size_;
  std::unique_ptr<transport::LoopbackWorld> loopback_;
  std::vector<std::unique_ptr<transport::Endpoint>> endpoints_;
};

}  // namespace farandole::testing
