// HMAC-SHA-256 (FIPS 180-4, RFC 2104) and random bytes: what the handshake between workers needs, and
// no more, so that the library depends on nothing but the C library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace farandole::base {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> data);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);

// Two lower-case digits for each byte.
std::string to_hex(std::span<const std::byte> bytes);

// Compares two digests, in a time that does not depend on where they differ.
bool equal_digests(const Digest& a, const Digest& b) noexcept;

// Fills the memory with bytes from the kernel's random generator. Throws Error(kUnavailable) if that fails.
void fill_random(std::span<std::byte> bytes);

}  // namespace farandole::base
