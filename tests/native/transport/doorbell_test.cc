// Who is woken by what.
#include "transport/doorbell.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>

#include "transport/event_fd.h"

namespace farandole::transport {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;

class DoorbellTest : public ::testing::Test {
 protected:
  bool is_called() const {
    pollfd polled{doorbell_.fd(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
  }
  bool sleeps() const { return word_ != 0; }

  std::atomic<uint32_t> word_{0};
  PrivateFd event_fd_ = make_event_fd();
  Doorbell doorbell_{&word_, event_fd_.get()};
};

TEST_F(DoorbellTest, ASignalCostsNoCallWhileItsOwnerIsAwake) {
  doorbell_.signal();
  doorbell_.signal(Sleep::kMidway, 1);
  EXPECT_FALSE(is_called());
}

TEST_F(DoorbellTest, ASignalEndsEverySleep) {
  for (const Sleep what_for : {Sleep::kIdle, Sleep::kMidway, Sleep::kAgreeing}) {
    doorbell_.prepare_sleep(what_for, 3);
    doorbell_.signal();
    EXPECT_TRUE(is_called());
    doorbell_.end_sleep();
    EXPECT_FALSE(is_called());
    doorbell_.prepare_sleep_in_place(what_for, 3);
    doorbell_.signal();
    doorbell_.sleep_in_place(kLongNs);
    EXPECT_FALSE(is_called());
    doorbell_.end_sleep_in_place();
  }
}

TEST_F(DoorbellTest, AnOwnerIsWokenOnlyForWhatItSleepsFor) {
  for (const Sleep what_for : {Sleep::kIdle, Sleep::kMidway, Sleep::kAgreeing}) {
    for (const Sleep cause : {Sleep::kMidway, Sleep::kAgreeing}) {
      doorbell_.prepare_sleep(what_for);
      doorbell_.signal(cause, 0);
      EXPECT_EQ(sleeps(), what_for != cause);
      EXPECT_EQ(is_called(), what_for == cause);
      doorbell_.end_sleep();
      doorbell_.prepare_sleep_in_place(what_for);
      doorbell_.signal(cause, 0);
      EXPECT_EQ(sleeps(), what_for != cause);
      doorbell_.end_sleep_in_place();
    }
  }
  EXPECT_FALSE(is_called());
}

TEST_F(DoorbellTest, OnlyTheAwaitedSequenceWakesItsOwner) {
  doorbell_.prepare_sleep(Sleep::kMidway, 300);
  for (const int other : {0, 1, 44, 299, 301}) {
    doorbell_.signal(Sleep::kMidway, other);
    EXPECT_TRUE(sleeps()) << other;
  }
  doorbell_.signal(Sleep::kMidway, 300);
  EXPECT_FALSE(sleeps());
  EXPECT_TRUE(is_called());
}

TEST_F(DoorbellTest, OnlyTheAwaitedSequenceWakesItsOwnerInPlace) {
  doorbell_.prepare_sleep_in_place(Sleep::kMidway, 2);
  doorbell_.signal(Sleep::kMidway, 1);
  EXPECT_TRUE(sleeps());
  doorbell_.signal(Sleep::kMidway, 2);
  EXPECT_FALSE(sleeps());
  doorbell_.sleep_in_place(kLongNs);
  EXPECT_FALSE(is_called());
}

TEST_F(DoorbellTest, EverySequenceWakesAnOwnerThatWaitsForAnybody) {
  doorbell_.prepare_sleep(Sleep::kMidway);
  doorbell_.signal(Sleep::kMidway, 7);
  EXPECT_FALSE(sleeps());
}

}  // namespace
}  // namespace farandole::transport
