#include "transport/shm/shm_exchange.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/error.h"

namespace farandole::transport {
namespace {

constexpr uint64_t kMagic = 0x4f4c4c45484e4146;  // "FANHELLO"
constexpr size_t kBytes = 5 * sizeof(uint64_t);
constexpr size_t kDescriptors = 2;

// The message in the form that sendmsg and recvmsg take; one for both directions.
struct Envelope {
  std::array<std::byte, kBytes> bytes{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> ancillary{};
  iovec content{bytes.data(), bytes.size()};
  msghdr header{};

  Envelope() {
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.data();
    header.msg_controllen = ancillary.size();
  }
};

// Takes the received descriptors into ownership, whatever else the message turns out to be.
void take_descriptors(Envelope& envelope, ReceivedShmOffer& received, const ForkHold& hold) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&envelope.header); part != nullptr; part = CMSG_NXTHDR(&envelope.header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      (i == 0 ? received.memory : received.doorbell) = PrivateFd(fd, hold);
    }
  }
}

bool is_sealed_arena(int fd, size_t bytes, struct stat& status) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(fd, &status) == 0 &&
         static_cast<uint64_t>(status.st_size) == bytes && bytes >= sizeof(ArenaHeader);
}

}  // namespace

void send_shm_offer(int socket, const ShmOffer& offer, int memory_fd, int doorbell_fd) {
  base::Writer writer;
  writer.put(kMagic);
  writer.put(offer.generation);
  writer.put(offer.arena_bytes);
  writer.put(offer.ring_offset);
  writer.put(offer.ring_bytes);
  const base::Bytes bytes = writer.take();

  Envelope envelope;
  std::memcpy(envelope.bytes.data(), bytes.data(), kBytes);
  cmsghdr* const part = CMSG_FIRSTHDR(&envelope.header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(kDescriptors * sizeof(int));
  const std::array<int, kDescriptors> fds = {memory_fd, doorbell_fd};
  std::memcpy(CMSG_DATA(part), fds.data(), sizeof fds);

  const ssize_t sent = ::sendmsg(socket, &envelope.header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET) {
    throw base::Error(base::Code::kUnavailable,
                      std::string("an arena cannot be handed to a worker of the same host: ") + std::strerror(errno));
  }
}

Exchange receive_shm_offer(int socket, ReceivedShmOffer& received) {
  Envelope envelope;
  ssize_t got = 0;
  {
    const ForkHold hold;
    got = ::recvmsg(socket, &envelope.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0) {
      take_descriptors(envelope, received, hold);
    }
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return Exchange::kNotYet;
  }
  if (got <= 0) {
    return Exchange::kClosed;
  }
  if ((envelope.header.msg_flags & MSG_CTRUNC) != 0) {
    throw base::Error(base::Code::kUnavailable,
                      "no descriptor is left to share memory with a worker of the same host; raise the limit of "
                      "open files (ulimit -n)");
  }
  base::Reader reader(envelope.bytes);
  const bool ours = reader.get<uint64_t>() == kMagic;
  received.offer.generation = reader.get<uint64_t>();
  received.offer.arena_bytes = reader.get<uint64_t>();
  received.offer.ring_offset = reader.get<uint64_t>();
  received.offer.ring_bytes = reader.get<uint64_t>();
  const bool whole = got == static_cast<ssize_t>(kBytes) && received.memory && received.doorbell;
  return ours && whole ? Exchange::kDone : Exchange::kBroken;
}

std::shared_ptr<const Mapping> MappingCache::map(int fd, size_t bytes) {
  struct stat status{};
  if (!is_sealed_arena(fd, bytes, status)) {
    return nullptr;
  }
  auto& mapping = mappings_[{status.st_dev, status.st_ino}];
  if (mapping == nullptr) {
    mapping = std::make_shared<const Mapping>(fd, bytes);
  }
  return mapping;
}

void MappingCache::drop_unused() {
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.use_count() <= 1; });
}

}  // namespace farandole::transport
