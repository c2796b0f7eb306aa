// Messages that are changed at random are decoded, or refused with an error; nothing else may happen. The random
// numbers are the same in each run. FARANDOLE_FUZZ_FRAMES is the number of messages of each kind; `make fuzz` searches
// further.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/error.h"
#include "fuzz/targets.h"

namespace farandole::fuzz {
namespace {

using base::Bytes;

size_t frames_of_each() {
  const char* const text = std::getenv("FARANDOLE_FUZZ_FRAMES");
  return text == nullptr ? 10'000 : std::stoul(text);
}

class Changes {
 public:
  explicit Changes(uint64_t seed) : random_(seed) {}

  Bytes of(const Target& target) {
    Bytes bytes = one_of(target.seeds);
    for (size_t left = 1 + below(4); left > 0; --left) {
      change(bytes, target);
    }
    return bytes;
  }

 private:
  size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  const Bytes& one_of(const std::vector<Bytes>& all) { return all[below(all.size())]; }
  ptrdiff_t place(const Bytes& bytes) { return static_cast<ptrdiff_t>(below(bytes.size() + 1)); }

  void change(Bytes& bytes, const Target& target) {
    switch (below(6)) {
      case 0:
        bytes.resize(below(bytes.size() + 1));
        return;
      case 1: {
        const Bytes& other = one_of(target.seeds);
        bytes.insert(bytes.begin() + place(bytes), other.begin(), other.begin() + place(other));
        return;
      }
      case 2: {
        const Bytes whole = bytes;
        bytes.erase(bytes.begin() + place(bytes), bytes.end());
        bytes.insert(bytes.end(), whole.begin() + place(whole), whole.end());
        return;
      }
      case 3:
        write_number(bytes);
        return;
      default:
        if (!bytes.empty()) {
          bytes[below(bytes.size())] ^= static_cast<std::byte>(1U << below(8));
        }
    }
  }

  // A number where some number may be.
  void write_number(Bytes& bytes) {
    constexpr std::array<uint64_t, 10> kNumbers{0,          1,       0x7f,       0xff,        0xffff,
                                                0x7fffffff, 1 << 28, 0xffffffff, 0x100000000, UINT64_MAX};
    const uint64_t number = kNumbers[below(kNumbers.size())];
    const size_t size = size_t{1} << below(4);
    if (bytes.size() >= size) {
      std::memcpy(bytes.data() + below(bytes.size() - size + 1), &number, size);
    }
  }

  std::mt19937_64 random_;
};

// Returns whether the bytes were understood.
bool is_understood(const Target& target, std::span<const std::byte> bytes) {
  try {
    target.run(bytes);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

class Frames : public testing::TestWithParam<Target> {};

TEST_P(Frames, WellFormedFramesAreDecoded) {
  for (const Bytes& seed : GetParam().seeds) {
    EXPECT_TRUE(is_understood(GetParam(), seed));
  }
}

TEST_P(Frames, RandomlyChangedFramesAreDecodedOrRefused) {
  Changes changes(1);
  for (size_t left = frames_of_each(); left > 0; --left) {
    is_understood(GetParam(), changes.of(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, Frames, testing::ValuesIn(targets()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace farandole::fuzz
