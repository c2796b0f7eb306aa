#include "plugins/tensorflow/engine_link.h"

#include "plugins/tensorflow/errors.h"
#include "plugins/tensorflow/handles.h"

namespace farandole::tensorflow {
namespace {

// Names of unnamed calls recur after this many, so that the engine comes to know them; see worker/core/request.py.
constexpr uint64_t kRecurringNames = 120;

}  // namespace

EngineLink& EngineLink::of_process() {
  // Never destroyed: TensorFlow's threads may outlive static objects.
  static EngineLink* const link = new EngineLink;
  return *link;
}

void EngineLink::enter(farandole_engine* engine, plugins::Place place) {
  unnamed_calls_.restart(0);
  attach(engine, place);
}

farandole_engine* EngineLink::Use::engine() const {
  if (get() == nullptr) {
    throw OpError(TF_FAILED_PRECONDITION, "farandole has not been initialized; use hvd.init().");
  }
  return get();
}

std::vector<int32_t> EngineLink::Use::ranks_of(uint32_t group) const {
  engine();
  std::vector<int32_t> ranks = ranks_in(group);
  if (ranks.empty()) {
    throw invalid("there is no process set with id " + std::to_string(group) +
                  ". Pass it to init() or add_process_set() on all ranks first.");
  }
  return ranks;
}

std::string name_of(const plugins::UnnamedCalls::Taken& taken) {
  // The requests of before a join are done by the end of the next one, so two sets of names are enough.
  return "noname." + std::to_string(taken.restarts % 2) + "." + std::to_string(taken.number % kRecurringNames);
}

}  // namespace farandole::tensorflow
