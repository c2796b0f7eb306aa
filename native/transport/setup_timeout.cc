#include "transport/setup_timeout.h"

#include <string>

namespace farandole::transport {
namespace {

using base::Code;
using base::Error;

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

const char* explain(Refusal refusal) noexcept {
  switch (refusal) {
    case Refusal::kSecret:
      return "authentication failed: it holds another secret than this worker";
    case Refusal::kOtherWorld:
      return "it was told another list of workers than this one";
    case Refusal::kOtherGeneration:
      return "it is forming another generation";
    default:
      return nullptr;
  }
}

}  // namespace

bool is_explained(Refusal refusal) noexcept { return explain(refusal) != nullptr; }

Error setup_timeout(uint64_t generation, int self, const std::vector<UnreadyRank>& unready) {
  std::vector<int> missing;
  std::vector<int> waiting;
  std::string reasons;
  for (const UnreadyRank& each : unready) {
    (each.linked ? waiting : missing).push_back(each.rank);
    if (const char* reason = explain(each.refusal); reason != nullptr && !each.linked) {
      reasons += " Rank " + std::to_string(each.rank) + ": " + reason + ".";
    }
  }
  const std::string what = "the world of generation " + std::to_string(generation) + " did not form in time: ";
  if (missing.empty()) {
    return {Code::kTimeout, what + list_ranks(waiting) + " could not connect to all others", waiting.front()};
  }
  return {Code::kTimeout,
          what + list_ranks(missing) + " did not connect to rank " + std::to_string(self) + "." + reasons +
              " Check that these workers run, and that their addresses can be reached from here",
          missing.front()};
}

}  // namespace farandole::transport
