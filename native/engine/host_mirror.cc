#include "engine/host_mirror.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "engine/kinds/checks.h"
#include "engine/pending.h"

namespace farandole::engine {
namespace {

size_t output_bytes_of(const Request& request, const collective::Group& group) {
  if (request.output == nullptr) {
    return 0;
  }
  const KindRow& row = row_of(request.signature.kind);
  return row.output_bytes == nullptr ? request.signature.bytes() : row.output_bytes(request, group);
}

// Whether the result may overwrite the input in the mirror, wherever the caller wants it.
bool is_in_place(Kind kind) { return row_of(kind).memory != Memory::kInput; }

}  // namespace

HostMirror::HostMirror(const device::Mark& ready, const collective::Group& group, Request& request)
    : gpu_(ready.gpu()),
      stream_(ready.stream()),
      input_(request.input),
      output_(request.output),
      output_bytes_(output_bytes_of(request, group)) {
  const size_t input_bytes = request.input == nullptr ? 0 : request.signature.bytes();
  output_offset_ = is_in_place(request.signature.kind) ? 0
                                                       : (input_bytes + transport::kArenaAlignment - 1) /
                                                             transport::kArenaAlignment * transport::kArenaAlignment;
  pinned_ = gpu_.take_pinned(std::max(input_bytes, output_offset_ + output_bytes_));
  // Also without an input: nothing may be written to the output before that.
  gpu_.delay_to_host(ready);
  if (input_bytes > 0) {
    gpu_.copy_to_host(pinned_.memory, request.input, input_bytes);
    request.input = pinned_.memory;
  }
  if (request.output != nullptr) {
    request.output = pinned_.memory + output_offset_;
  }
  last_ = gpu_.mark_to_host();
}

HostMirror::~HostMirror() {
  if (is_copying()) {
    try {
      gpu_.delay(stream_, *last_);
    } catch (const base::Error& error) {
      base::log(base::Level::kWarning, -1, error.what());
    }
  }
  gpu_.give_back(pinned_, std::move(last_));
}

bool HostMirror::is_copying() const noexcept {
  try {
    return !last_->is_reached();
  } catch (const base::Error&) {
    return false;  // the GPU has failed, and copies nothing more
  }
}

device::MarkPointer HostMirror::deliver() {
  gpu_.copy_to_device(output_, pinned_.memory + output_offset_, output_bytes_);
  last_ = gpu_.mark_to_device();
  return last_;
}

void HostMirror::withdraw(Request& request) const noexcept {
  request.input = input_;
  request.output = output_;
}

device::MarkPointer DeviceInputs::ready(const Request& request) {
  if (request.device < 0) {
    kinds::refuse(std::string(name_of(request.signature.kind)) + " '" + request.name +
                  "': a request in device memory needs the number of its device, and the stream that its tensor is "
                  "computed in");
  }
  device::Gpu& gpu = gpus_.get(request.device);
  if (request.signature.bytes() > 0) {
    for (const void* const memory : {request.input, static_cast<const void*>(request.output)}) {
      if (memory != nullptr) {
        gpu.check_address(memory, "'" + request.name + "'");
      }
    }
  }
  const auto stream = static_cast<device::Stream>(request.stream);
  if (last_ == nullptr || &last_->gpu() != &gpu || last_->stream() != stream) {
    gpu.check_not_capturing(stream);
    last_ = gpu.mark(stream);
  }
  return last_;
}

}  // namespace farandole::engine
