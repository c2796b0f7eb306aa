// How malloc treats the memory of large results, and whose settings count.
#include "plugins/jax/result_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace farandole::jax {
namespace {

constexpr size_t kBlock = size_t{30} << 20;
constexpr int kBlocks = 3;  // together more than malloc keeps by itself: twice the largest
constexpr long kPagesOfBlock = kBlock / 4096;

long page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Takes blocks as a program takes results, and gives them back. Returns how many pages came from the system.
long faults_of_a_run() {
  const long before = page_faults();
  std::vector<void*> blocks(kBlocks);
  for (void*& block : blocks) {
    block = std::malloc(kBlock);  // NOLINT(cppcoreguidelines-no-malloc): it is malloc that is looked at
    std::memset(block, 1, kBlock);
  }
  for (void* const block : blocks) {
    std::free(block);  // NOLINT(cppcoreguidelines-no-malloc)
  }
  return page_faults() - before;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsOwnMalloc = true;
#else
constexpr bool kIsOwnMalloc = false;
#endif

TEST(ResultMemory, IsKeptFromOneRunToTheNext) {
  if (kIsOwnMalloc || user_has_tuned_malloc()) {
    GTEST_SKIP() << "malloc is a sanitizer's, or has been told how to behave";
  }
  std::vector<char> result(size_t{1} << 16);
  prepare_result(result.data(), result.size());
  faults_of_a_run();
  EXPECT_LT(faults_of_a_run(), kPagesOfBlock / 10);
}

TEST(ResultMemory, IsUnchangedIfUserHasConfiguredMalloc) {
  if (user_has_tuned_malloc()) {
    GTEST_SKIP() << "this environment says it already";
  }
  ::setenv("MALLOC_TRIM_THRESHOLD_", "131072", 1);
  EXPECT_TRUE(user_has_tuned_malloc());
  ::unsetenv("MALLOC_TRIM_THRESHOLD_");
  EXPECT_FALSE(user_has_tuned_malloc());
  ::setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=x:glibc.malloc.trim_threshold=1", 1);
  EXPECT_TRUE(user_has_tuned_malloc());
  ::setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=x", 1);
  EXPECT_FALSE(user_has_tuned_malloc()) << "that is not about malloc";
  ::unsetenv("GLIBC_TUNABLES");
}

}  // namespace
}  // namespace farandole::jax
