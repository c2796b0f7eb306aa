#include "engine/outcomes.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace farandole::engine {

void Outcomes::complete(std::unique_ptr<Pending> pending, Outcome outcome, int64_t at_ns) {
  if (pending->completion != nullptr) {
    --in_flight_;
    finish(std::move(pending), std::move(outcome), at_ns);
  }
}

void Outcomes::finish(std::unique_ptr<Pending> pending, Outcome outcome, int64_t at_ns) {
  recorder_.record(outcome.code == base::Code::kOk ? Phase::kDone : Phase::kFailed, *pending, at_ns);
  if (outcome.code == base::Code::kOk) {
    tuning_.measure(*pending);
  }
  finished_.push_back({std::move(pending->completion), std::move(outcome), at_ns});
}

void Outcomes::launch(std::unique_ptr<Pending> pending, device::MarkPointer mark) {
  --in_flight_;
  Completion& completion = *pending->completion;
  if (completion.device_data != nullptr) {
    completion.device_data->free_after(mark);
  }
  completion.mark = std::move(mark);
  newly_launched_.push_back(pending->completion);
  launched_.push_back(std::move(pending));
}

void Outcomes::announce() {
  if (!newly_launched_.empty()) {
    completions_.launch(std::exchange(newly_launched_, {}));
  }
  if (!finished_.empty()) {
    completions_.finish(finished_);
    finished_.clear();
  }
}

bool Outcomes::is_launched(uint32_t group, std::string_view name) const {
  return std::ranges::any_of(
      launched_, [&](const auto& pending) { return pending->request.group == group && pending->request.name == name; });
}

bool Outcomes::has_reached() const {
  device::Sweep sweep;
  return std::ranges::any_of(launched_,
                             [&](const auto& pending) { return sweep.is_reached(*pending->completion->mark); });
}

void Outcomes::settle() {
  device::Sweep sweep;
  for (size_t i = 0; i < launched_.size();) {
    if (sweep.is_reached(*launched_[i]->completion->mark)) {
      std::unique_ptr<Pending> done = std::move(launched_[i]);
      launched_.erase(launched_.begin() + static_cast<ptrdiff_t>(i));
      finish(std::move(done), {}, base::now_ns());
    } else {
      ++i;
    }
  }
  announce();
}

void Outcomes::lose_launched() noexcept {
  try {
    settle();
  } catch (const base::Error& error) {
    base::log(base::Level::kWarning, -1, error.what());  // nothing is known of what is left on this GPU
  }
  for (const std::unique_ptr<Pending>& pending : launched_) {
    pending->is_lost = pending->gpu() != nullptr;
  }
}

void Outcomes::settle_all(const base::Deadline& deadline, const base::Error& why) {
  for (std::unique_ptr<Pending>& pending : std::exchange(launched_, {})) {
    if (pending->is_lost) {
      finish(std::move(pending), {why.code(), why.what(), why.lost_rank()}, base::now_ns());
    } else if (device::wait_until_reached(*pending->completion->mark, deadline)) {
      finish(std::move(pending), {}, base::now_ns());
    } else {
      const std::string error =
          "the result of '" + pending->request.name + "' has not arrived in the memory of its GPU";
      finish(std::move(pending), {base::Code::kUnavailable, error, -1}, base::now_ns());
    }
  }
  announce();
}

}  // namespace farandole::engine
