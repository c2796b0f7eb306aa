#include "collective/algorithm_table.h"

#include <array>
#include <cstring>
#include <string>

#include "base/error.h"
#include "collective/allgather/allgather.h"
#include "collective/allreduce/allreduce.h"
#include "collective/alltoall/alltoall.h"
#include "collective/broadcast/broadcast.h"
#include "collective/reduce/reduce.h"
#include "collective/reducescatter/reducescatter.h"
#include "reduce/kernels.h"

namespace farandole::collective {
namespace {

bool on_one_host(const Topology& topology) { return topology.hosts == 1; }
bool anywhere(const Topology&) { return true; }
// With more members than this, a small tensor is reduced sooner by few messages in sequence than by many at once.
constexpr int kMostExchanging = 8;

bool several_on_every_host(const Topology& topology) { return topology.hosts > 1 && topology.fewest_on_a_host > 1; }

constexpr std::array kTable = {
    Algorithm{.name = "direct",
              .collective = "allreduce",
              .description = "each worker of the host reduces its slice from all arenas and writes it to all of them",
              .fits = on_one_host,
              .fusible = true,
              .run = Runs<allreduce_direct>::run,
              .stage = stage_direct,
              .reduce_staged = reduce_staged_direct},
    Algorithm{.name = "ring",
              .collective = "allreduce",
              .description = "slices travel around a ring twice: summed on the first round, copied on the second",
              .fits = anywhere,
              .fusible = false,
              .run = Runs<allreduce_ring>::run},
    Algorithm{
        .name = "recursive_doubling",
        .collective = "allreduce",
        .description = "pairs at distance 1, 2, 4 ... exchange and add everything: few messages, for small tensors",
        .fits = anywhere,
        .fusible = true,
        .run = Runs<allreduce_recursive_doubling>::run},
    Algorithm{.name = "exchange",
              .collective = "allreduce",
              .description = "everyone sends slices straight to those who add them up, and they send the sums to all, "
                             "pipelined in chunks",
              .fits = anywhere,
              .fusible = true,
              .run = Runs<allreduce_exchange>::run},
    Algorithm{.name = "two_level",
              .collective = "allreduce",
              .description = "reduce-scatter on each host, an exchange across hosts per slice, allgather on each host, "
                             "all of them overlapping",
              .fits = several_on_every_host,
              .fusible = true,
              .run = Runs<allreduce_two_level>::run},
    Algorithm{.name = "vector_halving",
              .collective = "adasum",
              .description = "pairs at distance 1, 2, 4 ... exchange halves and combine them, each tensor with factors "
                             "of its own",
              .fits = anywhere,
              .fusible = true,
              .run = Runs<allreduce_adasum>::run},
    Algorithm{.name = "int8",
              .collective = "compressed allreduce",
              .description =
                  "bytes with a scale for each 256 elements; each worker adds up its slice and sends the sum "
                  "to all",
              .fits = anywhere,
              .fusible = true,
              .run = Runs<allreduce_int8>::run},
    Algorithm{.name = "topk",
              .collective = "compressed allreduce",
              .description = "each worker sends its largest elements to all others",
              .fits = anywhere,
              .fusible = true,
              .run = Runs<allreduce_topk>::run},
    Algorithm{.name = "direct",
              .collective = "allgather",
              .description = "each worker of the host reads every part from its owner's arena",
              .fits = on_one_host,
              .fusible = true,
              .run = Runs<allgather_direct>::run},
    Algorithm{.name = "linear",
              .collective = "allgather",
              .description = "each worker sends its part to every other",
              .fits = anywhere,
              .fusible = true,
              .run = Runs<allgather_linear>::run},
    Algorithm{.name = "direct",
              .collective = "broadcast",
              .description = "each worker of the host reads from the root's arena",
              .fits = on_one_host,
              .fusible = true,
              .run = Runs<broadcast_direct>::run},
    Algorithm{.name = "tree",
              .collective = "broadcast",
              .description = "a binomial tree, pipelined in chunks",
              .fits = anywhere,
              .fusible = true,
              .run = Runs<broadcast_tree>::run},
    Algorithm{.name = "direct",
              .collective = "alltoall",
              .description = "each worker of the host reads what is meant for it from the arenas of the others",
              .fits = on_one_host,
              .fusible = false,
              .run = Runs<alltoall_direct>::run},
    Algorithm{.name = "pairwise",
              .collective = "alltoall",
              .description = "each worker sends every other what is meant for it",
              .fits = anywhere,
              .fusible = false,
              .run = Runs<alltoall_pairwise>::run},
    Algorithm{.name = "direct",
              .collective = "reducescatter",
              .description = "each worker of the host reduces its rows from all arenas into its output",
              .fits = on_one_host,
              .fusible = false,
              .run = Runs<reducescatter_direct>::run},
    Algorithm{.name = "exchange",
              .collective = "reducescatter",
              .description = "everyone sends parts straight to their owners, who add them up, pipelined in chunks",
              .fits = anywhere,
              .fusible = false,
              .run = Runs<reducescatter_exchange>::run},
    Algorithm{.name = "ring",
              .collective = "reducescatter",
              .description = "parts travel around a ring once and are summed on the way to their owner",
              .fits = anywhere,
              .fusible = false,
              .run = Runs<reducescatter_ring>::run},
    Algorithm{.name = "direct",
              .collective = "reduce",
              .description = "the root reduces the tensors from the arenas of all workers of the host",
              .fits = on_one_host,
              .fusible = false,
              .run = Runs<reduce_direct>::run},
    Algorithm{.name = "exchange",
              .collective = "reduce",
              .description = "everyone sends its tensor straight to the root, which adds them up, pipelined in chunks",
              .fits = anywhere,
              .fusible = false,
              .run = Runs<reduce_exchange>::run},
};

constexpr const char* kAskedFor = "it was asked for";
constexpr const char* kShareMemory = "all members share memory";

constexpr const Algorithm* find(std::string_view collective, std::string_view name) {
  if (name.empty()) {
    return nullptr;  // The usual case, and on the path of every request: no algorithm is asked for.
  }
  for (const Algorithm& row : kTable) {
    if (row.collective == collective && row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

// The row of an algorithm that this file names: one that does not exist is an error of the compiler.
consteval const Algorithm& known(std::string_view collective, std::string_view name) { return *find(collective, name); }

Choice choice_of(const Algorithm& algorithm, const char* reason) noexcept {
  return {&algorithm, static_cast<uint32_t>(&algorithm - kTable.data()), reason};
}

// Throws Error(kInvalidArgument) when the table has no such row.
Choice wanted_row(std::string_view collective, std::string_view name) {
  const Algorithm* const found = find(collective, name);
  if (found == nullptr) {
    std::string rows;
    for (const Algorithm& each : kTable) {
      rows += each.collective == collective ? (rows.empty() ? "" : ", ") + std::string(each.name) : "";
    }
    throw base::Error(base::Code::kInvalidArgument, "there is no algorithm '" + std::string(name) + "' for " +
                                                        std::string(collective) + "; there are: " + rows);
  }
  return choice_of(*found, kAskedFor);
}

// The choice for collectives that have one algorithm for shared memory and one for every topology.
Choice by_topology(const Topology& topology, std::string_view wanted, const Algorithm& on_one,
                   const Algorithm& elsewhere) {
  if (const Algorithm* asked = find(on_one.collective, wanted); asked != nullptr && asked->fits(topology)) {
    return choice_of(*asked, kAskedFor);
  }
  return on_one_host(topology) ? choice_of(on_one, kShareMemory) : choice_of(elsewhere, "members on several hosts");
}

Choice choose_allreduce(const Topology& topology, size_t bytes, const Knobs& knobs, std::string_view wanted) {
  if (const Algorithm* asked = find("allreduce", wanted); asked != nullptr && asked->fits(topology)) {
    return choice_of(*asked, kAskedFor);
  }
  if (on_one_host(topology)) {
    return choice_of(known("allreduce", "direct"), kShareMemory);
  }
  if (several_on_every_host(topology)) {
    return choice_of(known("allreduce", "two_level"), "several hosts with several members each");
  }
  if (topology.members > kMostExchanging && bytes < knobs.ring_bytes) {
    return choice_of(known("allreduce", "recursive_doubling"),
                     "a small tensor, and too many members to send to each of them");
  }
  return choice_of(known("allreduce", "exchange"), "a host has one member only");
}

struct OperationRow {
  Operation operation;
  const char* name;
  Choice (*choose)(const Topology& topology, size_t bytes, const Knobs& knobs, std::string_view wanted);
};

// In the order of the enumeration.
constexpr std::array<OperationRow, kOperations> kOperationTable = {{
    {Operation::kAllreduce, "allreduce", choose_allreduce},
    {Operation::kAdasum, "Adasum",
     [](const Topology&, size_t, const Knobs&, std::string_view) {
       return choice_of(known("adasum", "vector_halving"), "the only one there is");
     }},
    {Operation::kCompressedAllreduce, "compressed allreduce",
     [](const Topology&, size_t, const Knobs&, std::string_view wanted) {
       return wanted_row("compressed allreduce", wanted);
     }},
    {Operation::kAllgather, "allgather",
     [](const Topology& topology, size_t, const Knobs&, std::string_view wanted) {
       return by_topology(topology, wanted, known("allgather", "direct"), known("allgather", "linear"));
     }},
    {Operation::kBroadcast, "broadcast",
     [](const Topology& topology, size_t, const Knobs&, std::string_view wanted) {
       return by_topology(topology, wanted, known("broadcast", "direct"), known("broadcast", "tree"));
     }},
    {Operation::kAlltoall, "alltoall",
     [](const Topology& topology, size_t, const Knobs&, std::string_view wanted) {
       return by_topology(topology, wanted, known("alltoall", "direct"), known("alltoall", "pairwise"));
     }},
    {Operation::kReducescatter, "reducescatter",
     [](const Topology& topology, size_t, const Knobs&, std::string_view wanted) {
       return by_topology(topology, wanted, known("reducescatter", "direct"), known("reducescatter", "exchange"));
     }},
    {Operation::kReduce, "reduce",
     [](const Topology& topology, size_t, const Knobs&, std::string_view wanted) {
       return by_topology(topology, wanted, known("reduce", "direct"), known("reduce", "exchange"));
     }},
    {Operation::kTransfer, "transfer",
     [](const Topology&, size_t, const Knobs&, std::string_view) {
       return choice_of(known("broadcast", "tree"), "two members, and links only");
     }},
}};
static_assert([] {
  for (size_t i = 0; i < kOperations; ++i) {
    if (kOperationTable[i].operation != static_cast<Operation>(i)) {
      return false;
    }
  }
  return true;
}());

// --- a group of one

void copy_alone(const void* input, void* output, size_t bytes) {
  if (input != output && bytes > 0) {
    std::memcpy(output, input, bytes);
  }
}

void run_alone(const AllreduceJob& job) {
  for (const Piece& piece : job.pieces) {
    if (piece.output != nullptr) {
      reduce::scale_to(job.dtype, piece.input, piece.output, piece.count, job.prescale);
      reduce::scale_to(job.dtype, piece.output, piece.output, piece.count, job.postscale);
    }
  }
}

void run_alone(const CompressedJob& job) { compressed_alone(job); }

void run_alone(const AllgatherJob& job) { copy_alone(job.input, job.output, job.bytes.front()); }

void run_alone(const BroadcastJob& job) { copy_alone(job.input, job.output, job.bytes); }

void run_alone(const AlltoallJob& job) {
  copy_alone(job.input, job.output(job.rows), static_cast<size_t>(job.rows.front()) * job.row_bytes);
}

void run_alone(const ReducescatterJob& job) {
  reduce::scale_to(job.dtype, job.input, job.output, job.counts.front(), job.prescale);
  reduce::scale_to(job.dtype, job.output, job.output, job.counts.front(), job.postscale);
}

void run_alone(const ReduceJob& job) {
  reduce::scale_to(job.dtype, job.input, job.output, job.count, job.prescale);
  reduce::scale_to(job.dtype, job.output, job.output, job.count, job.postscale);
}

}  // namespace

std::span<const Algorithm> algorithms() noexcept { return kTable; }

const char* name_of(Operation operation) noexcept { return kOperationTable[static_cast<size_t>(operation)].name; }

Choice choose(Operation operation, const Topology& topology, size_t bytes, const Knobs& knobs,
              std::string_view wanted) {
  return kOperationTable[static_cast<size_t>(operation)].choose(topology, bytes, knobs, wanted);
}

void run(Context& context, const Choice& choice, const Job& job) {
  if (context.group.size() == 1) {
    std::visit([](const auto& each) { run_alone(each); }, job);
  } else {
    choice.algorithm->run(context, job);
  }
}

}  // namespace farandole::collective
