// The engine that carries ops out, with TensorFlow's errors where there is none; and the names of unnamed calls.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "capi/farandole.h"
#include "plugins/engine_link.h"

namespace farandole::tensorflow {

class EngineLink : public plugins::EngineLink {
 public:
  // The one object of the process, because ops cannot reach an engine in any other way.
  static EngineLink& of_process();

  // Attaches the engine of a new world, in which names are counted anew.
  void enter(farandole_engine* engine, plugins::Place place);

  class Use : public plugins::EngineLink::Use {
   public:
    using plugins::EngineLink::Use::Use;

    // As get(), but throws OpError if there is none.
    farandole_engine* engine() const;
    // The ranks of a group. Throws OpError if there is none of that number.
    std::vector<int32_t> ranks_of(uint32_t group) const;
  };

  // Names for calls that users did not name, and that are not part of a graph: they match by their order.
  std::string next_name(const std::string& operation, uint32_t group);
  // The call with the last name was refused on this rank, so the others do not count it either.
  void give_back_name(const std::string& operation, uint32_t group);
  // A join has ended: all ranks start counting again. Earlier requests may still be in flight, so the names are new.
  void restart_names();
  // The same, where Python has counted the joins, or a world begins.
  void restart_names(uint64_t restarts);
  // The id of a group was given to other ranks.
  void restart_names_of(uint32_t group);

 private:
  std::mutex names_mutex_;
  std::unordered_map<std::string, uint64_t> counts_;
  uint64_t restarts_ = 0;  // in this world
};

}  // namespace farandole::tensorflow
