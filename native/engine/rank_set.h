// A set of ranks as ranges: usually one range, because a host's ranks and those of the hosts after it are consecutive.
#pragma once

#include <cstdint>
#include <vector>

namespace farandole::engine {

class RankSet {
 public:
  struct Range {
    int32_t first;
    int32_t last;  // included
    bool operator==(const Range&) const = default;
  };

  RankSet() = default;
  explicit RankSet(int rank) : ranges_{{rank, rank}}, size_(1) {}
  // Throws Error(kInternal) unless these are `first, last` pairs in ascending order, each rank once.
  static RankSet from_pairs(const std::vector<int32_t>& pairs);
  std::vector<int32_t> pairs() const;

  bool empty() const noexcept { return ranges_.empty(); }
  int size() const noexcept { return size_; }
  // The lowest and the highest one of a set that is not empty.
  int lowest() const noexcept { return ranges_.front().first; }
  int highest() const noexcept { return ranges_.back().last; }
  bool contains(int rank) const noexcept;
  // Ascending; between two of them at least one rank is missing.
  const std::vector<Range>& ranges() const noexcept { return ranges_; }
  // Returns false, and changes nothing, if some of them are in the set already.
  bool add(const RankSet& others);

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Range& range : ranges_) {
      for (int rank = range.first; rank <= range.last; ++rank) {
        visit(rank);
      }
    }
  }

  bool operator==(const RankSet&) const = default;

 private:
  bool add_range(Range range);
  bool add_ranges(const std::vector<Range>& others);

  std::vector<Range> ranges_;
  int size_ = 0;
};

}  // namespace farandole::engine
