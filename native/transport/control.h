// The control channel between two workers: small frames about the life of the workers and of the world. Used by one
// thread at a time: the one that sets up the mesh, then its watch thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "transport/private_fd.h"
#include "transport/world_status.h"

namespace farandole::transport {

enum class ControlKind : uint8_t {
  kReady = 1,      // the sender and all workers below it have their links; text: what it corrects (hosts.h)
  kHeartbeat = 2,  // the sender lives
  kRevoke = 3,     // the generation has ended; rank, sign and text are the cause
  kGoodbye = 4,    // the sender leaves in good order; its closing is not a loss
  kAbandon = 5,    // the sender has given up forming this world; text says why
  kFormed = 6,     // the world has formed; text: all corrections
};

// 8 bytes { u8 kind, u8 sign, u16 text bytes, i32 rank }, then the text.
struct ControlFrame {
  static constexpr size_t kHeaderBytes = 8;
  static constexpr size_t kLongestText = 1024;  // more is cut off

  explicit ControlFrame(ControlKind of, std::string words = {}) : kind(of), text(std::move(words)) {}

  ControlKind kind;
  Sign sign = Sign::kRevoked;  // of kRevoke
  int32_t rank = -1;           // of kRevoke and kAbandon: the rank that is to blame, or -1
  std::string text;
};

ControlFrame revoke_frame(const Cause& cause);
Cause cause_of(const ControlFrame& frame);

class ControlChannel {
 public:
  ControlChannel() = default;
  explicit ControlChannel(PrivateFd fd) : fd_(std::move(fd)) {}

  int fd() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

  // Sends as much as fits now; flush() sends the rest. Errors show in receive(), after the frames before them.
  void send(const ControlFrame& frame);
  void flush() noexcept;
  bool has_unsent() const noexcept { return !unsent_.empty(); }

  // Returns the next frame, or none if none is available.
  std::optional<ControlFrame> receive();
  // Set once nothing more can be received: how the other end closed.
  std::optional<Sign> ended() const noexcept { return ended_; }

 private:
  std::optional<ControlFrame> next_frame();
  bool fill() noexcept;

  PrivateFd fd_;
  base::Bytes unsent_;
  int send_error_ = 0;
  std::array<std::byte, ControlFrame::kHeaderBytes + ControlFrame::kLongestText> buffer_{};
  size_t filled_ = 0;  // bytes of buffer_ that were received and not yet taken
  std::optional<Sign> ended_;
};

}  // namespace farandole::transport
