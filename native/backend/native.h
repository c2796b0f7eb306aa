// The backend that is ours: runs one agreed bucket with the algorithm that was chosen for it.
#pragma once

#include <cstdint>
#include <string>

#include "collective/table.h"
#include "transport/arena.h"
#include "transport/frame_multiplexer.h"

namespace farandole::backend {

// What all workers of a world must have in common for their buckets to be cut alike.
struct Tuning {
  size_t piece_bytes = size_t{3} << 19;  // of staging
  std::string algorithm;                 // a name that is asked for, or empty
  collective::Knobs knobs;
};

class Native {
 public:
  // Takes its staging from `arena`, the one that the mesh of `frames` shares. Throws Error(kUnavailable) when full.
  Native(transport::FrameMultiplexer& frames, transport::Arena& arena, Tuning tuning);
  ~Native();
  Native(const Native&) = delete;
  Native& operator=(const Native&) = delete;

  // From the next collective on. Values that this staging and these links cannot have are brought within bounds, on all
  // members alike.
  void set_knobs(const collective::Knobs& knobs);
  const collective::Knobs& knobs() const noexcept { return tuning_.knobs; }

  // Which algorithm an operation gets; the same on every member.
  collective::Choice choose_allreduce(const collective::Group& group, size_t tensor_bytes) const;
  collective::Choice choose_allgather(const collective::Group& group) const;
  collective::Choice choose_broadcast(const collective::Group& group) const;
  collective::Choice choose_alltoall(const collective::Group& group) const;
  collective::Choice choose_reducescatter(const collective::Group& group) const;

  // All following collectives belong to this agreed decision. Decisions count from 1.
  void begin(uint32_t decision);

  // Does what can be done before it is agreed that all members run this job; false if there is nothing. Whether they do
  // run it or not, the next job may be another one.
  bool stage(const collective::Group& group, const collective::Choice& choice, const collective::AllreduceJob& job);
  // Block until done. Throw the world's error when it is revoked, or when a worker whose memory was read has gone
  // on to another generation meanwhile.
  void run(const collective::Group& group, const collective::Choice& choice, const collective::AllreduceJob& job);
  void run(const collective::Group& group, const collective::Choice& choice, const collective::CompressedJob& job);
  void run(const collective::Group& group, const collective::Choice& choice, const collective::AllgatherJob& job);
  void run(const collective::Group& group, const collective::Choice& choice, const collective::BroadcastJob& job);
  void run(const collective::Group& group, const collective::Choice& choice, const collective::AlltoallJob& job);
  void run(const collective::Group& group, const collective::Choice& choice, const collective::ReducescatterJob& job);

 private:
  collective::Topology topology(const collective::Group& group) const;
  collective::Context context(const collective::Group& group);
  // Runs a job that may read other workers' memory, and throws if one of them has gone on to another generation.
  template <typename Job>
  void run_checked(const collective::Group& group, const collective::Choice& choice, const Job& job);
  void require_same_generation(const collective::Group& group);

  transport::FrameMultiplexer& frames_;
  transport::Arena& arena_;
  Tuning tuning_;
  std::byte* const memory_;
  collective::ShmSequence sequence_;
  collective::Staging staging_;
};

}  // namespace farandole::backend
