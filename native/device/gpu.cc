#include "device/gpu.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace farandole::device {
namespace {

using base::Code;
using base::Error;

// The time limit for copies whose results are not needed any more.
constexpr double kPartingSeconds = 10;
// Pinned memory is allocated in powers of two, so that tensors of similar size can reuse it.
constexpr size_t kLeastPinned = size_t{1} << 16;

size_t pinned_bytes_for(size_t bytes) {
  size_t rounded = kLeastPinned;
  while (rounded < bytes) {
    rounded *= 2;
  }
  return rounded;
}

Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace

Gpu::Current::Current(const Gpu& gpu) : functions_(gpu.driver_.functions) {
  check(functions_.ctx_push(gpu.context_), "making its context current", gpu.device_);
}

Gpu::Current::~Current() {
  Context popped = nullptr;
  functions_.ctx_pop(&popped);
}

// --- marks

Mark::~Mark() { gpu_.give_back(event_); }

bool Mark::is_reached() {
  if (!reached_) {
    const Gpu::Current current(gpu_);
    const Status status = gpu_.driver_.functions.event_query(event_);
    if (status == Status::kNotReady) {
      return false;
    }
    check(status, "work that was put into a stream", gpu_.device_);
    reached_ = true;
  }
  return true;
}

bool Sweep::is_reached(Mark& mark) {
  if (std::ranges::find(behind_, mark.stream()) != behind_.end()) {
    return false;
  }
  if (mark.is_reached()) {
    return true;
  }
  behind_.push_back(mark.stream());
  return false;
}

bool wait_until_reached(Mark& mark, const base::Deadline& deadline) noexcept {
  try {
    while (!mark.is_reached()) {
      if (deadline.passed()) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

// --- a GPU

Gpu::Gpu(Ordinal device) : driver_(driver()), device_(device) {
  if (device < 0 || device >= driver_.devices) {
    throw Error(Code::kInvalidArgument, "there is no GPU " + std::to_string(device) + ": this process sees " +
                                            std::to_string(driver_.devices) + " of them");
  }
  const Functions& functions = driver_.functions;
  check(functions.device_get(&handle_, device), "finding it", device);
  check(functions.primary_ctx_retain(&context_, handle_), "opening its context", device);
  try {
    const Current current(*this);
    int least = 0;
    int greatest = 0;
    check(functions.stream_priority_range(&least, &greatest), "asking for priorities of streams", device);
    for (Stream* const stream : {&to_host_, &to_device_, &collectives_}) {
      check(functions.stream_create(stream, kStreamNonBlocking, greatest), "making a stream", device);
    }
    check(functions.device_get_uuid(&uuid_, handle_), "asking for its UUID", device);
  } catch (...) {
    release();
    throw;
  }
}

Gpu::~Gpu() { release(); }

Ordinal Gpu::device_of(const void* address) const {
  const Current current(*this);
  unsigned type = 0;
  int ordinal = -1;
  const auto attribute = [&](void* value, int which) {
    return driver_.functions.pointer_get_attribute(value, which, address_of(address)) == Status::kSuccess;
  };
  const bool is_of_a_gpu = attribute(&type, kMemoryTypeAttribute) &&
                           (type == kDeviceMemory || type == kUnifiedMemory) && attribute(&ordinal, kOrdinalAttribute);
  return is_of_a_gpu ? ordinal : -1;
}

void Gpu::check_address(const void* address, const std::string& owner) const {
  const Ordinal ordinal = device_of(address);
  if (ordinal < 0) {
    throw Error(Code::kInvalidArgument, owner + " is said to be in the memory of GPU " + std::to_string(device_) +
                                            ", but the driver does not know this address");
  }
  if (ordinal != device_) {
    throw Error(Code::kInvalidArgument, owner + " is in the memory of GPU " + std::to_string(ordinal) +
                                            ", not of GPU " + std::to_string(device_));
  }
}

void Gpu::check_not_capturing(Stream stream) const {
  const Current current(*this);
  int status = kNotCapturing;
  check(driver_.functions.stream_is_capturing(stream, &status), "looking at a stream", device_);
  if (status != kNotCapturing) {
    throw Error(Code::kInvalidArgument,
                "a CUDA graph is being captured in this stream, and a collective cannot be a part of it, because it is "
                "agreed on with the other ranks each time. Capture forward and backward pass without it");
  }
}

MarkPointer Gpu::mark(Stream stream) {
  const Current current(*this);
  return mark_in(stream);
}

void Gpu::delay(Stream stream, const Mark& after) const {
  const Current current(*this);
  check(driver_.functions.stream_wait_event(stream, after.event_, 0), "making a stream wait", device_);
}

MarkPointer Gpu::mark_to_host() { return mark(to_host_); }
MarkPointer Gpu::mark_to_device() { return mark(to_device_); }

MarkPointer Gpu::mark_in(Stream stream) {
  MarkPointer mark(new Mark(*this, stream, take_event()));
  check(driver_.functions.event_record(mark->event_, stream), "recording an event", device_);
  return mark;
}

void Gpu::copy_to_host(std::byte* target, const void* source, size_t bytes) {
  const Current current(*this);
  check(driver_.functions.copy_to_host(target, address_of(source), bytes, to_host_), "copying a tensor to the host",
        device_);
}

void Gpu::copy_to_device(void* target, const std::byte* source, size_t bytes) {
  copy_to_device(target, source, bytes, to_device_);
}

void Gpu::copy_to_device(void* target, const std::byte* source, size_t bytes, Stream stream) {
  const Current current(*this);
  check(driver_.functions.copy_to_device(address_of(target), source, bytes, stream), "copying a tensor to it", device_);
}

void Gpu::copy(void* target, const void* source, size_t bytes, Stream stream) {
  const Current current(*this);
  check(driver_.functions.copy_on_device(address_of(target), address_of(source), bytes, stream), "copying a tensor",
        device_);
}

void Gpu::clear(void* target, size_t bytes, Stream stream) {
  const Current current(*this);
  check(driver_.functions.fill_on_device(address_of(target), 0, bytes, stream), "clearing a tensor", device_);
}

// --- memory

Memory::Memory(Gpu& gpu, size_t bytes, Stream stream) : bytes_(bytes), stream_(stream) {
  if (bytes > 0) {
    const Gpu::Current current(gpu);
    check(gpu.driver_.functions.alloc_async(&address_, bytes, stream), "allocating memory", gpu.device());
    gpu_ = &gpu;
  }
}

Memory::~Memory() {
  if (gpu_ != nullptr && gpu_->driver_.functions.ctx_push(gpu_->context_) == Status::kSuccess) {
    if (after_ != nullptr) {
      gpu_->driver_.functions.stream_wait_event(stream_, after_->event_, 0);
    }
    gpu_->driver_.functions.free_async(address_, stream_);
    Context popped = nullptr;
    gpu_->driver_.functions.ctx_pop(&popped);
  }
}

Memory Gpu::allocate_result(size_t bytes) {
  Memory memory(*this, bytes, to_device_);
  delay(collectives_, *mark_to_device());
  return memory;
}

void* Memory::data() const noexcept {
  return reinterpret_cast<void*>(address_);  // NOLINT(performance-no-int-to-ptr): the driver's addresses are numbers
}

// --- what is used again

Event Gpu::take_event() {
  {
    const base::MutexLock lock(mutex_);
    if (!events_.empty()) {
      const Event event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  Event event = nullptr;
  check(driver_.functions.event_create(&event, kEventWithoutTiming), "making an event", device_);
  return event;
}

void Gpu::give_back(Event event) noexcept {
  const base::MutexLock lock(mutex_);
  events_.push_back(event);
}

Pinned Gpu::take_pinned(size_t bytes) {
  const size_t rounded = pinned_bytes_for(bytes);
  Returned found;  // its mark is destroyed after the mutex is released, because that gives its event back
  {
    const base::MutexLock lock(mutex_);
    for (auto [each, end] = pinned_.equal_range(rounded); each != end; ++each) {
      if (each->second.in_use_until == nullptr || each->second.in_use_until->is_reached()) {
        found = std::move(each->second);
        pinned_.erase(each);
        return found.pinned;
      }
    }
  }
  const Current current(*this);
  void* memory = nullptr;
  check(driver_.functions.host_alloc(&memory, rounded, kHostMemoryPortable), "allocating pinned host memory", device_);
  return {static_cast<std::byte*>(memory), rounded};
}

void Gpu::give_back(Pinned pinned, MarkPointer in_use_until) {
  const base::MutexLock lock(mutex_);
  pinned_.emplace(pinned.bytes, Returned{pinned, std::move(in_use_until)});
}

// After a failure of the GPU its resources cannot be given back: the driver frees them when the process ends.
void Gpu::release() noexcept {
  const Functions& functions = driver_.functions;
  if (functions.ctx_push(context_) == Status::kSuccess) {
    const auto deadline = base::Deadline::after_seconds(kPartingSeconds);
    std::multimap<size_t, Returned> pinned;
    {
      const base::MutexLock lock(mutex_);
      pinned.swap(pinned_);
    }
    for (auto& [bytes, returned] : pinned) {
      if (returned.in_use_until == nullptr || wait_until_reached(*returned.in_use_until, deadline)) {
        functions.host_free(returned.pinned.memory);
      }
    }
    pinned.clear();  // and with it their marks, which give their events back
    const base::MutexLock lock(mutex_);
    for (const Event event : events_) {
      functions.event_destroy(event);
    }
    for (const Stream stream : {to_host_, to_device_, collectives_}) {
      if (stream != nullptr) {
        functions.stream_destroy(stream);
      }
    }
    Context popped = nullptr;
    functions.ctx_pop(&popped);
  }
  functions.primary_ctx_release(handle_);
}

// --- all of them

Gpu& Gpus::get(Ordinal device) {
  const base::MutexLock lock(mutex_);
  auto& gpu = gpus_[device];
  if (gpu == nullptr) {
    gpu = std::make_unique<Gpu>(device);
  }
  return *gpu;
}

}  // namespace farandole::device
