// The fake GPU as a whole: devices, their primary contexts, streams, events and memory, and the rules of their use.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/abi.h"
#include "cuda/memory.h"
#include "cuda/settings.h"
#include "cuda/stream.h"

namespace gpu_fake {

// The primary context of a device: the only kind there is here.
struct Context {
  explicit Context(Device device_) : device(device_) {}
  const Device device;
  std::atomic<int> error{0};  // stays once it is set
  int retained = 0;           // the rest is guarded by the lock of the whole GPU
  std::shared_ptr<Stream> legacy;
};

// Throws the error of a device that is broken.
inline void throw_error_of(const Context& context) {
  if (const int code = context.error; code != 0) {
    throw Refused{static_cast<Result>(code), "the device has this error"};
  }
}

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  std::vector<std::shared_ptr<Mark>> marks;  // one for each stream that was recorded; empty: none was
  bool is_captured = false;                  // recorded on a stream under capture

  bool is_done() const {
    return std::all_of(marks.begin(), marks.end(), [](const auto& mark) { return mark->is_done(); });
  }
};

class Gpu {
 public:
  // The instance of this process. It lives until the process ends, because threads of streams may run until then.
  static Gpu& get();

  // --- devices and contexts ---
  void initialize();
  bool is_initialized() const { return initialized_; }
  int devices() const { return static_cast<int>(contexts_.size()); }
  // The number that a device has in the machine, of which CUDA_VISIBLE_DEVICES may show a part.
  int number_of(Device device) const { return numbers_.at(static_cast<size_t>(device)); }
  Context& context_of(Device device);
  Context* retain(Device device);
  void release(Device device);
  bool is_active(Context* context);
  // The current context of this thread; throws when there is none, it was destroyed, or the device is broken.
  Context& current();
  void break_device(Device device, int code);

  // --- streams and events ---
  Stream* create_stream(unsigned flags, int priority);
  void destroy_stream(Stream* stream);
  // A stream of any context; a null one is that of the current context. Throws if the handle is not a stream.
  std::shared_ptr<Stream> stream(Stream* handle);
  // The same, but only of the current context.
  std::shared_ptr<Stream> own_stream(Stream* handle);
  bool is_legacy(const Stream& stream);
  // All streams of a context, its default one included.
  std::vector<std::shared_ptr<Stream>> streams_of(const Context& context);
  // Queues an operation in the order that the default stream keeps with streams that are not "non-blocking".
  // Under capture it is counted and never run. Returns its place in the stream.
  std::shared_ptr<Mark> enqueue(const std::shared_ptr<Stream>& stream, const char* name, std::function<void()> run);
  Event* create_event(unsigned flags);
  void destroy_event(Event* handle);
  Event read_event(Event* handle);
  // All streams are of one context. More than one: the event is done when all of them have come to it.
  void record(Event* handle, const std::vector<std::shared_ptr<Stream>>& streams);
  void wait(const std::shared_ptr<Stream>& stream, Event* handle);
  void set_capture(Stream& stream, CaptureStatus status);
  CaptureStatus capture_of(Stream& stream);

  // --- memory ---
  Memory& memory() { return *memory_; }
  // Throws unless a call may use these bytes: they lie in one allocation, which has not been freed.
  Block usable(Address address, size_t bytes);
  // The same when an operation runs; there, an error breaks the context, as on a device.
  char* touch_on_device(Context& context, Address address, size_t bytes);
  struct HostBlock {
    Device device = -1;
    size_t bytes = 0;
    bool is_registered = false;  // the program's own memory
  };
  void add_host(void* memory, HostBlock block);
  HostBlock remove_host(void* memory, bool is_registered);
  // The pinned memory that holds these bytes, and where it begins; bytes == 0: there is none.
  std::pair<void*, HostBlock> pinned(const void* memory, size_t bytes);

  struct Live {
    size_t allocations, host_allocations, streams, events, retained;
  };
  Live live();

 private:
  Gpu() = default;
  Context& current_locked();
  std::shared_ptr<Stream> stream_locked(Stream* handle);
  std::shared_ptr<Mark> push_locked(const std::shared_ptr<Stream>& stream, const char* name, std::function<void()> run);

  std::mutex mutex_;
  std::atomic<bool> initialized_{false};
  std::vector<std::unique_ptr<Context>> contexts_;
  std::vector<int> numbers_;
  std::unique_ptr<Memory> memory_;
  std::unordered_map<Stream*, std::shared_ptr<Stream>> streams_;
  std::unordered_map<Event*, Event> events_;
  uint64_t events_created_ = 0;
  std::map<char*, HostBlock> host_;
};

// The contexts that this thread has pushed; the last one is current.
std::vector<Context*>& stack_of_contexts();

}  // namespace gpu_fake
