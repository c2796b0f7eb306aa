// The common part of the files of the C ABI: the engine behind its pointer, and the boundary at which exceptions end.
#pragma once

#include <new>
#include <string>

#include "base/error.h"
#include "base/mutex.h"
#include "capi/farandole.h"
#include "engine/engine.h"
#include "transport/endpoint.h"

struct farandole_engine {
  farandole_engine(farandole::transport::EndpointSettings endpoint_settings,
                   farandole::engine::EngineSettings engine_settings, bool needs_shm)
      : endpoint(std::move(endpoint_settings)),
        engine(std::move(engine_settings)),
        contact(endpoint.contact()),
        needs_shared_memory(needs_shm) {}

  farandole::transport::Endpoint endpoint;
  farandole::engine::Engine engine;
  const std::string contact;
  const bool needs_shared_memory;    // "shm": rather fail than use TCP
  farandole::base::Mutex lifecycle;  // one of form, leave at a time
  std::string links GUARDED_BY(lifecycle) = "alone";
  std::string routes GUARDED_BY(lifecycle);
  uint64_t generation GUARDED_BY(lifecycle) = 0;
  bool was_in_a_world GUARDED_BY(lifecycle) = false;
};

namespace farandole::capi {

// Keeps the error for farandole_last_error() of the calling thread, and returns its status.
int remember(base::Code code, const std::string& what, int lost_rank);

// Runs `body`, which may throw, and returns the status for what it threw.
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return FARANDOLE_OK;
  } catch (const base::Error& error) {
    return remember(error.code(), error.what(), error.lost_rank());
  } catch (const std::bad_alloc&) {
    return remember(base::Code::kUnavailable, "out of memory", -1);
  } catch (const std::exception& error) {
    return remember(base::Code::kInternal, error.what(), -1);
  }
}

[[noreturn]] inline void refuse(const std::string& why) { throw base::Error(base::Code::kInvalidArgument, why); }

// Calls that end a world, or wait for the thread that a callback may run in, are not for callbacks.
inline void refuse_in_callback(const char* what) {
  if (engine::Completions::in_callback()) {
    refuse(std::string("a callback must not ") + what);
  }
}

inline std::string text_or(const char* text, const char* otherwise) { return text == nullptr ? otherwise : text; }

// A text that the calling thread may read until it asks for the next one; NULL after an error.
template <typename Body>
const char* answered(Body&& body) {
  thread_local std::string t_answer;
  return guarded([&] { t_answer = body(); }) == FARANDOLE_OK ? t_answer.c_str() : nullptr;
}

}  // namespace farandole::capi
