#include "transport/handshake.h"

#include <gtest/gtest.h>

namespace farandole::transport {
namespace {

constexpr const char* kSecret = "the secret of a test";

Hello hello_of(int from = 3, int to = 1) {
  Hello hello;
  hello.generation = 7;
  hello.from = from;
  hello.to = to;
  hello.world.fill(std::byte{5});
  return hello;
}

Handshake connector(const std::string& secret = kSecret) { return Handshake::connecting(secret, hello_of()); }
Handshake acceptor(const std::string& secret = kSecret) { return Handshake::accepting(secret, hello_of(1, -1), 4); }

// Everything that was said, in order: hello, challenge, proof, welcome.
std::vector<base::Bytes> converse(Handshake& one, Handshake& other) {
  std::vector<base::Bytes> said;
  said.push_back(one.first());
  said.push_back(other.feed(said.back()));
  if (other.state() == Handshake::State::kRefused) {
    return said;
  }
  one.feed(said.back());
  said.push_back(one.prove());
  said.push_back(other.feed(said.back()));
  one.feed(said.back());
  return said;
}

TEST(HandshakeTest, BothSidesAreProven) {
  Handshake one = connector();
  Handshake other = acceptor();
  converse(one, other);
  EXPECT_EQ(one.state(), Handshake::State::kProven);
  EXPECT_EQ(other.state(), Handshake::State::kProven);
  EXPECT_EQ(other.hello().from, 3);
  EXPECT_EQ(other.hello().channel, Channel::kControl);
  EXPECT_EQ(one.wanted(), 0u);
  EXPECT_EQ(other.wanted(), 0u);
}

TEST(HandshakeTest, DifferentSecretsAreReportedOnBothSides) {
  Handshake one = connector("another secret");
  Handshake other = acceptor();
  const auto disbelief = one.feed(other.feed(one.first()));
  EXPECT_EQ(one.state(), Handshake::State::kRefused);
  EXPECT_EQ(one.refusal(), Refusal::kSecret);
  ASSERT_EQ(disbelief.size(), other.wanted());
  EXPECT_TRUE(other.feed(disbelief).empty());
  EXPECT_EQ(other.state(), Handshake::State::kRefused);
  EXPECT_EQ(other.refusal(), Refusal::kSecret);
}

TEST(HandshakeTest, HelloForOthersIsRefusedWithoutAnswer) {
  const auto refusal_of = [](const Hello& hello) {
    Handshake one = Handshake::connecting(kSecret, hello);
    Handshake other = acceptor();
    EXPECT_TRUE(other.feed(one.first()).empty());
    EXPECT_EQ(other.state(), Handshake::State::kRefused);
    EXPECT_EQ(other.wanted(), 0u);
    return other.refusal();
  };
  Hello hello = hello_of();
  hello.generation = 6;
  EXPECT_EQ(refusal_of(hello), Refusal::kOtherGeneration);
  hello.generation = 8;
  EXPECT_EQ(refusal_of(hello), Refusal::kOtherGeneration);
  hello = hello_of();
  hello.world[31] = std::byte{6};
  EXPECT_EQ(refusal_of(hello), Refusal::kOtherWorld);
  hello = hello_of();
  hello.channel = static_cast<Channel>(3);
  EXPECT_EQ(refusal_of(hello), Refusal::kRubbish);
  for (const auto& [from, to] : {std::pair(3, 2), {1, 1}, {0, 1}, {4, 1}, {-1, 1}}) {
    EXPECT_EQ(refusal_of(hello_of(from, to)), Refusal::kRubbish) << from << " to " << to;
  }
}

TEST(HandshakeTest, RefusesRubbish) {
  Handshake other = acceptor();
  EXPECT_TRUE(other.feed(base::Bytes(other.wanted(), std::byte{0xff})).empty());
  EXPECT_EQ(other.refusal(), Refusal::kRubbish);
}

// A hello with a changed nonce is a valid hello, so the change shows in the challenge; any other changed bit
// shows at once.
TEST(HandshakeTest, NoticesEveryChangedBit) {
  for (size_t message = 0; message < 4; ++message) {
    const size_t bytes[] = {96, 64, 32, 32};
    for (size_t bit = 0; bit < 8 * bytes[message]; ++bit) {
      Handshake one = connector();
      Handshake other = acceptor();
      auto spoil = [&, sent = size_t{0}](base::Bytes said) mutable {
        if (sent++ == message) {
          said[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        }
        return said;
      };
      const auto challenge = other.feed(spoil(one.first()));
      if (other.state() == Handshake::State::kRefused) {
        continue;
      }
      one.feed(spoil(challenge));
      if (one.state() == Handshake::State::kRefused) {
        continue;
      }
      const auto welcome = other.feed(spoil(one.prove()));
      if (other.state() == Handshake::State::kRefused) {
        continue;
      }
      one.feed(spoil(welcome));
      EXPECT_EQ(one.state(), Handshake::State::kRefused) << "message " << message << ", bit " << bit;
    }
  }
}

TEST(HandshakeTest, ReplayedMessagesAreRefused) {
  Handshake one = connector();
  Handshake other = acceptor();
  const auto said = converse(one, other);

  Handshake again = acceptor();
  again.feed(said[0]);
  ASSERT_EQ(again.state(), Handshake::State::kGoing);
  again.feed(said[2]);
  EXPECT_EQ(again.refusal(), Refusal::kSecret);

  Handshake anew = connector();
  anew.first();
  anew.feed(said[1]);
  EXPECT_EQ(anew.refusal(), Refusal::kSecret);
}

TEST(HandshakeTest, ReflectedMessagesAreRefused) {
  Handshake one = connector();
  const auto hello = one.first();
  one.feed(std::span(hello).first(one.wanted()));
  EXPECT_EQ(one.refusal(), Refusal::kSecret);

  Handshake other = acceptor();
  const auto challenge = other.feed(connector().first());
  other.feed(std::span(challenge).last(other.wanted()));
  EXPECT_EQ(other.refusal(), Refusal::kSecret);
}

TEST(HandshakeTest, HandshakesDiffer) {
  EXPECT_NE(connector().first(), connector().first());
  const auto hello = connector().first();
  EXPECT_NE(acceptor().feed(hello), acceptor().feed(hello));
}

}  // namespace
}  // namespace farandole::transport
