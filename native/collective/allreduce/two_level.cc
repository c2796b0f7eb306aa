// Two-level allreduce: reduce-scatter on each host, an exchange of slices across hosts, allgather on each host.
//
// The first L members of every host are its carriers, where L is the smallest number of members that any host has.
// Carrier k adds up slice k of a block from all arenas of its host, exchanges it with the carriers k of the other hosts
// over links, so that a host's workers drive the network together, and writes the result to all arenas of its host.
// A block lies in an arena in place, or is copied to staging.
//
// Everything is pipelined: while one block is on the wire, in chunks, the last one is copied out and the next one in.
// Sums of 16-bit floats are float32 until the last one. The order of additions is that of the members of a host, then
// that of the hosts, wherever an element lies.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "collective/allreduce/allreduce.h"
#include "collective/exchange.h"

namespace farandole::collective {
namespace {

// The number of bytes that are copied before the links are served again.
constexpr size_t kCopyBytes = size_t{256} << 10;

// One block as its carriers work on it.
class Block final : public Share {
 public:
  Block(const Bucket& bucket, size_t from, size_t to) : bucket_(bucket), from_(from), to_(to) {}

  size_t from() const noexcept { return from_; }
  size_t to() const noexcept { return to_; }
  // Where the block lies on every member of the host, and which of its elements are exchanged.
  void open(std::vector<std::byte*> arenas, const Slice& slice) {
    arenas_ = std::move(arenas);
    inputs_.resize(arenas_.size());
    first_ = from_ + slice.from;
  }

  const std::byte* addends(size_t from, size_t to, std::byte* room) override {
    const reduce::Dtype held = reduce::accumulator_of(bucket_.job().dtype);
    for_each_part(from, to, [&](size_t in_block, size_t in_room, size_t length) {
      for (size_t k = 0; k < arenas_.size(); ++k) {
        inputs_[k] = arenas_[k] + in_block * element();
      }
      void* const output = room + in_room * reduce::size_of(held);
      if (held == bucket_.job().dtype) {
        reduce::reduce_to(held, bucket_.job().op, inputs_, {&output, 1}, length, reduce::Scale{});
      } else {
        add_widened(held, output, length);
      }
    });
    return room;
  }

  std::byte* place(size_t, size_t, std::byte* room) override { return room; }

  void settle(size_t from, size_t to, const std::byte* sums) override {
    for_each_part(from, to, [&](size_t in_block, size_t in_room, size_t length) {
      for (std::byte* const arena : arenas_) {
        std::memcpy(arena + in_block * element(), sums + in_room * element(), length * element());
      }
    });
  }

 private:
  size_t element() const noexcept { return reduce::size_of(bucket_.job().dtype); }

  // The gaps between tensors are left alone: in an arena they may be anybody's.
  template <typename Visit>
  void for_each_part(size_t from, size_t to, Visit&& visit) const {
    bucket_.for_each_part(first_ + from, first_ + to, [&](size_t, size_t position, size_t, size_t length) {
      visit(position - from_, position - first_ - from, length);
    });
  }

  void add_widened(reduce::Dtype held, void* output, size_t count) {
    const reduce::Dtype dtype = bucket_.job().dtype;
    reduce::convert(dtype, held, inputs_.front(), output, count);
    alignas(64) std::array<std::byte, 8192> wide;
    const size_t piece = wide.size() / reduce::size_of(held);
    for (size_t at = 0; at < count; at += piece) {
      const size_t length = std::min(piece, count - at);
      for (size_t k = 1; k < inputs_.size(); ++k) {
        reduce::convert(dtype, held, static_cast<const std::byte*>(inputs_[k]) + at * element(), wide.data(), length);
        reduce::accumulate(held, bucket_.job().op, static_cast<std::byte*>(output) + at * reduce::size_of(held),
                           wide.data(), length);
      }
    }
  }

  const Bucket& bucket_;
  const size_t from_;
  const size_t to_;
  std::vector<std::byte*> arenas_;
  std::vector<const void*> inputs_;
  size_t first_ = 0;  // the position of the exchange's first element
};

class TwoLevel {
 public:
  TwoLevel(Context& context, const AllreduceJob& job)
      : context_(context),
        bucket_(job),
        held_(reduce::accumulator_of(job.dtype)),
        element_(reduce::size_of(job.dtype)),
        line_(transport::kArenaAlignment / element_),
        me_(context.frames.mesh().rank()),
        home_(bucket_.offset_in(*context.frames.mesh().arena(me_))) {
    const size_t block_bytes = std::min<size_t>(context.staging.piece_bytes(), context.knobs.chunk_bytes);
    block_ = std::max(block_bytes / element_ / line_, size_t{1}) * line_;
    const Group& group = context.group;
    const std::vector<int>& hosts = context.frames.mesh().hosts();
    team_ = members_on_host(group, hosts, group.index);
    carriers_ = static_cast<size_t>(topology_of(group, hosts).fewest_on_a_host);
    own_slice_ = static_cast<size_t>(std::ranges::find(team_, me_) - team_.begin());
    if (own_slice_ < carriers_) {
      find_counterparts(hosts);
    }
  }

  // Two blocks are under way at any time: one on the wire, one before or behind it.
  void run() {
    const size_t blocks = (bucket_.end() + block_ - 1) / block_;
    for (size_t i = 0; i < std::min<size_t>(blocks, 2); ++i) {
      offer(i);
    }
    for (size_t i = 0; i < blocks; ++i) {
      cross(i);
      if (i > 0) {
        finish(i - 1);
        if (i + 1 < blocks) {
          offer(i + 1);
        }
      }
    }
    if (blocks > 0) {
      finish(blocks - 1);
    }
  }

