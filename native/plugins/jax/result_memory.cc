#include "plugins/jax/result_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace farandole::jax {

namespace {

// Smaller results come from memory that malloc keeps anyway.
constexpr size_t kLargeBytes = size_t{1} << 16;

// The number of bytes that malloc may keep: enough for several results of the largest size that it does not request
// from the system one by one. There may be several at a time, because a program may run before the results of its last
// run are freed.
constexpr int kKeptBytes = 1 << 28;
// The largest block that malloc does not request from the system by itself: the limit of glibc.
constexpr int kPooledBytes = 1 << 25;

// Results from this size on, most of which are whole huge pages.
constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kAdvisedBytes = 2 * kHugePage;

bool keep_freed_memory() {
  if (user_has_tuned_malloc()) {
    return false;
  }
  // Setting one without the other would disable malloc's own adjustment of both.
  return ::mallopt(M_MMAP_THRESHOLD, kPooledBytes) == 1 && ::mallopt(M_TRIM_THRESHOLD, kKeptBytes) == 1;
}

void ask_for_huge_pages(void* data, size_t bytes) {
  const size_t before = -reinterpret_cast<uintptr_t>(data) % kHugePage;
  // A failure does no harm.
  ::madvise(static_cast<std::byte*>(data) + before, (bytes - before) / kHugePage * kHugePage, MADV_HUGEPAGE);
}

}  // namespace

bool user_has_tuned_malloc() {
  constexpr std::array kVariables = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_",
                                     "MALLOC_TOP_PAD_"};
  for (const char* const variable : kVariables) {
    if (std::getenv(variable) != nullptr) {
      return true;
    }
  }
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr && std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos;
}

void prepare_result(void* data, size_t bytes) {
  if (bytes >= kLargeBytes) {
    [[maybe_unused]] static const bool is_kept = keep_freed_memory();
  }
  if (bytes >= kAdvisedBytes) {
    ask_for_huge_pages(data, bytes);
  }
}

}  // namespace farandole::jax
