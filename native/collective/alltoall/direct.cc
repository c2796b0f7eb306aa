// Alltoall among workers that share memory.
//
// Each member has one *stream* for the others: first the number of rows for each member, padded to a cache line (copies
// between addresses with different offsets in a cache line can be several times slower), then the rows for every member
// but itself, in the members' order. In rounds of one chunk, each member offers the next chunk of its stream, and
// copies its own rows from the chunks of the others. The counts are in the first chunk, so a small alltoall takes one
// synchronization, and from them every member knows how many rounds there will be.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "collective/alltoall/alltoall.h"

namespace farandole::collective {
namespace {

class Direct {
 public:
  Direct(Context& context, const AlltoallJob& job)
      : context_(context),
        job_(job),
        team_(context.group.members),
        me_(static_cast<size_t>(context.group.index)),
        counts_bytes_(team_.size() * sizeof(int64_t)),
        head_bytes_((counts_bytes_ + transport::kArenaAlignment - 1) / transport::kArenaAlignment *
                    transport::kArenaAlignment),
        chunk_(std::max(chunk_bytes(context), head_bytes_)),
        copy_{context.knobs,
              static_cast<size_t>(std::accumulate(job.rows.begin(), job.rows.end(), int64_t{0})) * job.row_bytes},
        rows_(team_.size()) {
    rows_[me_] = job.rows;
  }

  void run() {
    int window = context_.sequence.first_of_two();
    size_t length = head_bytes_;  // of the longest stream, as far as it is known
    for (size_t from = 0; from < length; from += chunk_, window ^= 1) {
      offer(from, window);
      if (from == 0) {
        length = read_counts(window);
        place_parts();
      }
      for (size_t distance = 1; distance < team_.size(); ++distance) {
        take(from, window, (me_ + distance) % team_.size());
      }
      context_.sequence.lend(window, team_, context_.sequence.publish(team_));
    }
    copy_own_part();
  }

 private:
  size_t bytes_of(int64_t rows) const { return static_cast<size_t>(rows) * job_.row_bytes; }

  // Where in the stream of member `k` the part for `reader`, another member, begins.
  size_t start_in_stream(size_t k, size_t reader) const {
    size_t at = head_bytes_;
    for (size_t j = 0; j < reader; ++j) {
      at += j == k ? 0 : bytes_of(rows_[k][j]);
    }
    return at;
  }
  size_t end_of_stream(size_t k) const { return start_in_stream(k, team_.size()); }

  // Makes the chunk of the own stream that begins at `from` readable, and waits until all have done so.
  void offer(size_t from, int window) {
    const transport::ArenaView& arena = *context_.frames.mesh().arena(context_.frames.mesh().rank());
    std::byte* const staged = context_.staging.acquire(window);
    if (from == 0) {
      std::memcpy(staged, job_.rows.data(), counts_bytes_);
    }
    const size_t to = std::min(end_of_stream(me_), from + chunk_);
    const auto* source = static_cast<const std::byte*>(job_.input);
    for (size_t k = 0; k < team_.size(); ++k) {
      const size_t length = bytes_of(job_.rows[k]);
      if (k != me_) {
        const size_t start = start_in_stream(me_, k);
        const size_t begin = std::max(from, start);
        const size_t end = std::min(to, start + length);
        if (begin < end) {
          std::memcpy(staged + (begin - from), source + (begin - start), end - begin);
        }
      }
      source += length;
    }
    context_.sequence.wait_for(team_, context_.sequence.publish_at(team_, window, arena.offset_of(staged)));
  }

  // The counts of all members, in the first chunks, which this window announces. Gives the length of the longest
  // stream.
  size_t read_counts(int window) {
    size_t longest = 0;
    for (size_t k = 0; k < team_.size(); ++k) {
      if (k != me_) {
        rows_[k].resize(team_.size());
        std::memcpy(rows_[k].data(), context_.sequence.data_of(team_[k], window), counts_bytes_);
      }
      longest = std::max(longest, end_of_stream(k));
    }
    return longest;
  }

  // Where the rows of each member go, now that their numbers are known.
  void place_parts() {
    std::vector<int64_t> received;
    size_t at = 0;
    for (size_t k = 0; k < team_.size(); ++k) {
      received.push_back(rows_[k][me_]);
      targets_.push_back(at);
      sources_.push_back(start_in_stream(k, me_));
      at += bytes_of(rows_[k][me_]);
    }
    output_ = static_cast<std::byte*>(job_.output(received));
  }

  // Copies what the chunk of member `k` at `from` has for this one.
  void take(size_t from, int window, size_t k) {
    const size_t begin = std::max(from, sources_[k]);
    const size_t end = std::min(from + chunk_, sources_[k] + bytes_of(rows_[k][me_]));
    if (begin < end) {
      copy_(output_ + targets_[k] + (begin - sources_[k]), context_.sequence.data_of(team_[k], window) + (begin - from),
            end - begin);
    }
  }

  void copy_own_part() {
    const size_t before =
        bytes_of(std::accumulate(job_.rows.begin(), job_.rows.begin() + context_.group.index, int64_t{0}));
    if (const size_t length = bytes_of(job_.rows[me_]); length > 0) {
      copy_(output_ + targets_[me_], static_cast<const std::byte*>(job_.input) + before, length);
    }
  }

  Context& context_;
  const AlltoallJob& job_;
  const std::vector<int>& team_;
  const size_t me_;
  const size_t counts_bytes_;
  const size_t head_bytes_;
  const size_t chunk_;
  const Copy copy_;
  std::vector<std::vector<int64_t>> rows_;  // [from][to]
  std::vector<size_t> sources_;             // where in each stream the part for this member begins
  std::vector<size_t> targets_;             // where in the output it goes
  std::byte* output_ = nullptr;
};

}  // namespace

void alltoall_direct(Context& context, const AlltoallJob& job) {
  // The counts must fit into one chunk. With less staging or more members, links do as well.
  if (context.group.size() * sizeof(int64_t) + transport::kArenaAlignment > context.staging.piece_bytes()) {
    alltoall_pairwise(context, job);
    return;
  }
  Direct(context, job).run();
}

}  // namespace farandole::collective
