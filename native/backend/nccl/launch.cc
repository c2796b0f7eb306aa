#include "backend/nccl/launch.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace farandole::backend::nccl {
namespace {

using collective::Algorithm;
using collective::AllgatherJob;
using collective::AllreduceJob;
using collective::AlltoallJob;
using collective::BroadcastJob;
using collective::ReduceJob;
using collective::ReducescatterJob;

bool is_float(reduce::Dtype dtype) {
  return dtype == reduce::Dtype::kF16 || dtype == reduce::Dtype::kBf16 || dtype == reduce::Dtype::kF32 ||
         dtype == reduce::Dtype::kF64;
}

Dtype dtype_of(reduce::Dtype dtype) {
  switch (dtype) {
    case reduce::Dtype::kI8:
      return Dtype::kInt8;
    case reduce::Dtype::kI32:
      return Dtype::kInt32;
    case reduce::Dtype::kI64:
      return Dtype::kInt64;
    case reduce::Dtype::kF16:
      return Dtype::kFloat16;
    case reduce::Dtype::kF32:
      return Dtype::kFloat32;
    case reduce::Dtype::kF64:
      return Dtype::kFloat64;
    case reduce::Dtype::kBf16:
      return Dtype::kBfloat16;
    default:
      return Dtype::kUint8;  // bool, too: its sum is "or", which is the largest of 0 and 1
  }
}

Op plain_op_of(reduce::Dtype dtype, reduce::Op op) {
  const bool is_bool = dtype == reduce::Dtype::kBool;
  switch (op) {
    case reduce::Op::kMin:
      return Op::kMin;
    case reduce::Op::kMax:
      return Op::kMax;
    case reduce::Op::kProduct:
      return is_bool ? Op::kMin : Op::kProduct;
    default:
      return is_bool ? Op::kMax : Op::kSum;
  }
}

const std::byte* at(const void* memory, size_t offset) { return static_cast<const std::byte*>(memory) + offset; }
std::byte* at(void* memory, size_t offset) { return static_cast<std::byte*>(memory) + offset; }

bool are_equal(const std::vector<size_t>& counts) {
  return std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
}

bool anywhere(const collective::Topology&) { return true; }

constexpr Algorithm row(const char* name, const char* description) {
  return {.name = "nccl", .collective = name, .description = description, .fits = anywhere, .fusible = true};
}
constexpr std::array<Algorithm, collective::kOperations> kAlgorithms = {
    row("allreduce", "ncclAllReduce"),
    row("allreduce", "none"),  // Adasum
    row("allreduce", "none"),  // compressed
    row("allgather", "ncclAllGather, or ncclBroadcast of each member's rows"),
    row("broadcast", "ncclBroadcast"),
    row("alltoall", "ncclSend and ncclRecv"),
    row("reducescatter", "ncclReduceScatter, or ncclReduce of each member's rows"),
    row("reduce", "ncclReduce"),
    row("transfer", "ncclSend and ncclRecv"),
};

}  // namespace

const Algorithm& algorithm_of(Operation operation) { return kAlgorithms.at(static_cast<size_t>(operation)); }

bool takes(const Need& need) {
  switch (need.operation) {
    case Operation::kAllreduce:
    case Operation::kReducescatter:
    case Operation::kReduce:
      break;
    default:
      return true;  // it moves bytes
  }
  if (need.dtype == reduce::Dtype::kI16) {
    return false;
  }
  if (need.op == reduce::Op::kSum && is_float(need.dtype)) {
    return true;
  }
  // Integers are divided and multiplied in float64 elsewhere, and NCCL has no factors for minima, maxima and products.
  return !need.averages && !need.has_factors;
}

Launch::~Launch() {
  try {
    for (const device::Pinned& pinned : pinned_) {
      peers_.gpu.give_back(pinned, peers_.gpu.mark(stream()));
    }
  } catch (const base::Error&) {
    return;  // the GPU has failed: its pinned memory is not used again
  }
}

void Launch::finish() {
  if (created_) {
    check(library_.functions.destroy_op(*std::exchange(created_, std::nullopt), peers_.comm), "ending a reduction");
  }
  if (last_) {
    last_();
  }
  visitors_.send_back();
}

