#include "transport/link_kind.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "transport/shm/shm_kind.h"
#include "transport/tcp/tcp_kind.h"

namespace farandole::transport {
namespace {

const std::array kKinds = {
    kShmKind,
    kTcpKind,
};

}  // namespace

std::span<const LinkKind> link_kinds() noexcept { return kKinds; }

const LinkKind& kind_of_link(const Contact& self, const Contact& peer, bool over_unix) noexcept {
  const auto kind = std::ranges::find_if(kKinds, [&](const LinkKind& row) { return row.fits(self, peer, over_unix); });
  assert(kind != kKinds.end());  // TCP fits every connection that is not over a Unix socket, shm every other one
  return *kind;
}

}  // namespace farandole::transport
