// Functions that tests, the fake NCCL and the fake device of PyTorch call, and that do not exist for a real
// GPU. All can be called with ctypes, too. A pointer that is null or wrong aborts the process with a message.
#pragma once

#include <cstddef>

#include "cuda/abi.h"

#define FAKE_GPU_API __attribute__((visibility("default")))

namespace gpu_fake {
extern "C" {

// --- settings ---
// Sets when streams run, from their next operation on: "eager", "lazy" or "random" (FAKE_GPU_TIME), with a seed for
// the delays (FAKE_GPU_SEED), which are at most that long (FAKE_GPU_DELAY_US).
FAKE_GPU_API void fake_gpu_time(const char* mode, unsigned seed, unsigned longest_delay_us);
// The mode by its name.
FAKE_GPU_API const char* fake_gpu_time_mode();
// The nth call from now of this function of the driver fails with that code; 1 is the next one.
FAKE_GPU_API void fake_gpu_fail(const char* function, int nth, int code);
// Calls of this function of the driver do not return until it is called again with `hangs` 0. Returns how many hang
// now.
FAKE_GPU_API int fake_gpu_hang(const char* function, int hangs);
// The device has an error that stays: queued work is dropped, and every later call for it gives this code. 0 repairs
// it, which no real device can.
FAKE_GPU_API void fake_gpu_break(Device device, int code);

// --- counters ---
// The value of a counter, for all devices and threads; tests/gpu_fake/README.md lists them. UINT64_MAX: no such name.
FAKE_GPU_API uint64_t fake_gpu_count(const char* name);
// Sets counters of what happened to 0; those of what lives ("live_...") stay.
FAKE_GPU_API void fake_gpu_reset_counts();

// --- memory ---
// Reads and writes device memory at once, in no stream's order.
FAKE_GPU_API void fake_gpu_read(void* target, Address source, size_t bytes);
FAKE_GPU_API void fake_gpu_write(Address target, const void* source, size_t bytes);
// Where the host can touch what a program sees at this address: for device memory its other mapping, for host memory
// the address itself. Null: part of it is in no allocation of the device.
FAKE_GPU_API void* fake_gpu_touch(Address address, size_t bytes);
// The device of an address; -1: it is not in a device's memory.
FAKE_GPU_API Device fake_gpu_device_of(Address address);

// --- streams ---
// Queues a function, which runs in the stream's order and thread. `name` is for messages, and lives as long as the
// stream.
FAKE_GPU_API Result fake_gpu_enqueue(Stream* stream, const char* name, void (*run)(void*), void* argument);
// The same; `drop` is called instead of `run` if it will never run: the call fails, the device breaks before, or the
// stream is under capture.
FAKE_GPU_API Result fake_gpu_enqueue_or_drop(Stream* stream, const char* name, void (*run)(void*), void (*drop)(void*),
                                             void* argument);
// The stream stops before its next operation until it is released.
FAKE_GPU_API void fake_gpu_hold(Stream* stream);
FAKE_GPU_API void fake_gpu_release(Stream* stream);
// Waits until all queued operations have run, without counting as a wait. Returns the device's error.
FAKE_GPU_API Result fake_gpu_drain(Stream* stream);
// Between these two calls, any use of the stream aborts the process with this reason.
FAKE_GPU_API void fake_gpu_forbid(Stream* stream, const char* why);
FAKE_GPU_API void fake_gpu_permit(Stream* stream);
// The device of a stream; -1: there is no such stream, or it is the default one of no current context.
FAKE_GPU_API Device fake_gpu_stream_device(Stream* stream);

}  // extern "C"
}  // namespace gpu_fake
