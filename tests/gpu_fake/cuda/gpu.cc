#include "cuda/gpu.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace gpu_fake {
namespace {

// The devices that CUDA_VISIBLE_DEVICES shows; as with the real driver, the first number that is not valid ends it.
std::vector<int> visible_devices() {
  const auto all = static_cast<int>(number("FAKE_GPU_DEVICES", 1));
  const char* const listed = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> shown;
  if (listed == nullptr) {
    for (int device = 0; device < all; ++device) {
      shown.push_back(device);
    }
    return shown;
  }
  for (const char* at = listed;;) {
    char* end = nullptr;
    const long device = std::strtol(at, &end, 10);
    if (end == at || device < 0 || device >= all) {
      return shown;
    }
    shown.push_back(static_cast<int>(device));
    if (*end != ',') {
      return shown;
    }
    at = end + 1;
  }
}

}  // namespace

std::vector<Context*>& stack_of_contexts() {
  thread_local std::vector<Context*> stack;
  return stack;
}

Gpu& Gpu::get() {
  static auto* const gpu = new Gpu;
  return *gpu;
}

// --- devices and contexts ---

void Gpu::initialize() {
  const std::lock_guard lock(mutex_);
  if (initialized_) {
    return;
  }
  numbers_ = visible_devices();
  if (numbers_.empty()) {
    throw Refused{kNoDevice, "FAKE_GPU_DEVICES and CUDA_VISIBLE_DEVICES leave none"};
  }
  const auto count = static_cast<int>(numbers_.size());
  memory_ = std::make_unique<Memory>(count, number("FAKE_GPU_MEMORY", size_t{1} << 30));
  for (int device = 0; device < count; ++device) {
    contexts_.push_back(std::make_unique<Context>(device));
  }
  initialized_ = true;
}

Context& Gpu::context_of(Device device) {
  if (device < 0 || device >= devices()) {
    throw Refused{kInvalidDevice, "there is no device " + std::to_string(device)};
  }
  return *contexts_[static_cast<size_t>(device)];
}

Context* Gpu::retain(Device device) {
  Context& context = context_of(device);
  throw_error_of(context);
  const std::lock_guard lock(mutex_);
  ++context.retained;
  return &context;
}

void Gpu::release(Device device) {
  Context& context = context_of(device);
  bool is_last = false;
  {
    const std::lock_guard lock(mutex_);
    if (context.retained == 0) {
      throw Refused{kInvalidContext, "the primary context was released more often than retained"};
    }
    is_last = context.retained == 1;
  }
  if (is_last) {
    for (const auto& stream : streams_of(context)) {
      stream->hold(false);  // whatever a test has left
    }
    for (const auto& stream : streams_of(context)) {
      stream->wait_past(stream->last());
    }
  }
  const std::lock_guard lock(mutex_);
  if (--context.retained > 0) {
    return;
  }
  for (const Block& block : memory_->blocks_of(device)) {
    memory_->fill(block, 0xFE);
    memory_->give_back(block);
  }
  std::erase_if(events_, [&](const auto& row) { return row.second.context == &context; });
  std::erase_if(streams_, [&](const auto& row) {
    if (row.second->context == &context) {
      row.second->close();
    }
    return row.second->context == &context;
  });
  if (context.legacy != nullptr) {
    std::exchange(context.legacy, nullptr)->close();
  }
}

bool Gpu::is_active(Context* context) {
  const std::lock_guard lock(mutex_);
  for (const auto& one : contexts_) {
    if (one.get() == context) {
      return context->retained > 0;
    }
  }
  throw Refused{kInvalidContext, "it is not a context"};
}

Context& Gpu::current() {
  const std::lock_guard lock(mutex_);
  return current_locked();
}

Context& Gpu::current_locked() {
  const auto& stack = stack_of_contexts();
  if (stack.empty() || stack.back() == nullptr) {
    throw Refused{kInvalidContext, "this thread has no current context"};
  }
  Context& context = *stack.back();
  if (context.retained == 0) {
    throw Refused{kContextIsDestroyed, "the current context was released"};
  }
  throw_error_of(context);
  return context;
}

void Gpu::break_device(Device device, int code) {
  Context& context = context_of(device);
  context.error = code;
  for (const auto& stream : streams_of(context)) {
    stream->wake();
  }
}

