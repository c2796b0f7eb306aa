// Which of a worker's addresses is taken. Time passes only when a test says so.
#include "transport/dial.h"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

constexpr char kSecret[] = "the secret of a test";
constexpr int64_t kMs = 1'000'000;

Hello hello(int from, int to) {
  Hello hello;
  hello.generation = 1;
  hello.from = from;
  hello.to = to;
  return hello;
}

// One address of the worker that is dialled.
class Door {
 public:
  enum class Manner { kSilent, kAnswers, kShuts };

  explicit Door(Manner manner) : manner(manner), listener_(listen_on(ip_address("127.0.0.1", 0))) {}

  const Address& address() const { return listener_.address; }

  void serve() {
    if (manner == Manner::kSilent) {
      return;
    }
    int error = 0;
    while (PrivateFd fd = accept_from(listener_, error)) {
      guests_.emplace_back(std::move(fd), false, Handshake::accepting(kSecret, hello(0, -1), 2),
                           base::Deadline::after_seconds(kPatience));
    }
    if (manner == Manner::kShuts) {
      guests_.clear();
    }
    for (Attempt& guest : guests_) {
      guest.advance();
    }
  }

  Manner manner;

 private:
  Listener listener_;
  std::vector<Attempt> guests_;
};

// An address behind which packets are dropped: a listener whose queue is full.
class Abyss {
 public:
  Abyss() {
    const Address any = ip_address("127.0.0.1", 0);
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address_.length = sizeof address_.storage;
    EXPECT_EQ(::bind(fd_, any.get(), any.length), 0);
    EXPECT_EQ(::listen(fd_, 0), 0);
    EXPECT_EQ(::getsockname(fd_, address_.get(), &address_.length), 0);
    filler_ = start_connecting(address_).fd;
    pollfd polled = {.fd = filler_.get(), .events = POLLOUT, .revents = 0};
    EXPECT_EQ(::poll(&polled, 1, 5000), 1);
  }
  ~Abyss() { ::close(fd_); }
  Abyss(const Abyss&) = delete;
  Abyss& operator=(const Abyss&) = delete;

  const Address& address() const { return address_; }

 private:
  int fd_ = -1;
  Address address_;
  PrivateFd filler_;
};

class DialTest : public ::testing::Test {
 protected:
  Door& add(Door::Manner manner) {
    doors_.push_back(std::make_unique<Door>(manner));
    addresses_.push_back(doors_.back()->address());
    return *doors_.back();
  }

  void begin(int64_t now_ns = 0) {
    dial_.emplace(addresses_, kSecret, hello(1, 0), base::Deadline::after_seconds(kPatience));
    dial_->start(now_ns);
  }

  std::vector<Attempt*> attempts() const {
    std::vector<Attempt*> all;
    dial_->collect(all);
    return all;
  }

  // Both sides do what they can.
  void move() {
    for (const auto& door : doors_) {
      door->serve();
    }
    for (Attempt* const attempt : attempts()) {
      pollfd polled = {.fd = attempt->fd(), .events = attempt->events(), .revents = 0};
      if (!attempt->failed() && ::poll(&polled, 1, 0) > 0) {
        attempt->advance();
      }
    }
  }

  bool moved_until(const std::function<bool()>& fact) {
    return eventually([&] {
      move();
      return fact();
    });
  }

  bool convinced(size_t count) {
    return moved_until([&] {
      const auto all = attempts();
      return static_cast<size_t>(
                 std::count_if(all.begin(), all.end(), [](Attempt* one) { return one->convinced(); })) == count;
    });
  }

  // Until the connection is there, at this time; "" if it does not come.
  std::string reached(int64_t now_ns) {
    std::optional<Dial::Reached> reached;
    moved_until([&] {
      dial_->start(now_ns);
      reached = dial_->settle(now_ns);
      return reached.has_value();
    });
    return reached.has_value() ? to_text(reached->address) : "";
  }

  std::vector<std::unique_ptr<Door>> doors_;
  std::vector<Address> addresses_;
  std::optional<Dial> dial_;
};

TEST_F(DialTest, TakesMostPreferredAddressThatAnswers) {
  add(Door::Manner::kAnswers);
  add(Door::Manner::kAnswers);
  begin();
  ASSERT_TRUE(convinced(2));
  EXPECT_EQ(reached(0), to_text(addresses_[0]));
  EXPECT_FALSE(dial_->settle(0).has_value());  // it is over
  EXPECT_EQ(dial_->next_turn_ns(), INT64_MAX);
}

