// Adasum by recursive doubling and vector halving, over links.
//
// The tree. Adasum is not a sum: it matters which vectors are combined. With a number of members that is a power of
// two, members whose numbers differ in bit 0 are combined first, then those pairs whose numbers differ in bit 1, and so
// on:
// ((0 1) (2 3)) ((4 5) (6 7)). With any other number n, let r be n minus the next lower power of two. The first 2r
// members fold beforehand: (0 1), (2 3) ... (2r-2 2r-1); each such pair then stands as one member in the tree above:
// of 5 members it is ((0 1) 2) (3 4), and of 6 ((0 1) (2 3)) (4 5). The member with the lower number is always the a of
// the formula in reduce/adasum.h.
//
// One level. Each member holds a part of the vector of its subtree, and its partner in the other subtree the
// same part of the other vector. They exchange halves: the lower one keeps the first half of both vectors, the upper
// one the second. The products of what each now holds are summed over the members of both subtrees, and with the
// factors that follow each member blends its half. Each element is computed by one member only, and in the end travels
// back the way it came, so all members end with the same bits.
//
// Every tensor is halved by itself and has its own factors, so its result does not depend on the tensors that it is
// fused with. Vectors are held in the accumulator type all the way.
//
// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
#include <bit>
#include <memory>
#include <vector>

#include "collective/allreduce/allreduce.h"
#include "reduce/adasum.h"

namespace farandole::collective {
namespace {

using reduce::Products;

// One part of each tensor, as positions in the bucket.
using Ranges = std::vector<Slice>;

// What one member has to do with the others, whatever the vectors.
class Tree {
 public:
  explicit Tree(const Group& group)
      : members_(group.members),
        me_(static_cast<size_t>(group.index)),
        leaves_(std::bit_floor(members_.size())),
        folded_(members_.size() - leaves_) {}

  bool folds() const noexcept { return me_ < 2 * folded_; }
  // Of a pair that folds, the lower member sits out.
  bool sits_out() const noexcept { return folds() && me_ % 2 == 0; }
  int fold_partner() const noexcept { return members_[me_ ^ 1]; }

  size_t leaves() const noexcept { return leaves_; }
  size_t number() const noexcept { return folds() ? me_ / 2 : me_ - folded_; }
  int rank_of(size_t number) const noexcept { return members_[number < folded_ ? 2 * number + 1 : number + folded_]; }

 private:
  const std::vector<int>& members_;
  const size_t me_;
  const size_t leaves_;
  const size_t folded_;  // pairs that fold
};

class Adasum {
 public:
  Adasum(Context& context, const AllreduceJob& job)
      : frames_(context.frames),
        bucket_(job),
        tree_(context.group),
        held_(reduce::accumulator_of(job.dtype)),
        element_(reduce::size_of(held_)),
        own_(std::make_unique_for_overwrite<std::byte[]>(bucket_.end() * element_)),
        theirs_(std::make_unique_for_overwrite<std::byte[]>(bucket_.end() * element_)) {
    bucket_.for_each_part(0, bucket_.end(), [&](size_t, size_t position, size_t, size_t length) {
      whole_.push_back({position, position + length});
    });
  }

  void run() {
    bucket_.copy_in(0, bucket_.end(), held_, own_.get());
    if (tree_.sits_out()) {
      send(tree_.fold_partner(), whole_);
      receive(tree_.fold_partner(), whole_, own_.get());
      frames_.flush();
    } else {
      if (tree_.folds()) {
        fold();
      }
      climb(1, whole_);
      if (tree_.folds()) {
        send(tree_.fold_partner(), whole_);
        frames_.flush();
      }
    }
    bucket_.copy_out(0, bucket_.end(), held_, own_.get(), /*finish=*/true);
  }

