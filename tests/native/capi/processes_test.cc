// Real processes through the C ABI: one is killed by signal 9 inside a collective; the survivors must all report the
// same error naming it, at once, and then form the next generation and compute right.
#include <random>

#include "capi/workers.h"

namespace farandole::testing {
namespace {

class Processes : public ::testing::TestWithParam<std::tuple<std::string, int, size_t>> {};

TEST_P(Processes, SurvivorsReportSameLossAndFormNextWorld) {
  const auto& [transport, size, elements] = GetParam();
  std::mt19937 random(static_cast<uint32_t>(elements) + static_cast<uint32_t>(size));
  double slowest_ms = 0;
  for (int trial = 0; trial < 6; ++trial) {
    std::vector<Worker> workers = start_all({transport, elements}, size);
    form_all(all_but(workers, workers.size()), 1, kEndless);
    expect_all_to_say(all_but(workers, workers.size()), "running");
    // Some time into the stream of collectives, wherever that is.
    ::usleep(std::uniform_int_distribution<useconds_t>(0, 20'000)(random));
    const auto victim = static_cast<size_t>(trial % size);
    const int64_t killed_ns = now_ns();
    ::kill(workers[victim].pid, SIGKILL);

    const std::vector<Worker*> survivors = all_but(workers, victim);
    for (Worker* survivor : survivors) {
      const End end = End::from_line(survivor->wire.receive());
      EXPECT_EQ(end.lost_rank, static_cast<int>(victim));
      EXPECT_EQ(end.certain, 1);
      EXPECT_EQ(end.message, "rank " + std::to_string(victim) + " was lost: its process ended without saying goodbye");
      slowest_ms = std::max(slowest_ms, static_cast<double>(end.noticed_ns - killed_ns) / 1e6);
    }
    form_all(survivors, 2, 10);
    expect_all_to_say(survivors, "running");
    expect_all_to_say(survivors, "done");
    let_leave(survivors);
    for (const Worker* survivor : survivors) {
      EXPECT_EQ(wait_for_exit(survivor->pid), 0);
    }
    EXPECT_TRUE(WIFSIGNALED(wait_for_exit(workers[victim].pid)));
  }
  // A time proves nothing on a busy machine, so it is shown, and only a gross one fails.
  std::printf("from kill to the last survivor's error: at most %.1f ms\n", slowest_ms);
  EXPECT_LT(slowest_ms, 5000);
}

INSTANTIATE_TEST_SUITE_P(Capi, Processes,
                         ::testing::Combine(::testing::Values("shm", "tcp"), ::testing::Values(2, 3, 4),
                                            ::testing::Values(size_t{1}, size_t{100'000}, size_t{4'000'000})),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param)) + "_" +
                                  std::to_string(std::get<2>(info.param));
                         });

}  // namespace
}  // namespace farandole::testing
