// Workers as processes behind the C ABI, for tests that kill and stop them. They obey the lines that the test sends.
#pragma once

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "capi/farandole.h"
#include "support/two_engines.h"

namespace farandole::testing {

using base::Deadline;
using base::now_ns;

// A pipe pair that carries lines between the test and one worker process.
class Wire {
 public:
  Wire(int in, int out) : in_(in), out_(out) {}

  void send(const std::string& line) {
    const std::string text = line + "\n";
    if (::write(out_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      std::abort();
    }
  }

  // Returns the next line, or an empty one if the other side is gone or silent for too long.
  std::string receive() {
    const auto deadline = Deadline::after_seconds(kPatience);
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        const std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      pollfd polled{in_, POLLIN, 0};
      char chunk[4096];
      if (::poll(&polled, 1, deadline.left_ms()) <= 0) {
        return "";
      }
      const ssize_t got = ::read(in_, chunk, sizeof chunk);
      if (got <= 0) {
        return "";
      }
      buffer_.append(chunk, static_cast<size_t>(got));
    }
  }

 private:
  int in_;
  int out_;
  std::string buffer_;
};

struct Settings {
  std::string transport;
  size_t elements;
  bool in_arena = false;                 // the tensor lies there, the same for all worlds
  double failure_deadline_seconds = 20;  // only certain signs shall count
};

inline constexpr int kEndless = 1 << 30;

struct World {
  uint64_t generation;
  int steps;
  int rank;
  std::vector<std::string> contacts;

  std::string to_line() const {
    std::string line = std::to_string(generation) + " " + std::to_string(steps) + " " + std::to_string(rank);
    for (const std::string& contact : contacts) {
      line += " " + contact;
    }
    return line;
  }
  static World from_line(const std::string& line) {
    std::istringstream in(line);
    World world{};
    in >> world.generation >> world.steps >> world.rank;
    for (std::string contact; in >> contact;) {
      world.contacts.push_back(contact);
    }
    return world;
  }
};

// --- in the worker process ---------------------------------------------------------------------------------------

inline void require(int status, const char* what) {
  if (status != FARANDOLE_OK) {
    std::fprintf(stderr, "%s: %s\n", what, farandole_last_error());
    ::_exit(3);
  }
}

inline void form(farandole_engine* engine, const World& world) {
  std::vector<const char*> contacts;
  for (const std::string& contact : world.contacts) {
    contacts.push_back(contact.c_str());
  }
  const farandole_world form = {world.generation, world.rank, static_cast<int32_t>(contacts.size()),
                                contacts.data(),  kSecret,    sizeof kSecret,
                                kPatience};
  require(farandole_engine_form(engine, &form), "form");
}

class WorkerMain {
 public:
  WorkerMain(const Settings& settings, Wire wire) : settings_(settings), wire_(std::move(wire)) {
    const std::string deadline = std::to_string(settings.failure_deadline_seconds);
    const std::array<farandole_setting, 4> with = {{{"arena_bytes", "268435456"},
                                                    {"transport", settings.transport.c_str()},
                                                    {"listen", "127.0.0.1"},
                                                    {"failure_deadline", deadline.c_str()}}};
    require(farandole_engine_create(FARANDOLE_ABI_VERSION, with.data(), with.size(), &engine_), "create");
    outside_.resize(settings.in_arena ? 0 : settings.elements);
    values_ = settings.in_arena ? static_cast<float*>(farandole_arena_alloc(engine_, settings.elements * sizeof(float)))
                                : outside_.data();
    wire_.send(farandole_engine_contact(engine_));
  }

  // Each line describes a world, in which it reduces until the world ends, or for that number of steps. After an empty
  // line, it leaves.
  [[noreturn]] void run() {
    for (std::string line = wire_.receive(); !line.empty() && line != "leave"; line = wire_.receive()) {
      const World world = World::from_line(line);
      form(engine_, world);
      reduce(world);
    }
    require(farandole_engine_leave(engine_, kPatience), "leave");
    farandole_engine_destroy(engine_);
    wire_.send("left");
    ::_exit(0);
  }

 private:
  void reduce(const World& world) {
    for (int step = 0; step < world.steps; ++step) {
      std::fill_n(values_, settings_.elements, 1.0F);
      if (allreduce() != FARANDOLE_OK) {
        report_the_end();
        return;
      }
      check(static_cast<float>(world.contacts.size()), step);
      if (step == 0) {
        wire_.send("running");
      }
    }
    wire_.send("done");
  }

