// SHA-256 against FIPS 180-4's examples, HMAC against RFC 4231.
#include "base/hmac.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace farandole::base {
namespace {

std::string hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : digest) {
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// The `count` bytes 0, 1, 2, ...
std::string ascending(int count, int first = 0) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += static_cast<char>(first + i);
  }
  return text;
}

struct ShaCase {
  std::string message;
  const char* digest;
};

TEST(Sha256, MatchesThePublishedExamples) {
  const ShaCase cases[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
       "nopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const ShaCase& row : cases) {
    EXPECT_EQ(hex(sha256(bytes_of(row.message))), row.digest) << row.message.size() << " bytes";
  }
}

// With 55 bytes the padding just fits into the block of the message, with 56 it needs another one.
TEST(Sha256, PadsAroundTheEndOfABlock) {
  const ShaCase cases[] = {
      {ascending(55), "463eb28e72f82e0a96c0a4cc53690c571281131f672aa229e0d45ae59b598b59"},
      {ascending(56), "da2ae4d6b36748f2a318f23e7ab1dfdf45acdc9d049bd80e59de82a60895f562"},
      {ascending(63), "29af2686fd53374a36b0846694cc342177e428d1647515f078784d69cdb9e488"},
      {ascending(64), "fdeab9acf3710362bd2658cdc9a29e8f9c757fcf9811603a8c447cd1d9151108"},
      {ascending(65), "4bfd2c8b6f1eec7a2afeb48b934ee4b2694182027e6d0fc075074f2fabb31781"},
      {ascending(119), "da18797ed7c3a777f0847f429724a2d8cd5138e6ed2895c3fa1a6d39d18f7ec6"},
      {ascending(120), "f52b23db1fbb6ded89ef42a23ce0c8922c45f25c50b568a93bf1c075420bbb7c"},
  };
  for (const ShaCase& row : cases) {
    EXPECT_EQ(hex(sha256(bytes_of(row.message))), row.digest) << row.message.size() << " bytes";
  }
}

struct HmacCase {
  std::string key;
  std::string data;
  std::string digest;  // case 5 of the RFC publishes its first half only
};

TEST(Hmac, MatchesRfc4231) {
  const HmacCase cases[] = {
      {std::string(20, '\x0b'), "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {ascending(25, 1), std::string(50, '\xcd'), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(20, '\x0c'), "Test With Truncation", "a3b6167473100ee06e0c796c2955552b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
       "hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const HmacCase& row : cases) {
    const std::string digest = hex(hmac_sha256(bytes_of(row.key), bytes_of(row.data)));
    EXPECT_EQ(digest.substr(0, row.digest.size()), row.digest) << row.data;
  }
}

// A key of exactly one block is used as it is; one byte more and its hash is used.
TEST(Hmac, HashesKeysLongerThanABlock) {
  const std::string block(64, 'k');
  const std::string longer(65, 'k');
  const Digest hashed = sha256(bytes_of(longer));
  EXPECT_EQ(hmac_sha256(bytes_of(longer), bytes_of("x")), hmac_sha256(hashed, bytes_of("x")));
  EXPECT_NE(hmac_sha256(bytes_of(block), bytes_of("x")), hmac_sha256(sha256(bytes_of(block)), bytes_of("x")));
}

TEST(EqualDigests, CompareEveryByte) {
  const Digest digest = sha256({});
  EXPECT_TRUE(equal_digests(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= std::byte{0x80};
    EXPECT_FALSE(equal_digests(digest, other)) << i;
  }
}

TEST(FillRandom, FillsAllBytesWithDifferentValuesEachTime) {
  std::set<std::vector<std::byte>> seen;
  std::vector<bool> written(1000, false);
  for (int i = 0; i < 16; ++i) {
    std::vector<std::byte> bytes(1000);
    fill_random(bytes);
    for (size_t k = 0; k < bytes.size(); ++k) {
      written[k] = written[k] || bytes[k] != std::byte{0};
    }
    EXPECT_TRUE(seen.insert(bytes).second);
  }
  EXPECT_EQ(std::count(written.begin(), written.end(), true), 1000);
  fill_random({});
}

}  // namespace
}  // namespace farandole::base
