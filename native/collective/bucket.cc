#include "collective/bucket.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace farandole::collective {
namespace {

using reduce::Dtype;
using reduce::Scale;

// Scaled and converted in pieces of this many elements, which stay in the first-level cache.
constexpr size_t kBlock = 2048;

void scaled_copy(Dtype dtype, const void* from, void* to, size_t count, const Scale& scale) {
  if (!scale.is_one()) {
    reduce::scale_to(dtype, from, to, count, scale);
  } else if (from != to && count > 0) {
    std::memcpy(to, from, count * reduce::size_of(dtype));
  }
}

// Scales in the source's type, rounds, then converts.
void scale_then_convert(Dtype from_type, Dtype to_type, const std::byte* from, std::byte* to, size_t count,
                        const Scale& scale) {
  if (from_type == to_type) {
    scaled_copy(from_type, from, to, count, scale);
    return;
  }
  if (scale.is_one()) {
    reduce::convert(from_type, to_type, from, to, count);
    return;
  }
  alignas(64) std::array<std::byte, kBlock * 8> block;
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t length = std::min(kBlock, count - at);
    reduce::scale_to(from_type, from + at * reduce::size_of(from_type), block.data(), length, scale);
    reduce::convert(from_type, to_type, block.data(), to + at * reduce::size_of(to_type), length);
  }
}

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

void Bucket::copy_in(size_t from, size_t to, Dtype as, std::byte* memory) const {
  const size_t element = reduce::size_of(job_.dtype);
  for_each_part(from, to, [&](size_t i, size_t position, size_t offset, size_t length) {
    const auto* source = static_cast<const std::byte*>(job_.pieces[i].input) + offset * element;
    std::byte* target = memory + (position - from) * reduce::size_of(as);
    scale_then_convert(job_.dtype, as, source, target, length, job_.prescale);
  });
}

void Bucket::copy_out(size_t from, size_t to, Dtype as, const std::byte* memory, bool finish) const {
  const size_t element = reduce::size_of(job_.dtype);
  for_each_part(from, to, [&](size_t i, size_t position, size_t offset, size_t length) {
    const std::byte* source = memory + (position - from) * reduce::size_of(as);
    std::byte* target = static_cast<std::byte*>(job_.pieces[i].output) + offset * element;
    scale_then_convert(as, job_.dtype, source, target, length, finish ? job_.postscale : Scale{});
  });
}

Slice slice_of(size_t count, size_t parts, size_t index, size_t grain) noexcept {
  const size_t grains = (count + grain - 1) / grain;
  const auto border = [&](size_t i) { return std::min(count, grains * i / parts * grain); };
  return {border(index), border(index + 1)};
}

}  // namespace farandole::collective