  // Gives its status.
  int allreduce() {
    const auto shape = static_cast<int64_t>(settings_.elements);
    farandole_request request{};
    request.kind = FARANDOLE_ALLREDUCE;
    request.dtype = FARANDOLE_F32;
    request.ndim = 1;
    request.shape = &shape;
    request.name = "x";
    request.input = request.output = values_;
    uint64_t handle = 0;
    if (const int status = farandole_submit(engine_, &request, 1, &handle); status != FARANDOLE_OK) {
      return status;
    }
    const int status = farandole_wait(engine_, handle, kPatience);
    farandole_release_all(engine_, &handle, 1);
    return status;
  }

  void check(float expected, int step) const {
    const std::span<const float> values(values_, settings_.elements);
    const auto wrong = std::ranges::find_if(values, [expected](float value) { return value != expected; });
    if (wrong != values.end()) {
      std::fprintf(stderr, "WRONG NUMBERS: %f instead of %f in step %d\n", static_cast<double>(*wrong),
                   static_cast<double>(expected), step);
      ::_exit(4);
    }
  }

  void report_the_end() {
    const std::string message = farandole_last_error();
    int32_t lost_rank = -1;
    int32_t certain = 0;
    if (farandole_engine_cause(engine_, &lost_rank, &certain) != 1 || lost_rank != farandole_last_lost_rank()) {
      ::_exit(5);
    }
    wire_.send(std::to_string(now_ns()) + " " + std::to_string(lost_rank) + " " + std::to_string(certain) + " " +
               message);
  }

  const Settings settings_;
  Wire wire_;
  farandole_engine* engine_ = nullptr;
  std::vector<float> outside_;
  float* values_ = nullptr;
};

// --- in the test ---------------------------------------------------------------------------------------------------

struct Worker {
  pid_t pid;
  Wire wire;
  std::string contact;
};

inline Worker start(const Settings& settings) {
  int to_worker[2];
  int from_worker[2];
  if (::pipe2(to_worker, O_CLOEXEC) != 0 || ::pipe2(from_worker, O_CLOEXEC) != 0) {
    std::abort();
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(to_worker[1]);
    ::close(from_worker[0]);
    WorkerMain(settings, Wire(to_worker[0], from_worker[1])).run();
  }
  ::close(to_worker[0]);
  ::close(from_worker[1]);
  return {pid, Wire(from_worker[0], to_worker[1]), ""};
}

inline std::vector<Worker> start_all(const Settings& settings, int size) {
  std::vector<Worker> workers;
  for (int rank = 0; rank < size; ++rank) {
    workers.push_back(start(settings));
    workers.back().contact = workers.back().wire.receive();
  }
  return workers;
}

inline std::vector<Worker*> all_but(std::vector<Worker>& workers, size_t missing) {
  std::vector<Worker*> others;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    if (rank != missing) {
      others.push_back(&workers[rank]);
    }
  }
  return others;
}

inline void form_all(const std::vector<Worker*>& workers, uint64_t generation, int steps) {
  World world{generation, steps, 0, {}};
  for (const Worker* worker : workers) {
    world.contacts.push_back(worker->contact);
  }
  for (Worker* worker : workers) {
    worker->wire.send(world.to_line());
    ++world.rank;
  }
}

// What a worker says of the end of its world.
struct End {
  int64_t noticed_ns = 0;
  int lost_rank = -1;
  int certain = -1;
  std::string message;

  static End from_line(const std::string& line) {
    std::istringstream report(line);
    End end;
    report >> end.noticed_ns >> end.lost_rank >> end.certain;
    std::getline(report >> std::ws, end.message);
    return end;
  }
};

inline void expect_all_to_say(const std::vector<Worker*>& workers, const std::string& words) {
  for (Worker* worker : workers) {
    EXPECT_EQ(worker->wire.receive(), words);
  }
}

inline void let_leave(const std::vector<Worker*>& workers) {
  for (Worker* worker : workers) {
    worker->wire.send("leave");
  }
  expect_all_to_say(workers, "left");
}

inline int wait_for_exit(pid_t pid) {
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

}  // namespace farandole::testing
