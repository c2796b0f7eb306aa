// Two-level allreduce: reduce-scatter on each host, allreduce across hosts, allgather on each host.
//
// The first L members of every host are its carriers, where L is the smallest number of members that any host
// has. Carrier k reduces slice k of a chunk from all arenas of its host, allreduces it with the carriers k of the
// other hosts over links, so that a host's workers drive the network together, and offers the result; every
// member of the host then reads all slices from their carriers. Sums stay in the accumulator type all the way.
#include <algorithm>
#include <vector>

#include "collective/allreduce/allreduce.h"

namespace farandole::collective {
namespace {

// Staging halves: what a member offers, and what a carrier has finished.
constexpr int kOffered = 0;
constexpr int kFinished = 1;

class TwoLevel {
 public:
  TwoLevel(Context& context, const AllreduceJob& job, BufferAllreduce across)
      : context_(context),
        job_(job),
        across_(across),
        bucket_(job),
        held_(reduce::accumulator_of(job.dtype)),
        element_(reduce::size_of(held_)),
        line_(transport::kArenaAlignment / element_),
        chunk_(context.staging.half_bytes() / element_ / line_ * line_) {
    const Group& group = context.group;
    const std::vector<int>& hosts = context.pump.mesh().hosts();
    const int me = context.pump.mesh().rank();
    team_ = members_on_host(group, hosts, group.index);
    const auto carriers = static_cast<size_t>(topology_of(group, hosts).fewest_on_a_host);
    carriers_.assign(team_.begin(), team_.begin() + static_cast<ptrdiff_t>(carriers));
    own_slice_ = static_cast<size_t>(std::ranges::find(carriers_, me) - carriers_.begin());
    if (own_slice_ < carriers) {
      find_counterparts(hosts);
    }
  }

  void run() {
    for (size_t from = 0; from < bucket_.end(); from += chunk_) {
      run_chunk(from, std::min(bucket_.end(), from + chunk_));
    }
  }

 private:
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

  void run_chunk(size_t from, size_t to) {
    const transport::ArenaView& arena = *context_.pump.mesh().arena(context_.pump.mesh().rank());
    std::byte* const offered = context_.staging.acquire(kOffered);
    std::byte* const finished = context_.staging.acquire(kFinished);
    bucket_.copy_in(from, to, held_, offered);
    context_.steps.wait_for(team_, context_.steps.publish_at(team_, kOffered, arena.offset_of(offered)));
    if (own_slice_ < carriers_.size()) {
      const Slice slice = slice_of(to - from, carriers_.size(), own_slice_, line_);
      reduce_on_host(slice, finished);
      across_(context_, counterparts_, held_, job_.op, finished, slice.size());
    }
    context_.steps.wait_for(team_, context_.steps.publish_at(team_, kFinished, arena.offset_of(finished)));
    for (size_t k = 0; k < carriers_.size(); ++k) {
      const Slice slice = slice_of(to - from, carriers_.size(), k, line_);
      bucket_.copy_out(from + slice.from, from + slice.to, held_, context_.steps.data_of(carriers_[k], kFinished),
                       /*finish=*/true);
    }
    const uint64_t done = context_.steps.publish(team_);
    context_.steps.lend(kOffered, team_, done);
    context_.steps.lend(kFinished, team_, done);
  }

  // The gaps between tensors are reduced along: here they lie in staging and belong to us.
  void reduce_on_host(const Slice& slice, std::byte* finished) {
    std::vector<const void*> inputs;
    for (const int rank : team_) {
      inputs.push_back(context_.steps.data_of(rank, kOffered) + slice.from * element_);
    }
    void* const output = finished;
    reduce::reduce_to(held_, job_.op, inputs, {&output, 1}, slice.size(), reduce::Scale{});
  }

  Context& context_;
  const AllreduceJob& job_;
  const BufferAllreduce across_;
  const Bucket bucket_;
  const reduce::Dtype held_;
  const size_t element_;
  const size_t line_;
  const size_t chunk_;
  std::vector<int> team_;          // the members of this host
  std::vector<int> carriers_;      // the first of them
  size_t own_slice_ = 0;           // which slice this worker carries; carriers_.size(): none
  std::vector<int> counterparts_;  // who carries it on the other hosts, and here
};

}  // namespace

void allreduce_two_level_ring(Context& context, const AllreduceJob& job) { TwoLevel(context, job, buffer_ring).run(); }

void allreduce_two_level_doubling(Context& context, const AllreduceJob& job) {
  TwoLevel(context, job, buffer_recursive_doubling).run();
}

}  // namespace farandole::collective
