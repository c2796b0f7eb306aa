#include "transport/link_frames.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace farandole::transport {
namespace {

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 28;

}  // namespace

void LinkFrames::queue_message(base::Bytes message) {
  Outgoing& out = outgoing_.emplace_back();
  out.header = {static_cast<uint32_t>(FrameKind::kMessage), 0, message.size()};
  out.owned = std::move(message);
  out.payload = out.owned;
}

uint64_t LinkFrames::queue_data(uint32_t collective, std::span<const std::byte> bytes) {
  Outgoing& out = outgoing_.emplace_back();
  out.header = {static_cast<uint32_t>(FrameKind::kData), collective, bytes.size()};
  out.payload = bytes;
  return ++data_queued_;
}

uint64_t LinkFrames::post(uint32_t collective, std::span<std::byte> memory) {
  posted_.push_back({memory, collective});
  return ++data_posted_;
}

bool LinkFrames::move_out() {
  bool moved = false;
  while (!outgoing_.empty()) {
    Outgoing& out = outgoing_.front();
    const auto header = std::as_bytes(std::span(&out.header, 1));
    while (out.done < header.size() + out.payload.size()) {
      const size_t of_header = std::min(out.done, header.size());
      const size_t sent = link_.try_send_both(header.subspan(of_header), out.payload.subspan(out.done - of_header));
      if (sent == 0) {
        return moved;
      }
      out.done += sent;
      moved = true;
    }
    data_sent_ += out.header.kind == static_cast<uint32_t>(FrameKind::kData) ? 1 : 0;
    outgoing_.pop_front();
  }
  return moved;
}

bool LinkFrames::move_in(std::deque<Message>& inbox) {
  bool moved = false;
  for (;;) {
    while (header_done_ < sizeof(FrameHeader)) {
      const auto header = std::as_writable_bytes(std::span(&header_, 1));
      const size_t got = link_.try_recv(header.subspan(header_done_));
      if (got == 0) {
        return moved;
      }
      header_done_ += got;
      moved = true;
    }
    if (!ready_for_payload()) {
      return moved;
    }
    const std::span<std::byte> to = payload();
    while (payload_done_ < to.size()) {
      const size_t got = link_.try_recv(to.subspan(payload_done_));
      if (got == 0) {
        return moved;
      }
      payload_done_ += got;
      moved = true;
    }
    finish_frame(inbox);
  }
}

bool LinkFrames::ready_for_payload() {
  switch (static_cast<FrameKind>(header_.kind)) {
    case FrameKind::kMessage:
      if (header_.bytes > kMaxMessageBytes) {
        broken("a message of " + std::to_string(header_.bytes) + " bytes");
      }
      message_.resize(header_.bytes);
      return true;
    case FrameKind::kData: {
      if (posted_.empty()) {
        return false;
      }
      const Posted& expected = posted_.front();
      if (expected.memory.size() != header_.bytes || expected.collective != header_.collective) {
        broken(std::to_string(header_.bytes) + " bytes of collective " + std::to_string(header_.collective) +
               " where " + std::to_string(expected.memory.size()) + " bytes of collective " +
               std::to_string(expected.collective) + " were due");
      }
      return true;
    }
  }
  broken("a frame of unknown kind " + std::to_string(header_.kind));
}

std::span<std::byte> LinkFrames::payload() {
  if (is_data()) {
    return posted_.front().memory;
  }
  return message_;
}

void LinkFrames::finish_frame(std::deque<Message>& inbox) {
  if (is_data()) {
    posted_.pop_front();
    ++data_received_;
  } else {
    inbox.push_back({peer_, std::move(message_)});
    message_.clear();
  }
  header_done_ = 0;
  payload_done_ = 0;
}

void LinkFrames::broken(const std::string& what) {
  mesh_.world_status().revoke(
      {peer_, Sign::kBroken, describe_loss(peer_, Sign::kBroken) + ": " + what + ". This is a bug of farandole's"});
  throw mesh_.world_status().error();
}

short LinkFrames::events() const noexcept {
  // A data frame for which no memory is posted would keep the socket readable, and this thread awake.
  const bool unexpected = header_done_ == sizeof(FrameHeader) && is_data() && posted_.empty();
  return static_cast<short>((unexpected ? 0 : POLLIN) | (outgoing_.empty() ? 0 : POLLOUT));
}

}  // namespace farandole::transport
