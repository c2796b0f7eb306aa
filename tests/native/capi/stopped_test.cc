// A worker that is stopped inside a collective, excluded, and continued while the others compute in the next world:
// what it still writes has no effect, and it can come back.
#include <random>

#include "capi/workers.h"

namespace farandole::testing {
namespace {

class Stopped : public ::testing::TestWithParam<std::tuple<bool, size_t>> {};

TEST_P(Stopped, WorkersDoNotDisturbNextWorldWhenContinued) {
  const auto& [in_arena, elements] = GetParam();
  std::mt19937 random(static_cast<uint32_t>(elements));
  for (size_t trial = 0; trial < 3; ++trial) {
    std::vector<Worker> workers =
        start_all({.transport = "shm", .elements = elements, .in_arena = in_arena, .failure_deadline_seconds = 2}, 3);
    const std::vector<Worker*> all = all_but(workers, workers.size());
    form_all(all, 1, kEndless);
    expect_all_to_say(all, "running");
    ::usleep(std::uniform_int_distribution<useconds_t>(0, 20'000)(random));
    Worker& stopped = workers[trial];
    ::kill(stopped.pid, SIGSTOP);

    const std::vector<Worker*> survivors = all_but(workers, trial);
    for (Worker* survivor : survivors) {
      const End end = End::from_line(survivor->wire.receive());
      EXPECT_EQ(end.lost_rank, static_cast<int>(trial));
      EXPECT_EQ(end.certain, 0) << end.message;
    }
    form_all(survivors, 2, 30);
    expect_all_to_say(survivors, "running");
    ::kill(stopped.pid, SIGCONT);
    EXPECT_EQ(End::from_line(stopped.wire.receive()).lost_rank, static_cast<int>(trial));
    expect_all_to_say(survivors, "done");

    form_all(all, 3, 10);
    expect_all_to_say(all, "running");
    expect_all_to_say(all, "done");
    let_leave(all);
    for (const Worker* worker : all) {
      EXPECT_EQ(wait_for_exit(worker->pid), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Capi, Stopped,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(size_t{100'000}, size_t{4'000'000})),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "in_arena_" : "outside_") +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace farandole::testing
