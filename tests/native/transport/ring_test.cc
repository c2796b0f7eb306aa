#include "transport/ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "transport/shm_link.h"

namespace farandole::transport {
namespace {

TEST(RingTest, TakesWhatFitsAndSaysWhenRoomWasMade) {
  const auto ring = std::make_unique<Ring>();
  std::vector<std::byte> bytes(Ring::kCapacity, std::byte{1});
  EXPECT_EQ(ring->put(std::span(bytes).first(10)), 10u);
  EXPECT_FALSE(ring->take(std::span(bytes).first(4))->was_full);
  EXPECT_EQ(ring->put(bytes), Ring::kCapacity - 6);
  EXPECT_EQ(ring->put(bytes), 0u);
  const auto taken = ring->take(std::span(bytes).first(1));
  EXPECT_EQ(taken->count, 1u);
  EXPECT_TRUE(taken->was_full);
  EXPECT_EQ(ring->take(bytes)->count, Ring::kCapacity - 1);
  EXPECT_EQ(ring->take(bytes)->count, 0u);
}

TEST(RingTest, ImpossibleCountersEndTheWorld) {
  for (const bool sending : {true, false}) {
    const auto outgoing = std::make_unique<Ring>();
    const auto incoming = std::make_unique<Ring>();
    std::atomic<uint32_t> sleeping{0};
    Doorbell doorbell(&sleeping, -1);
    Fate fate(nullptr);
    ShmLink link(3, *outgoing, *incoming, doorbell, fate);
    std::byte byte{1};
    outgoing->head = 1;  // taken, but never put
    incoming->tail = Ring::kCapacity + 1;
    EXPECT_EQ(sending ? link.try_send({&byte, 1}) : link.try_recv({&byte, 1}), 0u);
    ASSERT_TRUE(fate.revoked());
    EXPECT_EQ(fate.cause()->rank, 3);
    EXPECT_EQ(fate.cause()->sign, Sign::kBroken);
  }
}

}  // namespace
}  // namespace farandole::transport
