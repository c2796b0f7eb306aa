// HMAC-SHA-256 (FIPS 180-4, RFC 2104) and random bytes: what the handshake between workers needs, and
// no more, so that the library depends on nothing but the C library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace farandole::base {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> data);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);

// In time that does not depend on where the digests differ.
bool equal_digests(const Digest& a, const Digest& b) noexcept;

// From the kernel's generator. Throws Error(kUnavailable) when it cannot.
void fill_random(std::span<std::byte> bytes);

}  // namespace farandole::base
