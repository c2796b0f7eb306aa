// The frames of one link, both ways: those queued for sending, and the one being received.
//
// A link carries frames: a header, then a payload.
//   message frames  small and self-contained, in any order with respect to collectives (agreement rounds);
//                   received into an inbox
//   data frames     parts of a collective; received straight into the memory posted for them
// A data frame for which no memory is posted yet stays in the link, and so does everything behind it on that link. That
// cannot deadlock: both ends of a link run the same collectives in the same order, and a message that decides about a
// collective is never sent behind that collective's data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include "base/bytes.h"
#include "transport/mesh.h"

namespace farandole::transport {

struct FrameHeader {
  uint32_t kind;        // FrameKind
  uint32_t collective;  // of data frames: the number of the collective, to notice two ends that are out of step
  uint64_t bytes;       // of the payload
};
static_assert(sizeof(FrameHeader) == 16);

enum class FrameKind : uint32_t { kMessage = 0x4d46, kData = 0x4446 };

struct Message {
  int from;
  base::Bytes bytes;
};

// Owned by the frame multiplexer, whose thread uses it.
class LinkFrames {
 public:
  // `peer` is another rank of the mesh, which outlives this object.
  LinkFrames(Mesh& mesh, int peer) : mesh_(mesh), peer_(peer), link_(mesh.link(peer)) {}

  int peer() const noexcept { return peer_; }

  void queue_message(base::Bytes message);
  // Data frames of the collective with this number, out and in. The memory must stay until done. Return a ticket.
  uint64_t queue_data(uint32_t collective, std::span<const std::byte> bytes);
  uint64_t post(uint32_t collective, std::span<std::byte> memory);
  bool sent(uint64_t ticket) const noexcept { return data_sent_ >= ticket; }
  bool received(uint64_t ticket) const noexcept { return data_received_ >= ticket; }

  // All data frames that were queued have been handed to the link, and all posted memory is filled.
  bool data_done() const noexcept { return data_sent_ == data_queued_ && data_received_ == data_posted_; }
  bool has_outgoing() const noexcept { return !outgoing_.empty(); }

  // Move what can be moved now; return whether anything moved. Received messages go into `inbox`. The peer is not
  // notified: see notify(). Data that does not match what was posted ends the world, and throws its error.
  bool move_out();
  bool move_in(std::deque<Message>& inbox);

  // Tells the peer that something was sent, if the link needs that.
  void notify() noexcept { link_.notify(); }
  bool counts_mail() const noexcept { return link_.counts_mail(); }
  int poll_fd() const noexcept { return link_.poll_fd(); }
  // The events that poll(2) should wait for.
  short events() const noexcept;

 private:
  struct Outgoing {
    FrameHeader header;
    base::Bytes owned;                   // of messages
    std::span<const std::byte> payload;  // of data, or of `owned`
    size_t done = 0;                     // bytes of header and payload that are sent
  };
  struct Posted {
    std::span<std::byte> memory;
    uint32_t collective;
  };

  bool is_data() const noexcept { return header_.kind == static_cast<uint32_t>(FrameKind::kData); }
  // After a header: prepares the memory of its payload. False: no memory is posted for it yet.
  bool ready_for_payload();
  std::span<std::byte> payload();
  void finish_frame(std::deque<Message>& inbox);
  [[noreturn]] void broken(const std::string& what);

  Mesh& mesh_;
  const int peer_;
  Link& link_;

  std::deque<Outgoing> outgoing_;
  uint64_t data_queued_ = 0;  // frames, counted for tickets
  uint64_t data_sent_ = 0;

  // The frame that is being received.
  FrameHeader header_{};
  size_t header_done_ = 0;
  base::Bytes message_;
  size_t payload_done_ = 0;
  std::deque<Posted> posted_;
  uint64_t data_posted_ = 0;
  uint64_t data_received_ = 0;
};

}  // namespace farandole::transport
