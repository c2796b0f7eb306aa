// Through the C ABI, with a process for each worker: one does not make a request, is asked what it is doing, and in the
// end the world ends with the same error everywhere. Also ranks that have joined.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "capi/farandole.h"

namespace {

using farandole::base::Deadline;

constexpr double kPatience = 60.0;
constexpr char kSecret[] = "the secret of a test";
constexpr size_t kContactBytes = 512;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0); }
  std::array<int, 2> ends{};
};

void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s: %s\n", what, farandole_last_error());
    ::_exit(3);
  }
}

// Reads until the writers are gone, or are silent for too long.
std::string read_all(int fd) {
  std::string text;
  const auto deadline = Deadline::after_seconds(kPatience);
  char chunk[4096];
  for (pollfd polled{fd, POLLIN, 0}; ::poll(&polled, 1, deadline.left_ms()) > 0;) {
    const ssize_t got = ::read(fd, chunk, sizeof chunk);
    if (got <= 0) {
      break;
    }
    text.append(chunk, static_cast<size_t>(got));
  }
  return text;
}

// Runs body(rank, engine) in a world of processes over shared memory. Gives what each wrote to standard error; fails
// the test unless all end with 0.
std::vector<std::string> in_processes(int size, const std::vector<farandole_setting>& settings,
                                      const std::function<void(int, farandole_engine*)>& body) {
  std::vector<Pipe> to_worker(static_cast<size_t>(size));
  std::vector<Pipe> from_worker(static_cast<size_t>(size));
  std::vector<Pipe> errors(static_cast<size_t>(size));
  std::vector<pid_t> workers;
  for (int rank = 0; rank < size; ++rank) {
    const auto own = static_cast<size_t>(rank);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(errors[own].ends[1], STDERR_FILENO);
      for (Pipe& pipe : errors) {
        ::close(pipe.ends[1]);
      }
      farandole_engine* engine = nullptr;
      require(farandole_engine_create(FARANDOLE_ABI_VERSION, settings.data(), settings.size(), &engine) == FARANDOLE_OK,
              "create");
      std::vector<char> contact(kContactBytes);
      std::snprintf(contact.data(), kContactBytes, "%s", farandole_engine_contact(engine));
      require(::write(from_worker[own].ends[1], contact.data(), kContactBytes) == kContactBytes, "tell the contact");
      std::vector<char> contacts(static_cast<size_t>(size) * kContactBytes);
      const auto expected = static_cast<ssize_t>(contacts.size());  // fits into a pipe: comes at once
      require(::read(to_worker[own].ends[0], contacts.data(), contacts.size()) == expected, "hear the contacts");
      std::vector<const char*> by_rank;
      for (int other = 0; other < size; ++other) {
        by_rank.push_back(contacts.data() + static_cast<size_t>(other) * kContactBytes);
      }
      const farandole_world world = {1, rank, size, by_rank.data(), kSecret, sizeof kSecret, kPatience};
      require(farandole_engine_form(engine, &world) == FARANDOLE_OK, "form");
      body(rank, engine);
      farandole_engine_leave(engine, kPatience);
      farandole_engine_destroy(engine);
      ::_exit(0);
    }
    workers.push_back(pid);
    ::close(errors[own].ends[1]);
  }
  std::vector<char> contacts(static_cast<size_t>(size) * kContactBytes);
  for (size_t rank = 0; rank < from_worker.size(); ++rank) {
    EXPECT_EQ(::read(from_worker[rank].ends[0], contacts.data() + rank * kContactBytes, kContactBytes), kContactBytes);
  }
  for (Pipe& pipe : to_worker) {
    EXPECT_EQ(::write(pipe.ends[1], contacts.data(), contacts.size()), static_cast<ssize_t>(contacts.size()));
  }
  std::vector<std::string> said;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    said.push_back(read_all(errors[rank].ends[0]));
    int status = -1;
    ::waitpid(workers[rank], &status, 0);
    EXPECT_EQ(status, 0) << "rank " << rank << ": " << said.back();
  }
  for (auto* pipes : {&to_worker, &from_worker}) {
    for (const Pipe& pipe : *pipes) {
      ::close(pipe.ends[0]);
      ::close(pipe.ends[1]);
    }
  }
  for (const Pipe& pipe : errors) {
    ::close(pipe.ends[0]);
  }
  return said;
}

