#include "plugins/tensorflow/engine_link.h"

#include "plugins/tensorflow/handles.h"

namespace farandole::tensorflow {

EngineLink& EngineLink::of_process() {
  // Never destroyed: TensorFlow's threads may outlive static objects.
  static EngineLink* const link = new EngineLink;
  return *link;
}

void EngineLink::attach(farandole_engine* engine, Place place) {
  {
    const std::lock_guard<std::mutex> lock(names_mutex_);
    counts_.clear();
    restarts_ = 0;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  engine_ = engine;
  place_ = place;
}

void EngineLink::detach() {
  std::unique_lock<std::mutex> lock(mutex_);
  engine_ = nullptr;
  unused_.wait(lock, [this] { return users_ == 0; });
}

EngineLink::Use::Use(EngineLink& link) : link_(link) {
  const std::lock_guard<std::mutex> lock(link_.mutex_);
  ++link_.users_;
  engine_ = link_.engine_;
  place_ = link_.place_;
}

EngineLink::Use::~Use() {
  const std::lock_guard<std::mutex> lock(link_.mutex_);
  if (--link_.users_ == 0) {
    link_.unused_.notify_all();
  }
}

farandole_engine* EngineLink::Use::engine() const {
  if (engine_ == nullptr) {
    throw OpError(TF_FAILED_PRECONDITION, "farandole has not been initialized; use hvd.init().");
  }
  return engine_;
}

std::vector<int32_t> EngineLink::Use::ranks_of(uint32_t group) const {
  std::vector<int32_t> ranks(farandole_group_ranks(engine(), group, nullptr, 0));
  farandole_group_ranks(engine(), group, ranks.data(), ranks.size());
  if (ranks.empty()) {
    throw OpError(TF_INVALID_ARGUMENT, "there is no process set with id " + std::to_string(group) +
                                           ". Pass it to init() or add_process_set() on all ranks first.");
  }
  return ranks;
}

std::string EngineLink::next_name(const std::string& operation, uint32_t group) {
  const std::lock_guard<std::mutex> lock(names_mutex_);
  const uint64_t number = counts_[operation + "/" + std::to_string(group)]++;
  return "noname.tensorflow." + std::to_string(restarts_) + "." + std::to_string(number);
}

void EngineLink::give_back_name(const std::string& operation, uint32_t group) {
  const std::lock_guard<std::mutex> lock(names_mutex_);
  --counts_[operation + "/" + std::to_string(group)];
}

void EngineLink::restart_names() {
  const std::lock_guard<std::mutex> lock(names_mutex_);
  counts_.clear();
  ++restarts_;
}

}  // namespace farandole::tensorflow
