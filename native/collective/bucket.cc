#include "collective/bucket.h"

#include <algorithm>

#include "collective/scaled_copy.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;
using reduce::Scale;

}  // namespace

Bucket::Bucket(const AllreduceJob& job) : job_(job) {
  const size_t line = transport::kArenaAlignment / reduce::size_of(job.dtype);
  starts_.reserve(job.pieces.size());
  for (const Piece& piece : job.pieces) {
    const size_t start = (end_ + line - 1) / line * line;
    starts_.push_back(start);
    end_ = start + piece.count;
  }
}

size_t Bucket::first_piece_at(size_t position) const noexcept {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
  return after == starts_.begin() ? 0 : static_cast<size_t>(after - starts_.begin()) - 1;
}

std::optional<size_t> Bucket::offset_in(const transport::ArenaView& arena) const {
  if (job_.pieces.empty() || !job_.prescale.is_one()) {
    return std::nullopt;
  }
  const size_t element = reduce::size_of(job_.dtype);
  const auto* base = static_cast<const std::byte*>(job_.pieces.front().input);
  if (!arena.contains(base, bytes())) {
    return std::nullopt;
  }
  for (size_t i = 0; i < job_.pieces.size(); ++i) {
    const Piece& piece = job_.pieces[i];
    if (piece.input != piece.output || piece.input != base + starts_[i] * element) {
      return std::nullopt;
    }
  }
  return arena.offset_of(base);
}

std::optional<Bucket::Part> Bucket::within_a_piece(size_t from, size_t to) const noexcept {
  const size_t i = first_piece_at(from);
  if (i >= job_.pieces.size() || from < starts_[i] || to > starts_[i] + job_.pieces[i].count) {
    return std::nullopt;
  }
  return Part{i, from - starts_[i]};
}

void Bucket::copy_in(size_t from, size_t to, Dtype as, std::byte* memory) const {
  const size_t element = reduce::size_of(job_.dtype);
  for_each_part(from, to, [&](size_t i, size_t position, size_t offset, size_t length) {
    const auto* const input = static_cast<const std::byte*>(job_.pieces[i].input);
    std::byte* const target = memory + (position - from) * reduce::size_of(as);
    if (input == nullptr) {
      reduce::fill_identity(as, job_.op, target, length);
    } else {
      scaled_copy(job_.dtype, as, input + offset * element, target, length, job_.prescale);
      if (job_.copied != nullptr) {
        job_.copied->in += length * element;
      }
    }
  });
}

void Bucket::copy_out(size_t from, size_t to, Dtype as, const std::byte* memory, bool finish) const {
  const size_t element = reduce::size_of(job_.dtype);
  for_each_part(from, to, [&](size_t i, size_t position, size_t offset, size_t length) {
    auto* const output = static_cast<std::byte*>(job_.pieces[i].output);
    if (output != nullptr) {
      scaled_copy(as, job_.dtype, memory + (position - from) * reduce::size_of(as), output + offset * element, length,
                  finish ? job_.postscale : Scale{});
      if (job_.copied != nullptr) {
        job_.copied->out += length * element;
      }
    }
  });
}

Slice slice_of(size_t count, size_t parts, size_t index, size_t grain) noexcept {
  const size_t grains = (count + grain - 1) / grain;
  const auto border = [&](size_t i) { return std::min(count, grains * i / parts * grain); };
  return {border(index), border(index + 1)};
}

}  // namespace farandole::collective
