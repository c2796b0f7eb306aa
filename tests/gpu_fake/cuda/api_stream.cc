// Streams and events.
#include "cuda/api.h"
#include "cuda/call.h"

namespace gpu_fake {
namespace {

constexpr unsigned kEventFlags = kEventBlockingSync | kEventDisableTiming | kEventInterprocess;

// The streams that the host waits for with a stream: the default stream waits for the others of its context.
std::vector<std::shared_ptr<Stream>> waited_for(Gpu& gpu, const std::shared_ptr<Stream>& stream) {
  std::vector<std::shared_ptr<Stream>> all = {stream};
  if (gpu.is_legacy(*stream)) {
    for (auto& other : gpu.streams_of(*stream->context)) {
      if (other->is_blocking() && other != stream) {
        all.push_back(std::move(other));
      }
    }
  }
  return all;
}

void refuse_under_capture(Gpu& gpu, Stream& stream) {
  if (gpu.capture_of(stream) != kCaptureNone) {
    gpu.set_capture(stream, kCaptureInvalidated);
    throw Refused{kStreamCaptureUnsupported, "the stream is under capture"};
  }
}

void wait_for_stream(Gpu& gpu, const std::shared_ptr<Stream>& stream) {
  count(Count::kHostWaits);
  for (const auto& one : waited_for(gpu, stream)) {
    one->wait_past(one->last());
  }
  throw_error_of(*stream->context);
}

Event event_for_host(Gpu& gpu, Event* handle) {
  const Event event = gpu.read_event(handle);
  if (event.is_captured) {
    throw Refused{kCapturedEvent, "the event was last recorded on a stream under capture"};
  }
  return event;
}

void elapsed(Gpu& gpu, float* milliseconds, Event* start, Event* end) {
  require(milliseconds);
  const Event from = event_for_host(gpu, start);
  const Event to = event_for_host(gpu, end);
  if (from.marks.empty() || to.marks.empty() || ((from.flags | to.flags) & kEventDisableTiming) != 0 ||
      from.context != to.context) {
    throw Refused{kInvalidHandle, "an event has no time, or they are of two devices"};
  }
  if (!from.is_done() || !to.is_done()) {
    throw Refused{kNotReady, ""};
  }
  *milliseconds = static_cast<float>(to.marks.back()->time_ns - from.marks.back()->time_ns) / 1e6F;
}

}  // namespace

extern "C" {

Result cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
  return call("cuStreamCreateWithPriority", [&](Gpu& gpu) {
    require(stream);
    if ((flags & ~kStreamNonBlocking) != 0) {
      throw Refused{kInvalidValue, "unknown flags"};
    }
    *stream = gpu.create_stream(flags, priority);
    count(Count::kStreamCreates);
  });
}

Result cuStreamCreate(Stream** stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

Result cuStreamDestroy_v2(Stream* stream) {
  return call("cuStreamDestroy_v2", [&](Gpu& gpu) {
    gpu.current();
    gpu.destroy_stream(stream);
  });
}

Result cuStreamQuery(Stream* stream) {
  return call("cuStreamQuery", [&](Gpu& gpu) {
    gpu.current();
    const auto found = gpu.stream(stream);
    refuse_under_capture(gpu, *found);
    count(Count::kQueries);
    for (const auto& one : waited_for(gpu, found)) {
      if (!one->is_past(one->last())) {
        throw Refused{kNotReady, ""};
      }
    }
  });
}

Result cuStreamSynchronize(Stream* stream) {
  return call("cuStreamSynchronize", [&](Gpu& gpu) {
    gpu.current();
    const auto found = gpu.stream(stream);
    refuse_under_capture(gpu, *found);
    wait_for_stream(gpu, found);
  });
}

Result cuCtxSynchronize() {
  return call("cuCtxSynchronize", [&](Gpu& gpu) {
    const Context& context = gpu.current();
    count(Count::kHostWaits);
    for (const auto& stream : gpu.streams_of(context)) {
      stream->wait_past(stream->last());
    }
    throw_error_of(context);
  });
}

Result cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
  return call("cuStreamWaitEvent", [&](Gpu& gpu) {
    if (flags != 0) {
      throw Refused{kInvalidValue, "the fake GPU knows no flags of waits"};
    }
    gpu.wait(gpu.own_stream(stream), event);
    count(Count::kStreamWaits);
  });
}

Result cuStreamGetCtx(Stream* stream, Context** context) {
  return call("cuStreamGetCtx", [&](Gpu& gpu) {
    require(context);
    *context = gpu.stream(stream)->context;
  });
}

Result cuStreamGetPriority(Stream* stream, int* priority) {
  return call("cuStreamGetPriority", [&](Gpu& gpu) {
    require(priority);
    *priority = gpu.stream(stream)->priority;
  });
}

Result cuStreamGetFlags(Stream* stream, unsigned* flags) {
  return call("cuStreamGetFlags", [&](Gpu& gpu) {
    require(flags);
    *flags = gpu.stream(stream)->flags;
  });
}

Result cuStreamIsCapturing(Stream* stream, CaptureStatus* status) {
  return call("cuStreamIsCapturing", [&](Gpu& gpu) {
    require(status);
    const auto found = gpu.stream(stream);
    for (const auto& one : waited_for(gpu, found)) {
      if (one != found && gpu.capture_of(*one) != kCaptureNone) {
        throw Refused{kStreamCaptureImplicit, "a stream that the default stream waits for is under capture"};
      }
    }
    *status = gpu.capture_of(*found);
  });
}

Result cuStreamBeginCapture_v2(Stream* stream, int mode) {
  return call("cuStreamBeginCapture_v2", [&](Gpu& gpu) {
    const auto found = gpu.own_stream(stream);
    if (gpu.is_legacy(*found)) {
      throw Refused{kStreamCaptureUnsupported, "the default stream cannot be captured"};
    }
    refuse_under_capture(gpu, *found);
    gpu.set_capture(*found, kCaptureActive);
  });
}

Result cuStreamEndCapture(Stream* stream, void** graph) {
  return call("cuStreamEndCapture", [&](Gpu& gpu) {
    require(graph);
    *graph = nullptr;
    const auto found = gpu.own_stream(stream);
    const CaptureStatus status = gpu.capture_of(*found);
    gpu.set_capture(*found, kCaptureNone);
    if (status == kCaptureNone) {
      throw Refused{kStreamCaptureUnmatched, "the stream is not under capture"};
    }
    if (status == kCaptureInvalidated) {
      throw Refused{kStreamCaptureInvalidated, "something that cannot be captured was called meanwhile"};
    }
  });
}

Result cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) {
  return call("cuLaunchHostFunc", [&](Gpu& gpu) {
    require(reinterpret_cast<void*>(function));
    gpu.enqueue(gpu.own_stream(stream), "a host function", [function, argument] { function(argument); });
    count(Count::kLaunches);
  });
}

