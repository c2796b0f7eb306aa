#include "transport/late_links.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "transport/event_fd.h"
#include "transport/setup_timeout.h"

namespace farandole::transport {
namespace {

constexpr int64_t kLongestWaitMs = 60'000;

}  // namespace

LateLinks::LateLinks(const LinkContext& context, std::unique_ptr<Connections> connections, double patience_seconds,
                     WorldStatus& world_status, Made made)
    : context_{.generation = context.generation,
               .failure_deadline_seconds = context.failure_deadline_seconds,
               .arena = context.arena,
               .doorbell_fd = context.doorbell_fd,
               .mappings = context.mappings,
               .ring_buffers = context.ring_buffers,
               .memory_holders = nobody_},
      patience_seconds_(patience_seconds),
      world_status_(world_status),
      made_(std::move(made)),
      wake_fd_(make_event_fd()),
      connections_(std::move(connections)) {
  thread_ = base::start_thread("farandole-links", [this] { run(); });
}

LateLinks::~LateLinks() {
  stop_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

void LateLinks::want(int peer) noexcept {
  {
    const base::MutexLock lock(mutex_);
    wanted_.push_back(peer);
  }
  wake();
}

void LateLinks::wake() noexcept { signal_event(wake_fd_.get()); }

void LateLinks::run() {
  while (!stop_.load(std::memory_order_acquire)) {
    try {
      dial_wanted();
      wait();
      settle();
      give_up_late();
    } catch (const base::Error& error) {
      world_status_.revoke({.rank = -1, .sign = Sign::kRevoked, .text = error.what()});
      return;
    }
  }
}

void LateLinks::dial_wanted() {
  std::vector<int> wanted;
  {
    const base::MutexLock lock(mutex_);
    wanted.swap(wanted_);
  }
  for (const int peer : wanted) {
    const auto deadline = base::Deadline::after_seconds(patience_seconds_);
    makings_.insert_or_assign(peer, Making{.deadline = deadline});
    connections_->dial(peer, deadline);
  }
}

void LateLinks::wait() {
  std::vector<pollfd> polled;
  connections_->prepare_wait(polled);
  polled.push_back({.fd = wake_fd_.get(), .events = POLLIN, .revents = 0});
  if (::poll(polled.data(), polled.size(), timeout_ms()) <= 0) {
    return;
  }
  drain_event(wake_fd_.get());
  connections_->finish_wait(polled);
}

int LateLinks::timeout_ms() const {
  int64_t left_ns = connections_->left_ns();
  for (const auto& [peer, making] : makings_) {
    left_ns = std::min(left_ns, making.deadline.left_ns());
  }
  return static_cast<int>(std::min<int64_t>(left_ns / 1'000'000 + 1, kLongestWaitMs));
}

void LateLinks::settle() {
  connections_->settle({.wants = [](int) { return true; },
                        .proven =
                            [this](Connections::Proven connection) {
                              if (connection.channel == Channel::kControl) {
                                begin(std::move(connection));
                              } else {
                                finish(connection.peer, std::move(connection.fd));
                              }
                            },
                        .refused =
                            [this](int peer, Refusal refusal) {
                              if (const auto making = makings_.find(peer); making != makings_.end()) {
                                making->second.refusal = refusal;
                              }
                            }});
}

// A later connection replaces an earlier one, as at the start.
void LateLinks::begin(Connections::Proven control) {
  const int peer = control.peer;
  Making& making =
      makings_.try_emplace(peer, Making{.deadline = base::Deadline::after_seconds(patience_seconds_)}).first->second;
  making.linked = connections_->begin_link(context_, std::move(control), making.deadline);
}

void LateLinks::finish(int peer, PrivateFd data) {
  const auto making = makings_.find(peer);
  if (making == makings_.end() || making->second.linked.link == nullptr) {
    return;
  }
  LinkedPeer linked = std::move(making->second.linked);
  makings_.erase(making);
  linked.link->take_data_connection(std::move(data));
  made_(peer, std::move(linked));
}

void LateLinks::give_up_late() {
  std::vector<MissingRank> missing;
  std::erase_if(makings_, [&](const auto& entry) {
    const bool is_late = entry.second.deadline.passed();
    if (is_late) {
      missing.push_back({.rank = entry.first, .refusal = entry.second.refusal});
    }
    return is_late;
  });
  if (!missing.empty()) {
    world_status_.revoke(
        {.rank = missing.front().rank, .sign = Sign::kSilent, .text = missing_late_links(missing, patience_seconds_)});
  }
}

}  // namespace farandole::transport
