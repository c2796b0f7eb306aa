// Tensors that one collective reduces together. Their elements lie one tensor after the other, each tensor beginning
// at a cache line; the gaps between them belong to no tensor and are never read or written. All members of a group cut
// the same bucket the same way, but each decides for itself whether its data must be copied into that layout or lies in
// its arena so already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reduce/kernels.h"
#include "transport/arena.h"

namespace farandole::collective {

// A piece without input and output, though it has elements, belongs to a worker that is absent: it adds the identity of
// the operation, unscaled, and its result is dropped.
struct Piece {
  const void* input = nullptr;
  void* output = nullptr;  // may be the input
  size_t count = 0;        // elements
};

// How many bytes of tensors were copied into memory in which a collective works, and out of it; not what is read or
// written where it lies.
struct Copied {
  uint64_t in = 0;
  uint64_t out = 0;
};

// One allreduce of one or more tensors: output = postscale(op over ranks of prescale(input)). For Adasum, which is a
// way to add, `op` is a sum.
struct AllreduceJob {
  reduce::Dtype dtype = reduce::Dtype::kF32;
  reduce::Op op = reduce::Op::kSum;
  reduce::Scale prescale;
  reduce::Scale postscale;
  std::vector<Piece> pieces;
  bool is_staged = false;    // by every member, before it was agreed that all of them run it: see Algorithm::stage
  int reduced_by = -1;       // if it is staged: the rank that ran Algorithm::reduce_staged
  Copied* copied = nullptr;  // where copies are counted; null: nowhere
};

class Bucket {
 public:
  explicit Bucket(const AllreduceJob& job);

  // Positions in the layout, in elements; the end is that of the last tensor.
  size_t end() const noexcept { return end_; }
  size_t bytes() const noexcept { return end_ * reduce::size_of(job_.dtype); }
  const AllreduceJob& job() const noexcept { return job_; }

  // Where in the arena the bucket lies in place: every tensor is its own output, has no prescale, and they lie
  // as in the layout.
  std::optional<size_t> offset_in(const transport::ArenaView& arena) const;

  // Returns the place of elements [from, to), if they all belong to one tensor.
  struct Part {
    size_t piece;
    size_t offset;  // elements
  };
  std::optional<Part> within_a_piece(size_t from, size_t to) const noexcept;

  // Elements [from, to) of the layout, prescaled, as elements of `as` (the bucket's dtype or its accumulator)
  // to `memory`, whose first element is position `from`.
  void copy_in(size_t from, size_t to, reduce::Dtype as, std::byte* memory) const;
  // Copies the same elements from `memory` back to the tensors' outputs, with the postscale when `finish` is set.
  void copy_out(size_t from, size_t to, reduce::Dtype as, const std::byte* memory, bool finish) const;

  // Calls visit(piece index, position of the part's first element, its offset in the tensor, its length) for
  // the parts of tensors that lie in [from, to).
  template <typename Visit>
  void for_each_part(size_t from, size_t to, Visit&& visit) const {
    for (size_t i = first_piece_at(from); i < job_.pieces.size() && starts_[i] < to; ++i) {
      const size_t begin = std::max(from, starts_[i]);
      const size_t end = std::min(to, starts_[i] + job_.pieces[i].count);
      if (begin < end) {
        visit(i, begin, begin - starts_[i], end - begin);
      }
    }
  }

 private:
  size_t first_piece_at(size_t position) const noexcept;

  const AllreduceJob& job_;
  std::vector<size_t> starts_;
  size_t end_ = 0;
};

// Part `index` of [0, count) cut into `parts` nearly equal parts, whose inner borders are multiples of `grain`.
struct Slice {
  size_t from, to;
  size_t size() const noexcept { return to - from; }
};
Slice slice_of(size_t count, size_t parts, size_t index, size_t grain) noexcept;

}  // namespace farandole::collective
