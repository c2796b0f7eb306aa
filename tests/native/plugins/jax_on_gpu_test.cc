// The handler for XLA's platform CUDA, with a fake XLA on the fake GPU: two ranks with a GPU each, of which the plugin
// has one and the test the other.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/gpus.h"
#include "support/two_engines.h"
#include "support/xla.h"

namespace farandole {
namespace {

using testing::kPatience;
using testing::Program;
using testing::Said;
using testing::Site;
using testing::Tensor;

std::span<float> floats_of(const Tensor& tensor) {
  return {static_cast<float*>(tensor.data()), tensor.bytes() / sizeof(float)};
}

// With NCCL, or through host memory.
class HandlersOnGpus : public testing::Gpus, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Gpus::SetUp();
    const farandole_setting gpu = {"gpu", GetParam()};
    engines_.emplace(std::span(&gpu, 1));
    engines_->form();
    farandole_jax_attach(engine(0), 0, 0, 2);
  }
  void TearDown() override {
    farandole_jax_detach();
    engines_.reset();
    Gpus::TearDown();
  }

  farandole_engine* engine(size_t rank) const { return (*engines_)[rank]; }

  // The other rank's part, whose result is in its stream when this returns.
  std::string other(uint32_t kind, const char* name, Program& program, const Tensor& tensor, const Tensor& output) {
    const auto rows = static_cast<int64_t>(tensor.bytes() / sizeof(float));
    const farandole_option memory = {"memory", FARANDOLE_MEMORY_DEVICE};
    farandole_request request{};
    request.kind = kind;
    request.dtype = FARANDOLE_F32;
    request.ndim = 1;
    request.shape = &rows;
    request.name = name;
    request.input = tensor.data();
    request.output = output.data();
    request.options = &memory;
    request.option_count = 1;
    request.device = program.device();
    request.stream = program.stream();
    uint64_t handle = 0;
    int status = farandole_submit(engine(1), &request, 1, &handle);
    if (status == FARANDOLE_OK) {
      status = farandole_wait_on(engine(1), &handle, 1, program.device(), program.stream(), kPatience);
    }
    std::string error = status == FARANDOLE_OK ? "" : farandole_last_error();
    farandole_release_all(engine(1), &handle, 1);
    return error;
  }

  std::optional<testing::TwoEngines> engines_;
};

TEST_P(HandlersOnGpus, RunBetweenEarlierAndLaterWorkInStreamOfXla) {
  gpu_fake::fake_gpu_time("random", 7, 1000);
  Site site("allreduce.x");
  Program program(0);
  Program others(1);
  for (int64_t run = 0; run < 20; ++run) {
    const auto value = static_cast<float>(run);
    const Tensor input(program, std::vector<float>(1000, value));
    const Tensor output(program, size_t{1000});
    std::thread other_rank([&] {
      const Tensor theirs(others, std::vector<float>(1000, 100));
      EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.x", others, theirs, theirs), "");
      EXPECT_EQ(theirs.read(), std::vector<float>(1000, value + 100));
    });
    EXPECT_EQ(site.run_on_device(run, floats_of(input), floats_of(output), 0, program.stream()), "");
    EXPECT_EQ(output.read(), std::vector<float>(1000, value + 100));
    EXPECT_EQ(input.read(), std::vector<float>(1000, value));
    other_rank.join();
  }
}

TEST_P(HandlersOnGpus, GatherRowsInOrder) {
  Site site("allgather.x", {.kind = FARANDOLE_ALLGATHER});
  Program program(0);
  Program others(1);
  const Tensor input(program, std::vector<float>{1, 2});
  const Tensor output(program, size_t{4});
  std::thread other_rank([&] {
    const Tensor theirs(others, std::vector<float>{3, 4});
    const Tensor all(others, size_t{4});
    EXPECT_EQ(other(FARANDOLE_ALLGATHER, "allgather.x", others, theirs, all), "");
    EXPECT_EQ(all.read(), (std::vector<float>{1, 2, 3, 4}));
  });
  EXPECT_EQ(site.run_on_device(1, floats_of(input), floats_of(output), 0, program.stream()), "");
  EXPECT_EQ(output.read(), (std::vector<float>{1, 2, 3, 4}));
  other_rank.join();
}

TEST_P(HandlersOnGpus, FailIfRanksGiveDifferentNumbersOfRows) {
  Site site("allgather.ragged", {.kind = FARANDOLE_ALLGATHER});
  Program program(0);
  Program others(1);
  const Tensor input(program, std::vector<float>{1, 2});
  const Tensor output(program, size_t{4});
  std::thread other_rank([&] {
    const Tensor theirs(others, std::vector<float>{3, 4, 5});
    const Tensor all(others, size_t{6});
    EXPECT_EQ(other(FARANDOLE_ALLGATHER, "allgather.ragged", others, theirs, all), "");
    gpu_fake::fake_gpu_drain(others.stream());
  });
  const std::string error = site.run_on_device(1, floats_of(input), floats_of(output), 0, program.stream());
  EXPECT_NE(error.find("different first dimensions"), std::string::npos) << error;
  other_rank.join();
  gpu_fake::fake_gpu_drain(program.stream());
}

