// The part of the C ABI for requests: submitting them, and their outcomes.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capi/boundary.h"

using farandole::base::Code;
using farandole::base::Deadline;
using farandole::base::Error;
using farandole::capi::guarded;
using farandole::capi::refuse;
using farandole::capi::refuse_in_callback;
using farandole::engine::Completion;
using farandole::engine::Compression;
using farandole::engine::Engine;
using farandole::engine::Kind;

namespace {

// Options by name are converted once if several requests point to the same ones, as those of a grouped call do.
class OptionReader {
 public:
  const farandole::engine::Options& read(Kind kind, const farandole_option* options, size_t count) {
    if (kind != kind_ || options != options_ || count != count_) {
      read_ = farandole::engine::options_from(kind, std::span(options, count));
      kind_ = kind;
      options_ = options;
      count_ = count;
    }
    return read_;
  }

 private:
  Kind kind_ = Kind::kAllreduce;
  const farandole_option* options_ = nullptr;
  size_t count_ = 0;
  farandole::engine::Options read_;
};

farandole::engine::OpaqueType opaque_of(const farandole_request& request) {
  if (*request.opaque_type == '\0' || request.opaque_bytes == 0 || request.opaque_bytes > UINT32_MAX) {
    refuse("an element type needs a name, and elements of 1 to " + std::to_string(UINT32_MAX) + " bytes; got '" +
           request.opaque_type + "' of " + std::to_string(request.opaque_bytes) + " bytes");
  }
  return {request.opaque_type, static_cast<uint32_t>(request.opaque_bytes)};
}

farandole::engine::Signature signature_of(const farandole_request& request, OptionReader& options) {
  farandole::engine::Signature signature;
  if (request.kind > farandole::engine::kLastKind) {
    refuse("there is no operation with number " + std::to_string(request.kind));
  }
  signature.kind = static_cast<Kind>(request.kind);
  const auto dtype = farandole::reduce::dtype_from(request.dtype);
  if (!dtype) {
    refuse("there is no data type with number " + std::to_string(request.dtype));
  }
  signature.dtype = *dtype;
  if (request.opaque_type != nullptr) {
    signature.opaque = opaque_of(request);
  }
  static_cast<farandole::engine::Options&>(signature) =
      options.read(signature.kind, request.options, request.option_count);
  if (request.ndim > 0) {
    signature.shape.assign(request.shape, request.shape + request.ndim);
  }
  if (signature.kind == Kind::kRemoveGroup && signature.shape.size() != 1) {
    refuse("removing a process set takes its id as the only dimension of the shape");
  }
  return signature;
}

// Returns whether a request with elements lacks memory that it needs.
bool lacks_memory(const farandole::engine::Request& request) {
  using farandole::engine::Memory;
  switch (farandole::engine::row_of(request.signature.kind).memory) {
    case Memory::kInputAndOutput:
      return request.input == nullptr || request.output == nullptr;
    case Memory::kInput:
      return request.input == nullptr;
    case Memory::kInputOrOutput:
      return request.input == nullptr && request.output == nullptr;
    case Memory::kNone:
      return false;
  }
  return false;
}

farandole::engine::Callback callback_of(const farandole_request& request) {
  return [call = request.callback, context = request.callback_context](const Completion& completion) {
    call(context, completion.handle, static_cast<int>(completion.code), completion.error.c_str(), completion.lost_rank);
  };
}

farandole::engine::Request request_of(const Engine& engine, const farandole_request& from, OptionReader& options) {
  if (from.name == nullptr || *from.name == '\0') {
    refuse("a request needs a name");
  }
  farandole::engine::Request request;
  request.group = from.group;
  request.name = from.name;
  request.in_turn = from.in_turn != 0;
  request.signature = signature_of(from, options);
  request.input = from.input;
  request.output = from.output;
  if (request.signature.compression != Compression::kNone) {
    request.residual = static_cast<float*>(from.residual);
  }
  if (request.signature.kind == Kind::kAlltoall && from.splits != nullptr) {
    request.splits.assign(from.splits, from.splits + engine.size_of_group(from.group));
  }
  if (from.callback != nullptr) {
    request.callback = callback_of(from);
  }
  if (request.signature.memory == farandole::backend::MemoryKind::kDevice) {
    request.device = from.device;
    request.stream = from.stream;
  }
  if (request.signature.elements() > 0 && lacks_memory(request)) {
    refuse("the request '" + request.name + "' has elements but no memory");
  }
  return request;
}

void submit(farandole_engine& engine, const farandole_request* requests, size_t count, uint64_t* handles,
            bool waits_at_once) {
  std::vector<farandole::engine::Request> all;
  all.reserve(count);
  OptionReader options;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(request_of(engine.engine, requests[i], options));
  }
  const std::vector<farandole::engine::Handle> given = engine.engine.submit(std::move(all), waits_at_once);
  std::ranges::copy(given, handles);
}

