// Links that are made when they are needed first, in worlds in which not all are linked from the start.
#include "transport/late_links.h"

#include <algorithm>
#include <numeric>

#include "transport/frame_multiplexer.h"
#include "transport/shm/shm_exchange.h"
#include "transport/start_graph.h"
#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

constexpr int kSize = kLargestWorldInWhichAllTellAll + 3;

base::Bytes bytes_of(int from, int to) { return base::Bytes(size_t{3'001}, static_cast<std::byte>(7 * from + to)); }

class LargeWorld : public ::testing::Test {
 protected:
  LargeWorld() : workers_(Wiring::kTcp4, kSize), meshes_(workers_.form()) {}

  Mesh& mesh(int rank) { return *meshes_[static_cast<size_t>(rank)]; }

  // As in a collective in which these ranks exchange data with each other.
  void exchange(const std::vector<int>& ranks) {
    in_threads(static_cast<int>(ranks.size()), [&](int index) {
      const int rank = ranks[static_cast<size_t>(index)];
      FrameMultiplexer frames(mesh(rank), WaitPolicy());
      std::vector<base::Bytes> sent;
      std::vector<base::Bytes> received;
      sent.reserve(ranks.size());
      received.reserve(ranks.size());
      for (const int peer : ranks) {
        if (peer != rank) {
          frames.recv(peer, received.emplace_back(bytes_of(peer, rank).size()));
          frames.send(peer, sent.emplace_back(bytes_of(rank, peer)));
        }
      }
      frames.flush();
      auto at = received.begin();
      for (const int peer : ranks) {
        if (peer != rank) {
          EXPECT_EQ(*at++, bytes_of(peer, rank)) << "from rank " << peer << " to rank " << rank;
        }
      }
    });
  }

  Workers workers_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

TEST_F(LargeWorld, HasLinksFromTheStartToFewWorkers) {
  std::vector<int> alone(kSize);
  std::iota(alone.begin(), alone.end(), 0);
  for (const int rank : {0, 30, kSize - 1}) {
    const std::vector<int> from_start = start_peers(rank, alone);
    EXPECT_LT(from_start.size(), 20U);
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer != rank) {
        EXPECT_EQ(mesh(rank).is_late(peer), !std::ranges::binary_search(from_start, peer)) << peer;
      }
    }
  }
  EXPECT_EQ(mesh(0).describe_route(3), "not connected yet");
}

TEST_F(LargeWorld, MakesLinksThatAreNeeded) {
  exchange({0, 3, 6, 13, 30, kSize - 1});
  EXPECT_EQ(mesh(0).describe_route(3), "127.0.0.1 -> 127.0.0.1");
  EXPECT_EQ(mesh(0).describe_route(5), "not connected yet");
  exchange({3, 6, 9});  // some of these links are there already
}

// The lower rank of a pair has no part in making the link, and may not know that one will be made.
TEST_F(LargeWorld, MessageComesOverLinkThatOnlyTheOtherSideHasAskedFor) {
  in_threads(2, [&](int index) {
    const int rank = index == 0 ? 0 : 37;
    FrameMultiplexer frames(mesh(rank), WaitPolicy());
    if (rank == 37) {
      frames.post(0, bytes_of(37, 0));
      frames.expect(0);
    }
    frames.wait([&] { return frames.has_message(); });
    const auto message = frames.take_message();
    ASSERT_TRUE(message);
    EXPECT_EQ(message->from, 37 - rank);
    EXPECT_EQ(message->bytes, bytes_of(37 - rank, rank));
    if (rank == 0) {
      frames.post(37, bytes_of(0, 37));
      frames.flush_messages(base::Deadline::after_seconds(kPatience));
    }
  });
}

TEST_F(LargeWorld, GoodbyesEndLateLinksWithoutLoss) {
  exchange({0, 3});
  in_threads(kSize, [&](int rank) { mesh(rank).say_goodbye(); });
  for (int rank = 1; rank < kSize; ++rank) {
    meshes_[static_cast<size_t>(rank)].reset();
  }
  EXPECT_FALSE(mesh(0).world_status().revoked());
}

TEST_F(LargeWorld, EndOfTheWorldEndsWaitForLateLink) {
  in_threads(2, [&](int index) {
    if (index == 1) {
      mesh(50).world_status().revoke({.rank = 50, .sign = Sign::kRevoked, .text = "as the roster said"});
      return;
    }
    FrameMultiplexer frames(mesh(0), WaitPolicy());
    base::Bytes memory(10);
    frames.recv(3, memory);  // which never sends
    EXPECT_THROW(frames.flush(), base::Error);
  });
  EXPECT_EQ(mesh(0).world_status().cause()->text, "as the roster said");
}

// Two meshes of different generations never exchange a byte: a link that is wanted in one is not made with the other.
TEST_F(LargeWorld, NextGenerationMakesItsOwnLinks) {
  exchange({0, 3});
  in_threads(kSize, [&](int rank) { mesh(rank).say_goodbye(); });
  meshes_.clear();
  meshes_ = workers_.form(2);
  EXPECT_EQ(mesh(0).describe_route(3), "not connected yet");
  exchange({0, 3});
}

TEST(LateLinks, EndTheWorldIfOneCannotBeMade) {
  Workers workers(Wiring::kTcp4, 2);
  World world = workers.world({0, 1}, 1, 1);
  std::vector<Contact> contacts = {parse_contact(world.contacts[0]), parse_contact(world.contacts[1])};
  contacts[0].tcp = {ip_address("127.0.0.1", 1)};
  WorldStatus world_status(nullptr);
  MappingCache mappings;
  std::vector<void*> ring_buffers;
  MemoryHolders memory_holders;
  const LinkContext context = {.generation = 1,
                               .failure_deadline_seconds = 10,
                               .arena = workers.endpoint(1).arena(),
                               .doorbell_fd = -1,
                               .mappings = mappings,
                               .ring_buffers = ring_buffers,
                               .memory_holders = memory_holders};
  LateLinks links(context, std::make_unique<Connections>(std::span<const Listener>(), world, contacts), 0.1,
                  world_status, [](int, const LinkedPeer&) { ADD_FAILURE() << "nobody listens there"; });
  links.want(0);
  ASSERT_TRUE(eventually([&] { return world_status.revoked(); }));
  EXPECT_EQ(world_status.cause()->rank, 0);
  EXPECT_NE(world_status.cause()->text.find("rank 0 could not be reached within 0.1 s"), std::string::npos);
}

}  // namespace
}  // namespace farandole::transport::testing
