// Prints what today's star and mesh send, as a table: scale_counts [RANKS...]. See docs/explanation/scale.md.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "scale/star_and_mesh.h"

namespace farandole::scale {
namespace {

constexpr int kBarriers = 10;
// Above this many ranks the set-up is not run: every rank keeps a bit for every pair of ranks.
constexpr int kMostSetUp = 1'024;

void print_set_up(const Layout& layout) {
  if (layout.size > kMostSetUp) {
    std::printf(" | - | - | -");
    return;
  }
  StarAndMesh world(layout);
  world.connect();
  world.network().run(20 * kSecond);
  const Counts& counts = world.counts();
  std::printf(" | %llu | %llu | %llu", static_cast<unsigned long long>(counts.tcp_connections),
              static_cast<unsigned long long>(counts.frames(transport::ControlKind::kReady)),
              static_cast<unsigned long long>(counts.bytes(transport::ControlKind::kReady)));
}

void print_agreement(const Layout& layout) {
  StarAndMesh world(layout);
  Counts before;
  for (int barrier = 0; barrier < kBarriers; ++barrier) {
    before = world.counts();
    for (int rank = 0; rank < layout.size; ++rank) {
      world.submit(rank, "barrier");
    }
    world.network().run(INT64_MAX);
  }
  const Counts& after = world.counts();
  std::printf(" | %llu | %llu",
              static_cast<unsigned long long>(after.to_root + after.from_root - before.to_root - before.from_root),
              static_cast<unsigned long long>(after.agreement_bytes - before.agreement_bytes));
}

void print_loss(const Layout& layout) {
  StarAndMesh world(layout);
  world.form_at_once();
  world.network().call([&] { world.kill(layout.size / 2); }, kMillisecond);
  world.network().run(60 * kSecond);
  int told = 0;
  for (int rank = 0; rank < layout.size; ++rank) {
    told += world.cause(rank).has_value() ? 1 : 0;
  }
  std::printf(" | %llu | %d |\n",
              static_cast<unsigned long long>(world.counts().frames(transport::ControlKind::kRevoke)), told);
}

void print_table(const std::vector<int>& sizes) {
  std::puts(
      "| ranks | TCP connections | ready frames | their bytes | messages at rank 0 for a cached request | their bytes "
      "| frames after a loss | ranks that know |");
  std::puts("|---:|---:|---:|---:|---:|---:|---:|---:|");
  for (const int size : sizes) {
    const Layout layout{.size = size};
    std::printf("| %d", size);
    print_set_up(layout);
    print_agreement(layout);
    print_loss(layout);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace farandole::scale

int main(int argc, char** argv) {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) {
    sizes.push_back(static_cast<int>(std::strtol(argv[i], nullptr, 10)));
  }
  farandole::scale::print_table(sizes.empty() ? std::vector<int>{8, 64, 256} : sizes);
  return 0;
}
