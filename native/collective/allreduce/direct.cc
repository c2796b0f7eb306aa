// Allreduce among workers that share memory.
//
// Member k reduces slice k from the memory of all members, in the members' order, so that the order of additions is the
// same for every element, wherever it lies. Each element is reduced by one member only. There are three ways.
//
// *In place*: the tensors of all members lie in arenas. Each member reduces its slice of all of it straight from all
// arenas, and writes the result to all of them. Nothing is copied.
//
// *Through windows*: some tensors lie in ordinary memory, which others cannot see. It goes in chunks, small enough to
// stay in the cache, through three windows in each member's staging. A member copies into its window what the others
// are to reduce, reduces its own slice from its own tensor and their windows, and leaves the result in its tensor and
// in its window, from where the others copy it. The tensors of a member that lie in its arena are its window. One chunk
// is copied in while the one before is reduced. With three windows, a member that is done with one can go on without
// waiting until the others have copied their results: when they announce the next chunk, they have copied the last one.
//
// *Small*: every member reduces everything, into its own outputs. This takes more arithmetic, but one synchronization
// fewer. If the data was staged before the members agreed on the job, the last one to announce it has found all data
// there. It reduces it for all of them, and they take its result when they see that all agree.
#include <algorithm>

#include "collective/allreduce/allreduce.h"

namespace farandole::collective {
namespace {

struct Direct {
  Direct(Context& in_context, const AllreduceJob& of_job)
      : context(in_context),
        job(of_job),
        bucket(of_job),
        team(in_context.group.members),
        element(reduce::size_of(of_job.dtype)),
        line(transport::kArenaAlignment / element),
        me(in_context.frames.mesh().rank()),
        own(static_cast<size_t>(in_context.group.index)),
        small_window(in_context.sequence.first_of_two()),
        home(bucket.offset_in(*in_context.frames.mesh().arena(me))),
        reads_tensors(of_job.prescale.is_one()) {
    const size_t bytes = chunk_bytes(context);
    chunk = std::max(bytes / element / line, size_t{1}) * line;
  }

  void stage() {
    if (is_small_if_staged()) {
      place_small();
    } else if (bucket.end() > 0) {
      place(0);
    }
  }

  void run() {
    if (bucket.end() == 0) {
      return;
    }
    if (job.is_staged ? is_small_if_staged() : is_small()) {
      run_small();
    } else {
      run_large();
    }
  }

  // Every member reduces everything: see above.
  bool is_small() const { return bucket.bytes() <= small_bytes(context.knobs, team.size()); }
  // One member does it for all of them.
  bool is_small_if_staged() const { return bucket.bytes() <= small_staged_bytes(context.knobs, team.size()); }

  void run_large() {
    if (!job.is_staged) {
      offer(0);
    }
    context.sequence.wait_for(team, offered);
    const auto in_place = [&](int rank) { return context.sequence.is_in_place(rank, one_of_three(0)); };
    if (std::ranges::all_of(team, in_place)) {
      run_in_place();
    } else {
      run_through_windows();
    }
  }

  void run_in_place() {
    find_windows(one_of_three(0));
    reduce_slice(0, bucket.end(), /*everywhere=*/true);
    context.sequence.wait_for(team, context.sequence.publish(team));
  }

  // Chunk 0 has been offered.
  void run_through_windows() {
    size_t turn = 0;
    for (size_t from = 0; from < bucket.end(); from += chunk, ++turn) {
      const uint64_t this_offered = offered;
      if (from + chunk < bucket.end()) {
        offer(turn + 1);
      }
      context.sequence.wait_for(team, this_offered);
      find_windows(one_of_three(turn));
      const size_t to = std::min(bucket.end(), from + chunk);
      reduce_slice(from, to, /*everywhere=*/false);
      context.sequence.wait_for(team, context.sequence.publish(team));
      take_slices(from, to);
    }
    const uint64_t taken = context.sequence.publish(team);
    for (size_t last = 0; last < std::min<size_t>(turn, 3); ++last) {
      context.sequence.lend(one_of_three(last), team, taken);
    }
    if (home) {
      context.sequence.wait_for(team, taken);  // the tensor, which others read, is its owner's again
    }
  }

  // Makes chunk number `turn` readable by all, and announces it.
  void offer(size_t turn) {
    place(turn);
    offered = context.sequence.publish(team);
  }

  // Makes it readable.
  void place(size_t turn) {
    const size_t from = turn * chunk;
    const int window = one_of_three(turn);
    if (home) {
      context.sequence.place(window, *home + from * element, /*in_place=*/true);
      return;
    }
    const size_t to = std::min(bucket.end(), from + chunk);
    std::byte* const staged = context.staging.acquire(window);
    const Slice mine = slice(from, to, own);
    if (reads_tensors) {
      bucket.copy_in(from, mine.from, job.dtype, staged);
      bucket.copy_in(mine.to, to, job.dtype, staged + (mine.to - from) * element);
    } else {
      bucket.copy_in(from, to, job.dtype, staged);
    }
    context.sequence.place(window, context.frames.mesh().arena(me)->offset_of(staged));
  }

