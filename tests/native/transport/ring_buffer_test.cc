#include "transport/shm/ring_buffer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "transport/shm/shm_link.h"

namespace farandole::transport {
namespace {

TEST(RingBufferTest, TakesWhatFitsAndReportsFreedRoom) {
  const auto buffer = std::make_unique<RingBuffer>();
  std::vector<std::byte> bytes(RingBuffer::kCapacity, std::byte{1});
  EXPECT_EQ(buffer->put(std::span(bytes).first(10)), 10u);
  EXPECT_FALSE(buffer->take(std::span(bytes).first(4))->was_full);
  EXPECT_EQ(buffer->put(bytes), RingBuffer::kCapacity - 6);
  EXPECT_EQ(buffer->put(bytes), 0u);
  const auto taken = buffer->take(std::span(bytes).first(1));
  EXPECT_EQ(taken->count, 1u);
  EXPECT_TRUE(taken->was_full);
  EXPECT_EQ(buffer->take(bytes)->count, RingBuffer::kCapacity - 1);
  EXPECT_EQ(buffer->take(bytes)->count, 0u);
}

TEST(RingBufferTest, ImpossibleCountersEndTheWorld) {
  for (const bool sending : {true, false}) {
    const auto outgoing = std::make_unique<RingBuffer>();
    const auto incoming = std::make_unique<RingBuffer>();
    std::atomic<uint32_t> sleeping{0};
    Doorbell doorbell(&sleeping, -1);
    WorldStatus world_status(nullptr);
    std::atomic<uint64_t> mail{0};
    ShmLink link(3, *outgoing, *incoming, mail, doorbell, world_status);
    std::byte byte{1};
    outgoing->head = 1;  // taken, but never put
    incoming->tail = RingBuffer::kCapacity + 1;
    EXPECT_EQ(sending ? link.try_send({&byte, 1}) : link.try_recv({&byte, 1}), 0u);
    ASSERT_TRUE(world_status.revoked());
    EXPECT_EQ(world_status.cause()->rank, 3);
    EXPECT_EQ(world_status.cause()->sign, Sign::kBroken);
  }
}

}  // namespace
}  // namespace farandole::transport