std::byte* Launch::scratch(size_t bytes) {
  return static_cast<std::byte*>(scratch_.emplace_back(peers_.gpu, bytes, stream()).data());
}

std::byte* Launch::identity(const AllreduceJob& job, size_t count) {
  const size_t bytes = count * reduce::size_of(job.dtype);
  std::byte* const memory = scratch(bytes);
  const device::Pinned& pinned = pinned_.emplace_back(peers_.gpu.take_pinned(bytes));
  reduce::fill_identity(job.dtype, job.op, pinned.memory, count);
  peers_.gpu.copy_to_device(memory, pinned.memory, bytes, stream());
  return memory;
}

template <typename Reduction>
Op Launch::op_of(const Reduction& job, Dtype dtype) {
  const double factor = job.prescale.factor * job.postscale.factor;
  if (factor == 1 && job.postscale.divisor == 1) {
    return plain_op_of(job.dtype, job.op);
  }
  if (factor == 1 && job.postscale.divisor == peers_.size) {
    return Op::kAverage;
  }
  double scalar = factor / static_cast<double>(job.postscale.divisor);
  std::array<std::byte, sizeof(double)> bytes{};
  if (job.dtype == reduce::Dtype::kF64) {
    std::memcpy(bytes.data(), &scalar, sizeof scalar);
  } else {
    const auto narrow = static_cast<float>(scalar);
    reduce::convert(reduce::Dtype::kF32, job.dtype, &narrow, bytes.data(), 1);
  }
  Op op = Op::kSum;
  check(library_.functions.create_pre_mul_sum(&op, bytes.data(), dtype, Residence::kHost, peers_.comm),
        "making a reduction with a factor");
  created_ = op;
  return op;
}

// --- the jobs

template <>
void Launch::run(const AllreduceJob& job) {
  const Dtype dtype = dtype_of(job.dtype);
  const Op op = op_of(job, dtype);
  struct Call {
    const void* input;
    void* output;
    size_t count;
  };
  std::vector<Call> calls;
  for (const collective::Piece& piece : job.pieces) {
    if (piece.count == 0) {
      continue;
    }
    if (piece.input == nullptr) {  // this member is absent
      std::byte* const memory = identity(job, piece.count);
      calls.push_back({memory, memory, piece.count});
    } else {
      calls.push_back({piece.input, piece.output, piece.count});
    }
  }
  check(library_.functions.group_start(), "beginning a group");
  for (const Call& call : calls) {
    check(library_.functions.all_reduce(call.input, call.output, call.count, dtype, op, peers_.comm, stream()),
          "an allreduce");
  }
  check(library_.functions.group_end(), "an allreduce");
}

template <>
void Launch::run(const collective::CompressedJob&) {
  throw base::Error(base::Code::kInternal, "NCCL was given a compressed allreduce");
}

template <>
void Launch::run(const AllgatherJob& job) {
  const Functions& nccl = library_.functions;
  if (are_equal(job.bytes)) {
    if (job.bytes.front() > 0) {
      check(nccl.all_gather(job.input, job.output, job.bytes.front(), Dtype::kUint8, peers_.comm, stream()),
            "an allgather");
    }
    return;
  }
  check(nccl.group_start(), "beginning a group");
  size_t offset = 0;
  for (size_t i = 0; i < job.bytes.size(); ++i) {
    if (job.bytes[i] > 0) {
      std::byte* const part = at(job.output, offset);
      const void* const input = static_cast<int>(i) == peers_.rank ? job.input : part;
      check(nccl.broadcast(input, part, job.bytes[i], Dtype::kUint8, static_cast<int>(i), peers_.comm, stream()),
            "an allgather");
    }
    offset += job.bytes[i];
  }
  check(nccl.group_end(), "an allgather");
}