 private:
  struct Stage {
    std::unique_ptr<Block> block;
    std::unique_ptr<Exchange> exchange;  // of a carrier, once it has begun
    uint64_t offered = 0;                // the sequence number
  };

  // The member of every host that carries the same slice, in the order of the hosts.
  void find_counterparts(const std::vector<int>& hosts) {
    std::vector<int> seen;
    for (size_t i = 0; i < context_.group.size(); ++i) {
      const int host = hosts[static_cast<size_t>(context_.group.members[i])];
      if (std::ranges::find(seen, host) == seen.end()) {
        seen.push_back(host);
        counterparts_.push_back(members_on_host(context_.group, hosts, static_cast<int>(i))[own_slice_]);
      }
    }
  }

  Stage& stage(size_t i) { return stages_[i % 2]; }
  static int window(size_t i) { return static_cast<int>(i % 2); }

  // Makes block i readable by all of the host. The one before the last must be finished.
  void offer(size_t i) {
    const size_t from = i * block_;
    const size_t to = std::min(bucket_.end(), from + block_);
    const transport::ArenaView& arena = *context_.frames.mesh().arena(me_);
    Stage& stage = this->stage(i);
    stage.exchange.reset();
    stage.block = std::make_unique<Block>(bucket_, from, to);
    size_t offset = home_.value_or(0) + from * element_;
    if (!home_) {
      std::byte* const staged = context_.staging.acquire(window(i));
      offset = arena.offset_of(staged);
      in_pieces(from, to, [&](size_t begin, size_t end) {
        bucket_.copy_in(begin, end, bucket_.job().dtype, staged + (begin - from) * element_);
      });
    }
    stage.offered = context_.sequence.publish_at(team_, window(i), offset);
  }

  // Begins to exchange block i with the other hosts.
  void cross(size_t i) {
    Stage& stage = this->stage(i);
    work_until([&] { return context_.sequence.reached(team_, stage.offered) && links_are_free(); });
    std::vector<std::byte*> arenas;
    for (const int rank : team_) {
      arenas.push_back(context_.sequence.data_of(rank, window(i)));
    }
    mine_[i % 2] = context_.sequence.data_of(me_, window(i));
    if (own_slice_ >= carriers_) {
      return;
    }
    const Slice slice = slice_of(stage.block->to() - stage.block->from(), carriers_, own_slice_, line_);
    stage.block->open(std::move(arenas), slice);
    ExchangeJob exchange =
        cut_allreduce(slice.size(), counterparts_.size(), held_, bucket_.job().dtype, context_.knobs);
    exchange.op = bucket_.job().op;
    exchange.postscale = bucket_.job().postscale;
    stage.exchange =
        context_.exchanges.begin(window(i), context_.knobs, counterparts_, std::move(exchange), *stage.block);
    stage.exchange->advance();
  }

  // Waits until block i is done on the whole host, and takes the result.
  void finish(size_t i) {
    Stage& stage = this->stage(i);
    work_until([&] { return stage.exchange == nullptr || stage.exchange->done(); });
    const uint64_t done = context_.sequence.publish(team_);
    work_until([&] { return context_.sequence.reached(team_, done); });
    if (!home_) {
      const Block& block = *stage.block;
      in_pieces(block.from(), block.to(), [&](size_t begin, size_t end) {
        bucket_.copy_out(begin, end, bucket_.job().dtype, mine_[i % 2] + (begin - block.from()) * element_,
                         /*finish=*/false);
      });
    }
  }

  bool links_are_free() const {
    return std::ranges::all_of(
        stages_, [](const Stage& other) { return other.exchange == nullptr || other.exchange->queued(); });
  }

  // Calls visit(from, to) for a piece at a time, and looks after the exchanges in between.
  template <typename Visit>
  void in_pieces(size_t from, size_t to, Visit&& visit) {
    const size_t piece = kCopyBytes / element_;
    for (size_t begin = from; begin < to; begin += piece) {
      visit(begin, std::min(to, begin + piece));
      context_.frames.wait([] { return true; });
      advance();
    }
  }

  template <typename Ready>
  void work_until(Ready&& reached) {
    for (advance(); !reached(); advance()) {
      context_.frames.wait([&] { return reached() || std::ranges::any_of(stages_, has_work); });
    }
  }

  static bool has_work(const Stage& stage) { return stage.exchange != nullptr && stage.exchange->ready(); }

  void advance() {
    for (Stage& stage : stages_) {
      if (stage.exchange != nullptr) {
        stage.exchange->advance();
      }
    }
  }

  Context& context_;
  const Bucket bucket_;
  const reduce::Dtype held_;
  const size_t element_;
  const size_t line_;
  const int me_;
  const std::optional<size_t> home_;
  size_t block_ = 0;               // elements
  std::vector<int> team_;          // the members of this host
  size_t carriers_ = 0;            // how many of them, the first ones, carry slices
  size_t own_slice_ = 0;           // which slice this worker carries; from carriers_ on: none
  std::vector<int> counterparts_;  // the ranks that carry it on the other hosts, and here
  std::array<Stage, 2> stages_;
  std::array<std::byte*, 2> mine_{};
};

}  // namespace

void allreduce_two_level(Context& context, const AllreduceJob& job) { TwoLevel(context, job).run(); }

}  // namespace farandole::collective
