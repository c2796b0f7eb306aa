#include "engine/rank_set.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace farandole::engine {

RankSet RankSet::from_pairs(const std::vector<int32_t>& pairs) {
  RankSet set;
  int64_t before = -2;  // such that the first range may begin with rank 0
  bool is_sound = pairs.size() % 2 == 0;
  for (size_t i = 0; is_sound && i < pairs.size(); i += 2) {
    const Range range{pairs[i], pairs[i + 1]};
    is_sound = range.first > before + 1 && range.first <= range.last && range.last < INT32_MAX / 2;
    if (is_sound) {
      set.ranges_.push_back(range);
      set.size_ += range.last - range.first + 1;
      before = range.last;
    }
  }
  if (!is_sound) {
    throw base::Error(base::Code::kInternal, "malformed message: these are not ranges of ranks in ascending order");
  }
  return set;
}

std::vector<int32_t> RankSet::pairs() const {
  std::vector<int32_t> pairs;
  for (const Range& range : ranges_) {
    pairs.push_back(range.first);
    pairs.push_back(range.last);
  }
  return pairs;
}

bool RankSet::contains(int rank) const noexcept {
  const auto range = std::ranges::lower_bound(ranges_, rank, {}, &Range::last);
  return range != ranges_.end() && range->first <= rank;
}

bool RankSet::add(const RankSet& others) {
  const bool is_new = others.ranges_.size() == 1 ? add_range(others.ranges_.front()) : add_ranges(others.ranges_);
  size_ += is_new ? others.size_ : 0;
  return is_new;
}

// Most reports are of one range, and it is added for each of their requests: so no memory is allocated.
bool RankSet::add_range(Range range) {
  const auto after = std::ranges::upper_bound(ranges_, range.first, {}, &Range::first);
  const bool has_before = after != ranges_.begin();
  const auto before = has_before ? std::prev(after) : after;
  if ((has_before && before->last >= range.first) || (after != ranges_.end() && after->first <= range.last)) {
    return false;
  }
  const bool joins_before = has_before && before->last + 1 == range.first;
  const bool joins_after = after != ranges_.end() && range.last + 1 == after->first;
  if (joins_before && joins_after) {
    before->last = after->last;
    ranges_.erase(after);
  } else if (joins_before) {
    before->last = range.last;
  } else if (joins_after) {
    after->first = range.first;
  } else {
    ranges_.insert(after, range);
  }
  return true;
}

bool RankSet::add_ranges(const std::vector<Range>& others) {
  std::vector<Range> sorted;
  sorted.reserve(ranges_.size() + others.size());
  std::ranges::merge(ranges_, others, std::back_inserter(sorted), {}, &Range::first, &Range::first);
  std::vector<Range> joined;
  for (const Range& range : sorted) {
    if (!joined.empty() && range.first <= joined.back().last) {
      return false;
    }
    if (!joined.empty() && range.first == joined.back().last + 1) {
      joined.back().last = range.last;
    } else {
      joined.push_back(range);
    }
  }
  ranges_ = std::move(joined);
  return true;
}

}  // namespace farandole::engine