  // Finds everyone's data, which has been waited for.
  void find_windows(int window) {
    windows.clear();
    for (const int rank : team) {
      windows.push_back(context.sequence.data_of(rank, window));
    }
  }

  // Slice `index` of the elements [from, to).
  Slice slice(size_t from, size_t to, size_t index) const {
    const Slice slice = slice_of(to - from, team.size(), index, line);
    return {from + slice.from, from + slice.to};
  }

  // Reduces the own slice of [from, to), which begins where the windows do, into all windows, or into the own one and
  // the own tensors.
  void reduce_slice(size_t from, size_t to, bool everywhere) {
    const Slice mine = slice(from, to, own);
    bucket.for_each_part(mine.from, mine.to, [&](size_t i, size_t position, size_t offset, size_t length) {
      const Piece& piece = job.pieces[i];
      inputs.clear();
      outputs.clear();
      for (std::byte* const window : windows) {
        inputs.push_back(window + (position - from) * element);
      }
      if (everywhere) {
        for (std::byte* const window : windows) {
          outputs.push_back(window + (position - from) * element);
        }
      } else {
        outputs.push_back(windows[own] + (position - from) * element);
      }
      if (!home) {
        point_to_tensor(piece, offset, position - from, length);
      }
      reduce::reduce_to(job.dtype, job.op, inputs, outputs, length, job.postscale);
    });
  }

  // This member's tensor is read directly, where possible, instead of a copy in its window.
  void point_to_tensor(const Piece& piece, size_t offset, size_t in_window, size_t length) {
    if (reads_tensors && piece.input != nullptr) {
      inputs[own] = static_cast<const std::byte*>(piece.input) + offset * element;
    } else if (piece.input == nullptr) {
      reduce::fill_identity(job.dtype, job.op, windows[own] + in_window * element, length);
    }
    if (piece.output != nullptr) {
      outputs.push_back(static_cast<std::byte*>(piece.output) + offset * element);
    }
  }

  // Reads the parts of [from, to) that the others have reduced.
  void take_slices(size_t from, size_t to) {
    for (size_t k = 0; k < team.size(); ++k) {
      if (k != own) {
        const Slice theirs = slice(from, to, k);
        bucket.copy_out(theirs.from, theirs.to, job.dtype, windows[k] + (theirs.from - from) * element,
                        /*finish=*/false);
      }
    }
  }

  void place_small() {
    std::byte* const staged = context.staging.acquire(small_window);
    bucket.copy_in(0, bucket.end(), job.dtype, staged);
    context.sequence.place(small_window, context.frames.mesh().arena(me)->offset_of(staged));
  }

  void run_small() {
    if (job.is_staged) {
      take_small();
      return;
    }
    place_small();
    context.sequence.wait_for(team, context.sequence.publish(team));
    find_windows(small_window);
    bucket.for_each_part(0, bucket.end(), [&](size_t i, size_t position, size_t offset, size_t length) {
      if (job.pieces[i].output != nullptr) {  // not absent
        reduce_small(position, length, static_cast<std::byte*>(job.pieces[i].output) + offset * element);
      }
    });
    context.sequence.lend(small_window, team, context.sequence.publish(team));
  }

  // Reduces what all have staged into the own window, from where all of them take it.
  void reduce_staged() {
    if (!is_small_if_staged()) {
      context.read = {};
      return;
    }
    find_windows(small_window);
    bucket.for_each_part(0, bucket.end(), [&](size_t, size_t position, size_t, size_t length) {
      reduce_small(position, length, windows[own] + position * element);
    });
  }

  // Of the windows, only that of the member that has reduced is still read.
  void take_small() {
    context.read = {&job.reduced_by, 1};
    bucket.copy_out(0, bucket.end(), job.dtype, context.sequence.data_of(job.reduced_by, small_window),
                    /*finish=*/false);
    if (job.reduced_by == me) {
      context.sequence.lend(small_window, team, context.sequence.publish({}));
    } else {
      context.sequence.publish({&job.reduced_by, 1});
    }
  }

  // `output` may be the own window.
  void reduce_small(size_t position, size_t length, void* output) {
    inputs.clear();
    for (std::byte* const window : windows) {
      inputs.push_back(window + position * element);
    }
    reduce::reduce_to(job.dtype, job.op, inputs, {&output, 1}, length, job.postscale);
  }

  Context& context;
  const AllreduceJob& job;
  const Bucket bucket;
  const std::vector<int>& team;
  const size_t element;
  const size_t line;  // elements in a cache line: slices end at one, so that two members never write the same
  const int me;
  const size_t own;        // the own place in the team
  const int small_window;  // that of a small tensor
  const std::optional<size_t> home;
  const bool reads_tensors;  // the own tensors can be read as they are
  size_t chunk;              // elements
  uint64_t offered = 0;      // the sequence number of the last offer; for staged data, one that all have reached

  // Of the chunk at hand.
  std::vector<std::byte*> windows;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

}  // namespace

void allreduce_direct(Context& context, const AllreduceJob& job) { Direct(context, job).run(); }
void stage_direct(Context& context, const AllreduceJob& job) { Direct(context, job).stage(); }
void reduce_staged_direct(Context& context, const AllreduceJob& job) { Direct(context, job).reduce_staged(); }

}  // namespace farandole::collective
