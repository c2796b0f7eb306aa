// Memory: allocations, pinned memory, copies, and what a pointer is.
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "cuda/api.h"
#include "cuda/call.h"

namespace gpu_fake {
namespace {

void wait_for_all(Gpu& gpu, const Context& context) {
  count(Count::kHostWaits);
  count(Count::kImplicitWaits);
  for (const auto& stream : gpu.streams_of(context)) {
    stream->wait_past(stream->last());
  }
  throw_error_of(context);
}

void free_block(Gpu& gpu, const Block& block) {
  gpu.memory().fill(block, 0xFE);
  gpu.memory().give_back(block);
}

Block block_at(Gpu& gpu, Address address) {
  const Block block = gpu.usable(address, 0);
  if (block.base != address) {
    throw Refused{kInvalidValue, "it is not the beginning of an allocation"};
  }
  return block;
}

enum class Place { kDevice, kPinned, kPageable };

// Throws for device memory that is not one live allocation.
Place place_of(Gpu& gpu, Address address, size_t bytes) {
  if (gpu.memory().has(address)) {
    gpu.usable(address, bytes);
    return Place::kDevice;
  }
  const auto [base, block] = gpu.pinned(pointer_to(address), bytes);
  return block.bytes > 0 ? Place::kPinned : Place::kPageable;
}

// Returns where an operation touches memory when it runs; null: it may not, and the context is broken.
char* touch(Gpu& gpu, Context& context, Address address, size_t bytes, Place place) {
  switch (place) {
    case Place::kDevice:
      return gpu.touch_on_device(context, address, bytes);
    case Place::kPinned:
      if (gpu.pinned(pointer_to(address), bytes).second.bytes == 0) {
        gpu.break_device(context.device, kIllegalAddress);
        return nullptr;
      }
      break;
    case Place::kPageable:
      break;
  }
  return static_cast<char*>(pointer_to(address));
}

void copy(Gpu& gpu, Address target, Address source, size_t bytes, Stream* handle) {
  const auto stream = gpu.own_stream(handle);
  if (bytes == 0) {
    return;
  }
  const Place to = place_of(gpu, target, bytes);
  const Place from = place_of(gpu, source, bytes);
  Context& context = *stream->context;
  count(Count::kLaunches);
  count(Count::kCopies);
  std::function<void()> run;
  if (from == Place::kPageable && to == Place::kDevice) {
    // The real driver takes the bytes before it returns, so that the program may change them.
    const auto* const begin = static_cast<const char*>(pointer_to(source));
    run = [&gpu, &context, target, to, taken = std::vector<char>(begin, begin + bytes)] {
      if (char* const there = touch(gpu, context, target, taken.size(), to); there != nullptr) {
        std::memcpy(there, taken.data(), taken.size());
      }
    };
  } else {
    run = [&gpu, &context, target, source, bytes, to, from] {
      const char* const here = touch(gpu, context, source, bytes, from);
      char* const there = touch(gpu, context, target, bytes, to);
      if (here != nullptr && there != nullptr) {
        std::memmove(there, here, bytes);
      }
    };
  }
  const auto mark = gpu.enqueue(stream, "a copy", std::move(run));
  if (to == Place::kPageable && mark != nullptr) {
    // The real driver returns when the bytes are there.
    count(Count::kHostWaits);
    count(Count::kImplicitWaits);
    mark->wait_on_host();
    throw_error_of(context);
  }
}

struct PointerFacts {
  Context* context = nullptr;
  unsigned type = 0;
  Address base = 0;
  size_t bytes = 0;
  Device device = -2;
  uint64_t id = 0;
  bool is_known = false;
};

PointerFacts facts_of(Gpu& gpu, Address pointer) {
  if (gpu.memory().has(pointer)) {
    const auto block = gpu.memory().find(pointer, 0);
    if (!block || block->is_freed) {
      return {};
    }
    return {&gpu.context_of(block->device), kMemoryDevice, block->base, block->bytes, block->device, block->id, true};
  }
  const auto [base, block] = gpu.pinned(pointer_to(pointer), 0);
  if (block.bytes == 0) {
    return {};
  }
  const auto begin = reinterpret_cast<Address>(base);
  return {&gpu.context_of(block.device), kMemoryHost, begin, block.bytes, block.device, begin, true};
}

void write_attribute(const PointerFacts& facts, Address pointer, PointerAttribute attribute, void* data) {
  require(data);
  const bool is_host = facts.type == kMemoryHost;
  switch (attribute) {
    case kPointerContext:
      *static_cast<Context**>(data) = facts.context;
      return;
    case kPointerMemoryType:
      *static_cast<unsigned*>(data) = facts.type;
      return;
    case kPointerDevicePointer:
      *static_cast<Address*>(data) = facts.is_known ? pointer : 0;
      return;
    case kPointerHostPointer:
      *static_cast<Address*>(data) = is_host ? pointer : 0;
      return;
    case kPointerBufferId:
      *static_cast<uint64_t*>(data) = facts.id;
      return;
    case kPointerIsManaged:
      *static_cast<bool*>(data) = false;
      return;
    case kPointerDeviceOrdinal:
      *static_cast<int*>(data) = facts.device;
      return;
    case kPointerRangeStart:
      *static_cast<Address*>(data) = facts.base;
      return;
    case kPointerRangeSize:
      *static_cast<size_t*>(data) = facts.bytes;
      return;
    case kPointerMapped:
      *static_cast<bool*>(data) = facts.is_known;
      return;
  }
  throw Refused{kInvalidValue, "the fake GPU does not know attribute " + std::to_string(attribute)};
}

}  // namespace

extern "C" {

Result cuMemAlloc_v2(Address* address, size_t bytes) {
  return call("cuMemAlloc_v2", [&](Gpu& gpu) {
    require(address);
    const Device device = gpu.current().device;
    if (bytes == 0) {
      throw Refused{kInvalidValue, "0 bytes"};
    }
    *address = gpu.memory().allocate(device, bytes);
    gpu.memory().fill(gpu.usable(*address, bytes), 0xFF);
    count(Count::kAllocations);
  });
}

Result cuMemFree_v2(Address address) {
  return call("cuMemFree_v2", [&](Gpu& gpu) {
    if (address == 0) {
      return;
    }
    gpu.current();
    const Block block = block_at(gpu, address);
    wait_for_all(gpu, gpu.context_of(block.device));
    free_block(gpu, block);
  });
}

Result cuMemAllocAsync(Address* address, size_t bytes, Stream* handle) {
  return call("cuMemAllocAsync", [&](Gpu& gpu) {
    require(address);
    const auto stream = gpu.own_stream(handle);
    if (bytes == 0) {
      throw Refused{kInvalidValue, "0 bytes"};
    }
    if (gpu.capture_of(*stream) != kCaptureNone) {
      throw Refused{kNotSupported, "the fake GPU allocates nothing in a capture"};
    }
    *address = gpu.memory().allocate(stream->context->device, bytes);
    // The block exists from its place in the stream's order on.
    gpu.enqueue(stream, "an allocation",
                [&gpu, block = gpu.usable(*address, bytes)] { gpu.memory().fill(block, 0xFF); });
    count(Count::kAsyncAllocations);
  });
}

Result cuMemFreeAsync(Address address, Stream* handle) {
  return call("cuMemFreeAsync", [&](Gpu& gpu) {
    const auto stream = gpu.own_stream(handle);
    const Block block = block_at(gpu, address);
    if (gpu.capture_of(*stream) != kCaptureNone) {
      throw Refused{kNotSupported, "the fake GPU frees nothing in a capture"};
    }
    gpu.memory().mark_freed(block);
    gpu.enqueue(stream, "a free", [&gpu, block] { free_block(gpu, block); });
  });
}

Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call("cuMemGetInfo_v2", [&](Gpu& gpu) {
    require(free);
    require(total);
    *total = gpu.memory().bytes_each();
    *free = *total - gpu.memory().bytes_used(gpu.current().device);
  });
}

Result cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
  return call("cuMemGetAddressRange_v2", [&](Gpu& gpu) {
    const Block block = gpu.usable(address, 0);
    if (base != nullptr) {
      *base = block.base;
    }
    if (bytes != nullptr) {
      *bytes = block.bytes;
    }
  });
}