TEST_P(HandlersOnGpus, GiveZerosToRanksThatAreNotTheRoot) {
  Site site("allreduce.root", {.only_at_root = true, .root = 1});
  Program program(0);
  Program others(1);
  const Tensor input(program, std::vector<float>{1, 2});
  const Tensor output(program, size_t{2});
  std::thread other_rank([&] {
    const Tensor theirs(others, std::vector<float>{3, 4});
    EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.root", others, theirs, theirs), "");
    EXPECT_EQ(theirs.read(), (std::vector<float>{4, 6}));
  });
  EXPECT_EQ(site.run_on_device(1, floats_of(input), floats_of(output), 0, program.stream()), "");
  EXPECT_EQ(output.read(), (std::vector<float>{0, 0}));
  other_rank.join();
}

// A rank's GPU may have any number: calls match by its place among those that the process uses.
TEST_P(HandlersOnGpus, MatchGpusOfDifferentNumbers) {
  Site site("allreduce.x", {.devices = "3"});
  Site second("allreduce.y", {.devices = "1 3"});
  Program program(3);
  Program others(1);
  const Tensor input(program, std::vector<float>{1});
  const Tensor output(program, size_t{1});
  std::thread other_rank([&] {
    const Tensor theirs(others, std::vector<float>{10});
    EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.x", others, theirs, theirs), "");
    EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.y@1", others, theirs, theirs), "");
    gpu_fake::fake_gpu_drain(others.stream());
  });
  EXPECT_EQ(site.run_on_device(1, floats_of(input), floats_of(output), 3, program.stream()), "");
  EXPECT_EQ(output.read(), std::vector<float>{11});
  EXPECT_EQ(second.run_on_device(1, floats_of(input), floats_of(output), 3, program.stream()), "");
  EXPECT_EQ(output.read(), std::vector<float>{12});
  other_rank.join();
}

TEST_P(HandlersOnGpus, RefuseUnsupportedCalls) {
  Program program(0);
  const Tensor input(program, std::vector<float>{1, 2});
  const Tensor output(program, size_t{2});
  Site compressed("allreduce.compressed", {.has_residuals = true});
  EXPECT_NE(compressed.run_on_device(1, floats_of(input), floats_of(output), 0, program.stream())
                .find("compression with feedback does not work on GPUs"),
            std::string::npos);
  Site elsewhere("allreduce.elsewhere");
  EXPECT_NE(elsewhere.run_on_device(1, floats_of(input), floats_of(output), 2, program.stream()).find("GPU"),
            std::string::npos);
  Site check("allreduce.check", {.is_check = true});
  EXPECT_NE(check.run_on_device(1, {}, {}, 0, program.stream()).find("compiled for another number of workers"),
            std::string::npos);
  farandole_jax_detach();
  Site alone("allreduce.alone");
  EXPECT_NE(alone.run_on_device(1, floats_of(input), floats_of(output), 0, program.stream()).find("use hvd.init()"),
            std::string::npos);
  gpu_fake::fake_gpu_drain(program.stream());
}

TEST_P(HandlersOnGpus, FailWhenTheWorldEnds) {
  Site site("allreduce.broken");
  Program program(0);
  const Tensor input(program, std::vector<float>{1, 2});
  const Tensor output(program, size_t{2});
  std::thread end([&] { EXPECT_EQ(farandole_engine_revoke(engine(1), 1, 1, 1, "rank 1 was lost"), FARANDOLE_OK); });
  const std::string error = site.run_on_device(1, floats_of(input), floats_of(output), 0, program.stream());
  EXPECT_NE(error.find("rank 1 was lost (farandole status 3, rank 1)"), std::string::npos) << error;
  end.join();
  gpu_fake::fake_gpu_drain(program.stream());
}

// A worker that leaves gets its engine back although a program waits for another rank; leaving then ends that wait.
TEST_P(HandlersOnGpus, GiveTheEngineBackWhileTheyWait) {
  Site site("allreduce.open");
  Program program(0);
  const Tensor input(program, std::vector<float>{1, 2});
  const Tensor output(program, size_t{2});
  std::string error;
  std::atomic<bool> has_ended = false;
  std::thread waiting([&] {
    error = site.run_on_device(1, floats_of(input), floats_of(output), 0, program.stream());
    has_ended = true;
  });
  uint64_t cursor = 0;
  uint64_t lost = 0;
  farandole_event event{};
  while (event.phase != FARANDOLE_RANK_READY && !has_ended) {
    farandole_read_events(engine(0), &cursor, &event, 1, &lost);
    std::this_thread::yield();
  }
  farandole_jax_detach();
  EXPECT_FALSE(has_ended);
  EXPECT_EQ(farandole_engine_leave(engine(0), kPatience), FARANDOLE_OK);
  waiting.join();
  EXPECT_NE(error.find("(farandole status 4"), std::string::npos) << error;
  gpu_fake::fake_gpu_drain(program.stream());
}

INSTANTIATE_TEST_SUITE_P(Ways, HandlersOnGpus, ::testing::Values("staged", "nccl"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace farandole