// --- streams and events ---

Stream* Gpu::create_stream(unsigned flags, int priority) {
  const std::lock_guard lock(mutex_);
  auto stream = Stream::start(&current_locked(), flags, priority);
  Stream* const handle = stream.get();
  streams_.emplace(handle, std::move(stream));
  return handle;
}

void Gpu::destroy_stream(Stream* handle) {
  if (reinterpret_cast<uintptr_t>(handle) <= kStreamPerThread) {
    throw Refused{kInvalidHandle, "the default stream cannot be destroyed"};
  }
  const std::lock_guard lock(mutex_);
  const auto stream = stream_locked(handle);
  stream->close();
  streams_.erase(handle);
}

std::shared_ptr<Stream> Gpu::stream(Stream* handle) {
  const std::lock_guard lock(mutex_);
  return stream_locked(handle);
}

std::shared_ptr<Stream> Gpu::own_stream(Stream* handle) {
  const std::lock_guard lock(mutex_);
  const Context& current = current_locked();
  auto stream = stream_locked(handle);
  if (stream->context != &current) {
    throw Refused{kInvalidHandle, "the stream is of device " + std::to_string(stream->context->device) +
                                      ", and the current context of device " + std::to_string(current.device)};
  }
  return stream;
}

bool Gpu::is_legacy(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  return stream.context->legacy.get() == &stream;
}

std::shared_ptr<Stream> Gpu::stream_locked(Stream* handle) {
  if (reinterpret_cast<uintptr_t>(handle) <= kStreamLegacy) {
    Context& context = current_locked();
    if (context.legacy == nullptr) {
      context.legacy = Stream::start(&context, 0, 0);
    }
    return context.legacy;
  }
  const auto found = streams_.find(handle);
  if (found == streams_.end()) {
    throw Refused{kInvalidHandle, "it is not a stream, or was destroyed"};
  }
  throw_error_of(*found->second->context);
  return found->second;
}

std::vector<std::shared_ptr<Stream>> Gpu::streams_of(const Context& context) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto& [handle, stream] : streams_) {
    if (stream->context == &context) {
      found.push_back(stream);
    }
  }
  if (context.legacy != nullptr) {
    found.push_back(context.legacy);
  }
  return found;
}

std::shared_ptr<Mark> Gpu::enqueue(const std::shared_ptr<Stream>& stream, const char* name, std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  return push_locked(stream, name, std::move(run));
}

std::shared_ptr<Mark> Gpu::push_locked(const std::shared_ptr<Stream>& stream, const char* name,
                                       std::function<void()> run) {
  if (stream->capture == kCaptureInvalidated) {
    throw Refused{kStreamCaptureInvalidated, "the capture of the stream is no longer valid"};
  }
  if (stream->capture == kCaptureActive) {
    count(Count::kCaptured);
    return nullptr;
  }
  Context& context = *stream->context;
  const auto wait_for = [&](const std::shared_ptr<Stream>& other) {
    if (const uint64_t last = other->last(); !other->is_past(last)) {
      stream->push("a wait of the default stream's order", [other, last] { other->wait_past(last, false); });
    }
  };
  if (stream == context.legacy) {
    for (const auto& [handle, other] : streams_) {
      if (other->context == &context && other->is_blocking()) {
        if (other->capture != kCaptureNone) {
          throw Refused{kStreamCaptureImplicit, "the default stream would wait for a stream under capture"};
        }
        wait_for(other);
      }
    }
  } else if (stream->is_blocking() && context.legacy != nullptr) {
    wait_for(context.legacy);
  }
  auto mark = std::make_shared<Mark>();
  mark->stream = stream;
  mark->operation = stream->push(name, std::move(run));
  return mark;
}

Event* Gpu::create_event(unsigned flags) {
  const std::lock_guard lock(mutex_);
  Context& context = current_locked();
  // A handle is never given twice, so that a destroyed event is always seen.
  auto* const handle = static_cast<Event*>(pointer_to(0xE000 + 16 * ++events_created_));
  events_[handle] = {&context, flags, {}, false};
  return handle;
}

void Gpu::destroy_event(Event* handle) {
  const std::lock_guard lock(mutex_);
  if (events_.erase(handle) == 0) {
    throw Refused{kInvalidHandle, "it is not an event, or was destroyed"};
  }
}