Result cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  return call("cuMemHostAlloc", [&](Gpu& gpu) {
    require(memory);
    const Device device = gpu.current().device;
    if (bytes == 0 || (flags & ~(kHostAllocPortable | kHostAllocDeviceMap | kHostAllocWriteCombined)) != 0) {
      throw Refused{kInvalidValue, "0 bytes, or unknown flags"};
    }
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw Refused{kOutOfMemory, "the host has no room for " + std::to_string(bytes) + " bytes"};
    }
    std::memset(mapped, 0xFF, bytes);
    gpu.add_host(mapped, {device, bytes, false});
    *memory = mapped;
    count(Count::kHostAllocations);
  });
}

Result cuMemFreeHost(void* memory) {
  return call("cuMemFreeHost", [&](Gpu& gpu) {
    const Context& context = gpu.current();
    if (gpu.pinned(memory, 0).first != memory) {
      throw Refused{kInvalidValue, "it is not the beginning of pinned memory"};
    }
    wait_for_all(gpu, context);
    const Gpu::HostBlock block = gpu.remove_host(memory, false);
    ::munmap(memory, block.bytes);
  });
}

Result cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  return call("cuMemHostRegister_v2", [&](Gpu& gpu) {
    const Device device = gpu.current().device;
    if (memory == nullptr || bytes == 0) {
      throw Refused{kInvalidValue, "there is no memory"};
    }
    if (gpu.pinned(memory, 1).second.bytes > 0) {
      throw Refused{kHostMemoryAlreadyRegistered, "the memory is pinned"};
    }
    gpu.add_host(memory, {device, bytes, true});
  });
}

