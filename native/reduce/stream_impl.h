// Copying past the caches. A part of kernels_impl.h, whose head says how and why this is compiled several times.
#pragma once

#include "reduce/registers_impl.h"

namespace farandole::reduce {
namespace {

// `to` is aligned to a register, and `bytes` are whole packs of four.
void copy_past_caches(const void* source, void* destination, size_t bytes) {
  using Whole = Raw<kVectorBytes>;
  const auto* from = static_cast<const unsigned char*>(source);
  auto* to = static_cast<unsigned char*>(destination);
  for (size_t at = 0; at < bytes; at += 4 * kVectorBytes) {
    Whole whole[4];
    __builtin_memcpy(whole, from + at, sizeof(whole));
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      Isa::stream(whole[i], to + at + i * kVectorBytes);
    }
  }
  Isa::fence();
}

}  // namespace
}  // namespace farandole::reduce
