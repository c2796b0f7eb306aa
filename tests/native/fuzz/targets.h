// The decoders of bytes that come from elsewhere, each with well-formed messages, from which a fuzzer starts.
// frames_test.cc changes these at random, in CI; libfuzzer.cc lets Clang's fuzzer find inputs that reach more code.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace farandole::fuzz {

struct Target {
  std::string name;
  std::vector<base::Bytes> seeds;
  // Decodes the bytes. Malformed ones are base::Error; anything else that is thrown, and a crash, is a fault. What
  // must hold of what was decoded is checked with require().
  std::function<void(std::span<const std::byte> bytes)> run;
};

const std::vector<Target>& targets();
const Target& target(const std::string& name);

// Ends the process with this sentence unless the condition holds.
void require(bool condition, const char* what);

}  // namespace farandole::fuzz
