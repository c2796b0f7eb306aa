// The engine that carries ops out: Python lends it to this library while the process is in a world.
//
// TensorFlow runs ops whenever it likes, also before init() and after shutdown(), so an op asks for the engine each
// time. detach() returns when no thread is between asking and the end of its submission. What was submitted by then is
// the engine's: it completes all requests before their world ends.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "capi/farandole.h"

namespace farandole::tensorflow {

// Where this worker stands in the world.
struct Place {
  int32_t rank = -1;
  int32_t local_rank = -1;
  int32_t local_size = -1;
};

class EngineLink {
 public:
  // The process's one: ops have no other way to come to know an engine.
  static EngineLink& of_process();

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
    // As get(), but throws OpError if there is none.
    farandole_engine* engine() const;
    const Place& place() const noexcept { return place_; }
    // The ranks of a group. Throws OpError if there is none of that number.
    std::vector<int32_t> ranks_of(uint32_t group) const;

   private:
    EngineLink& link_;
    farandole_engine* engine_;
    Place place_;
  };

  // Names for calls that users did not name, and that are not part of a graph: they match by their order.
  std::string next_name(const std::string& operation, uint32_t group);
  // The call with the last name was refused on this rank, so the others do not count it either.
  void give_back_name(const std::string& operation, uint32_t group);
  // A join has ended: all ranks begin to count anew. Requests of before may still be in flight, so the names are new.
  void restart_names();

 private:
  std::mutex mutex_;
  std::condition_variable unused_;
  farandole_engine* engine_ = nullptr;
  Place place_;
  int users_ = 0;

  std::mutex names_mutex_;
  std::unordered_map<std::string, uint64_t> counts_;
  uint64_t restarts_ = 0;  // in this world
};

}  // namespace farandole::tensorflow
