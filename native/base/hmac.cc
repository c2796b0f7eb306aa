#include "base/hmac.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace farandole::base {
namespace {

constexpr size_t kBlock = 64;

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

uint32_t load_big_endian(const std::byte* at) noexcept {
  return std::to_integer<uint32_t>(at[0]) << 24 | std::to_integer<uint32_t>(at[1]) << 16 |
         std::to_integer<uint32_t>(at[2]) << 8 | std::to_integer<uint32_t>(at[3]);
}

void compress(State& state, const std::byte* block) noexcept {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = load_big_endian(block + 4 * i);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const State mixed = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) {
    state[i] += mixed[i];
  }
}

}  // namespace

Digest sha256(std::span<const std::byte> data) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  size_t at = 0;
  for (; at + kBlock <= data.size(); at += kBlock) {
    compress(state, data.data() + at);
  }
  // The rest, a one bit, zeros, and the length in bits: one block or two.
  std::array<std::byte, 2 * kBlock> tail{};
  const size_t rest = data.size() - at;
  if (rest > 0) {
    std::memcpy(tail.data(), data.data() + at, rest);
  }
  tail[rest] = std::byte{0x80};
  const size_t tail_size = rest + 9 <= kBlock ? kBlock : 2 * kBlock;
  const uint64_t bits = static_cast<uint64_t>(data.size()) * 8;
  for (size_t i = 0; i < 8; ++i) {
    tail[tail_size - 1 - i] = static_cast<std::byte>(bits >> (8 * i));
  }
  for (size_t i = 0; i < tail_size; i += kBlock) {
    compress(state, tail.data() + i);
  }
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  std::array<std::byte, kBlock> block{};
  if (key.size() > kBlock) {
    const Digest short_key = sha256(key);
    std::copy(short_key.begin(), short_key.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  const auto keyed = [&block](std::byte pad, std::span<const std::byte> text) {
    std::vector<std::byte> message;
    message.reserve(kBlock + text.size());
    for (const std::byte b : block) {
      message.push_back(b ^ pad);
    }
    message.insert(message.end(), text.begin(), text.end());
    return sha256(message);
  };
  return keyed(std::byte{0x5c}, keyed(std::byte{0x36}, data));
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

bool equal_digests(const Digest& a, const Digest& b) noexcept {
  std::byte difference{0};
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= a[i] ^ b[i];
  }
  return difference == std::byte{0};
}

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    // As a system call: glibc has had the function only since 2.25, and the wheel is for older ones, too.
    const ssize_t got = ::syscall(SYS_getrandom, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR) {
      throw Error(Code::kUnavailable, std::string("the kernel gives no random bytes: ") + std::strerror(errno));
    }
    bytes = bytes.subspan(got < 0 ? 0 : static_cast<size_t>(got));
  }
}

}  // namespace farandole::base
