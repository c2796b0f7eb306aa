#include "cuda/hooks.h"

#include <cstring>

#include "cuda/call.h"

namespace gpu_fake {
namespace {

char* touch_or_stop(Address address, size_t bytes, const char* function) {
  void* const there = fake_gpu_touch(address, bytes);
  if (there == nullptr) {
    stop(std::string(function) + ": these bytes are in no allocation");
  }
  return static_cast<char*>(there);
}

std::shared_ptr<Stream> stream_or_stop(Stream* handle, const char* function) {
  try {
    return Gpu::get().stream(handle);
  } catch (const Refused& refused) {
    stop(std::string(function) + ": " + refused.why);
  }
}

}  // namespace

extern "C" {

void fake_gpu_time(const char* mode, unsigned seed, unsigned longest_delay_us) {
  set_time(mode, seed, longest_delay_us);
}

const char* fake_gpu_time_mode() {
  const TimeMode mode = settings_of_time().mode;
  return mode == TimeMode::kLazy ? "lazy" : mode == TimeMode::kRandom ? "random" : "eager";
}

void fake_gpu_fail(const char* function, int nth, int code) { plan_fault(function, nth, code); }

int fake_gpu_hang(const char* function, int hangs) { return hang(function, hangs != 0); }

void fake_gpu_break(Device device, int code) { Gpu::get().break_device(device, code); }

uint64_t fake_gpu_count(const char* name) {
  const std::string wanted = name;
  if (const auto what = count_named(wanted)) {
    return counted(*what);
  }
  const Gpu::Live live = Gpu::get().live();
  if (wanted == "live_allocations") {
    return live.allocations;
  }
  if (wanted == "live_host_allocations") {
    return live.host_allocations;
  }
  if (wanted == "live_streams") {
    return live.streams;
  }
  if (wanted == "live_events") {
    return live.events;
  }
  return wanted == "live_retained" ? live.retained : UINT64_MAX;
}

void fake_gpu_reset_counts() { reset_counts(); }

void fake_gpu_read(void* target, Address source, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(target, touch_or_stop(source, bytes, "fake_gpu_read"), bytes);
  }
}

void fake_gpu_write(Address target, const void* source, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(touch_or_stop(target, bytes, "fake_gpu_write"), source, bytes);
  }
}

void* fake_gpu_touch(Address address, size_t bytes) {
  Gpu& gpu = Gpu::get();
  if (!gpu.is_initialized() || !gpu.memory().has(address)) {
    return pointer_to(address);
  }
  return gpu.memory().find(address, bytes) ? gpu.memory().touch(address) : nullptr;
}

Device fake_gpu_device_of(Address address) {
  Gpu& gpu = Gpu::get();
  const auto block = gpu.is_initialized() ? gpu.memory().find(address, 0) : std::nullopt;
  return block ? block->device : -1;
}

Result fake_gpu_enqueue(Stream* stream, const char* name, void (*run)(void*), void* argument) {
  return call("fake_gpu_enqueue", [&](Gpu& gpu) {
    gpu.enqueue(gpu.stream(stream), name, [run, argument] { run(argument); });
    count(Count::kLaunches);
  });
}

Result fake_gpu_enqueue_or_drop(Stream* stream, const char* name, void (*run)(void*), void (*drop)(void*),
                                void* argument) {
  // One of the two is called once, whatever becomes of the operation.
  struct Task {
    void (*run)(void*);
    void (*drop)(void*);
    void* argument;
    bool was_run = false;
    ~Task() {
      if (!was_run) {
        drop(argument);
      }
    }
  };
  auto task = std::make_shared<Task>(run, drop, argument);
  return call("fake_gpu_enqueue_or_drop", [&](Gpu& gpu) {
    gpu.enqueue(gpu.stream(stream), name, [task = std::move(task)] {
      task->was_run = true;
      task->run(task->argument);
    });
    count(Count::kLaunches);
  });
}

void fake_gpu_hold(Stream* stream) { stream_or_stop(stream, "fake_gpu_hold")->hold(true); }

void fake_gpu_release(Stream* stream) { stream_or_stop(stream, "fake_gpu_release")->hold(false); }

Result fake_gpu_drain(Stream* stream) {
  return call("fake_gpu_drain", [&](Gpu& gpu) {
    const auto found = gpu.stream(stream);
    found->wait_past(found->last());
    throw_error_of(*found->context);
  });
}

void fake_gpu_forbid(Stream* stream, const char* why) { stream_or_stop(stream, "fake_gpu_forbid")->forbid(why); }

void fake_gpu_permit(Stream* stream) { stream_or_stop(stream, "fake_gpu_permit")->forbid(""); }

Device fake_gpu_stream_device(Stream* stream) {
  try {
    return Gpu::get().stream(stream)->context->device;
  } catch (const Refused&) {
    return -1;
  }
}

}  // extern "C"
}  // namespace gpu_fake
