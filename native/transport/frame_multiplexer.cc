#include "transport/frame_multiplexer.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace farandole::transport {
namespace {

// A sleep ends by a signal or by a socket. This bounds it all the same: should a signal ever be lost, it costs a
// second instead of a hang.
constexpr int kSleepMs = 1000;
// How long an engine that notifies late looks for the answer before it does.
constexpr int64_t kLateNs = 15'000;
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 28;

}  // namespace

FrameMultiplexer::FrameMultiplexer(Mesh& mesh, WaitPolicy policy)
    : mesh_(mesh), policy_(policy), ports_(static_cast<size_t>(mesh.size())) {
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer != mesh.rank()) {
      ports_[static_cast<size_t>(peer)].link = &mesh.link(peer);
    }
  }
}

void FrameMultiplexer::post(int peer, base::Bytes message, Notify notify) {
  if (notify == Notify::kLate) {
    notify_late();  // only one is remembered
    unnotified_ = peer;
  }
  Outgoing& out = ports_[static_cast<size_t>(peer)].outgoing.emplace_back();
  out.header = {static_cast<uint32_t>(FrameKind::kMessage), 0, message.size()};
  out.owned = std::move(message);
  out.payload = out.owned;
  move_out(ports_[static_cast<size_t>(peer)]);
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
  Port& port = ports_[static_cast<size_t>(peer)];
  Outgoing& out = port.outgoing.emplace_back();
  out.header = {static_cast<uint32_t>(FrameKind::kData), collective_, bytes.size()};
  out.payload = bytes;
  ++unfinished_;
  return ++port.frames_queued;
}

uint64_t FrameMultiplexer::recv(int peer, std::span<std::byte> bytes) {
  Port& port = ports_[static_cast<size_t>(peer)];
  port.posted.push_back({bytes, collective_});
  ++unfinished_;
  return ++port.frames_posted;
}

void FrameMultiplexer::flush() {
  wait([this] { return unfinished_ == 0; });
}

void FrameMultiplexer::flush_messages(const base::Deadline& deadline) {
  const auto drained = [this] {
    for (const Port& port : ports_) {
      if (!port.outgoing.empty()) {
        return false;
      }
    }
    return true;
  };
  wait([&] { return drained() || deadline.passed(); });
}

bool FrameMultiplexer::move() {
  bool moved = false;
  for (size_t peer = 0; peer < ports_.size(); ++peer) {
    Port& port = ports_[peer];
    if (port.link != nullptr) {
      moved |= move_out(port);
      moved |= move_in(static_cast<int>(peer), port);
    }
  }
  return moved;
}

bool FrameMultiplexer::move_out(Port& port) {
  const bool moved = push_out(port);
  if (moved && (unnotified_ < 0 || &port != &ports_[static_cast<size_t>(unnotified_)])) {
    port.link->notify();
  }
  return moved;
}

bool FrameMultiplexer::push_out(Port& port) {
  bool moved = false;
  while (!port.outgoing.empty()) {
    Outgoing& out = port.outgoing.front();
    const auto header = std::as_bytes(std::span(&out.header, 1));
    while (out.done < header.size() + out.payload.size()) {
      const size_t of_header = std::min(out.done, header.size());
      const size_t sent =
          port.link->try_send_both(header.subspan(of_header), out.payload.subspan(out.done - of_header));
      if (sent == 0) {
        return moved;
      }
      out.done += sent;
      moved = true;
    }
    if (out.header.kind == static_cast<uint32_t>(FrameKind::kData)) {
      ++port.frames_sent;
      --unfinished_;
    }
    port.outgoing.pop_front();
  }
  return moved;
}

bool FrameMultiplexer::move_in(int peer, Port& port) {
  bool moved = false;
  for (;;) {
    while (port.header_done < sizeof(FrameHeader)) {
      const auto header = std::as_writable_bytes(std::span(&port.header, 1));
      const size_t got = port.link->try_recv(header.subspan(port.header_done));
      if (got == 0) {
        return moved;
      }
      port.header_done += got;
      moved = true;
    }
    if (!ready_for_payload(peer, port)) {
      return moved;
    }
    const std::span<std::byte> payload = payload_of(port);
    while (port.payload_done < payload.size()) {
      const size_t got = port.link->try_recv(payload.subspan(port.payload_done));
      if (got == 0) {
        return moved;
      }
      port.payload_done += got;
      moved = true;
    }
    finish_frame(peer, port);
  }
}

