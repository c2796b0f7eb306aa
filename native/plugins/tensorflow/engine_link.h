// The engine that carries ops out, with TensorFlow's errors where there is none; and the unnamed calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capi/farandole.h"
#include "plugins/engine_link.h"
#include "plugins/unnamed_calls.h"

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

  // Calls that users did not name, and that are not part of a graph.
  plugins::UnnamedCalls& unnamed_calls() { return unnamed_calls_; }

 private:
  plugins::UnnamedCalls unnamed_calls_;
};

std::string name_of(const plugins::UnnamedCalls::Taken& taken);

}  // namespace farandole::tensorflow
