#include "engine/reported_requests.h"

#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace farandole::engine {

using base::Code;
using base::Error;

ReportedRequests::ReportedRequests(int rank, const collective::Group& world, Recorder& recorder)
    : rank_(rank), recorder_(recorder) {
  memberships_[0].group = world;
}

const collective::Group* ReportedRequests::group(uint32_t id) const {
  const auto found = memberships_.find(id);
  return found == memberships_.end() ? nullptr : &found->second.group;
}

const ResponseCache* ReportedRequests::cache(uint32_t id) const {
  const auto found = memberships_.find(id);
  return found == memberships_.end() ? nullptr : &found->second.cache;
}

void ReportedRequests::add_group(const collective::Group& group) {
  if (group.index >= 0) {
    memberships_[group.id].group = group;
  }
}

// While this rank has joined, what a bit stands for may change without it: another thread's request goes in full.
uint32_t ReportedRequests::bit_of(const Request& request) const {
  const Membership& membership = memberships_.at(request.group);
  return join_ != nullptr ? kNoBit : membership.cache.find(request.name, request.signature, membership.group.index);
}

void ReportedRequests::add(std::unique_ptr<Pending> pending, Ready& ready) {
  const Request& request = pending->request;
  if (request.signature.kind == Kind::kJoin) {
    add_in_full(*pending, ready);
    join_ = std::move(pending);
    return;
  }
  const uint32_t bit = bit_of(request);
  if (bit == kNoBit) {
    add_in_full(*pending, ready);
    memberships_.at(request.group).in_full.emplace(request.name, std::move(pending));
    return;
  }
  ready.add_known(request.group, bit);
  add_by_bit(std::move(pending), bit);
}

void ReportedRequests::add_in_full(Pending& pending, Ready& ready) {
  const Request& request = pending.request;
  pending.name_number = recorder_.events().number_of(request.name, request.signature);
  recorder_.record(Phase::kSubmitted, pending, pending.submitted_ns);
  ready.fresh.push_back({request.group, request.name, request.signature, request.in_turn});
}

void ReportedRequests::add_by_bit(std::unique_ptr<Pending> pending, uint32_t bit) {
  const Request& request = pending->request;
  Membership& membership = memberships_.at(request.group);
  if (bit >= membership.by_bit.size()) {
    membership.by_bit.resize(membership.cache.size());
    membership.name_numbers.resize(membership.cache.size(), kNone);
  }
  uint32_t& number = membership.name_numbers[bit];
  number = number == kNone ? recorder_.events().number_of(request.name, request.signature) : number;
  pending->name_number = number;
  recorder_.record(Phase::kSubmitted, *pending, pending->submitted_ns);
  membership.by_bit[bit] = std::move(pending);
}

std::unique_ptr<Pending> ReportedRequests::take(uint32_t group, const std::string& name, uint32_t bit) {
  Membership& membership = memberships_.at(group);
  if (bit == kNoBit) {
    if (auto node = membership.in_full.extract(name); !node.empty()) {
      return std::move(node.mapped());
    }
    bit = membership.cache.find_name(name);
  }
  if (bit >= membership.by_bit.size() || membership.by_bit[bit] == nullptr) {
    throw Error(Code::kInternal, "a decision speaks of '" + name + "', which rank " + std::to_string(rank_) +
                                     " never asked for. This is a bug of farandole's");
  }
  return std::move(membership.by_bit[bit]);
}

std::unique_ptr<Pending> ReportedRequests::take_join() {
  if (join_ == nullptr) {
    throw Error(Code::kInternal, "a decision says that all have joined, but rank " + std::to_string(rank_) +
                                     " has not. This is a bug of farandole's");
  }
  return std::move(join_);
}

std::unique_ptr<Pending> ReportedRequests::absent_part(uint32_t group, const Decision::Agreed& agreed) {
  auto pending = std::make_unique<Pending>();
  pending->request.group = group;
  pending->request.name = agreed.name;
  pending->request.signature = agreed.signature;
  pending->submitted_ns = base::now_ns();
  return pending;
}

void ReportedRequests::take_all(std::vector<std::unique_ptr<Pending>>& into) {
  if (join_ != nullptr) {
    into.push_back(std::move(join_));
  }
  for (auto& [id, membership] : memberships_) {
    for (auto& [name, pending] : std::exchange(membership.in_full, {})) {
      into.push_back(std::move(pending));
    }
    for (auto& pending : std::exchange(membership.by_bit, {})) {
      if (pending != nullptr) {
        into.push_back(std::move(pending));
      }
    }
  }
}

}  // namespace farandole::engine