// `wait_for` waits for requests; it returns what it has seen, and the first request that failed.
template <typename WaitFor>
void wait(WaitFor&& wait_for) {
  using farandole::engine::Waited;
  std::shared_ptr<const Completion> failed;
  const Waited waited = wait_for(&failed);
  if (waited == Waited::kUnknown) {
    refuse("a handle that is waited for was not created or has been cleared");
  }
  if (waited == Waited::kTimeout) {
    throw Error(Code::kTimeout, "the request is not done yet");
  }
  if (failed != nullptr) {
    throw Error(failed->code, failed->error, failed->lost_rank);
  }
}

void wait(farandole_engine& engine, std::span<const uint64_t> handles, const Deadline& deadline) {
  wait([&](auto* failed) { return engine.engine.wait(handles, deadline, failed); });
}

// Submits requests that are waited for at once. When it throws, handles[0] is 0.
void begin_run(farandole_engine& engine, const farandole_request* requests, size_t count, uint64_t* handles) {
  std::fill_n(handles, count, 0);
  refuse_in_callback("wait for a request");
  submit(engine, requests, count, handles, /*waits_at_once=*/true);
}

}  // namespace

extern "C" {

int farandole_submit(farandole_engine* engine, const farandole_request* requests, size_t count, uint64_t* handles) {
  return guarded([&] { submit(*engine, requests, count, handles, /*waits_at_once=*/false); });
}

int farandole_poll(farandole_engine* engine, uint64_t handle) { return engine->engine.completions().poll(handle); }

int farandole_wait(farandole_engine* engine, uint64_t handle, double timeout_seconds) {
  return farandole_wait_all(engine, &handle, 1, timeout_seconds);
}

int farandole_wait_all(farandole_engine* engine, const uint64_t* handles, size_t count, double timeout_seconds) {
  return guarded([&] { wait(*engine, {handles, count}, Deadline::after_seconds(timeout_seconds)); });
}

int farandole_wait_on(farandole_engine* engine, const uint64_t* handles, size_t count, int32_t device, void* stream,
                      double timeout_seconds) {
  return guarded([&] {
    const std::span all(handles, count);
    wait([&](auto* failed) {
      return engine->engine.wait_on(all, device, static_cast<farandole::device::Stream>(stream),
                                    Deadline::after_seconds(timeout_seconds), failed);
    });
  });
}

int farandole_run(farandole_engine* engine, const farandole_request* requests, size_t count, uint64_t* handles,
                  double timeout_seconds) {
  return guarded([&] {
    begin_run(*engine, requests, count, handles);
    wait(*engine, {handles, count}, Deadline::after_seconds(timeout_seconds));
  });
}

int farandole_run_and_release(farandole_engine* engine, const farandole_request* requests, size_t count,
                              uint64_t* handles, double timeout_seconds) {
  return guarded([&] {
    begin_run(*engine, requests, count, handles);
    const std::span all(handles, count);
    wait([&](auto* failed) {
      const auto waited = engine->engine.wait(all, Deadline::after_seconds(timeout_seconds), failed);
      if (waited == farandole::engine::Waited::kDone && *failed == nullptr) {
        engine->engine.completions().release(all);
        std::ranges::fill(all, 0);
      }
      return waited;
    });
  });
}

int farandole_result(farandole_engine* engine, uint64_t handle, const void** data, const int64_t** sizes,
                     size_t* sizes_count) {
  return guarded([&] {
    if (engine->engine.completions().poll(handle) != 1) {
      refuse("handle " + std::to_string(handle) + " is not done, or was not created");
    }
    const auto completion = engine->engine.completions().find(handle);
    *data = completion->data.data();
    *sizes = completion->sizes.data();
    *sizes_count = completion->sizes.size();
  });
}

int farandole_take(farandole_engine* engine, uint64_t handle, void* target, int32_t device, void* stream) {
  return guarded([&] {
    if (!engine->engine.take(handle, target, device, static_cast<farandole::device::Stream>(stream))) {
      refuse("handle " + std::to_string(handle) + " has no rows in the memory of a GPU");
    }
  });
}

int farandole_clear(farandole_engine* engine, void* memory, size_t bytes, int32_t device, void* stream) {
  return guarded([&] { engine->engine.clear(memory, bytes, device, static_cast<farandole::device::Stream>(stream)); });
}

int farandole_release_all(farandole_engine* engine, const uint64_t* handles, size_t count) {
  return guarded([&] {
    if (!engine->engine.completions().release({handles, count})) {
      refuse("one of these handles was not created or has been cleared");
    }
  });
}

}  // extern "C"
