// The frame multiplexer over links that count how often they are polled.
#include "transport/frame_multiplexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "transport/arena.h"
#include "transport/event_fd.h"

namespace farandole::transport {
namespace {

constexpr int kSize = 5;

// What comes from a peer, and how much it takes.
class FakeLink : public Link {
 public:
  size_t try_send(std::span<const std::byte> bytes) override {
    const size_t count = std::min(bytes.size(), room);
    room -= count;
    sent += count;
    return count;
  }
  size_t try_recv(std::span<std::byte> bytes) override {
    ++looks;
    const size_t count = std::min(bytes.size(), incoming.size());
    std::copy_n(incoming.begin(), count, bytes.begin());
    incoming.erase(incoming.begin(), incoming.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }
  bool counts_mail() const noexcept override { return with_mail; }

  void receive(const std::string& text) {
    const FrameHeader header{static_cast<uint32_t>(FrameKind::kMessage), 0, text.size()};
    const auto first = std::as_bytes(std::span(&header, 1));
    const auto second = std::as_bytes(std::span(text));
    incoming.insert(incoming.end(), first.begin(), first.end());
    incoming.insert(incoming.end(), second.begin(), second.end());
  }

  bool with_mail = true;
  size_t room = SIZE_MAX;
  size_t sent = 0;
  int looks = 0;
  std::deque<std::byte> incoming;
};

// Rank 0 of a world of kSize.
class FakeMesh : public Mesh {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return kSize; }
  uint64_t generation() const noexcept override { return 1; }
  Link& link(int peer) override { return links[static_cast<size_t>(peer)]; }
  Doorbell& doorbell() override { return doorbell_; }
  WorldStatus& world_status() override { return world_status_; }
  const ArenaView* arena(int peer) const noexcept override { return peer == 0 ? &arena_.view() : nullptr; }
  void wake(int /*peer*/, Sleep /*what_for*/) noexcept override {}
  const std::vector<int>& hosts() const noexcept override { return hosts_; }
  void say_goodbye() noexcept override {}
  std::string describe() const override { return "fake"; }
  std::string describe_route(int /*peer*/) const override { return "fake"; }

  std::array<FakeLink, kSize> links;

 private:
  Arena arena_{size_t{1} << 16};
  PrivateFd event_fd_ = make_event_fd();
  Doorbell doorbell_{&arena_.view().header().sleeping, event_fd_.get()};
  WorldStatus world_status_{&doorbell_};
  const std::vector<int> hosts_ = std::vector<int>(kSize, 0);
};

class Multiplexer : public ::testing::Test {
 protected:
  void count_mail() { mesh_.arena(0)->header().mail.fetch_add(1); }
  // Polls a hundred times, and returns how often this peer's link was polled.
  int looks_at(int peer) {
    FakeLink& link = mesh_.links[static_cast<size_t>(peer)];
    link.looks = 0;
    int turns = 0;
    Poll poll;
    frames_.look(poll, INT64_MAX, [&] { return ++turns == 100; }, [] { return false; });
    return link.looks;
  }

  FakeMesh mesh_;
  FrameMultiplexer frames_{mesh_, WaitPolicy{}};
};

TEST_F(Multiplexer, DoesNotPollLinksWithoutMail) {
  looks_at(1);  // the first time, all links are polled
  EXPECT_EQ(looks_at(1), 0);
  count_mail();
  EXPECT_EQ(looks_at(1), 1);
}

TEST_F(Multiplexer, FindsMessageThatWasCounted) {
  looks_at(1);
  mesh_.links[3].receive("hello");
  count_mail();
  looks_at(1);
  const auto message = frames_.take_message();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->from, 3);
  EXPECT_EQ(message->bytes.size(), 5U);
}

TEST_F(Multiplexer, TakesDataThatCameBeforeItsMemoryWasPosted) {
  uint32_t value = 0;
  const FrameHeader header{static_cast<uint32_t>(FrameKind::kData), 0, sizeof value};
  const auto bytes = std::as_bytes(std::span(&header, 1));
  mesh_.links[2].incoming.assign(bytes.begin(), bytes.end());
  mesh_.links[2].incoming.insert(mesh_.links[2].incoming.end(), sizeof value, std::byte{1});
  count_mail();
  looks_at(1);
  const uint64_t ticket = frames_.recv(2, std::as_writable_bytes(std::span(&value, 1)));
  looks_at(1);
  EXPECT_TRUE(frames_.received(2, ticket));
  EXPECT_EQ(value, 0x01010101U);
}

TEST_F(Multiplexer, SendsRestWhenThereIsRoomAlsoWithoutMail) {
  mesh_.links[2].room = 10;
  frames_.post(2, base::Bytes(100));
  looks_at(1);
  EXPECT_EQ(mesh_.links[2].sent, 10U);
  mesh_.links[2].room = SIZE_MAX;
  looks_at(1);
  EXPECT_EQ(mesh_.links[2].sent, sizeof(FrameHeader) + 100);
  EXPECT_EQ(looks_at(1), 0) << "nothing waits for room any more";
}

TEST(MultiplexerWithoutMail, PollsEachLinkEachTime) {
  FakeMesh mesh;
  mesh.links[4].with_mail = false;
  FrameMultiplexer frames(mesh, WaitPolicy{});
  int turns = 0;
  Poll poll;
  frames.look(poll, INT64_MAX, [&] { return ++turns == 100; }, [] { return false; });
  EXPECT_EQ(mesh.links[4].looks, 100);
  EXPECT_EQ(mesh.links[1].looks, 1);
}

}  // namespace
}  // namespace farandole::transport
