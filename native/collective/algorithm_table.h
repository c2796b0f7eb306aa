// The table of algorithms, the choice among them, and running the chosen one. One algorithm, one file, one row.
//
// Which algorithm a tensor gets, and so the order in which its elements are added, depends on the tensor's
// own size and on the world, never on what else happens to be ready: results do not depend on timing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "collective/bucket.h"
#include "collective/compressed/compressed.h"
#include "collective/exchange.h"
#include "collective/group.h"
#include "collective/knobs.h"
#include "collective/shm_sequence.h"
#include "collective/staging.h"

namespace farandole::collective {

// The resources that an algorithm uses. They belong to the engine thread.
struct Context {
  transport::FrameMultiplexer& frames;
  ShmSequence& sequence;
  Staging& staging;
  const Group& group;
  const Knobs& knobs;
  ExchangeCarrier& exchanges;  // between hosts
  // The members whose memory the algorithm may have read: all, unless it says otherwise.
  std::span<const int> read = group.members;
};

inline size_t chunk_bytes(const Context& context) {
  return std::min<size_t>(chunk_bytes(context.knobs, context.group.size()), context.staging.piece_bytes());
}

// Copies parts of a result of `total` bytes.
class Copy {
 public:
  Copy(const Knobs& knobs, size_t total) : streamed_(total >= knobs.stream_bytes) {}
  void operator()(void* destination, const void* source, size_t bytes) const {
    if (streamed_) {
      reduce::copy_stream(destination, source, bytes);
    } else {
      std::memcpy(destination, source, bytes);
    }
  }

 private:
  bool streamed_;
};

// Jobs with one input and one output have the functions `input_bytes` and `output_bytes`: the sizes of the memory of
// the member with this index in the group.

struct AllgatherJob {
  const void* input = nullptr;
  std::vector<size_t> bytes;  // of each member
  void* output = nullptr;     // as many bytes as the sum of `bytes`

  size_t input_bytes(size_t member) const { return bytes[member]; }
  size_t output_bytes(size_t) const { return std::reduce(bytes.begin(), bytes.end()); }
};

struct BroadcastJob {
  const void* input = nullptr;  // read at the root only
  void* output = nullptr;       // written everywhere; may be the input
  size_t bytes = 0;
  int root_index = 0;  // in the group

  size_t input_bytes(size_t) const { return bytes; }
  size_t output_bytes(size_t) const { return bytes; }
};

// Every member sends rows to every member. A member learns how many rows it receives during the exchange itself.
struct AlltoallJob {
  const void* input = nullptr;
  std::vector<int64_t> rows;  // for each member; they lie in the input in the members' order
  size_t row_bytes = 0;
  // Called once, with the number of rows that come from each member: gives the memory for all of them, in the members'
  // order. May give null when there are no bytes.
  std::function<void*(const std::vector<int64_t>& received)> output;
};

// An allreduce of which each member keeps only its own part:
// output = postscale(op over ranks of prescale(input))[own part].
struct ReducescatterJob {
  reduce::Dtype dtype = reduce::Dtype::kF32;
  reduce::Op op = reduce::Op::kSum;
  reduce::Scale prescale;
  reduce::Scale postscale;
  const void* input = nullptr;
  std::vector<size_t> counts;  // elements of the part of each member; they lie in the members' order
  void* output = nullptr;      // memory for the own part: the part's place in the input, or outside of the input

  size_t input_bytes(size_t) const { return std::reduce(counts.begin(), counts.end()) * reduce::size_of(dtype); }
  size_t output_bytes(size_t member) const { return counts[member] * reduce::size_of(dtype); }
};

// An allreduce of which one member gets the result.
struct ReduceJob {
  reduce::Dtype dtype = reduce::Dtype::kF32;
  reduce::Op op = reduce::Op::kSum;
  reduce::Scale prescale;
  reduce::Scale postscale;
  const void* input = nullptr;
  void* output = nullptr;  // the result at the root, elsewhere the input's elements; may be the input
  size_t count = 0;        // elements
  int root_index = 0;      // in the group

  size_t input_bytes(size_t) const { return count * reduce::size_of(dtype); }
  size_t output_bytes(size_t) const { return count * reduce::size_of(dtype); }
};

// Any of these jobs: a backend runs it, and a row of the table carries it out.
using Job =
    std::variant<AllreduceJob, CompressedJob, AllgatherJob, BroadcastJob, AlltoallJob, ReducescatterJob, ReduceJob>;

// An algorithm, as a function of any job. It must be given the job of its own collective.
template <auto kAlgorithm>
struct Runs;
template <typename OneJob, void (*kAlgorithm)(Context&, const OneJob&)>
struct Runs<kAlgorithm> {
  static void run(Context& context, const Job& job) { kAlgorithm(context, std::get<OneJob>(job)); }
};

struct Algorithm {
  const char* name;
  const char* collective;
  const char* description;
  bool (*fits)(const Topology& topology);
  // Whether the result of an element is the same wherever it lies in a bucket. Where it is not, a tensor
  // travels alone.
  bool fusible;
  // Takes the job of `collective`; Adasum's is an allreduce. Null: a backend runs it by itself.
  void (*run)(Context& context, const Job& job) = nullptr;
  // Does what a member can do by itself, before it is known that all members run the job, and does not advance the
  // sequence. Null: there is no such work. Even when the members then do not run this job, the next allreduce may be
  // another job.
  void (*stage)(Context& context, const AllreduceJob& job) = nullptr;
  // Does what one member can do for all when all have staged the job and are going to run it, unless that fails for
  // another reason. Null, where `stage` is not: there is no such work.
  void (*reduce_staged)(Context& context, const AllreduceJob& job) = nullptr;
};

std::span<const Algorithm> algorithms() noexcept;

struct Choice {
  const Algorithm* algorithm;
  uint32_t index;      // in algorithms()
  const char* reason;  // for people
};

// The operations of a group of workers. A row in algorithm_table.cc says how the algorithm of each is chosen.
enum class Operation : uint8_t {
  kAllreduce,
  kAdasum,
  kCompressedAllreduce,
  kAllgather,
  kBroadcast,
  kAlltoall,
  kReducescatter,
  kReduce,
  // A broadcast in the group of its two members. It must not advance the sequence in shared memory: that is counted
  // within one decision (see shm_sequence.h), and members of the larger group that have no part in the transfer would
  // count otherwise than these two, and would take each other's memory for ready when it is not.
  kTransfer,
  kLast = kTransfer
};
inline constexpr size_t kOperations = static_cast<size_t>(Operation::kLast) + 1;
const char* name_of(Operation operation) noexcept;  // "allreduce"

// Chooses for a tensor of this size in bytes. `wanted` is a name from the table, or empty for the best algorithm; a
// name that does not fit the topology is ignored. A compressed allreduce is chosen by its name alone: throws
// Error(kInvalidArgument) when the table has no such row.
Choice choose(Operation operation, const Topology& topology, size_t bytes, const Knobs& knobs, std::string_view wanted);

// Runs a job by the chosen algorithm. In a group of one no algorithm runs; what the job asks for is done all the same.
void run(Context& context, const Choice& choice, const Job& job);

// Allreduces in place a buffer that only this worker uses, among `peers` (ranks, this one included) over links.
// Elements are of an accumulator type.
using BufferAllreduce = void (*)(Context& context, std::span<const int> peers, reduce::Dtype dtype, reduce::Op op,
                                 std::byte* data, size_t count);

}  // namespace farandole::collective
