// The simulation counts what real workers send: the same worlds with sockets, threads and engines, a process for each
// rank, and equal counts of connections, messages and bytes.
//
//   FARANDOLE_SCALE_RANKS  a further number of ranks, eight on a host
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/mutex.h"
#include "engine/engine.h"
#include "scale/star_and_mesh.h"
#include "support/sanitized.h"
#include "support/worlds.h"
#include "transport/link_frames.h"

namespace {

constexpr size_t kMostRanks = 1024;

// Memory of all processes of one world.
struct Shared {
  std::array<std::array<char, 1024>, kMostRanks> contacts{};
  std::atomic<int> arrived = 0;
  std::atomic<uint64_t> messages = 0;  // of agreement, that all ranks have sent
  std::atomic<uint64_t> message_bytes = 0;
  std::atomic<uint64_t> tcp_ends = 0;
  std::array<std::atomic<uint64_t>, 7> frames{};  // of control channels, by ControlKind
  std::array<std::atomic<uint64_t>, 7> frame_bytes{};
};

std::atomic<Shared*> counted = nullptr;  // frames are counted there, if at all

// Nothing else that is sent begins so: a kind, a sign, and the length of what follows.
void count_control_frame(const void* data, size_t bytes) {
  struct {
    uint8_t kind, sign;
    uint16_t length;
    int32_t rank;
  } header;
  Shared* const into = counted;
  if (into == nullptr || bytes < sizeof header) {
    return;
  }
  std::memcpy(&header, data, sizeof header);
  if (header.kind >= 1 && header.kind <= 6 && header.sign >= 1 && header.sign <= 5 &&
      bytes == sizeof header + header.length) {
    into->frames[header.kind] += 1;
    into->frame_bytes[header.kind] += bytes;
  }
}

}  // namespace

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// In the place of the C library's, so that frames can be counted.
extern "C" ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  count_control_frame(data, bytes);
  return ::syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
}
#endif

namespace farandole::scale {
namespace {

using transport::ControlKind;
using transport::FrameHeader;
using transport::FrameKind;
using transport::Link;
using transport::Mesh;

// Counts the message frames that a rank hands to one link.
class CountingLink final : public Link {
 public:
  explicit CountingLink(Link& link) : link_(link) {}

  size_t try_send(std::span<const std::byte> bytes) override { return count(bytes, link_.try_send(bytes)); }
  size_t try_recv(std::span<std::byte> bytes) override { return link_.try_recv(bytes); }
  bool counts_mail() const noexcept override { return link_.counts_mail(); }
  int poll_fd() const noexcept override { return link_.poll_fd(); }
  void notify() noexcept override { link_.notify(); }

  uint64_t messages() const noexcept { return messages_; }
  uint64_t bytes() const noexcept { return bytes_; }

 private:
  size_t count(std::span<const std::byte> bytes, size_t sent) {
    for (size_t at = 0; at < sent; ++at) {
      if (payload_left_ > 0) {
        --payload_left_;
        continue;
      }
      header_[header_done_++] = bytes[at];
      if (header_done_ == sizeof(FrameHeader)) {
        take_header();
      }
    }
    return sent;
  }

  void take_header() {
    FrameHeader header;
    std::memcpy(&header, header_.data(), sizeof header);
    header_done_ = 0;
    payload_left_ = header.bytes;
    if (header.kind == static_cast<uint32_t>(FrameKind::kMessage)) {
      ++messages_;
      bytes_ += header.bytes;
    }
  }

  Link& link_;
  std::array<std::byte, sizeof(FrameHeader)> header_{};
  size_t header_done_ = 0;
  uint64_t payload_left_ = 0;
  std::atomic<uint64_t> messages_ = 0;
  std::atomic<uint64_t> bytes_ = 0;
};

class CountingMesh final : public Mesh {
 public:
  explicit CountingMesh(std::unique_ptr<Mesh> mesh) : mesh_(std::move(mesh)), links_(static_cast<size_t>(size())) {}

  int rank() const noexcept override { return mesh_->rank(); }
  int size() const noexcept override { return mesh_->size(); }
  uint64_t generation() const noexcept override { return mesh_->generation(); }
  Link& link(int peer) override {
    const base::MutexLock lock(mutex_);
    auto& link = links_[static_cast<size_t>(peer)];
    if (link == nullptr) {
      link = std::make_unique<CountingLink>(mesh_->link(peer));
    }
    return *link;
  }
  bool is_late(int peer) const noexcept override { return mesh_->is_late(peer); }
  std::vector<int> take_late() override { return mesh_->take_late(); }
  transport::Doorbell& doorbell() override { return mesh_->doorbell(); }
  transport::WorldStatus& world_status() override { return mesh_->world_status(); }
  const transport::ArenaView* arena(int peer) const noexcept override { return mesh_->arena(peer); }
  void wake(int peer, transport::Sleep what_for) noexcept override { mesh_->wake(peer, what_for); }
  const std::vector<int>& hosts() const noexcept override { return mesh_->hosts(); }
  void say_goodbye() noexcept override { mesh_->say_goodbye(); }
  std::string describe() const override { return mesh_->describe(); }
  std::string describe_route(int peer) const override { return mesh_->describe_route(peer); }

