#include "transport/control.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/socket.h"

namespace farandole::transport {
namespace {

base::Bytes encode(const ControlFrame& frame) {
  const size_t length = std::min(frame.text.size(), ControlFrame::kLongestText);
  base::Writer writer;
  writer.put(frame.kind);
  writer.put(frame.sign);
  writer.put(static_cast<uint16_t>(length));
  writer.put(frame.rank);
  base::Bytes bytes = writer.take();
  const auto* text = reinterpret_cast<const std::byte*>(frame.text.data());
  bytes.insert(bytes.end(), text, text + length);
  return bytes;
}

bool known(ControlKind kind) noexcept { return kind >= ControlKind::kReady && kind <= ControlKind::kFormed; }
bool known(Sign sign) noexcept { return sign >= Sign::kClosed && sign <= Sign::kStalled; }

}  // namespace

ControlFrame revoke_frame(const Cause& cause) {
  ControlFrame frame(ControlKind::kRevoke, cause.text);
  frame.sign = cause.sign;
  frame.rank = cause.rank;
  return frame;
}

Cause cause_of(const ControlFrame& frame) { return {.rank = frame.rank, .sign = frame.sign, .text = frame.text}; }

void ControlChannel::send(const ControlFrame& frame) {
  const base::Bytes bytes = encode(frame);
  unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
  flush();
}

void ControlChannel::flush() noexcept {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      // The peer's last frames, perhaps with the reason, may not be received yet, so the error is not interpreted here.
      send_error_ = errno;
      unsent_.clear();
    }
  }
}

std::optional<ControlFrame> ControlChannel::receive() {
  while (!ended_.has_value()) {
    if (auto frame = next_frame(); frame.has_value()) {
      return frame;
    }
    if (!ended_.has_value() && !fill()) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<ControlFrame> ControlChannel::next_frame() {
  if (filled_ < ControlFrame::kHeaderBytes) {
    return std::nullopt;
  }
  base::Reader reader({buffer_.data(), ControlFrame::kHeaderBytes});
  ControlFrame frame(reader.get<ControlKind>());
  frame.sign = reader.get<Sign>();
  const size_t length = reader.get<uint16_t>();
  frame.rank = reader.get<int32_t>();
  if (!known(frame.kind) || !known(frame.sign) || length > ControlFrame::kLongestText) {
    ended_ = Sign::kBroken;
    return std::nullopt;
  }
  const size_t whole = ControlFrame::kHeaderBytes + length;
  if (filled_ < whole) {
    return std::nullopt;
  }
  frame.text.assign(reinterpret_cast<const char*>(buffer_.data()) + ControlFrame::kHeaderBytes, length);
  filled_ -= whole;
  std::memmove(buffer_.data(), buffer_.data() + whole, filled_);
  return frame;
}

// Receives the available bytes; returns false if there are none. The buffer holds the longest frame, so there is always
// room.
bool ControlChannel::fill() noexcept {
  while (true) {
    const ssize_t got = ::recv(fd_.get(), buffer_.data() + filled_, buffer_.size() - filled_, MSG_DONTWAIT);
    if (got > 0) {
      filled_ += static_cast<size_t>(got);
      return true;
    }
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    }
    // A socket reports an error only once: the sending side may have got it already.
    ended_ = sign_of(got < 0 ? errno : send_error_);
    return false;
  }
}

}  // namespace farandole::transport
