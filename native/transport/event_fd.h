// An eventfd, by which one thread or process ends the poll() of another.
#pragma once

#include "transport/private_fd.h"

namespace farandole::transport {

// It does not block. Throws Error(kUnavailable).
PrivateFd make_event_fd();
// Makes it readable. A closed one, whose owner is gone, is left alone.
void signal_event(int event_fd) noexcept;
// Makes it unreadable until the next signal.
void drain_event(int event_fd) noexcept;

}  // namespace farandole::transport