Result cuEventCreate(Event** event, unsigned flags) {
  return call("cuEventCreate", [&](Gpu& gpu) {
    require(event);
    if ((flags & ~kEventFlags) != 0) {
      throw Refused{kInvalidValue, "unknown flags"};
    }
    *event = gpu.create_event(flags);
    count(Count::kEventCreates);
  });
}

Result cuEventDestroy_v2(Event* event) {
  return call("cuEventDestroy_v2", [&](Gpu& gpu) {
    gpu.current();
    gpu.destroy_event(event);
  });
}

Result cuEventRecord(Event* event, Stream* stream) {
  return call("cuEventRecord", [&](Gpu& gpu) {
    gpu.record(event, {gpu.own_stream(stream)});
    count(Count::kEventRecords);
  });
}

Result cuEventQuery(Event* event) {
  return call("cuEventQuery", [&](Gpu& gpu) {
    const Event found = event_for_host(gpu, event);
    count(Count::kQueries);
    if (!found.is_done()) {
      throw Refused{kNotReady, ""};
    }
  });
}

Result cuEventSynchronize(Event* event) {
  return call("cuEventSynchronize", [&](Gpu& gpu) {
    gpu.current();
    const Event found = event_for_host(gpu, event);
    count(Count::kHostWaits);
    for (const auto& mark : found.marks) {
      mark->wait_on_host();
    }
    throw_error_of(*found.context);
  });
}

Result cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  return call("cuEventElapsedTime", [&](Gpu& gpu) { elapsed(gpu, milliseconds, start, end); });
}

Result cuEventElapsedTime_v2(float* milliseconds, Event* start, Event* end) {
  return call("cuEventElapsedTime_v2", [&](Gpu& gpu) { elapsed(gpu, milliseconds, start, end); });
}

Result cuCtxRecordEvent(Context* context, Event* event) {
  return call("cuCtxRecordEvent", [&](Gpu& gpu) {
    if (!gpu.is_active(context) || gpu.read_event(event).context != context) {
      throw Refused{kInvalidContext, "the context was released, or the event is of another one"};
    }
    gpu.record(event, gpu.streams_of(*context));
    count(Count::kEventRecords);
  });
}

Result cuCtxWaitEvent(Context* context, Event* event) {
  return call("cuCtxWaitEvent", [&](Gpu& gpu) {
    if (!gpu.is_active(context)) {
      throw Refused{kContextIsDestroyed, "the context was released"};
    }
    for (const auto& stream : gpu.streams_of(*context)) {
      gpu.wait(stream, event);
    }
    count(Count::kStreamWaits);
  });
}

}  // extern "C"
}  // namespace gpu_fake
