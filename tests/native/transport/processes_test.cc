// Workers as processes of their own, so that they can be killed, stopped and forked.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

// Lines over a pipe, the parent's view or the child's. Pipes, so that a worker's only sockets are the library's.
class Line {
 public:
  Line(int in, int out) : in_(in), out_(out) {}

  void say(const std::string& text) {
    const std::string line = text + "\n";
    ASSERT_EQ(::write(out_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  // The next line, or none in time.
  std::optional<std::string> hear(double seconds) {
    const auto deadline = base::Deadline::after_seconds(seconds);
    size_t end = 0;
    while ((end = heard_.find('\n')) == std::string::npos) {
      pollfd polled = {.fd = in_, .events = POLLIN, .revents = 0};
      char buffer[4096];
      if (::poll(&polled, 1, deadline.left_ms()) <= 0) {
        return std::nullopt;
      }
      const ssize_t got = ::read(in_, buffer, sizeof buffer);
      if (got <= 0) {
        closed_ = true;
        return std::nullopt;
      }
      heard_.append(buffer, static_cast<size_t>(got));
    }
    std::string line = heard_.substr(0, end);
    heard_.erase(0, end + 1);
    return line;
  }
  bool closed() const { return closed_; }

 private:
  int in_;
  int out_;
  std::string heard_;
  bool closed_ = false;
};

// What a worker process does: obeys lines, and tells when its world is revoked.
class WorkerMain {
 public:
  WorkerMain(Line line, Wiring wiring, int index, double deadline) : line_(std::move(line)) {
    EndpointSettings settings = settings_for(wiring, index);
    settings.failure_deadline_seconds = deadline;
    endpoint_ = std::make_unique<Endpoint>(settings);
  }

  void run() {
    line_.say(endpoint_->contact());
    while (!line_.closed()) {
      if (const auto order = line_.hear(0.001); order.has_value()) {
        obey(*order);
      }
      if (mesh_ != nullptr && !told_ && mesh_->fate().revoked()) {
        told_ = true;
        const Cause cause = *mesh_->fate().cause();
        line_.say("revoked " + std::to_string(base::now_ns()) + " " + std::to_string(cause.rank) + " " + cause.text);
      }
    }
  }

 private:
  void obey(const std::string& order) {
    std::istringstream words(order);
    std::string verb;
    words >> verb;
    if (verb == "form") {
      form(words);
    } else if (verb == "part") {
      mesh_->part();
      mesh_.reset();
      line_.say("parted");
    } else if (verb == "fork") {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(60);
        ::pause();
        ::_exit(0);
      }
      line_.say(std::to_string(child));
    }
  }

  void form(std::istringstream& words) {
    World world;
    world.secret = "the secret of a test";
    words >> world.generation >> world.rank;
    for (std::string contact; words >> contact;) {
      world.contacts.push_back(contact);
    }
    mesh_.reset();
    told_ = false;
    try {
      mesh_ = endpoint_->form(world, base::Deadline::after_seconds(kPatience));
      line_.say("formed");
    } catch (const base::Error& error) {
      line_.say(error.what());
    }
  }

  Line line_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<Mesh> mesh_;
  bool told_ = false;
};

class Process {
 public:
  // Forks; the test's process must have one thread only.
  Process(Wiring wiring, int index, double deadline) {
    int down[2];
    int up[2];
    EXPECT_EQ(::pipe2(down, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(up, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(down[1]);
      ::close(up[0]);
      WorkerMain(Line(down[0], up[1]), wiring, index, deadline).run();
      ::_exit(0);
    }
    ::close(down[0]);
    ::close(up[1]);
    fds_ = {up[0], down[1]};
    line = std::make_unique<Line>(up[0], down[1]);
    contact = line->hear(kPatience).value_or("");
  }
  ~Process() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (const int fd : fds_) {
      ::close(fd);
    }
  }
  void signal(int number) const { ::kill(pid_, number); }

  std::unique_ptr<Line> line;
  std::string contact;

 private:
  pid_t pid_ = -1;
  std::vector<int> fds_;
};

using Processes = std::vector<std::unique_ptr<Process>>;

Processes start(Wiring wiring, int count, double deadline = 5) {
  Processes processes;
  for (int i = 0; i < count; ++i) {
    processes.push_back(std::make_unique<Process>(wiring, i, deadline));
  }
  return processes;
}

// All members form a world.
void form(const Processes& processes, const std::vector<int>& members, uint64_t generation) {
  std::string contacts;
  for (const int member : members) {
    contacts += " " + processes[static_cast<size_t>(member)]->contact;
  }
  for (size_t rank = 0; rank < members.size(); ++rank) {
    processes[static_cast<size_t>(members[rank])]->line->say("form " + std::to_string(generation) + " " +
                                                             std::to_string(rank) + contacts);
  }
  for (const int member : members) {
    // Who has not been told yet may notice that others have left the last world.
    auto heard = processes[static_cast<size_t>(member)]->line->hear(kPatience);
    while (heard.has_value() && heard->starts_with("revoked")) {
      heard = processes[static_cast<size_t>(member)]->line->hear(kPatience);
    }
    ASSERT_EQ(heard, "formed");
  }
}

// All of them say that the world was revoked, with this rank and text.
void expect_loss(const Processes& processes, const std::vector<int>& survivors, int lost, Sign sign, int64_t since_ns) {
  double slowest_ms = 0;
  for (const int survivor : survivors) {
    const auto heard = processes[static_cast<size_t>(survivor)]->line->hear(kPatience);
    ASSERT_TRUE(heard.has_value()) << "worker " << survivor << " heard nothing of the loss";
    std::istringstream words(*heard);
    std::string verb;
    std::string text;
    int64_t at_ns = 0;
    int rank = -1;
    words >> verb >> at_ns >> rank;
    std::getline(words >> std::ws, text);
    EXPECT_EQ(verb, "revoked") << *heard;
    EXPECT_EQ(rank, lost);
    EXPECT_EQ(text, describe_loss(lost, sign));
    slowest_ms = std::max(slowest_ms, static_cast<double>(at_ns - since_ns) * 1e-6);
  }
  std::printf("all knew after %.1f ms\n", slowest_ms);
}

int sockets_of(const std::string& pid) {
  const std::filesystem::directory_iterator fds("/proc/" + pid + "/fd");
  return static_cast<int>(std::count_if(begin(fds), end(fds), [](const auto& fd) {
    std::error_code gone;
    return std::filesystem::read_symlink(fd, gone).string().starts_with("socket:");
  }));
}

class KilledWorkers : public ::testing::TestWithParam<Wiring> {};

TEST_P(KilledWorkers, AreNamedByAllAndTheOthersGoOn) {
  const auto processes = start(GetParam(), 4);
  form(processes, {0, 1, 2, 3}, 1);
  const int64_t killed = base::now_ns();
  processes[2]->signal(SIGKILL);
  expect_loss(processes, {0, 1, 3}, 2, Sign::kClosed, killed);
  form(processes, {0, 1, 3}, 2);

  const int64_t killed_again = base::now_ns();
  processes[0]->signal(SIGKILL);
  expect_loss(processes, {1, 3}, 0, Sign::kClosed, killed_again);
  form(processes, {3, 1}, 3);
}

TEST_P(KilledWorkers, AreNoticedAlthoughAChildTheyForkedLives) {
  const auto processes = start(GetParam(), 2);
  form(processes, {0, 1}, 1);
  processes[1]->line->say("fork");
  const std::string child = processes[1]->line->hear(kPatience).value_or("");
  EXPECT_TRUE(eventually([&] { return sockets_of(child) == 0; }));

  const int64_t killed = base::now_ns();
  processes[1]->signal(SIGKILL);
  expect_loss(processes, {0}, 1, Sign::kClosed, killed);
  ::kill(std::stoi(child), SIGKILL);
}

TEST_P(KilledWorkers, WhoAreOnlyStoppedAreSilent) {
  const auto processes = start(GetParam(), 4, 1.0);
  form(processes, {0, 1, 2, 3}, 1);
  const int64_t stopped = base::now_ns();
  processes[1]->signal(SIGSTOP);
  expect_loss(processes, {0, 2, 3}, 1, Sign::kSilent, stopped);
  form(processes, {0, 2, 3}, 2);
  // Continued, it finds that the world went on without it, and blames nobody else for it.
  processes[1]->signal(SIGCONT);
  expect_loss(processes, {1}, 1, Sign::kSilent, stopped);
  form(processes, {3, 0, 1, 2}, 3);
}

TEST_P(KilledWorkers, WhoSaidGoodbyeAreNoLoss) {
  const auto processes = start(GetParam(), 3);
  form(processes, {0, 1, 2}, 1);
  processes[1]->line->say("part");
  ASSERT_EQ(processes[1]->line->hear(kPatience), "parted");
  processes[1]->signal(SIGKILL);
  // The next loss would not be the first one, if this one had counted.
  const int64_t killed = base::now_ns();
  processes[2]->signal(SIGKILL);
  expect_loss(processes, {0}, 2, Sign::kClosed, killed);
}

INSTANTIATE_TEST_SUITE_P(All, KilledWorkers, ::testing::ValuesIn(kAllWirings),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace farandole::transport::testing
