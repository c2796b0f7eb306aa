// The facts that the members of a group must know about each other before they form a communicator.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "device/abi.h"

namespace farandole::backend::nccl {

struct Introduction {
  std::string problem;  // why this member cannot take part; empty if it can
  int version = 0;      // of NCCL
  device::Uuid gpu;
  bool shares = false;  // whether its NCCL may put several ranks on one GPU
};

base::Bytes encode(const Introduction& introduction);
// Throws Error(kInternal) when malformed.
Introduction decode_introduction(std::span<const std::byte> bytes);

// Returns a sentence that says why the members with these ranks of the world cannot form a communicator; empty if they
// can.
std::string find_obstacle(std::span<const int> ranks, std::span<const Introduction> introductions);

}  // namespace farandole::backend::nccl