Result cuMemHostUnregister(void* memory) {
  return call("cuMemHostUnregister", [&](Gpu& gpu) {
    wait_for_all(gpu, gpu.current());
    gpu.remove_host(memory, true);
  });
}

Result cuPointerGetAttribute(void* data, PointerAttribute attribute, Address pointer) {
  return call("cuPointerGetAttribute", [&](Gpu& gpu) {
    const PointerFacts facts = facts_of(gpu, pointer);
    if (!facts.is_known) {
      throw Refused{kInvalidValue, "the pointer is not CUDA's"};
    }
    write_attribute(facts, pointer, attribute, data);
  });
}

Result cuPointerGetAttributes(unsigned count, PointerAttribute* attributes, void** data, Address pointer) {
  return call("cuPointerGetAttributes", [&](Gpu& gpu) {
    require(attributes);
    require(data);
    const PointerFacts facts = facts_of(gpu, pointer);
    for (unsigned i = 0; i < count; ++i) {
      write_attribute(facts, pointer, attributes[i], data[i]);
    }
  });
}

Result cuMemcpyAsync(Address target, Address source, size_t bytes, Stream* stream) {
  return call("cuMemcpyAsync", [&](Gpu& gpu) { copy(gpu, target, source, bytes, stream); });
}

Result cuMemcpyDtoHAsync_v2(void* target, Address source, size_t bytes, Stream* stream) {
  return call("cuMemcpyDtoHAsync_v2", [&](Gpu& gpu) {
    if (bytes > 0) {
      gpu.usable(source, bytes);
    }
    copy(gpu, reinterpret_cast<Address>(target), source, bytes, stream);
  });
}

Result cuMemcpyHtoDAsync_v2(Address target, const void* source, size_t bytes, Stream* stream) {
  return call("cuMemcpyHtoDAsync_v2", [&](Gpu& gpu) {
    if (bytes > 0) {
      gpu.usable(target, bytes);
    }
    copy(gpu, target, reinterpret_cast<Address>(source), bytes, stream);
  });
}

Result cuMemcpyDtoDAsync_v2(Address target, Address source, size_t bytes, Stream* stream) {
  return call("cuMemcpyDtoDAsync_v2", [&](Gpu& gpu) {
    if (bytes > 0) {
      gpu.usable(target, bytes);
      gpu.usable(source, bytes);
    }
    copy(gpu, target, source, bytes, stream);
  });
}

Result cuMemsetD8Async(Address target, unsigned char value, size_t bytes, Stream* handle) {
  return call("cuMemsetD8Async", [&](Gpu& gpu) {
    const auto stream = gpu.own_stream(handle);
    if (bytes == 0) {
      return;
    }
    gpu.usable(target, bytes);
    Context& context = *stream->context;
    gpu.enqueue(stream, "a memset", [&gpu, &context, target, value, bytes] {
      if (char* const there = gpu.touch_on_device(context, target, bytes); there != nullptr) {
        std::memset(there, value, bytes);
      }
    });
    count(Count::kLaunches);
    count(Count::kMemsets);
  });
}

}  // extern "C"
}  // namespace gpu_fake
