// Ranks that others wait for: how rank 0 asks them what they are doing, and what they answer.
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "engine/engine.h"

namespace farandole::engine {
namespace {

// An answer is one line of a report, whatever a program puts into it.
std::string as_one_line(std::string text) {
  constexpr size_t kLongest = 400;
  if (text.size() > kLongest) {
    text.resize(kLongest);
    text += "...";
  }
  for (char& c : text) {
    c = c == '\n' || c == '\r' ? ' ' : c;
  }
  return text;
}

}  // namespace

void Engine::inspect_stalls() {
  const StallInspector::Findings findings = inspector_->inspect(base::now_ns(), coordinator_->waiting());
  for (const int rank : findings.ask) {
    Decision query;
    query.type = Decision::Type::kStallQuery;
    query.query = findings.query;
    if (rank == 0) {
      obey(query);
    } else {
      frames_->post(rank, encode(query));
    }
  }
  if (!findings.warning.empty()) {
    base::log(findings.end.empty() ? base::Level::kWarning : base::Level::kError, 0, findings.warning);
  }
  if (!findings.end.empty()) {
    const int to_blame = findings.responsible.size() == 1 ? findings.responsible.front() : -1;
    mesh_->world_status().revoke({to_blame, transport::Sign::kStalled, findings.end});
  }
}

void Engine::receive_stall_query(uint64_t query) {
  StallAnswer answer;
  answer.query = query;
  if (last_request_.name.empty()) {
    answer.text = "has asked for nothing yet";
  } else {
    char age[32];
    std::snprintf(age, sizeof age, "%.3g", static_cast<double>(base::now_ns() - last_request_.submitted_ns) / 1e9);
    const auto found = memberships_.find(last_request_.group);
    const bool waits =
        fast_path_.pending != nullptr ||  // then it is the last one
        (last_request_.kind == Kind::kJoin ? join_ != nullptr
                                           : found != memberships_.end() && found->second.awaits(last_request_.name));
    answer.text = "asked last for " + std::string(name_of(last_request_.kind)) + " '" +
                  as_one_line(last_request_.name) + "' " + age + " s ago, which " +
                  (waits ? "waits for others" : "is done");
  }
  Ready ready;
  ready.answers.push_back(std::move(answer));
  send_ready(ready, transport::Notify::kNow);
  const base::MutexLock lock(mutex_);
  stall_query_ = query;
  stall_query_changed_.notify_all();
}

int Engine::wait_stall_query(const base::Deadline& deadline, uint64_t& query) {
  const base::MutexLock lock(mutex_);
  const bool asked = stall_query_changed_.wait_for(mutex_, std::chrono::nanoseconds(deadline.left_ns()), [this] {
    mutex_.assert_held();
    return ended_.has_value() || stall_query_ != stall_query_taken_;
  });
  if (ended_) {
    return -1;
  }
  query = stall_query_taken_ = stall_query_;
  return asked ? 1 : 0;
}

void Engine::answer_stall_query(uint64_t query, std::string text) {
  const base::MutexLock lock(mutex_);
  if (!ended_) {
    answers_.push_back({query, true, as_one_line(std::move(text))});
    mesh_->doorbell().signal();
  }
}

}  // namespace farandole::engine
