// The memory of the fake devices: a file in memory that is mapped twice. Programs get addresses in a mapping that the
// host can neither read nor write, so that a host access ends with SIGSEGV; the fake itself works in the other one.
// Fresh memory is full of 0xFF, which are NaNs, and freed memory of 0xFE.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/abi.h"

namespace gpu_fake {

struct Block {
  Device device = -1;
  Address base = 0;
  size_t bytes = 0;       // as asked for, which is what may be touched
  uint64_t id = 0;        // never used twice
  bool is_freed = false;  // cuMemFreeAsync was called, and its stream has not come to it
};

class Memory {
 public:
  Memory(int devices, size_t bytes_each);

  // Throws an error if the device is out of memory.
  Address allocate(Device device, size_t bytes);
  // Returns the allocation that holds all of these bytes, if there is one.
  std::optional<Block> find(Address address, size_t bytes) const;
  // Whether the address belongs to one of these devices, allocated or not.
  bool has(Address address) const;
  void fill(const Block& block, int value);
  // Marks the block, so that no call may use it from now on.
  void mark_freed(const Block& block);
  void give_back(const Block& block);
  // The allocations of a device.
  std::vector<Block> blocks_of(Device device) const;
  // The address at which the fake itself can touch the memory.
  char* touch(Address address) const { return real_ + (address - seen_); }

  size_t bytes_each() const { return bytes_each_; }
  size_t bytes_used(Device device) const;

 private:
  size_t bytes_each_;
  Address seen_;
  Address end_;
  char* real_;
  mutable std::mutex mutex_;
  uint64_t last_id_ = 0;
  std::map<Address, Block> blocks_;
  std::map<Address, size_t> gaps_;  // free memory, none beside another within a device
};

}  // namespace gpu_fake
