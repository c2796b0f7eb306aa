#include "transport/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace farandole::transport {
namespace {

constexpr size_t kBytes = size_t{1} << 26;

size_t used_memory(const Arena& arena) {
  struct stat status{};
  EXPECT_EQ(::fstat(arena.fd(), &status), 0);
  return static_cast<size_t>(status.st_blocks) * 512;
}

bool all_zero(const void* block, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(block);
  return std::all_of(at, at + bytes, [](std::byte b) { return b == std::byte{0}; });
}

TEST(ArenaTest, BlocksAreAlignedZeroedAndSeparate) {
  Arena arena(kBytes);
  std::mt19937 random(1);
  struct Block {
    std::byte* at;
    size_t bytes;
    std::byte mark;
  };
  std::vector<Block> blocks;
  for (int turn = 0; turn < 3000; ++turn) {
    if (!blocks.empty() && random() % 2 == 0) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const Block& last = blocks.back();
      EXPECT_TRUE(std::all_of(last.at, last.at + last.bytes, [&](std::byte b) { return b == last.mark; }));
      arena.release(last.at);
      blocks.pop_back();
      continue;
    }
    const size_t bytes = random() % 4 == 0 ? random() % 300'000 : random() % 300;
    auto* const at = static_cast<std::byte*>(arena.allocate(bytes));
    ASSERT_NE(at, nullptr);
    ASSERT_TRUE(arena.view().contains(at, bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(at) % kArenaAlignment, 0u);
    ASSERT_TRUE(all_zero(at, bytes));
    blocks.push_back({at, bytes, static_cast<std::byte>(1 + turn % 255)});
    std::memset(at, 1 + turn % 255, bytes);
  }
}

TEST(ArenaTest, ReleasedBlocksAreMergedIntoOneGap) {
  Arena arena(kBytes);
  std::vector<void*> blocks;
  while (void* const block = arena.allocate(kBytes / 64)) {
    blocks.push_back(block);
  }
  EXPECT_EQ(blocks.size(), 63u);
  for (const size_t first : {1u, 2u, 0u}) {
    for (size_t i = first; i < blocks.size(); i += 3) {
      arena.release(blocks[i]);
    }
  }
  EXPECT_NE(arena.allocate(kBytes - 4096), nullptr);
}

TEST(ArenaTest, GivesMemoryBack) {
  Arena arena(kBytes);
  EXPECT_LE(used_memory(arena), size_t{2} << 20);  // a huge page, where there are some
  void* const block = arena.allocate(size_t{16} << 20);
  std::memset(block, 1, size_t{16} << 20);
  EXPECT_GE(used_memory(arena), size_t{16} << 20);
  arena.release(block);
  EXPECT_LE(used_memory(arena), size_t{4} << 20);
}

TEST(ArenaTest, BlockThatIsTooLargeIsNull) {
  Arena arena(kBytes);
  EXPECT_EQ(arena.allocate(kBytes), nullptr);
  EXPECT_EQ(arena.allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(arena.allocate(SIZE_MAX - 10), nullptr);
  arena.release(nullptr);
}

TEST(ArenaTest, UnreasonableSizeIsErrorWithNextStep) {
  for (const size_t bytes : {size_t{0}, size_t{1000}, size_t{1} << 50, SIZE_MAX}) {
    try {
      Arena arena(bytes);
      ADD_FAILURE() << bytes << " bytes were given";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("FARANDOLE_ARENA_BYTES"), std::string::npos);
    }
  }
}

TEST(ArenaTest, RenewedKeepsContentAndAddressesAndLosesOldMappings) {
  Arena arena(kBytes);
  auto* const low = static_cast<std::byte*>(arena.allocate(10'000));
  arena.allocate(size_t{8} << 20);  // never touched
  auto* const high = static_cast<std::byte*>(arena.allocate(10'000));
  std::memset(low, 1, 10'000);
  std::memset(high, 2, 10'000);
  const Mapping old(arena.fd(), 0);
  const size_t before = used_memory(arena);

  arena.renew();
  EXPECT_LE(used_memory(arena), before + (size_t{4} << 20));
  EXPECT_TRUE(std::all_of(low, low + 10'000, [](std::byte b) { return b == std::byte{1}; }));
  EXPECT_TRUE(std::all_of(high, high + 10'000, [](std::byte b) { return b == std::byte{2}; }));
  EXPECT_EQ(arena.view().header().magic, kArenaMagic);

  old.view().base[arena.view().offset_of(low)] = std::byte{9};
  EXPECT_EQ(low[0], std::byte{1});
  const Mapping fresh(arena.fd(), 0);
  fresh.view().base[arena.view().offset_of(low)] = std::byte{7};
  EXPECT_EQ(low[0], std::byte{7});

  arena.release(low);
  arena.release(high);
  EXPECT_TRUE(all_zero(arena.allocate(10'000), 10'000));
}

TEST(Arena, WhileHeldReleasedBlocksStayAsTheyAre) {
  Arena arena(size_t{1} << 20);
  auto* const block = static_cast<char*>(arena.allocate(100'000));
  arena.hold();
  arena.release(block);
  block[5] = 'x';  // a late writer
  EXPECT_NE(arena.allocate(100'000), block);
  EXPECT_EQ(block[5], 'x');
  arena.resume();
  auto* const again = static_cast<char*>(arena.allocate(100'000));
  EXPECT_EQ(again, block);
  EXPECT_EQ(again[5], 0);
}

// Runs a function in a forked child, and returns what it returns there.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Arena, AForkedChildWritesAndReleasesForItselfOnly) {
  Arena arena(size_t{1} << 20);
  for (const bool renewed : {false, true}) {
    if (renewed) {
      arena.renew();
    }
    auto* const block = static_cast<char*>(arena.allocate(100'000));
    std::memset(block, 'p', 100'000);
    const int seen = in_child([&] {
      const char before = block[0];
      std::memset(block, 'c', 50'000);
      arena.release(block);
      auto* const own = static_cast<char*>(arena.allocate(100'000));
      return before == 'p' && own == block && all_zero(own, 100'000) ? 7 : 1;
    });
    EXPECT_EQ(seen, 7);
    EXPECT_TRUE(std::all_of(block, block + 100'000, [](char c) { return c == 'p'; }));
    // The parent's memory is still that which other workers map.
    const Mapping other(arena.fd(), 0);
    EXPECT_EQ(static_cast<char>(other.view().base[arena.view().offset_of(block)]), 'p');
    arena.release(block);
  }
}

}  // namespace
}  // namespace farandole::transport
