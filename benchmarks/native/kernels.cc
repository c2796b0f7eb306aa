// How fast the kernels are, next to memcpy that moves as many bytes, in the same minute.
//
//   kernels [dtype=all] [op=all] [inputs=2,4,8] [KiB=256,8192,65536] [rounds=15] [isa=the best]
//           [stores=cached|streamed]
//
// One line for each dtype, op and number of inputs; for each size the GB/s of all bytes read and written (each
// input once, the output once) and, in parentheses, that as a part of memcpy's. A size is that of all buffers
// together. Times are the shortest of many rounds; memcpy is timed between them. The last column is one call with
// 16 elements, in ns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "reduce/kernels.h"

namespace {

using farandole::reduce::Dtype;
using farandole::reduce::Op;
using farandole::reduce::Scale;
using farandole::reduce::Stores;

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kF64, Dtype::kU8,
                             Dtype::kI8,  Dtype::kI16, Dtype::kI32,  Dtype::kI64, Dtype::kBool};

struct Operation {
  const char* name;
  Op op;
  bool average;
};
constexpr Operation kOperations[] = {{"Sum", Op::kSum, false},
                                     {"Average", Op::kSum, true},
                                     {"Min", Op::kMin, false},
                                     {"Max", Op::kMax, false},
                                     {"Product", Op::kProduct, false}};

constexpr size_t kMostBytes = size_t{512} << 20;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one call, the shortest of several: those of small work are repeated until they can be measured.
template <typename Work>
double shortest(const Work& work, double expected_seconds) {
  const auto repeats = static_cast<int>(std::max(1.0, 50e-6 / expected_seconds));
  const double begun = now_seconds();
  for (int i = 0; i < repeats; ++i) {
    work();
  }
  return (now_seconds() - begun) / repeats;
}

struct Memory {
  Memory() {
    void* const mapped =
        ::mmap(nullptr, kMostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    ::madvise(mapped, kMostBytes, MADV_HUGEPAGE);
    data = static_cast<unsigned char*>(mapped);
  }
  unsigned char* data;
};

struct Case {
  Dtype dtype;
  Operation operation;
  size_t inputs;
  Stores stores;

  Scale scale() const { return operation.average ? Scale{1.0, static_cast<int64_t>(inputs)} : Scale{}; }
};

// Buffers that do not begin at the same place in a page: such loads and stores would wait for each other.
std::vector<unsigned char*> buffers_in(unsigned char* memory, size_t count, size_t bytes) {
  std::vector<unsigned char*> all;
  for (size_t k = 0; k < count; ++k) {
    all.push_back(memory + k * (bytes + 320));
  }
  return all;
}

// Ones: products stay what they are, and nothing is subnormal.
void fill_with_ones(Dtype dtype, unsigned char* to, size_t count) {
  farandole::reduce::fill_identity(dtype, Op::kProduct, to, count);
}

struct Measured {
  double bytes_per_second;
  double of_memcpy;
};

Measured measure(const Case& of, unsigned char* memory, size_t total_bytes, int rounds) {
  const size_t element = farandole::reduce::size_of(of.dtype);
  const size_t count = total_bytes / (of.inputs + 1) / 64 * 64 / element;
  const auto buffers = buffers_in(memory, of.inputs + 1, count * element);
  for (auto* buffer : buffers) {
    fill_with_ones(of.dtype, buffer, count);
  }
  const std::vector<const void*> inputs(buffers.begin() + 1, buffers.end());
  void* const output = buffers[0];
  const size_t moved = (of.inputs + 1) * count * element;
  const double expected = static_cast<double>(moved) / 20e9;
  double kernel = 1e9;
  double copy = 1e9;
  for (int round = 0; round < rounds; ++round) {
    kernel = std::min(kernel, shortest(
                                  [&] {
                                    farandole::reduce::reduce_to(of.dtype, of.operation.op, inputs, {&output, 1}, count,
                                                                 of.scale(), of.stores);
                                  },
                                  expected));
    copy = std::min(
        copy, shortest([&] { std::memcpy(buffers[0], buffers[0] + moved / 2 + 640, moved / 2 - 640); }, expected));
  }
  return {static_cast<double>(moved) / kernel, copy / kernel};
}

double small_call_ns(const Case& of, unsigned char* memory, int rounds) {
  const auto buffers = buffers_in(memory, of.inputs + 1, 256);
  for (auto* buffer : buffers) {
    fill_with_ones(of.dtype, buffer, 16);
  }
  const std::vector<const void*> inputs(buffers.begin() + 1, buffers.end());
  void* const output = buffers[0];
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    best = std::min(best, shortest(
                              [&] {
                                farandole::reduce::reduce_to(of.dtype, of.operation.op, inputs, {&output, 1}, 16,
                                                             of.scale(), of.stores);
                              },
                              20e-9));
  }
  return best * 1e9;
}

std::vector<size_t> numbers_in(const std::string& text) {
  std::vector<size_t> numbers;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    numbers.push_back(std::stoull(part));
  }
  return numbers;
}

// The words of the command line: "inputs=2,4".
std::string argument(int count, char** words, const std::string& name, const std::string& fallback) {
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word.rfind(name + "=", 0) == 0) {
      return word.substr(name.size() + 1);
    }
  }
  return fallback;
}

bool among(const std::string& name, const std::string& names) {
  return names == "all" || ("," + names + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dtypes = argument(argc, argv, "dtype", "all");
  const std::string operations = argument(argc, argv, "op", "all");
  const auto inputs = numbers_in(argument(argc, argv, "inputs", "2,4,8"));
  const auto sizes = numbers_in(argument(argc, argv, "KiB", "256,8192,65536"));
  const int rounds = std::stoi(argument(argc, argv, "rounds", "15"));
  if (const std::string isa = argument(argc, argv, "isa", ""); !isa.empty()) {
    farandole::reduce::use_isa(isa);
  }
  const Stores stores = argument(argc, argv, "stores", "cached") == "streamed" ? Stores::kStreamed : Stores::kCached;
  const Memory memory;

  std::printf("%s\n%-9s %-8s %6s", std::string(farandole::reduce::active_isa()).c_str(), "dtype", "op", "inputs");
  for (const size_t size : sizes) {
    std::printf(" %10zu KiB", size);
  }
  std::printf("   16 elements\n");
  for (const Dtype dtype : kDtypes) {
    for (const Operation& operation : kOperations) {
      if (!among(farandole::reduce::name_of(dtype), dtypes) || !among(operation.name, operations)) {
        continue;
      }
      for (const size_t count : inputs) {
        const Case of{dtype, operation, count, stores};
        std::printf("%-9s %-8s %6zu", farandole::reduce::name_of(dtype), operation.name, count);
        for (const size_t size : sizes) {
          const Measured measured = measure(of, memory.data, size << 10, rounds);
          std::printf("  %5.1f (%4.2f)", measured.bytes_per_second / 1e9, measured.of_memcpy);
          std::fflush(stdout);
        }
        std::printf("  %8.1f ns\n", small_call_ns(of, memory.data, rounds));
      }
    }
  }
  return 0;
}
