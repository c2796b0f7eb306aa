// The parts of the MPI backend that need no MPI: in which requests it has a part, by which algorithm, and its memory.
#include <gtest/gtest.h>

#include "backend/mpi/library.h"
#include "backend/mpi/mpi.h"
#include "base/error.h"

namespace farandole::backend {
namespace {

using collective::Topology;

constexpr Topology kOneHost = {4, 1, 4};
constexpr Topology kTwoByTwo = {4, 2, 2};
constexpr Topology kUneven = {3, 2, 1};
constexpr Topology kOneEach = {3, 3, 1};

TEST(MpiBackend, PollsWithoutPausesOnlyAtFirstAndOnAFreeCore) {
  EXPECT_EQ(mpi::pause_after(0, true), 0);
  EXPECT_GT(mpi::pause_after(0, false), 0);
  EXPECT_GT(mpi::pause_after(1'000'000, true), 0);
}

TEST(MpiBackend, PausesGrowAndLengthenAWaitByAnEighthAtMost) {
  int64_t before = 0;
  for (int64_t waited = 200'000; waited < 1'000'000'000; waited += waited / 4) {
    const int64_t pause = mpi::pause_after(waited, false);
    EXPECT_GE(pause, before) << waited;
    EXPECT_LE(pause, waited / 8) << waited;
    before = pause;
  }
  EXPECT_EQ(before, 1'000'000);
}

TEST(MpiBackend, HasNoPartInGroupsWithinAHost) {
  for (uint32_t operation = 0; (kAllOperations >> operation & 1) != 0; ++operation) {
    EXPECT_FALSE(mpi::takes(kOneHost, {static_cast<Operation>(operation)}));
  }
}

TEST(MpiBackend, HasNoPartInRequestsThatMpiCannotRun) {
  for (const Operation operation : {Operation::kAdasum, Operation::kCompressedAllreduce, Operation::kTransfer}) {
    EXPECT_FALSE(mpi::takes(kTwoByTwo, {operation})) << name_of(operation);
  }
  for (const Operation operation : {Operation::kAllreduce, Operation::kAllgather, Operation::kBroadcast,
                                    Operation::kAlltoall, Operation::kReducescatter}) {
    EXPECT_TRUE(mpi::takes(kTwoByTwo, {operation})) << name_of(operation);
  }
}

std::string chosen(const Topology& topology, Operation operation, std::string_view wanted = "") {
  return mpi::choose(topology, {operation, MemoryKind::kHost, 4}, wanted).algorithm->name;
}

TEST(MpiBackend, ReducesByExchangesOnly) {
  EXPECT_EQ(chosen(kTwoByTwo, Operation::kAllreduce), "two_level");
  EXPECT_EQ(chosen(kTwoByTwo, Operation::kAllreduce, "exchange"), "exchange");
  EXPECT_EQ(chosen(kUneven, Operation::kAllreduce), "exchange");
  EXPECT_EQ(chosen(kOneEach, Operation::kAllreduce), "exchange");
  EXPECT_EQ(chosen({64, 64, 1}, Operation::kAllreduce), "exchange") << "recursive doubling goes over links";
  EXPECT_EQ(chosen(kOneEach, Operation::kAllreduce, "ring"), "exchange");
  EXPECT_EQ(chosen(kTwoByTwo, Operation::kReducescatter, "ring"), "exchange");
}

TEST(MpiBackend, MovesDataByMpiCollectives) {
  for (const Operation operation : {Operation::kAllgather, Operation::kBroadcast, Operation::kAlltoall}) {
    EXPECT_EQ(chosen(kTwoByTwo, operation), "mpi") << name_of(operation);
  }
}

TEST(MpiBackend, RunsOnlyIfTheJobAsksForIt) {
  EXPECT_STREQ(rows_for("native").front()->name, "native");
  EXPECT_STREQ(rows_for("mpi").front()->name, "mpi");
  for (const Row* const row : rows_for("native")) {
    EXPECT_STRNE(row->name, "mpi");
  }
  EXPECT_THROW(rows_for("nccl"), base::Error);
}

TEST(MpiBackend, MissingLibraryIsRefusedWithTheNextStep) {
  try {
    mpi::load_library("/nowhere/libmpi_abi.so.1");
    FAIL() << "it was loaded";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("/nowhere/libmpi_abi.so.1"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("FARANDOLE_MPI_LIBRARY"), std::string::npos) << error.what();
  }
}

TEST(MpiBackend, LibraryThatIsNotMpiIsRefused) {
  try {
    mpi::load_library("libm.so.6");
    FAIL() << "it was loaded";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("MPI_Get_library_version"), std::string::npos) << error.what();
  }
}

TEST(MpiRooms, GiveSeparateAlignedMemory) {
  mpi::Rooms rooms;
  rooms.reset(mpi::Rooms::size_of(100) + mpi::Rooms::size_of(3 * sizeof(int)));
  std::byte* const first = rooms.take<std::byte>(100);
  int* const second = rooms.take<int>(3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
  EXPECT_GE(reinterpret_cast<std::byte*>(second) - first, 100);
  rooms.reset(1);
  EXPECT_EQ(rooms.take<std::byte>(1), first) << "memory is kept";
}

}  // namespace
}  // namespace farandole::backend
