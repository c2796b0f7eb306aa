#include "transport/worlds.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace farandole::transport::testing {

std::string name_of(Wiring wiring) {
  switch (wiring) {
    case Wiring::kShm:
      return "shm";
    case Wiring::kTcp4:
      return "tcp4";
    case Wiring::kTcp6:
      return "tcp6";
    case Wiring::kTwoHosts:
      return "two_hosts";
  }
  return "?";
}

EndpointSettings settings_for(Wiring wiring, int index) {
  EndpointSettings settings;
  settings.arena_bytes = kArenaBytes;
  settings.failure_deadline_seconds = 10;  // a test machine may be very busy
  settings.shared_memory = wiring == Wiring::kShm || wiring == Wiring::kTwoHosts;
  if (wiring == Wiring::kTcp6) {
    settings.listen_addresses = {"::1"};
  } else if (wiring != Wiring::kShm) {
    settings.listen_addresses = {"127.0.0.1"};
  }
  if (wiring == Wiring::kTwoHosts) {
    settings.host_key = index % 2 == 0 ? "even; host" : "odd, host";
  }
  return settings;
}

void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&body, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << i << " threw: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

bool eventually(const std::function<bool()>& fact, double seconds) {
  const auto deadline = base::Deadline::after_seconds(seconds);
  while (!fact()) {
    if (deadline.passed()) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

int open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

Workers::Workers(Wiring wiring, int count) {
  for (int i = 0; i < count; ++i) {
    endpoints_.push_back(std::make_unique<Endpoint>(settings_for(wiring, i)));
  }
}

World Workers::world(const std::vector<int>& members, int rank, uint64_t generation) const {
  World world;
  world.generation = generation;
  world.rank = rank;
  world.secret = "the secret of a test";
  for (const int member : members) {
    world.contacts.push_back(endpoints_[static_cast<size_t>(member)]->contact());
  }
  return world;
}

std::vector<std::unique_ptr<Mesh>> Workers::form(const std::vector<int>& members, uint64_t generation) {
  std::vector<std::unique_ptr<Mesh>> meshes(members.size());
  in_threads(static_cast<int>(members.size()), [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    meshes[at] = endpoint(members[at]).form(world(members, rank, generation), base::Deadline::after_seconds(kPatience));
  });
  if (std::find(meshes.begin(), meshes.end(), nullptr) != meshes.end()) {
    throw std::runtime_error("the world did not form");
  }
  return meshes;
}

std::vector<std::unique_ptr<Mesh>> Workers::form(uint64_t generation) {
  std::vector<int> all(endpoints_.size());
  std::iota(all.begin(), all.end(), 0);
  return form(all, generation);
}

namespace {

// The byte at a place of the stream between two ranks: every stream and every place differ.
std::byte byte_at(int from, int to, size_t at) {
  const uint64_t mixed = (at + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(from * 64 + to) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(mixed >> 56);
}

// One direction of one link.
struct Stream {
  std::vector<std::byte> bytes;
  size_t done = 0;

  bool move_out(Link& link, size_t piece) {
    const size_t moved = link.try_send(std::span(bytes).subspan(done, std::min(piece, bytes.size() - done)));
    done += moved;
    if (moved > 0) {
      link.notify();
    }
    return moved > 0;
  }
  bool move_in(Link& link, size_t piece) {
    const size_t moved = link.try_recv(std::span(bytes).subspan(done, std::min(piece, bytes.size() - done)));
    done += moved;
    return moved > 0;
  }
  bool complete() const { return done == bytes.size(); }
};

// Sleeps as an engine does; a lost wake-up would show as a hang.
void sleep_until_signalled(Mesh& mesh, const std::vector<Stream>& outgoing, const std::function<bool()>& look) {
  mesh.doorbell().prepare_sleep(Sleep::kMidway);
  if (!look()) {
    std::vector<pollfd> polled = {{.fd = mesh.doorbell().fd(), .events = POLLIN, .revents = 0}};
    for (int peer = 0; peer < mesh.size(); ++peer) {
      if (peer != mesh.rank()) {
        const short events = outgoing[static_cast<size_t>(peer)].complete() ? POLLIN : POLLIN | POLLOUT;
        polled.push_back({.fd = mesh.link(peer).poll_fd(), .events = events, .revents = 0});
      }
    }
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(kPatience * 1e3));
    EXPECT_GT(ready, 0) << "rank " << mesh.rank() << " was never woken";
  }
  mesh.doorbell().end_sleep();
}

void exchange_one(Mesh& mesh, size_t count) {
  const auto size = static_cast<size_t>(mesh.size());
  std::vector<Stream> outgoing(size);
  std::vector<Stream> incoming(size);
  for (size_t peer = 0; peer < size; ++peer) {
    if (static_cast<int>(peer) == mesh.rank()) {
      continue;
    }
    incoming[peer].bytes.resize(count);
    for (size_t at = 0; at < count; ++at) {
      outgoing[peer].bytes.push_back(byte_at(mesh.rank(), static_cast<int>(peer), at));
    }
  }
  size_t turn = 0;
  const auto move = [&] {
    bool moved = false;
    for (size_t peer = 0; peer < size; ++peer) {
      if (static_cast<int>(peer) != mesh.rank()) {
        Link& link = mesh.link(static_cast<int>(peer));
        moved |= outgoing[peer].move_out(link, 1 + (turn * 7919) % 20011);
        moved |= incoming[peer].move_in(link, 1 + (turn * 104729) % 30011);
        ++turn;
      }
    }
    return moved;
  };
  const auto complete = [&] {
    const auto is_complete = [](const Stream& stream) { return stream.complete(); };
    return std::all_of(outgoing.begin(), outgoing.end(), is_complete) &&
           std::all_of(incoming.begin(), incoming.end(), is_complete);
  };
  const auto deadline = base::Deadline::after_seconds(kPatience);
  while (!complete() && !deadline.passed()) {
    if (!move()) {
      sleep_until_signalled(mesh, outgoing, move);
    }
  }
  ASSERT_TRUE(complete()) << "rank " << mesh.rank() << " did not get everything";
  for (size_t peer = 0; peer < size; ++peer) {
    for (size_t at = 0; at < incoming[peer].bytes.size(); ++at) {
      ASSERT_EQ(incoming[peer].bytes[at], byte_at(static_cast<int>(peer), mesh.rank(), at))
          << "rank " << mesh.rank() << ", byte " << at << " from rank " << peer;
    }
  }
}

}  // namespace

void exchange_bytes(const std::vector<std::unique_ptr<Mesh>>& meshes, size_t count) {
  in_threads(static_cast<int>(meshes.size()),
             [&](int rank) { exchange_one(*meshes[static_cast<size_t>(rank)], count); });
}

}  // namespace farandole::transport::testing