std::vector<farandole_setting> some_settings() { return {{"arena_bytes", "67108864"}, {"failure_deadline", "20"}}; }

uint64_t submit(farandole_engine* engine, farandole_kind kind, const char* name, float* value) {
  const int64_t shape = 1;
  farandole_request request{};
  request.kind = kind;
  const farandole_option average = {"op", FARANDOLE_AVERAGE};
  request.options = &average;
  request.option_count = kind == FARANDOLE_ALLREDUCE ? 1 : 0;
  request.dtype = FARANDOLE_F32;
  request.ndim = value == nullptr ? 0 : 1;
  request.shape = &shape;
  request.name = name;
  request.input = request.output = value;
  uint64_t handle = 0;
  require(farandole_submit(engine, &request, 1, &handle) == FARANDOLE_OK, name);
  return handle;
}

TEST(CapiStall, WarningHasNamesRanksAndAnswersAndThenWorldEndsOnAllRanks) {
  std::vector<farandole_setting> settings = some_settings();
  settings.push_back({"stall_warning_seconds", "0.3"});
  settings.push_back({"stall_shutdown_seconds", "1.2"});
  const auto said = in_processes(3, settings, [](int rank, farandole_engine* engine) {
    float value = 1;
    require(farandole_wait(engine, submit(engine, FARANDOLE_ALLREDUCE, "first", &value), kPatience) == 0, "first");
    if (rank == 2) {
      // Others wait for this one, which says what it does, as often as it is asked.
      uint64_t query = 0;
      while (farandole_wait_stall_query(engine, kPatience, &query) == 1) {
        require(farandole_answer_stall_query(engine, query, "train.py:41 in load_data") == FARANDOLE_OK, "answer");
      }
    } else {
      const uint64_t handle = submit(engine, FARANDOLE_ALLREDUCE, "the gradient", &value);
      require(farandole_wait(engine, handle, kPatience) == FARANDOLE_STALLED, "the request must fail as stalled");
    }
    require(farandole_engine_health(engine) == FARANDOLE_STALLED, "the world must have stalled");
    const std::string why = farandole_last_error();
    require(why.find("rank 2 did not ask for allreduce 'the gradient'") != std::string::npos,
            "it must say who and what");
  });
  for (const char* text :
       {"farandole [rank 0] warning: some ranks wait", "allreduce 'the gradient', for ", "missing rank 2",
        "rank 2: asked last for allreduce 'first'", "it is at train.py:41 in load_data", "farandole [rank 0] error:"}) {
    EXPECT_NE(said[0].find(text), std::string::npos) << "no '" << text << "' in: " << said[0];
  }
  EXPECT_EQ(said[1], "");
  EXPECT_EQ(said[2], "");
}

TEST(CapiStall, ZeroSecondsDisableWarningAndShutdown) {
  std::vector<farandole_setting> settings = some_settings();
  settings.push_back({"stall_warning_seconds", "0"});
  const auto said = in_processes(2, settings, [](int rank, farandole_engine* engine) {
    float value = 1;
    uint64_t query = 0;
    if (rank == 1) {
      require(farandole_wait_stall_query(engine, 1.5, &query) == 0, "nobody may ask");
    }
    require(farandole_wait(engine, submit(engine, FARANDOLE_ALLREDUCE, "x", &value), kPatience) == 0, "x");
  });
  EXPECT_EQ(said[0], "");
}

TEST(CapiJoin, AllreducesGoOnAndAllRanksLearnTheLastToJoin) {
  in_processes(3, some_settings(), [](int rank, farandole_engine* engine) {
    for (int turn = 0; turn < 20; ++turn) {
      for (int step = 0; step <= rank; ++step) {
        float value = 3;
        require(farandole_wait(engine, submit(engine, FARANDOLE_ALLREDUCE, "x", &value), kPatience) == 0, "x");
        require(value == static_cast<float>(3 - step), "WRONG NUMBERS");
      }
      const uint64_t handle = submit(engine, FARANDOLE_JOIN, "join", nullptr);
      require(farandole_wait(engine, handle, kPatience) == 0, "join");
      const void* data = nullptr;
      const int64_t* sizes = nullptr;
      size_t count = 0;
      require(farandole_result(engine, handle, &data, &sizes, &count) == 0, "result");
      require(count == 1 && sizes[0] == 2, "rank 2 has the most steps");
      farandole_release_all(engine, &handle, 1);
    }
  });
}

}  // namespace
