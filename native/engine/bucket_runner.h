// Runs agreed requests: selects a backend and an algorithm for each, fuses them into buckets, runs these one after the
// other, and completes their requests.
//
// A runner belongs to one world. Guarantees: which requests run together, in which order and by which algorithm depends
// only on what was agreed, so it is the same on all members. If a backend throws, the buckets that ran are complete,
// and the requests of the others are given back.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/formation.h"
#include "collective/group.h"
#include "engine/outcomes.h"
#include "engine/pending.h"
#include "engine/recorder.h"
#include "transport/mesh.h"

namespace farandole::engine {

class BucketRunner {
 public:
  // Makes an instance of each backend in `rows` that is in this build. The mesh must outlive the last run().
  BucketRunner(std::span<const backend::Row* const> rows, const transport::Mesh& mesh, const backend::World& world,
               Recorder& recorder, Outcomes& outcomes);

  // Sets the knobs for the next collective and later ones. Values that a backend cannot have are brought within bounds.
  void set_knobs(const collective::Knobs& knobs);
  const collective::Knobs& knobs() const noexcept { return knobs_; }

  // All following collectives belong to this decision.
  void begin(uint32_t decision);
  // Does what can be done for an allreduce before all agree on it as the decision that has begun.
  void stage(const collective::Group& group, Pending& pending);
  // All members have this request, and have staged theirs if this one has: does what one of them can do for all.
  void reduce_staged(const collective::Group& group, const Pending& pending);
  // They were agreed on at that time. If it throws, the requests that did not run are in `unfinished`.
  void run(const collective::Group& group, std::vector<Runnable> runnables, int64_t agreed_ns,
           std::vector<std::unique_ptr<Pending>>& unfinished);
  // From now on, the backends that have to be formed run in this group, or no longer do so.
  void use_formed(uint32_t group) { formed_.insert(group); }
  void remove_group(uint32_t group) { formed_.erase(group); }
  // The formation of the backend that has to be formed, or null if there is no such backend.
  backend::Formation* formation() const noexcept;
  // The world has been revoked.
  void revoke() noexcept;

 private:
  struct Instance {
    const backend::Row* row;
    std::unique_ptr<backend::Backend> backend;
  };

  using Bucket = std::vector<Runnable*>;

  // Chooses what runs a request.
  void choose(const collective::Group& group, Pending& pending) const;
  std::vector<Bucket> plan(std::vector<Runnable>& runnables) const;
  void run_bucket(const collective::Group& group, std::span<Runnable* const> bucket);
  void complete(std::unique_ptr<Pending> pending, const device::MarkPointer& mark, int64_t at_ns);

  const std::span<const backend::Row* const> rows_;
  const transport::Mesh& mesh_;
  Recorder& recorder_;
  Outcomes& outcomes_;
  std::vector<Instance> instances_;  // in the order of `rows_`
  std::set<uint32_t> formed_;        // groups in which those that have to be formed are
  collective::Knobs knobs_;
  collective::Copied copied_;  // for the bucket that runs, also what was staged for it before
};

}  // namespace farandole::engine
