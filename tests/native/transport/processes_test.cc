// Workers as processes of their own, so that they can be killed, stopped and forked.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
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
  // Whether the other side has closed, heard or not.
  bool hung_up() const {
    pollfd polled = {.fd = in_, .events = POLLIN, .revents = 0};
    return ::poll(&polled, 1, 0) > 0 && (polled.revents & POLLHUP) != 0;
  }

 private:
  int in_;
  int out_;
  std::string heard_;
  bool closed_ = false;
};

// A worker process: it obeys lines, and reports when its world is revoked.
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
      if (mesh_ != nullptr && !told_ && mesh_->world_status().revoked()) {
        told_ = true;
        const Cause cause = *mesh_->world_status().cause();
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
      mesh_->say_goodbye();
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
    } else if (verb == "touch") {
      size_t bytes = 0;
      words >> bytes;
      line_.say(touch(bytes) ? "touched" : "no memory");
    }
  }

  // Memory in small pages, as a program's is that has grown: the kernel takes longest to tear that down.
  static bool touch(size_t bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return false;
    }
    ::madvise(memory, bytes, MADV_NOHUGEPAGE);
    return ::madvise(memory, bytes, MADV_POPULATE_WRITE) == 0;
  }

  void form(std::istringstream& words) {
    World world;
    world.secret = "the secret of a test";
    double seconds = 0;
    words >> world.generation >> world.rank >> seconds;
    for (std::string contact; words >> contact;) {
      world.contacts.push_back(contact);
    }
    mesh_.reset();
    told_ = false;
    try {
      mesh_ = endpoint_->form(world, base::Deadline::after_seconds(seconds));
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
  int pid() const { return pid_; }

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

// The first `told` of the members; all, if that is not given.
void order_to_form(const Processes& processes, const std::vector<int>& members, uint64_t generation, double seconds,
                   size_t told = SIZE_MAX) {
  std::string contacts;
  for (const int member : members) {
    contacts += " " + processes[static_cast<size_t>(member)]->contact;
  }
  for (size_t rank = 0; rank < std::min(told, members.size()); ++rank) {
    processes[static_cast<size_t>(members[rank])]->line->say(
        "form " + std::to_string(generation) + " " + std::to_string(rank) + " " + std::to_string(seconds) + contacts);
  }
}

// The outcome of an order to form. A worker that was not told yet may notice that others have left the last world.
std::string outcome(const Process& process) {
  auto heard = process.line->hear(kPatience);
  while (heard.has_value() && heard->starts_with("revoked")) {
    heard = process.line->hear(kPatience);
  }
  return heard.value_or("nothing");
}

// All members form a world.
void form(const Processes& processes, const std::vector<int>& members, uint64_t generation) {
  order_to_form(processes, members, generation, kPatience);
  for (const int member : members) {
    ASSERT_EQ(outcome(*processes[static_cast<size_t>(member)]), "formed");
  }
}

// How long these worlds may take to form. Its last tenth is the time in which one rank after the other gives up, and
// must be much longer than a busy machine keeps a process waiting.
constexpr double kFormingSeconds = 3;

// Worlds of four workers, in which rank 2 gets a signal that ends or stops it in the middle of forming, in each after
// another time. They wait at the same time.
std::vector<Processes> signal_while_forming(Wiring wiring, int number) {
  std::vector<Processes> worlds;
  for (const useconds_t after_us : {0, 500, 1000, 2000, 4000}) {
    const Processes& processes = worlds.emplace_back(start(wiring, 4));
    order_to_form(processes, {0, 1, 2, 3}, 1, kFormingSeconds);
    ::usleep(after_us);
    processes[2]->signal(number);
  }
  return worlds;
}

// The others have formed before the signal came, or say all that rank 2 is missing; and perhaps that others are, which
// gave up before they had come.
void expect_rank_2_is_missed(const Processes& processes) {
  for (const int other : {0, 1, 3}) {
    const std::string said = outcome(*processes[static_cast<size_t>(other)]);
    EXPECT_TRUE(said == "formed" || said.find("rank 2 was lost") != std::string::npos ||
                std::regex_search(said, std::regex("in time: ranks? [0-9, ]*2")))
        << said;
  }
}

// Checks that all of them report that the world was revoked, with this rank and text. Returns when the last one knew.
int64_t expect_loss(const Processes& processes, const std::vector<int>& survivors, int lost, Sign sign,
                    int64_t since_ns) {
  int64_t last_ns = since_ns;
  for (const int survivor : survivors) {
    const auto heard = processes[static_cast<size_t>(survivor)]->line->hear(kPatience);
    EXPECT_TRUE(heard.has_value()) << "worker " << survivor << " heard nothing of the loss";
    std::istringstream words(heard.value_or(""));
    std::string verb;
    std::string text;
    int64_t at_ns = 0;
    int rank = -1;
    words >> verb >> at_ns >> rank;
    std::getline(words >> std::ws, text);
    EXPECT_EQ(verb, "revoked");
    EXPECT_EQ(rank, lost);
    EXPECT_EQ(text, describe_loss(lost, sign));
    last_ns = std::max(last_ns, at_ns);
  }
  std::printf("all knew after %.1f ms\n", static_cast<double>(last_ns - since_ns) * 1e-6);
  return last_ns;
}

int sockets_of(const std::string& pid) {
  const std::filesystem::directory_iterator fds("/proc/" + pid + "/fd");
  return static_cast<int>(std::count_if(begin(fds), end(fds), [](const auto& fd) {
    std::error_code gone;
    return std::filesystem::read_symlink(fd, gone).string().starts_with("socket:");
  }));
}

// Whether it is a zombie, or no longer exists.
bool has_ended(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number;
  std::string name;
  char state = 'Z';
  stat >> number >> name >> state;
  return state == 'Z';
}

class KilledWorkers : public ::testing::TestWithParam<Wiring> {};

TEST_P(KilledWorkers, AreNamedByAllSurvivorsWhichGoOn) {
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

TEST_P(KilledWorkers, AreNoticedWhileTheirForkedChildLives) {
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

TEST_P(KilledWorkers, StoppedWorkersAreReportedAsSilent) {
  const auto processes = start(GetParam(), 4, 2.0);  // longer than a busy machine silences a worker
  form(processes, {0, 1, 2, 3}, 1);
  const int64_t stopped = base::now_ns();
  processes[1]->signal(SIGSTOP);
  expect_loss(processes, {0, 2, 3}, 1, Sign::kSilent, stopped);
  form(processes, {0, 2, 3}, 2);
  // Continued, it finds that the world went on without it, and blames no other worker for it.
  processes[1]->signal(SIGCONT);
  expect_loss(processes, {1}, 1, Sign::kSilent, stopped);
  form(processes, {3, 0, 1, 2}, 3);
}

TEST_P(KilledWorkers, DeathAfterGoodbyeIsNotLoss) {
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

TEST_P(KilledWorkers, EndOfForkedChildIsNotLoss) {
  const auto processes = start(GetParam(), 2);
  form(processes, {0, 1}, 1);
  processes[1]->line->say("fork");
  const int child = std::stoi(processes[1]->line->hear(kPatience).value_or("0"));
  ASSERT_GT(child, 0);
  ::kill(child, SIGKILL);
  EXPECT_TRUE(eventually([&] { return has_ended(child); }));
  // A loss of rank 1 would have come before this one.
  const int64_t killed = base::now_ns();
  processes[0]->signal(SIGKILL);
  expect_loss(processes, {1}, 0, Sign::kClosed, killed);
}

// The kernel closes the sockets of a process, and its pipes, when it has torn down its memory; the workers of its host
// know before.
TEST_P(KilledWorkers, AreNoticedBeforeTheirSocketsCloseIfMemoryIsShared) {
  if (GetParam() == Wiring::kTcp4 || GetParam() == Wiring::kTcp6) {
    GTEST_SKIP() << "only workers of one host notice that early";
  }
  // A worker that gets no processor meanwhile notices late all the same, so one of several times is enough: if only the
  // closed sockets told, none would be early.
  bool early = false;
  for (int attempt = 0; attempt < 5 && !early; ++attempt) {
    const auto processes = start(GetParam(), 4);
    form(processes, {0, 1, 2, 3}, 1);
    Line& large = *processes[2]->line;
    large.say("touch " + std::to_string(size_t{2} << 30));
    if (large.hear(kPatience) != "touched") {
      GTEST_SKIP() << "no 2 GB to be had here, or not at once (that needs Linux 5.14)";
    }
    const int64_t killed = base::now_ns();
    processes[2]->signal(SIGKILL);
    ASSERT_EQ(large.hear(kPatience), std::nullopt);
    ASSERT_TRUE(large.closed());
    const int64_t closed = base::now_ns();
    std::printf("its pipe closed after %.1f ms\n", static_cast<double>(closed - killed) * 1e-6);
    const int64_t noticed = expect_loss(processes, {0, 1, 3}, 2, Sign::kClosed, killed);
    early = noticed - killed < (closed - killed) / 3;
    form(processes, {0, 1, 3}, 2);
  }
  EXPECT_TRUE(early);
}

int mapped_arenas(int pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("farandole-arena") != std::string::npos ? 1 : 0;
  }
  return count;
}

// As above, several times too; but one worker never comes, so the world is still being formed.
TEST(KilledInShm, AreNoticedBeforeTheirSocketsCloseWhileWorldForms) {
  bool early = false;
  for (int attempt = 0; attempt < 5 && !early; ++attempt) {
    const auto processes = start(Wiring::kShm, 5);
    Line& large = *processes[2]->line;
    large.say("touch " + std::to_string(size_t{2} << 30));
    if (large.hear(kPatience) != "touched") {
      GTEST_SKIP() << "no 2 GB to be had here, or not at once (that needs Linux 5.14)";
    }
    order_to_form(processes, {0, 1, 2, 3, 4}, 1, kPatience, 4);
    for (const int linked : {0, 1, 2, 3}) {
      ASSERT_TRUE(eventually([&] { return mapped_arenas(processes[static_cast<size_t>(linked)]->pid()) >= 4; }));
    }
    const int64_t killed = base::now_ns();
    processes[2]->signal(SIGKILL);
    for (const int other : {0, 1, 3}) {
      EXPECT_EQ(outcome(*processes[static_cast<size_t>(other)]), describe_loss(2, Sign::kClosed));
    }
    const int64_t noticed = base::now_ns();
    early = !large.hung_up();
    ASSERT_EQ(large.hear(kPatience), std::nullopt);
    std::printf("all knew after %.1f ms, its pipe closed after %.1f ms\n", static_cast<double>(noticed - killed) * 1e-6,
                static_cast<double>(base::now_ns() - killed) * 1e-6);
    form(processes, {0, 1, 3, 4}, 2);
  }
  EXPECT_TRUE(early);
}

// Of two neighbours that die together, the cyclic watch of a host shows one; whichever that is, the other one is seen
// by its sockets.
TEST_P(KilledWorkers, SeveralDeathsAtOnceAreNoticed) {
  const auto processes = start(GetParam(), 4);
  form(processes, {0, 1, 2, 3}, 1);
  for (const int killed : {1, 2}) {
    processes[static_cast<size_t>(killed)]->signal(SIGKILL);
  }
  for (const int survivor : {0, 3}) {
    const auto heard = processes[static_cast<size_t>(survivor)]->line->hear(kPatience);
    ASSERT_TRUE(heard.has_value());
    EXPECT_TRUE(heard->ends_with("its process ended without saying goodbye")) << *heard;
  }
  form(processes, {3, 0}, 2);
}

TEST_P(KilledWorkers, DeathWhileWorldFormsIsReportedByAll) {
  for (const Processes& processes : signal_while_forming(GetParam(), SIGKILL)) {
    expect_rank_2_is_missed(processes);
    form(processes, {0, 1, 3}, 2);
  }
}

TEST_P(KilledWorkers, WorkerStoppedWhileWorldFormsIsReportedByAllAndComesBack) {
  for (const Processes& processes : signal_while_forming(GetParam(), SIGSTOP)) {
    expect_rank_2_is_missed(processes);
    form(processes, {0, 1, 3}, 2);
    processes[2]->signal(SIGCONT);
    EXPECT_NE(outcome(*processes[2]), "nothing");
    form(processes, {3, 2, 1, 0}, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KilledWorkers, ::testing::ValuesIn(kAllWirings),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace farandole::transport::testing
