// Allreduce in bytes with one scale a chunk (see reduce/quantize.h), over links.
//
// Tensors are cut into segments, and each segment into one slice for each member, at the borders of chunks. A member
// quantizes all slices of its addend and sends slice j to member j; that one adds up what it gets, and its own part, in
// the order of the members, in float32; quantizes the sum and sends it to all, which write it to their outputs. So a
// member sends 2(n-1)/n of a quarter of the tensor. There are two roundings, each by at most half a scale. What the
// first one loses goes to the sender's residual, what the second one loses to that of the slice's owner.
//
// A batch is a run of segments; batches are pipelined, so that one is quantized while another one travels. All members
// cut alike, by the sizes of the tensors only.
#include <algorithm>
#include <array>
#include <memory>

#include "collective/algorithm_table.h"
#include "collective/compressed/addend.h"
#include "reduce/quantize.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using reduce::kQuantizedChunk;

constexpr size_t kSegment = size_t{1} << 18;  // elements, also the most of a batch
// One batch is being packed, one travels to the owners of its slices, and one comes back.
constexpr size_t kInFlight = 3;
static_assert(kSegment % kQuantizedChunk == 0 && kAddendBlock % kQuantizedChunk == 0);

struct Segment {
  size_t piece;
  size_t from;  // elements of the tensor
  size_t count;
};

using Segments = std::vector<Segment>;

std::vector<Segments> batches_of(const AllreduceJob& job) {
  std::vector<Segments> batches;
  size_t room = 0;
  for (size_t piece = 0; piece < job.pieces.size(); ++piece) {
    for (size_t from = 0; from < job.pieces[piece].count; from += kSegment) {
      const size_t count = std::min(kSegment, job.pieces[piece].count - from);
      if (count > room) {
        batches.emplace_back();
        room = kSegment;
      }
      batches.back().push_back({piece, from, count});
      room -= count;
    }
  }
  return batches;
}

class Int8 {
 public:
  Int8(Context& context, const CompressedJob& job)
      : frames_(context.frames),
        team_(context.group.members),
        me_(static_cast<size_t>(context.group.index)),
        job_(job),
        batches_(batches_of(job.reduction)) {}

  void run() {
    for (size_t turn = 0; turn < batches_.size() + 2; ++turn) {
      if (turn < batches_.size()) {
        send_addends(turn);
      }
      if (turn >= 1 && turn <= batches_.size()) {
        reduce_own_slice(turn - 1);
      }
      if (turn >= 2) {
        write_results(turn - 2);
      }
    }
    frames_.flush();
  }

 private:
  // The memory of one batch, and what is on its way to and from it. Slices lie in the members' order.
  struct Flight {
    std::vector<std::byte> addend;        // this member's, all slices
    std::vector<std::byte> theirs;        // own slice of every other member's addend, all of one size
    std::vector<std::byte> sum;           // all slices
    std::vector<uint64_t> sent, arrived;  // tickets by member, of what was given to the frames last
  };

  Slice slice(const Segment& segment, size_t member) const {
    Slice part = slice_of(segment.count, team_.size(), member, kQuantizedChunk);
    return {segment.from + part.from, segment.from + part.to};
  }

  // Calls visit(piece, from, count, bytes before it) for blocks of a member's slice of a batch.
  template <typename Visit>
  void for_each_block(const Segments& batch, size_t member, Visit&& visit) const {
    size_t bytes = 0;
    for (const Segment& segment : batch) {
      const Slice part = slice(segment, member);
      for (size_t from = part.from; from < part.to; from += kAddendBlock) {
        const size_t count = std::min(kAddendBlock, part.to - from);
        visit(segment.piece, from, count, bytes);
        bytes += reduce::quantized_bytes(count);
      }
    }
  }

  size_t slice_bytes(const Segments& batch, size_t member) const {
    size_t bytes = 0;
    for (const Segment& segment : batch) {
      bytes += reduce::quantized_bytes(slice(segment, member).size());
    }
    return bytes;
  }

  // Where the slices of a batch begin, and where the last one ends.
  std::vector<size_t> slice_starts(const Segments& batch) const {
    std::vector<size_t> starts = {0};
    for (size_t member = 0; member < team_.size(); ++member) {
      starts.push_back(starts.back() + slice_bytes(batch, member));
    }
    return starts;
  }

  Flight& flight_of(size_t batch) { return flights_[batch % kInFlight]; }