  uint64_t messages() const noexcept { return sum(&CountingLink::messages); }
  uint64_t bytes() const noexcept { return sum(&CountingLink::bytes); }

 private:
  uint64_t sum(uint64_t (CountingLink::*of)() const noexcept) const noexcept {
    const base::MutexLock lock(mutex_);
    uint64_t total = 0;
    for (const auto& link : links_) {
      total += link == nullptr ? 0 : (*link.*of)();
    }
    return total;
  }

  std::unique_ptr<Mesh> mesh_;
  mutable base::Mutex mutex_;
  std::vector<std::unique_ptr<CountingLink>> links_ GUARDED_BY(mutex_);  // by rank; none where nothing was sent yet
};

// One rank of a world, in its process.
class Worker {
 public:
  Worker(const Layout& layout, int rank, Shared& shared)
      : layout_(layout), rank_(rank), shared_(shared), endpoint_(settings_of(layout, rank)) {
    std::snprintf(shared_.contacts[static_cast<size_t>(rank)].data(), shared_.contacts[0].size(), "%s",
                  endpoint_.contact().c_str());
  }

  int rank() const { return rank_; }
  const Layout& layout() const { return layout_; }
  Shared& shared() { return shared_; }
  transport::Arena& arena() { return endpoint_.arena(); }
  base::Deadline patience() const { return base::Deadline::after_seconds(testing::kPatience + layout_.size); }

  // Waits until all ranks have come as far.
  void in_step() {
    const int all = (shared_.arrived++ / layout_.size + 1) * layout_.size;
    for (const auto deadline = patience(); shared_.arrived < all;) {
      if (deadline.passed()) {
        throw base::Error(base::Code::kTimeout, "some ranks do not come as far");
      }
      // The ranks together look about as often, however many they are: they share the machine with those that work.
      ::usleep(static_cast<useconds_t>(100 * layout_.size));
    }
  }

  std::unique_ptr<Mesh> form() {
    in_step();
    transport::World world{.generation = 1, .rank = rank_, .contacts = {}, .secret = "the secret of a test"};
    for (int rank = 0; rank < layout_.size; ++rank) {
      world.contacts.emplace_back(shared_.contacts[static_cast<size_t>(rank)].data());
    }
    return endpoint_.form(world, patience());
  }

 private:
  static transport::EndpointSettings settings_of(const Layout& layout, int rank) {
    transport::EndpointSettings settings;
    settings.arena_bytes = testing::kArenaBytes;
    settings.host_key = "host " + std::to_string(layout.host_of(rank));
    settings.listen_addresses = {"127.0.0.1"};
    settings.failure_deadline_seconds = testing::kPatience + layout.size;
    return settings;
  }

  const Layout layout_;
  const int rank_;
  Shared& shared_;
  transport::Endpoint endpoint_;
};

// Runs body(worker) for every rank, in a process of its own; what it has counted is in the memory that it gives.
std::shared_ptr<const Shared> in_processes(const Layout& layout, const std::function<void(Worker&)>& body) {
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const std::shared_ptr<Shared> shared(new (memory) Shared, [](Shared* each) { ::munmap(each, sizeof(Shared)); });
  std::vector<pid_t> ranks;
  std::fflush(nullptr);
  for (int rank = 0; rank < layout.size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      counted = shared.get();
      testing::on_all_ranks(1, [&](int) {
        Worker worker(layout, rank, *shared);
        body(worker);
      });
      std::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    ranks.push_back(child);
  }
  for (const pid_t rank : ranks) {
    int status = -1;
    EXPECT_EQ(::waitpid(rank, &status, 0), rank);
    EXPECT_EQ(status, 0);
  }
  return shared;
}

// The ends of TCP connections in this process.
uint64_t tcp_ends() {
  uint64_t ends = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    const auto fd = static_cast<int>(std::strtol(entry.path().filename().c_str(), nullptr, 10));
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 && peer.ss_family == AF_INET) {
      ++ends;
    }
  }
  return ends;
}

constexpr int kBefore = 3;  // barriers of one name, after which it has its bit
constexpr int kBarriers = 4;