TEST_F(DialTest, WaitsForBetterRouteThatIsUnderWay) {
  Door& better = add(Door::Manner::kSilent);
  add(Door::Manner::kAnswers);
  add(Door::Manner::kAnswers);
  begin();
  ASSERT_TRUE(convinced(2));
  EXPECT_FALSE(dial_->settle(0).has_value());
  EXPECT_EQ(dial_->next_turn_ns(), 20 * kMs);
  better.manner = Door::Manner::kAnswers;
  ASSERT_TRUE(convinced(3));
  EXPECT_EQ(reached(19 * kMs), to_text(addresses_[0]));
}

TEST_F(DialTest, DroppedPacketsCostNoMoreThanGracePeriod) {
  const Abyss abyss;
  addresses_.push_back(abyss.address());
  add(Door::Manner::kSilent);
  add(Door::Manner::kAnswers);
  begin();
  ASSERT_TRUE(convinced(1));
  ASSERT_EQ(attempts().size(), 3u);
  EXPECT_FALSE(dial_->settle(0).has_value());
  EXPECT_FALSE(dial_->settle(20 * kMs - 1).has_value());
  EXPECT_EQ(attempts().size(), 3u);
  EXPECT_FALSE(dial_->settle(20 * kMs).has_value());  // it is chosen, and not yet proven
  EXPECT_EQ(attempts().size(), 1u);
  EXPECT_EQ(dial_->next_turn_ns(), INT64_MAX);
  EXPECT_EQ(reached(20 * kMs), to_text(addresses_[2]));
}

TEST_F(DialTest, DoesNotWaitForLessPreferredRoute) {
  add(Door::Manner::kAnswers);
  add(Door::Manner::kSilent);
  begin();
  ASSERT_TRUE(convinced(1));
  dial_->settle(0);
  EXPECT_EQ(attempts().size(), 1u);
  EXPECT_EQ(reached(0), to_text(addresses_[0]));
}

TEST_F(DialTest, DoesNotWaitForRefusedRoute) {
  addresses_.push_back(ip_address("127.0.0.1", 1));
  add(Door::Manner::kAnswers);
  begin();
  ASSERT_TRUE(convinced(1));
  EXPECT_EQ(reached(0), to_text(addresses_[1]));
}

TEST_F(DialTest, BetterRouteGetsTwiceTheTimeOfTheFirst) {
  add(Door::Manner::kSilent);
  add(Door::Manner::kAnswers);
  begin(100 * kMs);
  ASSERT_TRUE(convinced(1));
  dial_->settle(160 * kMs);
  EXPECT_EQ(dial_->next_turn_ns(), (160 + 2 * 60) * kMs);
}

TEST_F(DialTest, BetterRouteGetsAtMostAFifthOfASecond) {
  add(Door::Manner::kSilent);
  add(Door::Manner::kAnswers);
  begin();
  ASSERT_TRUE(convinced(1));
  dial_->settle(5000 * kMs);
  EXPECT_EQ(dial_->next_turn_ns(), 5200 * kMs);
}

// As a worker does that was in an earlier generation a moment ago.
TEST_F(DialTest, WaitsForBetterRouteThatWillBeRetried) {
  Door& better = add(Door::Manner::kShuts);
  add(Door::Manner::kAnswers);
  begin();
  ASSERT_TRUE(convinced(1));
  ASSERT_TRUE(moved_until([&] { return attempts().front()->failed(); }));
  EXPECT_FALSE(dial_->settle(0).has_value());
  EXPECT_EQ(attempts().size(), 1u);
  EXPECT_EQ(dial_->next_turn_ns(), 2 * kMs);
  better.manner = Door::Manner::kAnswers;
  dial_->start(2 * kMs);
  ASSERT_TRUE(convinced(2));
  EXPECT_EQ(reached(2 * kMs), to_text(addresses_[0]));
}

TEST_F(DialTest, TriesOtherRoutesWhenChosenOneFails) {
  Door& better = add(Door::Manner::kAnswers);
  add(Door::Manner::kAnswers);
  begin();
  ASSERT_TRUE(convinced(2));
  EXPECT_FALSE(dial_->settle(0).has_value());
  EXPECT_EQ(attempts().size(), 1u);
  better.manner = Door::Manner::kShuts;
  std::optional<Dial::Reached> reached;
  int64_t now_ns = 0;
  ASSERT_TRUE(moved_until([&] {
    dial_->start(now_ns += kMs);
    reached = dial_->settle(now_ns);
    return reached.has_value();
  }));
  EXPECT_EQ(to_text(reached->address), to_text(addresses_[1]));
}

}  // namespace
}  // namespace farandole::transport::testing
