#include "transport/setup_timeout.h"

#include <cstdio>
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

std::string not_in_time(uint64_t generation) {
  return "the world of generation " + std::to_string(generation) + " did not form in time: ";
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

std::string list_ranks(const std::vector<MissingRank>& missing) {
  std::vector<int> ranks;
  for (const MissingRank& each : missing) {
    ranks.push_back(each.rank);
  }
  return list_ranks(ranks);
}

std::string explain_all(const std::vector<MissingRank>& missing) {
  std::string text;
  for (const MissingRank& each : missing) {
    if (const char* reason = explain(each.refusal); reason != nullptr) {
      text += " Rank " + std::to_string(each.rank) + ": " + reason + ".";
    }
  }
  return text;
}

}  // namespace

bool is_explained(Refusal refusal) noexcept { return explain(refusal) != nullptr; }

Error missing_links(uint64_t generation, int self, const std::vector<MissingRank>& missing) {
  return {Code::kTimeout,
          not_in_time(generation) + list_ranks(missing) + " did not connect to rank " + std::to_string(self) + "." +
              explain_all(missing) + " Check that these workers run, and that their addresses can be reached from here",
          missing.front().rank};
}

Error missing_reports(uint64_t generation, int self, const std::vector<int>& unready) {
  return {Code::kTimeout,
          not_in_time(generation) + list_ranks(unready) + " did not report to rank " + std::to_string(self) +
              " that all connections are made. Check that these workers run",
          unready.front()};
}

Error missing_answer(uint64_t generation, int self, int parent) {
  return {Code::kTimeout,
          not_in_time(generation) + "rank " + std::to_string(parent) + " did not tell rank " + std::to_string(self) +
              " that all workers are connected. Check that it runs",
          parent};
}

std::string missing_late_links(const std::vector<MissingRank>& missing, double seconds) {
  char time[32];
  std::snprintf(time, sizeof time, "%g s", seconds);
  return list_ranks(missing) + " could not be reached within " + time + " for a connection that is needed now." +
         explain_all(missing) +
         " Check that these workers run, and that their addresses can be reached from the hosts of all others";
}

}  // namespace farandole::transport
