// A tensor of a GPU on its way through host memory, for backends that work there: copied to pinned memory before its
// request is reported, and copied back after it has run. No thread waits for the GPU meanwhile.
//
// Threads: made by the thread that submits; everything else is for the thread with the progress lock.
#pragma once

#include <cstddef>
#include <memory>

#include "collective/group.h"
#include "device/gpu.h"
#include "engine/kind.h"

namespace farandole::engine {

class HostMirror {
 public:
  // Begins to copy the input, as soon as the mark is reached. From then on the request's memory is pinned host memory.
  // The output is not written before that mark, either.
  HostMirror(const device::Mark& ready, const collective::Group& group, Request& request);
  // Copies may still run, when the request is refused after all or the world ends. Until they have ended, the pinned
  // memory is not used by others, and the stream that the request came from waits, because the request's tensors are
  // freed in its order.
  ~HostMirror();
  HostMirror(const HostMirror&) = delete;
  HostMirror& operator=(const HostMirror&) = delete;

  // The mark after which the input is in host memory, or, once deliver() was called, the result in the GPU's.
  device::Mark& mark() const noexcept { return *last_; }
  // Whether the result goes to the caller's memory, and not to a completion.
  bool has_output() const noexcept { return output_bytes_ > 0; }
  // Begins to copy the result there.
  device::MarkPointer deliver();
  // Instead of deliver(): another backend takes the tensor where it is, so the request gets its own memory back.
  void withdraw(Request& request) const noexcept;

 private:
  bool is_copying() const noexcept;

  device::Gpu& gpu_;
  const device::Stream stream_;  // that the request came from
  // Both are in device memory.
  const void* const input_;
  void* const output_;
  const size_t output_bytes_;
  device::Pinned pinned_;
  size_t output_offset_ = 0;
  device::MarkPointer last_;  // after the last copy
};

// Looks at the requests of one call that are in device memory.
class DeviceInputs {
 public:
  explicit DeviceInputs(device::Gpus& gpus) : gpus_(gpus) {}
  // The mark after which the input is complete and the output may be written. Requests that come from one stream share
  // it. Throws Error(kInvalidArgument) when the request is not as it should be, and Error(kUnavailable) when its GPU
  // cannot be used.
  device::MarkPointer ready(const Request& request);

 private:
  device::Gpus& gpus_;
  device::MarkPointer last_;
};

}  // namespace farandole::engine