bool FrameMultiplexer::ready_for_payload(int peer, Port& port) {
  switch (static_cast<FrameKind>(port.header.kind)) {
    case FrameKind::kMessage:
      if (port.header.bytes > kMaxMessageBytes) {
        broken(peer, "a message of " + std::to_string(port.header.bytes) + " bytes");
      }
      port.message.resize(port.header.bytes);
      return true;
    case FrameKind::kData: {
      if (port.posted.empty()) {
        return false;
      }
      const Port::Posted& expected = port.posted.front();
      if (expected.memory.size() != port.header.bytes || expected.collective != port.header.collective) {
        broken(peer, std::to_string(port.header.bytes) + " bytes of collective " +
                         std::to_string(port.header.collective) + " where " + std::to_string(expected.memory.size()) +
                         " bytes of collective " + std::to_string(expected.collective) + " were due");
      }
      return true;
    }
  }
  broken(peer, "a frame of unknown kind " + std::to_string(port.header.kind));
}

std::span<std::byte> FrameMultiplexer::payload_of(Port& port) {
  if (port.header.kind == static_cast<uint32_t>(FrameKind::kMessage)) {
    return port.message;
  }
  return port.posted.front().memory;
}

void FrameMultiplexer::finish_frame(int peer, Port& port) {
  if (port.header.kind == static_cast<uint32_t>(FrameKind::kMessage)) {
    inbox_.push_back({peer, std::move(port.message)});
    if (peer == unnotified_) {
      notify_late();  // it may not be the answer, and the peer may have gone to sleep before it saw what we sent
    }
    port.message.clear();
  } else {
    port.posted.pop_front();
    ++port.frames_received;
    --unfinished_;
  }
  port.header_done = 0;
  port.payload_done = 0;
}

void FrameMultiplexer::broken(int peer, const std::string& what) {
  mesh_.world_status().revoke(
      {peer, Sign::kBroken, describe_loss(peer, Sign::kBroken) + ": " + what + ". This is a bug of farandole's"});
  throw mesh_.world_status().error();
}

bool FrameMultiplexer::keep_looking(int64_t& since, int64_t patience_ns) noexcept {
  if (patience_ns <= 0) {
    return false;
  }
  const int64_t now = base::now_ns();
  if (since == 0) {
    since = now;
  }
  if (unnotified_ >= 0 && now - since > kLateNs) {
    notify_late();
  }
  // Whoever shares this core, above all the thread that waits for our result, goes first.
  ::sched_yield();
  return now - since < patience_ns;
}

void FrameMultiplexer::notify_late() noexcept {
  if (unnotified_ >= 0) {
    ports_[static_cast<size_t>(std::exchange(unnotified_, -1))].link->notify();
  }
}

// Rounded up, so that the alarm's time has come when poll returns.
int FrameMultiplexer::sleep_ms() const noexcept {
  if (alarm_ns_ == 0) {
    return kSleepMs;
  }
  const int64_t left_ms = (alarm_ns_ - base::now_ns() + 999'999) / 1'000'000;
  return static_cast<int>(std::clamp<int64_t>(left_ms, 0, kSleepMs));
}

std::vector<pollfd> FrameMultiplexer::awaited() const {
  std::vector<pollfd> awaited = {{mesh_.doorbell().fd(), POLLIN, 0}};
  for (const Port& port : ports_) {
    const int fd = port.link == nullptr ? -1 : port.link->poll_fd();
    if (fd < 0) {
      continue;
    }
    // A data frame that nobody waits for would keep the socket readable and us awake.
    const bool unexpected = port.header_done == sizeof(FrameHeader) &&
                            port.header.kind == static_cast<uint32_t>(FrameKind::kData) && port.posted.empty();
    const auto events = static_cast<short>((unexpected ? 0 : POLLIN) | (port.outgoing.empty() ? 0 : POLLOUT));
    if (events != 0) {
      awaited.push_back({fd, events, 0});
    }
  }
  return awaited;
}

void FrameMultiplexer::sleep() {
  std::vector<pollfd> polled = awaited();
  ::poll(polled.data(), polled.size(), sleep_ms());
}

}  // namespace farandole::transport