  template <typename Visit>
  void for_each_other(Visit&& visit) const {
    for (size_t distance = 1; distance < team_.size(); ++distance) {
      visit((me_ + distance) % team_.size());
    }
  }

  void wait_until_sent(const Flight& flight) {
    frames_.wait([&] {
      for (size_t k = 0; k < flight.sent.size(); ++k) {
        if (k != me_ && !frames_.sent(team_[k], flight.sent[k])) {
          return false;
        }
      }
      return true;
    });
  }

  void wait_until_arrived(const Flight& flight) {
    frames_.wait([&] {
      for (size_t k = 0; k < flight.arrived.size(); ++k) {
        if (k != me_ && !frames_.received(team_[k], flight.arrived[k])) {
          return false;
        }
      }
      return true;
    });
  }

  void send_addends(size_t batch) {
    Flight& flight = flight_of(batch);
    wait_until_sent(flight);
    const std::vector<size_t> starts = slice_starts(batches_[batch]);
    const size_t own_bytes = starts[me_ + 1] - starts[me_];
    flight.addend.resize(starts.back());
    flight.sum.resize(starts.back());
    flight.theirs.resize(own_bytes * team_.size());
    flight.sent.assign(team_.size(), 0);
    flight.arrived.assign(team_.size(), 0);
    for_each_other([&](size_t k) {
      flight.arrived[k] = frames_.recv(team_[k], std::span(flight.theirs).subspan(k * own_bytes, own_bytes));
    });
    for_each_other([&](size_t k) {
      quantize_slice(batches_[batch], k, flight.addend.data() + starts[k]);
      flight.sent[k] = frames_.send(team_[k], std::span(flight.addend).subspan(starts[k], starts[k + 1] - starts[k]));
    });
    quantize_slice(batches_[batch], me_, flight.addend.data() + starts[me_]);
  }

  void quantize_slice(const Segments& batch, size_t member, std::byte* bytes) {
    for_each_block(batch, member, [&](size_t piece, size_t from, size_t count, size_t at) {
      reduce::quantize(make_addend(job_, piece, from, count, scratch_.data()), count, bytes + at);
    });
  }

  void reduce_own_slice(size_t batch) {
    Flight& flight = flight_of(batch);
    wait_until_arrived(flight);
    const std::vector<size_t> starts = slice_starts(batches_[batch]);
    const size_t own_bytes = starts[me_ + 1] - starts[me_];
    for_each_block(batches_[batch], me_, [&](size_t piece, size_t from, size_t count, size_t at) {
      for (size_t k = 0; k < team_.size(); ++k) {
        const std::byte* const addend = (k == me_ ? flight.addend.data() + starts[me_] : &flight.theirs[k * own_bytes]);
        (k == 0 ? reduce::dequantize : reduce::dequantize_add)(addend + at, count, scratch_.data());
      }
      reduce::quantize(scratch_.data(), count, flight.sum.data() + starts[me_] + at);
      if (float* const residual = job_.residuals[piece]) {
        reduce::accumulate(Dtype::kF32, reduce::Op::kSum, residual + from, scratch_.data(), count);
      }
    });
    for_each_other([&](size_t k) {
      const auto slice_at = [&](size_t j) {
        return std::span(flight.sum).subspan(starts[j], starts[j + 1] - starts[j]);
      };
      flight.arrived[k] = frames_.recv(team_[k], slice_at(k));
      flight.sent[k] = frames_.send(team_[k], slice_at(me_));
    });
  }

  void write_results(size_t batch) {
    Flight& flight = flight_of(batch);
    wait_until_arrived(flight);
    const std::vector<size_t> starts = slice_starts(batches_[batch]);
    for (size_t member = 0; member < team_.size(); ++member) {
      for_each_block(batches_[batch], member, [&](size_t piece, size_t from, size_t count, size_t at) {
        reduce::dequantize(flight.sum.data() + starts[member] + at, count, scratch_.data());
        write_result(job_, piece, from, count, scratch_.data());
      });
    }
  }

  transport::FrameMultiplexer& frames_;
  const std::vector<int>& team_;
  const size_t me_;
  const CompressedJob& job_;
  const std::vector<Segments> batches_;
  std::array<Flight, kInFlight> flights_;
  alignas(64) std::array<float, kAddendBlock> scratch_;
};

}  // namespace

void allreduce_int8(Context& context, const CompressedJob& job) { std::make_unique<Int8>(context, job)->run(); }

}  // namespace farandole::collective
