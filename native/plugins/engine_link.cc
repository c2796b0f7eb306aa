#include "plugins/engine_link.h"

#include <unistd.h>

namespace farandole::plugins {

void EngineLink::attach(farandole_engine* engine, Place place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  engine_ = engine;
  place_ = place;
  owner_ = ::getpid();
}

void EngineLink::detach() {
  std::unique_lock<std::mutex> lock(mutex_);
  engine_ = nullptr;
  unused_.wait(lock, [this] { return users_ == 0; });
}

EngineLink::Use::Use(EngineLink& link) : link_(link), is_owner_(link.owner_ == ::getpid()) {
  if (!is_owner_) {
    return;
  }
  const std::lock_guard<std::mutex> lock(link_.mutex_);
  ++link_.users_;
  engine_ = link_.engine_;
  place_ = link_.place_;
}

EngineLink::Use::~Use() {
  if (!is_owner_) {
    return;
  }
  const std::lock_guard<std::mutex> lock(link_.mutex_);
  if (--link_.users_ == 0) {
    link_.unused_.notify_all();
  }
}

bool EngineLink::Use::is_wanted_back() const {
  const std::lock_guard<std::mutex> lock(link_.mutex_);
  return link_.engine_ != engine_;
}

std::vector<int32_t> EngineLink::Use::ranks_in(uint32_t group) const {
  if (engine_ == nullptr) {
    return {};
  }
  std::vector<int32_t> ranks(farandole_group_ranks(engine_, group, nullptr, 0));
  farandole_group_ranks(engine_, group, ranks.data(), ranks.size());
  return ranks;
}

}  // namespace farandole::plugins