 private:
  std::span<std::byte> part_of(std::byte* buffer, const Slice& range) const {
    return {buffer + range.from * element_, range.size() * element_};
  }
  void send(int rank, const Ranges& ranges) {
    for (const Slice& range : ranges) {
      if (range.size() > 0) {
        frames_.send(rank, part_of(own_.get(), range));
      }
    }
  }
  void receive(int rank, const Ranges& ranges, std::byte* buffer) {
    for (const Slice& range : ranges) {
      if (range.size() > 0) {
        frames_.recv(rank, part_of(buffer, range));
      }
    }
  }

  // Takes in the vectors of the member that sits out.
  void fold() {
    receive(tree_.fold_partner(), whole_, theirs_.get());
    frames_.flush();
    blend(whole_, products_of(whole_, /*they_are_lower=*/true), /*they_are_lower=*/true);
  }

  // One level of the tree and all above it. `ranges` is what this member holds of its subtree's vectors; afterwards it
  // holds the same part of the result.
  void climb(size_t distance, const Ranges& ranges) {
    if (distance >= tree_.leaves()) {
      return;
    }
    const size_t partner = tree_.number() ^ distance;
    const bool they_are_lower = partner < tree_.number();
    Ranges kept;
    Ranges given;
    for (const Slice& range : ranges) {
      const size_t middle = range.from + range.size() / 2;
      const Slice first{range.from, middle};
      const Slice second{middle, range.to};
      kept.push_back(they_are_lower ? second : first);
      given.push_back(they_are_lower ? first : second);
    }
    send(tree_.rank_of(partner), given);
    receive(tree_.rank_of(partner), kept, theirs_.get());
    frames_.flush();
    std::vector<Products> products = products_of(kept, they_are_lower);
    add_up(products, distance);
    blend(kept, products, they_are_lower);
    climb(2 * distance, kept);
    send(tree_.rank_of(partner), kept);
    receive(tree_.rank_of(partner), given, own_.get());
    frames_.flush();
  }

  std::vector<Products> products_of(const Ranges& ranges, bool they_are_lower) const {
    std::vector<Products> all;
    all.reserve(ranges.size());
    for (const Slice& range : ranges) {
      const auto [a, b] = a_and_b(range, they_are_lower);
      all.push_back(reduce::multiply(held_, a, b, range.size()));
    }
    return all;
  }

  // Sums the products over the members of both subtrees, each of which spans `distance` members.
  void add_up(std::vector<Products>& products, size_t distance) {
    std::vector<Products> others(products.size());
    for (size_t bit = 1; bit <= distance; bit *= 2) {
      const int partner = tree_.rank_of(tree_.number() ^ bit);
      frames_.send(partner, std::as_bytes(std::span(products)));
      frames_.recv(partner, std::as_writable_bytes(std::span(others)));
      frames_.flush();
      for (size_t i = 0; i < products.size(); ++i) {
        products[i].dot += others[i].dot;
        products[i].a_squared += others[i].a_squared;
        products[i].b_squared += others[i].b_squared;
      }
    }
  }

  void blend(const Ranges& ranges, const std::vector<Products>& products, bool they_are_lower) {
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto [a, b] = a_and_b(ranges[i], they_are_lower);
      reduce::blend(held_, a, b, reduce::adasum_factors(products[i]), part_of(own_.get(), ranges[i]).data(),
                    ranges[i].size());
    }
  }

  std::pair<const std::byte*, const std::byte*> a_and_b(const Slice& range, bool they_are_lower) const {
    const std::byte* const mine = part_of(own_.get(), range).data();
    const std::byte* const others = part_of(theirs_.get(), range).data();
    return they_are_lower ? std::pair(others, mine) : std::pair(mine, others);
  }

  transport::FrameMultiplexer& frames_;
  const Bucket bucket_;
  const Tree tree_;
  const reduce::Dtype held_;
  const size_t element_;
  const std::unique_ptr<std::byte[]> own_;     // the bucket
  const std::unique_ptr<std::byte[]> theirs_;  // laid out alike: what came from a partner
  Ranges whole_;                               // all of every tensor that has elements
};

}  // namespace

void allreduce_adasum(Context& context, const AllreduceJob& job) { Adasum(context, job).run(); }

}  // namespace farandole::collective
