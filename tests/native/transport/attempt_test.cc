// One connection that proves itself, between the two ends of a socket pair.
#include "transport/attempt.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

namespace farandole::transport {
namespace {

constexpr char kSecret[] = "the secret of a test";

class AttemptTest : public ::testing::Test {
 protected:
  AttemptTest() {
    std::array<int, 2> pair{};
    const ForkHold hold;
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()), 0);
    here_ = PrivateFd(pair[0], hold);
    there_ = PrivateFd(pair[1], hold);
    hello_.from = 1;
    hello_.to = 0;
    expected_.from = 0;
  }

  Hello hello_;
  Hello expected_;
  PrivateFd here_;
  PrivateFd there_;
};

TEST_F(AttemptTest, IsNotGivenUpOnceItIsProven) {
  const auto passed = base::Deadline::after_seconds(0);
  Attempt connector(std::move(here_), false, Handshake::connecting(kSecret, hello_),
                    base::Deadline::after_seconds(1000));
  Attempt acceptor(std::move(there_), false, Handshake::accepting(kSecret, expected_, 2), passed);
  EXPECT_TRUE(acceptor.failed()) << "nothing is proven yet";
  connector.advance();
  acceptor.advance();
  connector.advance();
  ASSERT_TRUE(connector.convinced());
  EXPECT_TRUE(acceptor.failed());
  connector.prove();
  acceptor.advance();
  connector.advance();
  ASSERT_TRUE(connector.proven()) << "so it would take the end of the connection for the end of the acceptor";
  EXPECT_TRUE(acceptor.proven());
  EXPECT_FALSE(acceptor.failed());
}

}  // namespace
}  // namespace farandole::transport
