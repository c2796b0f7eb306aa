// Which backend runs a request: a pure function of the table, the request and its group.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "backend/backend.h"

namespace farandole::backend {
namespace {

std::vector<int> one_host() { return {0, 0, 0, 0}; }
std::vector<int> two_hosts() { return {0, 0, 2, 2}; }
collective::Group world() { return {0, {0, 1, 2, 3}, 0}; }
collective::Group pair() { return {1, {0, 1}, 0}; }

constexpr uint32_t kHostBit = bit_of(MemoryKind::kHost);
constexpr uint32_t kDeviceBit = bit_of(MemoryKind::kDevice);

constexpr Row kAnything = {"anything", "", nullptr, {kHostBit | kDeviceBit, kAllOperations, true}, nullptr};
constexpr Row kMissing = {"missing", "", "not in this build", {kDeviceBit, kAllOperations, true}, nullptr};
constexpr Row kDevice = {"device", "", nullptr, {kDeviceBit, bit_of(Operation::kAllreduce), true}, nullptr};
constexpr Row kLocal = {"local", "", nullptr, {kHostBit, kAllOperations, false}, nullptr};

std::string selected(std::span<const Row* const> rows, const Need& need, const collective::Group& group = world(),
                     const std::vector<int>& hosts = one_host()) {
  const Selection selection = select(rows, need, group, hosts, false);
  EXPECT_FALSE(selection.reason.empty());
  if (selection.row == nullptr) {
    return "none";
  }
  return selection.row->name + std::string(selection.through_host ? " through host memory" : "");
}

TEST(Select, TheTableOfThisBuildRunsEverything) {
  std::set<std::string> names;
  for (const Row* const row : rows()) {
    EXPECT_TRUE(names.insert(row->name).second) << row->name << " is there twice";
    EXPECT_EQ(row->absent == nullptr, row->make != nullptr) << row->name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"mpi", "native", "nccl"}));
  for (uint32_t operation = 0; (kAllOperations >> operation & 1) != 0; ++operation) {
    EXPECT_EQ(selected(rows(), {static_cast<Operation>(operation)}, world(), two_hosts()), "native");
    EXPECT_EQ(selected(rows(), {static_cast<Operation>(operation), MemoryKind::kDevice}, world(), two_hosts()),
              "native through host memory");
  }
}

TEST(Select, TakesFirstAvailableBackendThatCanRunTheRequest) {
  const std::array<const Row*, 3> table = {&kMissing, &kDevice, &kAnything};
  EXPECT_EQ(selected(table, {Operation::kAllreduce, MemoryKind::kDevice}), "device");
  EXPECT_EQ(selected(table, {Operation::kBroadcast, MemoryKind::kDevice}), "anything");
  EXPECT_EQ(selected(table, {Operation::kAllreduce, MemoryKind::kHost}), "anything");
}

TEST(Select, DeviceMemoryGoesThroughHostMemoryIfNoBackendTakesIt) {
  const std::array<const Row*, 3> table = {&kLocal, &kMissing, &kDevice};
  EXPECT_EQ(selected(table, {Operation::kAllreduce, MemoryKind::kDevice}), "device");
  EXPECT_EQ(selected(table, {Operation::kBroadcast, MemoryKind::kDevice}), "local through host memory");
  EXPECT_EQ(selected(table, {Operation::kBroadcast, MemoryKind::kDevice}, world(), two_hosts()), "none");
  EXPECT_EQ(selected(std::array<const Row*, 1>{&kDevice}, {Operation::kAllreduce, MemoryKind::kHost}), "none");
}

TEST(Select, GroupsAcrossHostsNeedABackendThatReachesThem) {
  const std::array<const Row*, 2> table = {&kLocal, &kAnything};
  EXPECT_EQ(selected(table, {Operation::kAllgather}, world(), one_host()), "local");
  EXPECT_EQ(selected(table, {Operation::kAllgather}, world(), two_hosts()), "anything");
  EXPECT_EQ(selected(table, {Operation::kAllgather}, pair(), two_hosts()), "local");
}

TEST(Select, RefusalNamesReasonForEveryRow) {
  const std::array<const Row*, 3> table = {&kMissing, &kDevice, &kLocal};
  EXPECT_EQ(refusal_of(table, {Operation::kBroadcast, MemoryKind::kDevice}),
            "no backend of this build runs broadcast in device memory; missing: not in this build; device does not do "
            "that operation; local does not take device memory.");
  EXPECT_EQ(refusal_of(std::array<const Row*, 1>{&kLocal}, {Operation::kAllgather}),
            "no backend of this build runs allgather in host memory; local needs all members on one host.");
}

}  // namespace
}  // namespace farandole::backend
