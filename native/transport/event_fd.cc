#include "transport/event_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"

namespace farandole::transport {

PrivateFd make_event_fd() {
  const ForkHold hold;
  PrivateFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), hold);
  if (!fd) {
    throw base::Error(base::Code::kUnavailable, std::string("no eventfd can be made: ") + std::strerror(errno) +
                                                    "; raise the limit of open files (ulimit -n)");
  }
  return fd;
}

// It cannot block: the owner drains the counter after each wake-up.
void signal_event(int event_fd) noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_fd, &one, sizeof one);
}

void drain_event(int event_fd) noexcept {
  uint64_t signals = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_fd, &signals, sizeof signals);  // there may be none
}

}  // namespace farandole::transport
