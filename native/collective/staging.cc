#include "collective/staging.h"

namespace farandole::collective {

std::byte* Staging::private_memory(int lane, size_t bytes) {
  Private& own = private_[static_cast<size_t>(lane)];
  if (own.bytes < bytes) {
    own.memory.reset();
    own.memory = std::make_unique_for_overwrite<std::byte[]>(bytes + transport::kArenaAlignment);
    own.bytes = bytes;
  }
  void* address = own.memory.get();
  size_t room = own.bytes + transport::kArenaAlignment;
  return static_cast<std::byte*>(std::align(transport::kArenaAlignment, own.bytes, address, room));
}

}  // namespace farandole::collective
