#include "engine/stall.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

namespace farandole::engine {
namespace {

using Waiting = Coordinator::Waiting;

// The time limit for answers.
constexpr int64_t kPatienceNs = 1'000'000'000;
// A report must stay readable: of requests and ranks beyond this number, only the count is shown.
constexpr size_t kMostShown = 10;

int64_t ns_of(double seconds) { return seconds > 0 ? static_cast<int64_t>(std::min(seconds, 1e9) * 1e9) : 0; }

std::string format_seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(ns) / 1e9);
  return text;
}

std::string title(const Waiting& waiting) { return std::string(name_of(waiting.kind)) + " '" + waiting.name + "'"; }

std::vector<int> missing_in(std::span<const Waiting> stalled) {
  std::set<int> ranks;
  for (const Waiting& waiting : stalled) {
    ranks.insert(waiting.missing.begin(), waiting.missing.end());
  }
  return {ranks.begin(), ranks.end()};
}

std::string and_more(size_t count) {
  return count > kMostShown ? "\n  and " + std::to_string(count - kMostShown) + " more" : "";
}

}  // namespace

StallInspector::StallInspector(double warning_seconds, double shutdown_seconds)
    : warning_ns_(ns_of(warning_seconds)), shutdown_ns_(ns_of(shutdown_seconds)) {}

void StallInspector::watch(int64_t now_ns) noexcept {
  const int64_t first = warning_ns_ == 0    ? shutdown_ns_
                        : shutdown_ns_ == 0 ? warning_ns_
                                            : std::min(warning_ns_, shutdown_ns_);
  next_ns_ = now_ns + first;
}

StallInspector::Findings StallInspector::inspect(int64_t now_ns, const std::vector<Waiting>& waiting) {
  std::vector<Waiting> stalled;
  bool is_due = false;
  for (const Waiting& each : waiting) {
    const int64_t age = now_ns - each.since_ns;
    const bool warn = warning_ns_ > 0 && age >= warning_ns_;
    const bool end = shutdown_ns_ > 0 && age >= shutdown_ns_;
    is_due |= (warn && now_ns >= warn_after_ns_) || end;
    if (warn || end) {
      stalled.push_back(each);
    }
  }
  std::ranges::sort(stalled, {}, &Waiting::since_ns);
  Findings findings;
  if (!is_due) {
    asked_ns_ = 0;
  } else if (asked_ns_ == 0) {
    return ask(now_ns, stalled);
  } else if (now_ns - asked_ns_ < kPatienceNs && !all_answered()) {
    next_ns_ = asked_ns_ + kPatienceNs;
    return findings;
  } else {
    findings = report(now_ns, stalled);
  }
  plan_next(now_ns, waiting);
  return findings;
}

StallInspector::Findings StallInspector::ask(int64_t now_ns, std::span<const Waiting> stalled) {
  Findings findings;
  findings.query = ++stall_query_;
  findings.ask = missing_in(stalled);
  said_.clear();
  for (const int rank : findings.ask) {
    said_[rank];
  }
  asked_ns_ = now_ns;
  next_ns_ = now_ns + kPatienceNs;
  return findings;
}

void StallInspector::hear(int rank, const StallAnswer& answer) {
  const auto said = said_.find(rank);
  if (asked_ns_ == 0 || answer.query != stall_query_ || said == said_.end()) {
    return;  // too late
  }
  (answer.of_program ? said->second.program : said->second.engine) = answer.text;
  if (all_answered()) {
    next_ns_ = asked_ns_;  // now
  }
}

bool StallInspector::all_answered() const {
  return std::ranges::none_of(
      said_, [](const auto& entry) { return entry.second.engine.empty() || entry.second.program.empty(); });
}

StallInspector::Findings StallInspector::report(int64_t now_ns, std::span<const Waiting> stalled) {
  asked_ns_ = 0;
  warn_after_ns_ = now_ns + warning_ns_;
  Findings findings;
  findings.warning = describe(now_ns, stalled);
  const Waiting& oldest = stalled.front();
  if (shutdown_ns_ > 0 && now_ns - oldest.since_ns >= shutdown_ns_) {
    findings.responsible = oldest.missing;
    const std::string others =
        stalled.size() == 1 ? "" : " (and " + std::to_string(stalled.size() - 1) + " more of the kind)";
    // This travels in a control frame: a name that is too long is cut.
    findings.end =
        "the job has stalled: " + format_ranks(oldest.missing) + " did not ask for " + title(oldest).substr(0, 300) +
        " within " + format_seconds(now_ns - oldest.since_ns) + " after others did" + others +
        ", which is more than the stall shutdown time. See rank 0's output for what they were doing; if they "
        "are only slow, raise FARANDOLE_STALL_SHUTDOWN_SECONDS";
  }
  return findings;
}

std::string StallInspector::describe(int64_t now_ns, std::span<const Waiting> stalled) const {
  std::string text = "some ranks wait for others that have not asked for the same:";
  for (const Waiting& waiting : stalled.first(std::min(stalled.size(), kMostShown))) {
    text += "\n  " + title(waiting) + (waiting.group == 0 ? "" : " in process set " + std::to_string(waiting.group)) +
            ", for " + format_seconds(now_ns - waiting.since_ns) + ": missing " + format_ranks(waiting.missing);
  }
  text += and_more(stalled.size()) + "\nWhat the missing ranks do:";
  size_t shown = 0;
  for (const auto& [rank, said] : said_) {
    if (shown++ == kMostShown) {
      break;
    }
    text += "\n  rank " + std::to_string(rank) + ": " + (said.engine.empty() ? "no answer" : said.engine);
    text += said.program.empty() ? "" : "; it is at " + said.program;
  }
  return text + and_more(said_.size()) +
         "\nThey may be slow, or have taken another way through the script: all ranks have to make the same calls in "
         "the same order, and a rank without more data calls hvd.join(). The time until this warning is "
         "FARANDOLE_STALL_WARNING_SECONDS.";
}

void StallInspector::plan_next(int64_t now_ns, std::span<const Waiting> waiting) {
  next_ns_ = 0;
  const auto consider = [&](int64_t at_ns) { next_ns_ = next_ns_ == 0 ? at_ns : std::min(next_ns_, at_ns); };
  for (const Waiting& each : waiting) {
    if (warning_ns_ > 0) {
      consider(std::max(each.since_ns + warning_ns_, warn_after_ns_));
    }
    if (shutdown_ns_ > 0) {
      consider(std::max(each.since_ns + shutdown_ns_, now_ns));
    }
  }
}

}  // namespace farandole::engine
