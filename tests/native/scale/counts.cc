// Prints what worlds send, with a star for agreement, as a table: scale_counts [RANKS...]; what agreement over a tree
// of hosts sends, and how long a round takes in the simulation's time: scale_counts --fanout K [RANKS...]; how much
// processor time rank 0 and a leader below it need to count the reports of a step: scale_counts --counting K
// [RANKS...]. See docs/explanation/scale.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <vector>

#include "scale/star_and_mesh.h"

namespace farandole::scale {
namespace {

using transport::ControlKind;

constexpr int kBarriers = 10;
// In larger worlds, agreement takes more memory than machines have: every rank knows all of them.
constexpr int kMostAgreeing = 20'000;

void print_set_up(const Layout& layout) {
  StarAndMesh world(layout);
  world.connect();
  world.network().run(20 * kSecond);
  const Counts& counts = world.counts();
  const auto sum = [](const auto& of) { return of(ControlKind::kReady) + of(ControlKind::kFormed); };
  size_t most_peers = 0;
  for (int rank = 0; rank < layout.size; ++rank) {
    most_peers = std::max(most_peers, world.peers(rank).size());
  }
  std::printf(" | %lld", static_cast<long long>(world.last_formed_ns() / kMicrosecond));
  std::printf(" | %llu | %zu | %llu | %llu", static_cast<unsigned long long>(counts.tcp_connections), most_peers,
              static_cast<unsigned long long>(sum([&](ControlKind kind) { return counts.frames(kind); })),
              static_cast<unsigned long long>(sum([&](ControlKind kind) { return counts.bytes(kind); })));
}

void print_agreement(const Layout& layout) {
  if (layout.size > kMostAgreeing) {
    std::printf(" | not simulated | not simulated");
    return;
  }
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

// What follows when these ranks die or fall silent.
void print_loss(const Layout& layout, int first, int count, bool die) {
  StarAndMesh world(layout);
  world.form_at_once();
  world.network().call(
      [&] {
        for (int rank = first; rank < std::min(first + count, layout.size); ++rank) {
          die ? world.kill(rank) : world.stop(rank);
        }
      },
      kMillisecond);
  world.network().run(60 * kSecond);
  int told = 0;
  int64_t last_ns = 0;
  for (int rank = 0; rank < layout.size; ++rank) {
    told += world.is_alive(rank) && world.cause(rank) ? 1 : 0;
    last_ns = std::max(last_ns, world.is_alive(rank) ? world.ended_ns(rank) : 0);
  }
  std::printf(" | %llu | %d | %lld", static_cast<unsigned long long>(world.counts().frames(ControlKind::kRevoke)), told,
              static_cast<long long>((last_ns - kMillisecond) / kMicrosecond));
}

// The time of the simulation from the request of all ranks until the last one runs it.
int64_t round_ns(const Layout& layout) {
  StarAndMesh world(layout);
  int64_t began_ns = 0;
  for (int barrier = 0; barrier < kBarriers; ++barrier) {
    began_ns = world.network().now_ns();
    for (int rank = 0; rank < layout.size; ++rank) {
      world.submit(rank, "barrier");
    }
    world.network().run(INT64_MAX);
  }
  return world.last_obeyed_ns() - began_ns;
}

void print_trees(const std::vector<int>& sizes, int fanout) {
  std::puts(
      "| ranks | all messages for a cached request | their bytes | at rank 0 | at the busiest rank | simulated us, "
      "star "
      "| tree |");
  std::puts("|---:|---:|---:|---:|---:|---:|---:|");
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
    std::printf("| %d | %llu | %llu | %llu | %llu | %lld | %lld |\n", size,
                static_cast<unsigned long long>(after.up + after.down - counts.up - counts.down),
                static_cast<unsigned long long>(after.agreement_bytes - counts.agreement_bytes),
                static_cast<unsigned long long>(world.agreement_messages(0) - before[0]),
                static_cast<unsigned long long>(busiest),
                static_cast<long long>(round_ns({.size = size, .fanout = 0}) / kMicrosecond),
                static_cast<long long>(round_ns({.size = size, .fanout = fanout}) / kMicrosecond));
    std::fflush(stdout);
  }
}

// The requests of a step that have come before: as many as ResNet-50 has tensors.
constexpr uint32_t kTensors = 161;

// For each child of the tree's rank, and for that rank itself, the ranks that it reports for.
std::vector<engine::RankSet> reporters(const engine::AgreementTree& tree) {
  std::vector<engine::RankSet> all{engine::RankSet(tree.rank())};
  std::vector<size_t> at(static_cast<size_t>(tree.size()));
  for (const int child : tree.children()) {
    at[static_cast<size_t>(child)] = all.size();
    all.emplace_back();
  }
  for (int rank = 0; rank < tree.size(); ++rank) {
    if (const int child = tree.child_towards(rank); rank != tree.rank() && child >= 0) {
      all[at[static_cast<size_t>(child)]].add(engine::RankSet(rank));
    }
  }
  return all;
}

// What they report of a step; known: each name has its bit.
std::vector<engine::Report> reports_of_step(const std::vector<engine::RankSet>& reporters, bool known) {
  std::vector<engine::Report> reports;
  for (const engine::RankSet& ranks : reporters) {
    engine::Report& report = reports.emplace_back();
    report.ranks = ranks;
    report.last_rank = ranks.highest();
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      if (known) {
        report.ready.add_known(0, tensor);
      } else {
        report.ready.fresh.push_back({0, "tensor " + std::to_string(tensor), {}});
      }
    }
  }
  return reports;
}

int64_t processor_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// The processor time of a rank for the reports of one step, of which it has seen some before; the median.
int64_t counting_ns(const Layout& layout, int rank) {
  std::vector<int> hosts;
  for (int each = 0; each < layout.size; ++each) {
    hosts.push_back(layout.host_of(each) * layout.ranks_per_host);
  }
  const engine::AgreementTree root(0, hosts, *layout.fanout);
  engine::Coordinator coordinator(layout.size);
  const engine::AgreementTree tree(rank, hosts, *layout.fanout);
  engine::SubtreeTally subtree(tree, engine::SubtreeTally::kHoldNs);
  std::vector<int64_t> times;
  for (int step = 0; step < 9; ++step) {
    const bool is_known = step >= 2;  // a name has a bit from the third time on
    const std::vector<engine::Report> to_root = reports_of_step(reporters(root), is_known);
    const std::vector<engine::Report> to_rank = reports_of_step(reporters(tree), is_known);
    const int64_t began_ns = processor_ns();
    for (const engine::Report& report : to_rank) {
      rank == 0 ? coordinator.receive(report) : subtree.add(report, 0);
    }
    if (rank == 0) {
      coordinator.decide();
    } else {
      subtree.take(0);
    }
    if (is_known) {
      times.push_back(processor_ns() - began_ns);
    }
    if (rank != 0 && !is_known) {
      for (const engine::Report& report : to_root) {
        coordinator.receive(report);
      }
      for (const engine::Decision& decision : coordinator.decide()) {
        subtree.follow(decision);
      }
    }
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

void print_counting(const std::vector<int>& sizes, int fanout) {
  std::printf(
      "| ranks | us of rank 0 for a step of %u known tensors, star | tree | of the leader of the second host |\n",
      kTensors);
  std::puts("|---:|---:|---:|---:|");
  for (const int size : sizes) {
    const Layout tree{.size = size, .fanout = fanout};
    std::printf("| %d | %lld | %lld | %lld |\n", size,
                static_cast<long long>(counting_ns({.size = size, .fanout = 0}, 0) / kMicrosecond),
                static_cast<long long>(counting_ns(tree, 0) / kMicrosecond),
                static_cast<long long>(counting_ns(tree, tree.ranks_per_host) / kMicrosecond));
    std::fflush(stdout);
  }
}

void print_table(const std::vector<int>& sizes) {
  std::puts(
      "| ranks | us of the model until the world has formed | TCP connections | most links of a rank | messages of the "
      "set-up | their bytes | messages at rank 0 for a cached request | their bytes "
      "| messages after a death | ranks that know | us of the model until all know | the same when a host falls silent "
      "| | |");
  std::puts("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
  for (const int size : sizes) {
    const Layout layout{.size = size, .fanout = 0};
    std::printf("| %d", size);
    print_set_up(layout);
    print_agreement(layout);
    print_loss(layout, size / 2, 1, /*die=*/true);
    print_loss(layout, layout.host_of(size / 2) * layout.ranks_per_host, layout.ranks_per_host, /*die=*/false);
    std::puts(" |");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace farandole::scale

int main(int argc, char** argv) {
  std::vector<int> sizes;
  int first = 1;
  int fanout = 0;
  const std::string_view what = argc > 2 ? argv[1] : "";
  if (what == "--fanout" || what == "--counting") {
    fanout = static_cast<int>(std::strtol(argv[2], nullptr, 10));
    first = 3;
  }
  for (int i = first; i < argc; ++i) {
    sizes.push_back(static_cast<int>(std::strtol(argv[i], nullptr, 10)));
  }
  if (sizes.empty()) {
    sizes = {8, 64, 256};
  }
  if (what == "--counting") {
    farandole::scale::print_counting(sizes, fanout);
  } else if (what == "--fanout") {
    farandole::scale::print_trees(sizes, fanout);
  } else {
    farandole::scale::print_table(sizes);
  }
  return 0;
}
