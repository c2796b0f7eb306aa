// farandole_run_and_release: the handles that are left after each of its outcomes, in a world of two engines of this
// process.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "support/two_engines.h"

namespace farandole::testing {
namespace {

constexpr std::array<farandole_setting, 1> kSmallArena = {{{"arena_bytes", "67108864"}}};

class RunAndRelease : public ::testing::Test {
 protected:
  void SetUp() override { engines_.form(); }

  struct Call {
    std::array<float, 2> values = {1.0F, 1.0F};
    int64_t elements = 1;  // of these
    uint64_t handle = 77;  // of a call before
    int status = -1;
  };

  void run(size_t rank, Call& call, const char* name, double seconds = kPatience) {
    farandole_request request{};
    request.kind = FARANDOLE_ALLREDUCE;
    request.dtype = FARANDOLE_F32;
    request.ndim = 1;
    request.shape = &call.elements;
    request.name = name;
    request.input = request.output = call.values.data();
    call.status = farandole_run_and_release(engines_[rank], &request, 1, &call.handle, seconds);
  }

  void run_on_both(std::array<Call, 2>& calls) {
    std::thread other([&] { run(1, calls[1], "x"); });
    run(0, calls[0], "x");
    other.join();
  }

  TwoEngines engines_{kSmallArena};
};

TEST_F(RunAndRelease, LeavesNoHandleAfterEachOfManyCalls) {
  for (int step = 0; step < 5; ++step) {  // by message at first, and then by the word that the workers share
    std::array<Call, 2> calls;
    run_on_both(calls);
    for (const Call& call : calls) {
      EXPECT_EQ(call.status, FARANDOLE_OK);
      EXPECT_EQ(call.values[0], 2.0F);
      EXPECT_EQ(call.handle, 0U);
    }
  }
  // Handles are numbered from 1.
  for (uint64_t handle = 1; handle <= 5; ++handle) {
    EXPECT_EQ(farandole_poll(engines_[0], handle), -1);
  }
}

TEST_F(RunAndRelease, LeavesNoHandleOfARequestThatIsRefused) {
  Call call;
  run(0, call, "");
  EXPECT_EQ(call.status, FARANDOLE_INVALID_ARGUMENT);
  EXPECT_EQ(call.handle, 0U);
}

// So that its caller can tell it from one that is refused, of which the other ranks know nothing.
TEST_F(RunAndRelease, LeavesTheHandleOfARequestThatFails) {
  std::array<Call, 2> calls;
  calls[1].elements = 2;
  run_on_both(calls);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank].status, FARANDOLE_MISMATCH);
    EXPECT_NE(calls[rank].handle, 0U);
    EXPECT_EQ(farandole_release_all(engines_[rank], &calls[rank].handle, 1), FARANDOLE_OK);
  }
}

TEST_F(RunAndRelease, LeavesHandleOfARequestThatIsStillRunning) {
  Call early;
  run(0, early, "x", /*seconds=*/0.0);
  EXPECT_EQ(early.status, FARANDOLE_TIMEOUT);
  ASSERT_NE(early.handle, 0U);
  Call late;
  run(1, late, "x");
  EXPECT_EQ(late.status, FARANDOLE_OK) << farandole_last_error();
  EXPECT_EQ(farandole_wait(engines_[0], early.handle, kPatience), FARANDOLE_OK);
  EXPECT_EQ(early.values[0], 2.0F);
  EXPECT_EQ(farandole_release_all(engines_[0], &early.handle, 1), FARANDOLE_OK);
}

}  // namespace
}  // namespace farandole::testing