Event Gpu::read_event(Event* handle) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) {
    throw Refused{kInvalidHandle, "it is not an event, or was destroyed"};
  }
  throw_error_of(*found->second.context);
  return found->second;
}

void Gpu::record(Event* handle, const std::vector<std::shared_ptr<Stream>>& streams) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) {
    throw Refused{kInvalidHandle, "it is not an event, or was destroyed"};
  }
  Event& event = found->second;
  event.is_captured = false;
  std::vector<std::shared_ptr<Mark>> marks;
  for (const auto& stream : streams) {
    if (event.context != stream->context) {
      throw Refused{kInvalidHandle, "the event and the stream are of different devices"};
    }
    event.is_captured = event.is_captured || stream->capture == kCaptureActive;
    const auto mark = std::make_shared<Mark>();
    mark->stream = stream;
    const auto queued = push_locked(stream, "an event", [mark] {
      mark->time_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    });
    if (queued != nullptr) {
      mark->operation = queued->operation;
      marks.push_back(mark);
    }
  }
  event.marks = std::move(marks);
}

void Gpu::wait(const std::shared_ptr<Stream>& stream, Event* handle) {
  const Event event = read_event(handle);
  const std::lock_guard lock(mutex_);
  if (event.is_captured) {
    stream->capture = kCaptureInvalidated;
    throw Refused{kStreamCaptureUnsupported, "the fake GPU cannot bring a second stream into a capture"};
  }
  for (const auto& mark : event.marks) {
    push_locked(stream, "a wait for an event", [mark] { mark->wait_on_device(); });
  }
}

void Gpu::set_capture(Stream& stream, CaptureStatus status) {
  const std::lock_guard lock(mutex_);
  stream.capture = status;
}

CaptureStatus Gpu::capture_of(Stream& stream) {
  const std::lock_guard lock(mutex_);
  return stream.capture;
}

// --- memory ---

Block Gpu::usable(Address address, size_t bytes) {
  const auto block = memory_->find(address, bytes);
  if (!block) {
    throw Refused{kInvalidValue, std::to_string(bytes) + " bytes are not within one allocation of a device"};
  }
  if (block->is_freed) {
    throw Refused{kInvalidValue, "the memory has been freed"};
  }
  return *block;
}

char* Gpu::touch_on_device(Context& context, Address address, size_t bytes) {
  if (!memory_->find(address, bytes)) {
    std::fprintf(stderr,
                 "fake GPU: an operation on device %d touches %zu bytes that are not, or no longer, allocated\n",
                 context.device, bytes);
    break_device(context.device, kIllegalAddress);
    return nullptr;
  }
  return memory_->touch(address);
}

void Gpu::add_host(void* memory, HostBlock block) {
  const std::lock_guard lock(mutex_);
  host_[static_cast<char*>(memory)] = block;
}

Gpu::HostBlock Gpu::remove_host(void* memory, bool is_registered) {
  const std::lock_guard lock(mutex_);
  const auto found = host_.find(static_cast<char*>(memory));
  if (found == host_.end() || found->second.is_registered != is_registered) {
    throw Refused{is_registered ? kHostMemoryNotRegistered : kInvalidValue, "it is not the beginning of pinned memory"};
  }
  const HostBlock block = found->second;
  host_.erase(found);
  return block;
}

std::pair<void*, Gpu::HostBlock> Gpu::pinned(const void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto* const begin = static_cast<const char*>(memory);
  auto found = host_.upper_bound(const_cast<char*>(begin));
  if (found == host_.begin()) {
    return {};
  }
  --found;
  const char* const end = found->first + found->second.bytes;
  const bool is_inside = begin < end && bytes <= static_cast<size_t>(end - begin);
  return is_inside ? std::pair<void*, HostBlock>(*found) : std::pair<void*, HostBlock>();
}

Gpu::Live Gpu::live() {
  Live live{};
  if (!initialized_) {
    return live;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& context : contexts_) {
    live.allocations += memory_->blocks_of(context->device).size();
    live.retained += static_cast<size_t>(context->retained);
  }
  for (const auto& [memory, block] : host_) {
    live.host_allocations += block.is_registered ? 0 : 1;
  }
  live.streams = streams_.size();
  live.events = events_.size();
  return live;
}

}  // namespace gpu_fake
