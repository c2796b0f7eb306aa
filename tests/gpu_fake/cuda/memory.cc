#include "cuda/memory.h"

#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

#include "cuda/settings.h"

namespace gpu_fake {
namespace {

constexpr size_t kAlignment = 512;

size_t rounded(size_t bytes) { return bytes == 0 ? kAlignment : (bytes + kAlignment - 1) & ~(kAlignment - 1); }

char* map(int file, size_t bytes, int protection) {
  void* const memory = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED) {
    stop("cannot map the memory of the devices");
  }
  return static_cast<char*>(memory);
}

}  // namespace

Memory::Memory(int devices, size_t bytes_each) : bytes_each_(rounded(bytes_each)) {
  const size_t bytes = bytes_each_ * static_cast<size_t>(devices);
  // Not by its name in the C library, which older ones lack.
  const auto file = static_cast<int>(::syscall(SYS_memfd_create, "fake-gpu", MFD_CLOEXEC));
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    stop("cannot create the memory of the devices");
  }
  seen_ = reinterpret_cast<Address>(map(file, bytes, PROT_NONE));
  end_ = seen_ + bytes;
  real_ = map(file, bytes, PROT_READ | PROT_WRITE);
  ::close(file);
  for (int device = 0; device < devices; ++device) {
    gaps_[seen_ + static_cast<size_t>(device) * bytes_each_] = bytes_each_;
  }
}

Address Memory::allocate(Device device, size_t bytes) {
  const size_t taken = rounded(bytes);
  const Address begin = seen_ + static_cast<size_t>(device) * bytes_each_;
  const std::lock_guard lock(mutex_);
  for (auto gap = gaps_.lower_bound(begin); gap != gaps_.end() && gap->first < begin + bytes_each_; ++gap) {
    const auto [base, size] = *gap;
    if (size < taken) {
      continue;
    }
    gaps_.erase(gap);
    if (size > taken) {
      gaps_[base + taken] = size - taken;
    }
    blocks_[base] = {device, base, bytes, ++last_id_};
    return base;
  }
  throw Refused{kOutOfMemory, "the device has no room for " + std::to_string(bytes) + " bytes"};
}

std::optional<Block> Memory::find(Address address, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) {
    return std::nullopt;
  }
  --block;
  const Address end = block->second.base + block->second.bytes;
  // The address right behind a block belongs to it only for 0 bytes of an empty block.
  const bool is_inside = address < end || address == block->second.base;
  return is_inside && bytes <= end - address ? std::optional(block->second) : std::nullopt;
}

bool Memory::has(Address address) const { return address >= seen_ && address < end_; }

void Memory::fill(const Block& block, int value) { std::memset(touch(block.base), value, block.bytes); }

void Memory::mark_freed(const Block& block) {
  const std::lock_guard lock(mutex_);
  blocks_.at(block.base).is_freed = true;
}

void Memory::give_back(const Block& block) {
  const std::lock_guard lock(mutex_);
  blocks_.erase(block.base);
  auto gap = gaps_.emplace(block.base, rounded(block.bytes)).first;
  const auto is_joined = [this](auto left, auto right) {
    // The memory of two devices is never one gap.
    return left->first + left->second == right->first && (right->first - seen_) % bytes_each_ != 0;
  };
  if (const auto next = std::next(gap); next != gaps_.end() && is_joined(gap, next)) {
    gap->second += next->second;
    gaps_.erase(next);
  }
  if (gap != gaps_.begin() && is_joined(std::prev(gap), gap)) {
    std::prev(gap)->second += gap->second;
    gaps_.erase(gap);
  }
}

std::vector<Block> Memory::blocks_of(Device device) const {
  const std::lock_guard lock(mutex_);
  std::vector<Block> found;
  for (const auto& [base, block] : blocks_) {
    if (block.device == device) {
      found.push_back(block);
    }
  }
  return found;
}

size_t Memory::bytes_used(Device device) const {
  size_t sum = 0;
  for (const Block& block : blocks_of(device)) {
    sum += rounded(block.bytes);
  }
  return sum;
}

}  // namespace gpu_fake
