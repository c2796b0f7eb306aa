#include "transport/frame_multiplexer.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

namespace farandole::transport {
namespace {

// How long an engine that notifies late polls for the answer before it notifies.
constexpr int64_t kLateNs = 15'000;

// While one of these lives, sleeps of this thread end on time: otherwise the kernel makes them 50 us longer, several
// times as long as the sleeps here. The thread may be a user's, so its own setting is restored.
class FineTimers {
 public:
  FineTimers() : before_(::prctl(PR_GET_TIMERSLACK)) { ::prctl(PR_SET_TIMERSLACK, 1UL); }
  ~FineTimers() {
    if (before_ > 0) {
      ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
    }
  }
  FineTimers(const FineTimers&) = delete;
  FineTimers& operator=(const FineTimers&) = delete;

 private:
  const int before_;
};

}  // namespace

FrameMultiplexer::FrameMultiplexer(Mesh& mesh, WaitPolicy policy)
    : mesh_(mesh), policy_(policy), links_(static_cast<size_t>(mesh.size())) {
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer != mesh.rank() && !mesh.is_late(peer)) {
      add(peer);
    }
  }
}

LinkFrames& FrameMultiplexer::add(int peer) {
  auto& link = links_[static_cast<size_t>(peer)] = std::make_unique<LinkFrames>(mesh_, peer);
  (link->counts_mail() ? with_mail_ : without_mail_).push_back(link.get());
  return *link;
}

void FrameMultiplexer::post(int peer, base::Bytes message, Notify notify) {
  if (notify == Notify::kLate) {
    notify_late();  // only one peer is remembered
    unnotified_ = peer;
  }
  of(peer).queue_message(std::move(message));
  move_out(of(peer));
  has_news_ |= of(peer).has_outgoing();
}

std::optional<Message> FrameMultiplexer::take_message() {
  if (inbox_.empty()) {
    return std::nullopt;
  }
  Message message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

uint64_t FrameMultiplexer::send(int peer, std::span<const std::byte> bytes) {
  has_news_ = true;
  return of(peer).queue_data(collective_, bytes);
}

uint64_t FrameMultiplexer::recv(int peer, std::span<std::byte> bytes) {
  has_news_ = true;
  return of(peer).post(collective_, bytes);
}

void FrameMultiplexer::flush() {
  wait([this] {
    return std::ranges::all_of(links_, [](const auto& link) { return link == nullptr || link->data_done(); });
  });
}

void FrameMultiplexer::flush_messages(const base::Deadline& deadline) {
  const auto drained = [this] {
    return std::ranges::none_of(links_, [](const auto& link) { return link != nullptr && link->has_outgoing(); });
  };
  wait([&] { return drained() || deadline.passed(); });
}

bool FrameMultiplexer::move() {
  for (const int peer : mesh_.take_late()) {
    of(peer);
  }
  bool moved = move_mail();
  for (LinkFrames* const link : without_mail_) {
    moved |= move_both(*link);
  }
  return moved;
}

bool FrameMultiplexer::move_mail() {
  if (with_mail_.empty()) {
    return false;
  }
  // Before the links are checked: what is sent during the check counts as news the next time.
  const uint64_t mail = mesh_.arena(mesh_.rank())->header().mail.load(std::memory_order_acquire);
  if (mail == seen_mail_ && !has_news_) {
    return false;
  }
  seen_mail_ = mail;
  has_news_ = false;
  bool moved = false;
  for (LinkFrames* const link : with_mail_) {
    moved |= move_both(*link);
    has_news_ |= link->has_outgoing();
  }
  return moved;
}

bool FrameMultiplexer::move_out(LinkFrames& link) {
  const bool moved = link.move_out();
  if (moved && link.peer() != unnotified_) {
    link.notify();
  }
  return moved;
}

bool FrameMultiplexer::move_in(LinkFrames& link) {
  const size_t before = inbox_.size();
  const bool moved = link.move_in(inbox_);
  if (inbox_.size() > before && link.peer() == unnotified_) {
    notify_late();  // it may not be the answer, and the peer may have gone to sleep before it saw what we sent
  }
  return moved;
}

bool FrameMultiplexer::keep_looking(Poll& poll, int64_t patience_ns) noexcept {
  if (patience_ns <= 0) {
    return false;
  }
  const int64_t now = base::now_ns();
  poll.count(now);
  if (unnotified_ >= 0 && now - poll.since_ns() > kLateNs) {
    notify_late();
  }
  // Other threads on this core, above all the one that waits for our result, go first.
  ::sched_yield();
  return now - poll.since_ns() < patience_ns;
}

void FrameMultiplexer::end_poll(Poll& poll) noexcept {
  if (std::exchange(poll, {}).has_begun()) {
    poll_heuristic_.found();
  }
}

void FrameMultiplexer::give_up(Poll& poll) noexcept {
  if (const Poll in_vain = std::exchange(poll, {}); in_vain.has_begun()) {
    poll_heuristic_.gave_up(in_vain.was_on_shared_core(policy_.midway_ns()));
  }
}

void FrameMultiplexer::notify_late() noexcept {
  if (unnotified_ >= 0) {
    of(std::exchange(unnotified_, -1)).notify();
  }
}

std::vector<pollfd> FrameMultiplexer::awaited() const {
  std::vector<pollfd> awaited;
  for_each_awaited([&](const pollfd& each) {
    awaited.push_back(each);
    return true;
  });
  return awaited;
}

bool FrameMultiplexer::is_awaited(std::span<const pollfd> before) const noexcept {
  size_t at = 0;
  const bool all_were = for_each_awaited([&](const pollfd& now) {
    const bool was = at < before.size() && before[at].fd == now.fd && before[at].events == now.events;
    ++at;
    return was;
  });
  return all_were && at == before.size();
}

bool FrameMultiplexer::has_sockets() const noexcept {
  return std::ranges::any_of(without_mail_, [](const LinkFrames* link) { return link->poll_fd() >= 0; });
}

void FrameMultiplexer::sleep() {
  std::vector<pollfd> polled = awaited();
  if (pause_ns_ <= 0) {
    ::poll(polled.data(), polled.size(), static_cast<int>(kLongestSleepNs / 1'000'000));
    return;
  }
  const FineTimers fine;
  const timespec pause = {.tv_sec = pause_ns_ / 1'000'000'000, .tv_nsec = pause_ns_ % 1'000'000'000};
  ::ppoll(polled.data(), polled.size(), &pause, nullptr);
}

}  // namespace farandole::transport
