// Prints what today's star and mesh send, as a table: scale_counts [RANKS...]; and what agreement over a tree of hosts
// sends: scale_counts --fanout K [RANKS...]. See docs/explanation/scale.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
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
  std::printf(" | %llu | %llu", static_cast<unsigned long long>(after.up + after.down - before.up - before.down),
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

void print_trees(const std::vector<int>& sizes, int fanout) {
  std::puts("| ranks | all messages for a cached request | their bytes | at rank 0 | at the busiest rank |");
  std::puts("|---:|---:|---:|---:|---:|");
  for (const int size : sizes) {
    StarAndMesh world({.size = size, .fanout = fanout});
    std::vector<uint64_t> before(static_cast<size_t>(size));
    Counts counts;
    for (int barrier = 0; barrier < kBarriers; ++barrier) {
      counts = world.counts();
      for (int rank = 0; rank < size; ++rank) {
        before[static_cast<size_t>(rank)] = world.agreement_messages(rank);
        world.submit(rank, "barrier");
      }
      world.network().run(INT64_MAX);
    }
    uint64_t busiest = 0;
    for (int rank = 0; rank < size; ++rank) {
      busiest = std::max(busiest, world.agreement_messages(rank) - before[static_cast<size_t>(rank)]);
    }
    const Counts& after = world.counts();
    std::printf("| %d | %llu | %llu | %llu | %llu |\n", size,
                static_cast<unsigned long long>(after.up + after.down - counts.up - counts.down),
                static_cast<unsigned long long>(after.agreement_bytes - counts.agreement_bytes),
                static_cast<unsigned long long>(world.agreement_messages(0) - before[0]),
                static_cast<unsigned long long>(busiest));
    std::fflush(stdout);
  }
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
  int first = 1;
  int fanout = 0;
  if (argc > 2 && std::string_view(argv[1]) == "--fanout") {
    fanout = static_cast<int>(std::strtol(argv[2], nullptr, 10));
    first = 3;
  }
  for (int i = first; i < argc; ++i) {
    sizes.push_back(static_cast<int>(std::strtol(argv[i], nullptr, 10)));
  }
  if (sizes.empty()) {
    sizes = {8, 64, 256};
  }
  if (fanout > 0) {
    farandole::scale::print_trees(sizes, fanout);
  } else {
    farandole::scale::print_table(sizes);
  }
  return 0;
}
