// Allreduce of the largest elements only, over links.
//
// Of each tensor every member takes the same number of elements, those of its addend that have the largest magnitude
// (of equal ones the first), and sends their places and values to all others. All add up what they get in the order of
// the members, so they end with the same bits. Elements that were sent are removed from the residual; the rest stays.
//
// A member sends 8 bytes for each element that is taken to each other member, and receives as much: so this is for
// small ratios. Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", 2017; Lin et al.,
// "Deep Gradient Compression", 2018.
//
// Elements that are not finite count as larger than all others, so that some of them arrive. None of them stays in the
// residual.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "collective/algorithm_table.h"
#include "collective/compressed/addend.h"
#include "reduce/largest.h"

namespace farandole::collective {
namespace {

using reduce::Dtype;

// On the wire: the places of a tensor's elements, four bytes each and ascending; then their values in float32.
struct Entries {
  size_t count;
  std::byte* bytes;

  size_t size() const noexcept { return count * (sizeof(uint32_t) + sizeof(float)); }
  std::span<std::byte> span() const noexcept { return {bytes, size()}; }
  uint32_t* places() const noexcept { return reinterpret_cast<uint32_t*>(bytes); }
  float* values() const noexcept { return reinterpret_cast<float*>(bytes) + count; }
};

size_t taken_of(size_t count, double ratio) {
  return std::min(count, static_cast<size_t>(std::ceil(static_cast<double>(count) * ratio)));
}

class Topk {
 public:
  Topk(Context& context, const CompressedJob& job)
      : frames_(context.frames),
        team_(context.group.members),
        me_(static_cast<size_t>(context.group.index)),
        job_(job) {
    size_t taken = 0;
    for (const Piece& piece : job.reduction.pieces) {
      starts_.push_back(taken * kEntryBytes);
      taken += taken_of(piece.count, job.ratio);
      longest_ = std::max(longest_, piece.count);
    }
    for (size_t member = 0; member < team_.size(); ++member) {
      memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(taken * kEntryBytes));
    }
  }

  void run() {
    const size_t pieces = job_.reduction.pieces.size();
    for (size_t piece = 0; piece < pieces; ++piece) {
      take(piece);
      exchange(piece);
    }
    for (size_t piece = 0; piece < pieces; ++piece) {
      wait_for(piece);
      add_up(piece);
    }
    frames_.flush();
  }

 private:
  static constexpr size_t kEntryBytes = sizeof(uint32_t) + sizeof(float);

  Entries entries(size_t member, size_t piece) const {
    return {taken_of(job_.reduction.pieces[piece].count, job_.ratio), memory_[member].get() + starts_[piece]};
  }

  // Memory for the numbers of one tensor.
  float* scratch() {
    if (scratch_ == nullptr) {
      scratch_ = std::make_unique_for_overwrite<float[]>(longest_);
    }
    return scratch_.get();
  }

  void take(size_t piece) {
    const size_t count = job_.reduction.pieces[piece].count;
    const Entries own = entries(me_, piece);
    if (own.count == 0) {
      return;
    }
    const bool keeps = job_.residuals[piece] != nullptr;
    float* const addend = make_addend(job_, piece, 0, count, keeps ? nullptr : scratch());
    reduce::find_largest(addend, count, own.count, own.places());
    bool finite = true;
    for (size_t i = 0; i < own.count; ++i) {
      const float value = std::exchange(addend[own.places()[i]], 0.0F);
      own.values()[i] = value;
      finite = finite && std::isfinite(value);
    }
    if (!finite) {
      std::replace_if(addend, addend + count, [](float value) { return !std::isfinite(value); }, 0.0F);
    }
  }

  void exchange(size_t piece) {
    arrivals_.emplace_back(team_.size(), 0);
    if (entries(me_, piece).count == 0) {
      return;
    }
    for (size_t distance = 1; distance < team_.size(); ++distance) {
      const size_t k = (me_ + distance) % team_.size();
      frames_.send(team_[k], entries(me_, piece).span());
      arrivals_.back()[k] = frames_.recv(team_[k], entries(k, piece).span());
    }
    frames_.wait([] { return true; });  // the links go on while the next tensor is searched
  }

  void wait_for(size_t piece) {
    frames_.wait([&] {
      for (size_t k = 0; k < team_.size(); ++k) {
        if (k != me_ && !frames_.received(team_[k], arrivals_[piece][k])) {
          return false;
        }
      }
      return true;
    });
  }

  void add_up(size_t piece) {
    const Piece& tensor = job_.reduction.pieces[piece];
    if (tensor.output == nullptr) {
      return;  // absent: the result is dropped
    }
    float* const sum = job_.reduction.dtype == Dtype::kF32 ? static_cast<float*>(tensor.output) : scratch();
    std::fill_n(sum, tensor.count, 0.0F);
    for (size_t member = 0; member < team_.size(); ++member) {
      const Entries theirs = entries(member, piece);
      for (size_t i = 0; i < theirs.count; ++i) {
        const uint32_t place = theirs.places()[i];
        if (place >= tensor.count) {
          throw base::Error(base::Code::kInternal, "top-k: an element came from beyond the end of its tensor");
        }
        sum[place] += theirs.values()[i];
      }
    }
    write_result(job_, piece, 0, tensor.count, sum);
  }

  transport::FrameMultiplexer& frames_;
  const std::vector<int>& team_;
  const size_t me_;
  const CompressedJob& job_;
  std::vector<size_t> starts_;  // of each tensor's entries, in bytes
  size_t longest_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> memory_;  // all entries of each member
  std::vector<std::vector<uint64_t>> arrivals_;       // tickets, by tensor and member
  std::unique_ptr<float[]> scratch_;
};

}  // namespace

void allreduce_topk(Context& context, const CompressedJob& job) { Topk(context, job).run(); }

}  // namespace farandole::collective
