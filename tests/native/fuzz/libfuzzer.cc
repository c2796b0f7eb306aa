// Clang's fuzzer on one of the targets, which FARANDOLE_FUZZ_TARGET names: `make fuzz`. With --targets, it prints their
// names. It begins with the well-formed messages.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "fuzz/targets.h"

namespace {

const farandole::fuzz::Target& chosen() {
  static const char* const name = std::getenv("FARANDOLE_FUZZ_TARGET");
  static const farandole::fuzz::Target& target = farandole::fuzz::target(name == nullptr ? "" : name);
  return target;
}

void run(std::span<const std::byte> bytes) {
  try {
    chosen().run(bytes);
  } catch (const farandole::base::Error&) {
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  if (*count > 1 && std::strcmp((*arguments)[1], "--targets") == 0) {
    for (const farandole::fuzz::Target& each : farandole::fuzz::targets()) {
      std::puts(each.name.c_str());
    }
    std::exit(0);
  }
  for (const farandole::base::Bytes& seed : chosen().seeds) {
    run(seed);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}

// A change that the fuzzer cannot think of: to one of the well-formed messages.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t largest);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t largest, unsigned seed) {
  const auto& seeds = chosen().seeds;
  const farandole::base::Bytes& known = seeds[seed % seeds.size()];
  if (seed % 16 == 0 && known.size() <= largest) {
    std::memcpy(data, known.data(), known.size());
    size = known.size();
  }
  return LLVMFuzzerMutate(data, size, largest);
}
