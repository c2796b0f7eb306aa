// The handlers for XLA, with a fake XLA: two ranks, of which the plugin has one and the test the other.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/two_engines.h"
#include "support/xla.h"

namespace farandole {
namespace {

using testing::kPatience;
using testing::Site;

class Handlers : public ::testing::Test {
 protected:
  void SetUp() override {
    engines_.form();
    farandole_jax_attach(engines_[0], 0, 0, 2);
  }
  void TearDown() override { farandole_jax_detach(); }

  // The other rank's part.
  std::string other(uint32_t kind, const char* name, std::vector<float>& tensor, std::vector<float>& output) {
    const auto rows = static_cast<int64_t>(tensor.size());
    farandole_request request{};
    request.kind = kind;
    request.dtype = FARANDOLE_F32;
    request.ndim = 1;
    request.shape = &rows;
    request.name = name;
    request.input = tensor.data();
    request.output = output.data();
    uint64_t handle = 0;
    const int status = farandole_run(engines_[1], &request, 1, &handle, kPatience);
    std::string error = status == FARANDOLE_OK ? "" : farandole_last_error();
    farandole_release_all(engines_[1], &handle, 1);
    return error;
  }

  testing::TwoEngines engines_;
};

TEST_F(Handlers, ReturnFutureIfOtherRankIsLate) {
  Site site("allreduce.late");
  for (int64_t run = 0; run < 20; ++run) {
    std::vector<float> input(1000, 1.0F);
    std::vector<float> output(1000);
    std::vector<float> theirs(1000, 2.0F);
    std::string error;
    const std::unique_ptr<xla::Future> future = site.run(run, input, output, error);
    ASSERT_EQ(error, "");
    ASSERT_NE(future, nullptr) << "the other rank has not begun";
    EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.late", theirs, theirs), "");
    EXPECT_EQ(future->wait(), "");
    EXPECT_EQ(output.front(), 3.0F);
    EXPECT_EQ(output.back(), 3.0F);
  }
}

TEST_F(Handlers, ReportErrorsBeforeAnythingIsSubmitted) {
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(4);
  std::string error;
  Site gather("allgather.three", {.kind = FARANDOLE_ALLGATHER});
  std::vector<float> of_three(12);
  EXPECT_EQ(gather.run(1, input, of_three, error), nullptr);
  EXPECT_NE(error.find("compiled for another number of workers than the 2"), std::string::npos) << error;

  farandole_jax_detach();
  Site alone("allreduce.alone");
  EXPECT_EQ(alone.run(1, input, output, error), nullptr);
  EXPECT_NE(error.find("use hvd.init()"), std::string::npos) << error;
}

TEST_F(Handlers, RefuseProgramsThatWereMadeForOneWorker) {
  std::vector<float> nothing;
  std::string error;
  Site check("allreduce.check", {.is_check = true});
  EXPECT_EQ(check.run(1, nothing, nothing, error), nullptr);
  EXPECT_NE(error.find("compiled for another number of workers than the 2"), std::string::npos) << error;

  farandole_jax_attach(nullptr, -1, -1, -1);
  EXPECT_EQ(check.run(2, nothing, nothing, error), nullptr);
  EXPECT_NE(error.find("use hvd.init()"), std::string::npos) << error;
}

TEST_F(Handlers, ReduceArraysOfManyHugePages) {
  Site site("allreduce.large");
  std::vector<float> input(3000001, 1.0F);
  std::vector<float> output(3000001);
  std::vector<float> theirs(3000001, 2.0F);
  std::string error;
  const std::unique_ptr<xla::Future> future = site.run(1, input, output, error);
  ASSERT_NE(future, nullptr) << error;
  EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.large", theirs, theirs), "");
  EXPECT_EQ(future->wait(), "");
  EXPECT_EQ(output, std::vector<float>(3000001, 3.0F));
}

TEST_F(Handlers, RefuseAmbiguousCalls) {
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(4);
  std::vector<float> unused(4);
  std::string error;
  Site site("allreduce.one", {.program = 5});
  const std::unique_ptr<xla::Future> first = site.run(1, input, output, error);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(site.run(2, input, unused, error), nullptr);
  EXPECT_NE(error.find("two threads run the same compiled function"), std::string::npos) << error;

  Site copy("allreduce.one", {.program = 5});
  EXPECT_EQ(copy.run(2, input, unused, error), nullptr);
  EXPECT_NE(error.find("used several times in one compiled program"), std::string::npos) << error;

  std::vector<float> theirs(4, 2.0F);
  EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.one", theirs, theirs), "");
  EXPECT_EQ(first->wait(), "");
  EXPECT_EQ(output[0], 3.0F);
}

TEST_F(Handlers, FutureFailsIfRanksDisagree) {
  Site gather("allgather.ragged", {.kind = FARANDOLE_ALLGATHER});
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(8);
  std::vector<float> theirs(5, 2.0F);
  std::vector<float> room(10);
  std::string error;
  const std::unique_ptr<xla::Future> future = gather.run(1, input, output, error);
  ASSERT_NE(future, nullptr);
  EXPECT_EQ(other(FARANDOLE_ALLGATHER, "allgather.ragged", theirs, room), "");
  EXPECT_NE(future->wait().find("different first dimensions"), std::string::npos);
}

TEST_F(Handlers, FutureFailsWhenWorldEnds) {
  Site site("allreduce.broken");
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(4);
  std::string error;
  const std::unique_ptr<xla::Future> future = site.run(1, input, output, error);
  ASSERT_NE(future, nullptr);
  EXPECT_EQ(farandole_engine_revoke(engines_[1], 1, 1, 1, "rank 1 was lost"), FARANDOLE_OK);
  const std::string sentence = future->wait();
  EXPECT_NE(sentence.find("rank 1 was lost (farandole status 3, rank 1)"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace farandole