void do_barriers(Worker& worker) {
  engine::EngineSettings settings;
  settings.agreement_fanout = worker.layout().fanout;
  settings.report_hold_ns = INT64_MAX / 2;  // a rank of a busy machine may come late, for which there is a message more
  settings.stall_warning_seconds = 0;
  engine::Engine engine(settings);
  auto mesh = std::make_unique<CountingMesh>(worker.form());
  const CountingMesh& counting = *mesh;
  engine.enter(std::move(mesh), worker.arena());
  for (int barrier = 0; barrier < kBefore + kBarriers; ++barrier) {
    if (barrier == kBefore) {
      worker.in_step();
      worker.shared().messages -= counting.messages();
      worker.shared().message_bytes -= counting.bytes();
      worker.in_step();
    }
    testing::finish(engine, engine.submit({testing::request_of(engine::Kind::kBarrier, "barrier")}).front());
  }
  worker.in_step();
  worker.shared().messages += counting.messages();
  worker.shared().message_bytes += counting.bytes();
  worker.in_step();
  engine.leave(worker.patience());
}

void expect_agreement_as_simulated(const Layout& layout) {
  const auto real = in_processes(layout, do_barriers);
  StarAndMesh simulated(layout);
  Counts before;
  for (int barrier = 0; barrier < kBefore + kBarriers; ++barrier) {
    if (barrier == kBefore) {
      before = simulated.counts();
    }
    for (int rank = 0; rank < layout.size; ++rank) {
      simulated.submit(rank, "barrier");
    }
    simulated.network().run(INT64_MAX);
  }
  const Counts& after = simulated.counts();
  EXPECT_GT(real->messages, 0U);
  EXPECT_EQ(real->messages, after.up + after.down - before.up - before.down);
  EXPECT_EQ(real->message_bytes, after.agreement_bytes - before.agreement_bytes);
}

void expect_connections_and_frames_as_simulated(const Layout& layout) {
  const transport::Cause cause{.rank = 3, .sign = transport::Sign::kRevoked, .text = "the roster has lost rank 3"};
  StarAndMesh simulated(layout);
  simulated.connect();
  simulated.network().call([&] { simulated.revoke(0, cause); }, 20 * kSecond);
  simulated.network().run(21 * kSecond);
  const Counts& counts = simulated.counts();
  ASSERT_EQ(simulated.broken(), "");

  const auto real = in_processes(layout, [&](Worker& worker) {
    auto mesh = worker.form();
    worker.in_step();
    worker.shared().tcp_ends += tcp_ends();
    worker.in_step();
    if (worker.rank() == 0) {
      mesh->world_status().revoke(cause);
      const auto& told = worker.shared().frames[static_cast<size_t>(ControlKind::kRevoke)];
      for (const auto deadline = worker.patience(); told < counts.frames(ControlKind::kRevoke);) {
        ASSERT_FALSE(deadline.passed()) << told << " frames";
        ::usleep(500);
      }
    }
    worker.in_step();
    mesh.reset();  // from here on nothing more is sent
    worker.in_step();
  });
  EXPECT_EQ(real->tcp_ends, 2 * counts.tcp_connections);
  for (const ControlKind kind : {ControlKind::kReady, ControlKind::kFormed, ControlKind::kRevoke}) {
    EXPECT_GT(real->frames[static_cast<size_t>(kind)], 0U);
    EXPECT_EQ(real->frames[static_cast<size_t>(kind)], counts.frames(kind));
    EXPECT_EQ(real->frame_bytes[static_cast<size_t>(kind)], counts.bytes(kind));
  }
}

std::vector<Layout> layouts() {
  std::vector<Layout> all = {{.size = 8, .ranks_per_host = 1},
                             {.size = 8, .ranks_per_host = 2},
                             {.size = 8, .ranks_per_host = 1, .fanout = 2},
                             {.size = 8, .ranks_per_host = 2, .fanout = 1},
                             {.size = 18, .ranks_per_host = 1},
                             {.size = 18, .ranks_per_host = 2, .fanout = 0},
                             {.size = 64},
                             {.size = 72}};
  if (const char* const ranks = std::getenv("FARANDOLE_SCALE_RANKS")) {
    all.push_back({.size = static_cast<int>(std::strtol(ranks, nullptr, 10))});
  }
  return all;
}

class RealWorlds : public ::testing::TestWithParam<Layout> {};

TEST_P(RealWorlds, SendAgreementAsSimulated) { expect_agreement_as_simulated(GetParam()); }

TEST_P(RealWorlds, MakeConnectionsAndSendFramesAsSimulated) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer has a send() of its own";
  }
  expect_connections_and_frames_as_simulated(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, RealWorlds, ::testing::ValuesIn(layouts()), [](const auto& info) {
  return std::to_string(info.param.size) + "_ranks_" + std::to_string(info.param.ranks_per_host) + "_on_a_host_" +
         (info.param.fanout ? std::to_string(*info.param.fanout) + "_below" : "as_usual");
});

}  // namespace
}  // namespace farandole::scale