template <>
void Launch::run(const BroadcastJob& job) {
  if (job.bytes == 0) {
    return;
  }
  const Functions& nccl = library_.functions;
  const int root = peers_.ranks[static_cast<size_t>(job.root_index)];
  if (!peers_.is_transfer) {
    const void* const input = peers_.rank == root ? job.input : job.output;
    check(nccl.broadcast(input, job.output, job.bytes, Dtype::kUint8, root, peers_.comm, stream()), "a broadcast");
  } else if (peers_.rank == root) {
    const int peer = peers_.ranks[static_cast<size_t>(1 - job.root_index)];
    check(nccl.send(job.input, job.bytes, Dtype::kUint8, peer, peers_.comm, stream()), "a transfer");
  } else {
    check(nccl.receive(job.output, job.bytes, Dtype::kUint8, root, peers_.comm, stream()), "a transfer");
  }
}

template <>
void Launch::run(const AlltoallJob& job) {
  const Functions& nccl = library_.functions;
  const std::vector<int64_t> received = exchange_(job.rows);
  std::byte* const output = static_cast<std::byte*>(job.output(received));
  const void* input = job.input;
  const size_t sent_bytes = static_cast<size_t>(std::reduce(job.rows.begin(), job.rows.end())) * job.row_bytes;
  if (input == output && sent_bytes > 0) {
    std::byte* const copy = scratch(sent_bytes);
    peers_.gpu.copy(copy, input, sent_bytes, stream());
    input = copy;
  }
  check(nccl.group_start(), "beginning a group");
  size_t sent_at = 0;
  size_t received_at = 0;
  for (size_t i = 0; i < received.size(); ++i) {
    const size_t sent = static_cast<size_t>(job.rows[i]) * job.row_bytes;
    const size_t coming = static_cast<size_t>(received[i]) * job.row_bytes;
    const int peer = static_cast<int>(i);
    if (sent > 0) {
      check(nccl.send(at(input, sent_at), sent, Dtype::kUint8, peer, peers_.comm, stream()), "an alltoall");
    }
    if (coming > 0) {
      check(nccl.receive(at(output, received_at), coming, Dtype::kUint8, peer, peers_.comm, stream()), "an alltoall");
    }
    sent_at += sent;
    received_at += coming;
  }
  check(nccl.group_end(), "an alltoall");
}

template <>
void Launch::run(const ReducescatterJob& job) {
  const Functions& nccl = library_.functions;
  const Dtype dtype = dtype_of(job.dtype);
  if (std::ranges::all_of(job.counts, [](size_t count) { return count == 0; })) {
    return;
  }
  const Op op = op_of(job, dtype);
  if (are_equal(job.counts)) {
    check(nccl.reduce_scatter(job.input, job.output, job.counts.front(), dtype, op, peers_.comm, stream()),
          "a reducescatter");
    return;
  }
  check(nccl.group_start(), "beginning a group");
  size_t offset = 0;
  for (size_t i = 0; i < job.counts.size(); ++i) {
    const void* const part = at(job.input, offset * reduce::size_of(job.dtype));
    if (job.counts[i] > 0) {
      void* const output = static_cast<int>(i) == peers_.rank ? job.output : nullptr;
      check(nccl.reduce(part, output, job.counts[i], dtype, op, static_cast<int>(i), peers_.comm, stream()),
            "a reducescatter");
    }
    offset += job.counts[i];
  }
  check(nccl.group_end(), "a reducescatter");
}

template <>
void Launch::run(const ReduceJob& job) {
  if (job.count == 0) {
    return;
  }
  const Dtype dtype = dtype_of(job.dtype);
  const Op op = op_of(job, dtype);
  const int root = peers_.ranks[static_cast<size_t>(job.root_index)];
  void* const output = peers_.rank == root ? job.output : nullptr;
  check(library_.functions.reduce(job.input, output, job.count, dtype, op, root, peers_.comm, stream()), "a reduce");
  if (peers_.rank != root && job.output != nullptr && job.output != job.input) {
    last_ = [this, input = job.input, target = job.output, bytes = job.count * reduce::size_of(job.dtype)] {
      peers_.gpu.copy(target, input, bytes, stream());
    };
  }
}

void Launch::begin(const collective::Job& job) {
  std::visit([this](const auto& each) { run(each); }, job);
}

}  // namespace farandole::backend::nccl
