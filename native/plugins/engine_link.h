// The engine that carries a plugin's ops out: Python lends it to the plugin while the process is in a world.
//
// Frameworks may run ops at any time, also before init() and after shutdown(), so an op asks for the engine each time.
// detach() returns when no thread is between asking and the end of its submission. Requests that were submitted by then
// belong to the engine, which completes all of them before their world ends.
//
// A forked child has neither the engine's threads nor a thread that may hold the lock, so it gets no engine, and takes
// no lock.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "capi/farandole.h"

namespace farandole::plugins {

// The place of this worker in the world.
struct Place {
  int32_t rank = -1;
  int32_t local_rank = -1;
  int32_t local_size = -1;
};

class EngineLink {
 public:
  void attach(farandole_engine* engine, Place place);
  void detach();

  // The engine, kept attached while this lives; get() is NULL if there is none.
  class Use {
   public:
    explicit Use(EngineLink& link);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    farandole_engine* get() const noexcept { return engine_; }
    const Place& place() const noexcept { return place_; }
    // Whether detach() waits for those who use the engine, of which this is one.
    bool is_wanted_back() const;
    // The ranks of a group; none if there is no engine or no such group.
    std::vector<int32_t> ranks_in(uint32_t group) const;

   private:
    EngineLink& link_;
    bool is_owner_;
    farandole_engine* engine_ = nullptr;
    Place place_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable unused_;
  farandole_engine* engine_ = nullptr;
  Place place_;
  int users_ = 0;
  std::atomic<pid_t> owner_{0};  // the process whose engine it is
};

}  // namespace farandole::plugins
