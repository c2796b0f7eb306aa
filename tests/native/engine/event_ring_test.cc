// Readers of the ring of events, while it is written.
#include "engine/event_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace farandole::engine {
namespace {

// All words are the number of the event, so that a mixed copy shows.
struct Numbered {
  std::array<uint64_t, 6> words{};
};

Numbered numbered(uint64_t number) {
  Numbered event;
  event.words.fill(number);
  return event;
}

std::vector<uint64_t> read(const auto& ring, uint64_t& cursor, uint64_t& lost, size_t at_most = 100) {
  std::vector<Numbered> events(at_most);
  events.resize(ring.read(cursor, events, lost));
  std::vector<uint64_t> numbers;
  for (const Numbered& event : events) {
    EXPECT_EQ(event.words, numbered(event.words.front()).words) << "words of different events";
    numbers.push_back(event.words.front());
  }
  return numbers;
}

TEST(EventRing, GivesWhatItHoldsOnceAndCountsTheRest) {
  EventRing<Numbered, 4> ring;
  uint64_t cursor = 0;
  uint64_t lost = 0;
  EXPECT_TRUE(read(ring, cursor, lost).empty());
  for (uint64_t number = 0; number < 3; ++number) {
    ring.record(numbered(number));
  }
  EXPECT_EQ(read(ring, cursor, lost, 2), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(read(ring, cursor, lost, 2), (std::vector<uint64_t>{2}));
  EXPECT_TRUE(read(ring, cursor, lost).empty());
  EXPECT_EQ(lost, 0U);
  for (uint64_t number = 3; number < 10; ++number) {
    ring.record(numbered(number));
  }
  EXPECT_EQ(read(ring, cursor, lost), (std::vector<uint64_t>{6, 7, 8, 9}));
  EXPECT_EQ(lost, 3U);
}

TEST(EventRing, ReaderNeverGetsAnEventThatIsBeingOverwritten) {
  constexpr uint64_t kEvents = 10'000'000;  // long enough for the kernel to interrupt a reader that shares its core
  EventRing<Numbered, 8> ring;
  std::thread writer([&] {
    for (uint64_t number = 0; number < kEvents; ++number) {
      ring.record(numbered(number));
    }
  });
  uint64_t cursor = 0;
  uint64_t lost = 0;
  uint64_t seen = 0;
  while (cursor < kEvents && !::testing::Test::HasFailure()) {
    const std::vector<uint64_t> numbers = read(ring, cursor, lost);
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(numbers[i], cursor - numbers.size() + i);
    }
    seen += numbers.size();
    EXPECT_EQ(seen + lost, cursor);
  }
  writer.join();
}

}  // namespace
}  // namespace farandole::engine
