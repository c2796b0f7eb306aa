// The MPI backend: between hosts, data is moved by the MPI library that started the job; within a host, by shared
// memory as usual. It consists of the native backend, whose exchanges between hosts are carried by MPI, and of MPI's
// own collectives for operations that only move data. Requests in which MPI has no part (groups within a host, Adasum,
// compressed allreduces, transfers) are run by the native backend over its links.
#pragma once

#include "backend/backend.h"
#include "backend/mpi/exchange.h"
#include "backend/mpi/moves.h"
#include "backend/native/native.h"

namespace farandole::backend::mpi {

// Whether MPI has a part in what a request needs, in a group that lies so on hosts.
bool takes(const collective::Topology& topology, const Need& need);

// Returns the algorithm for a request in which MPI has a part. Algorithms that add are those of the native table, with
// their exchanges carried by MPI. `wanted` as in collective/algorithm_table.h.
collective::Choice choose(const collective::Topology& topology, const Need& need, std::string_view wanted);

class Mpi final : public Backend {
 public:
  // Requires Process::start(). Throws Error(kUnavailable) when MPI has not started the workers of this world together.
  explicit Mpi(const World& world);
  Mpi(const World& world, Process& process);

  collective::Knobs set_knobs(const collective::Knobs& knobs) override { return native_.set_knobs(knobs); }
  collective::Choice choose(const collective::Group& group, const Need& need) const override;
  void begin(uint32_t decision) override { native_.begin(decision); }
  bool stage(const collective::Group& group, const collective::Choice& choice,
             const collective::AllreduceJob& job) override {
    return native_.stage(group, choice, job);
  }
  void reduce_staged(const collective::Group& group, const collective::Choice& choice,
                     const collective::AllreduceJob& job) override {
    native_.reduce_staged(group, choice, job);
  }
  device::MarkPointer run(const collective::Group& group, const collective::Choice& choice, const collective::Job& job,
                          std::span<const device::MarkPointer> after) override;
  void revoke() noexcept override { process_.give_up(); }

 private:
  Among among(const collective::Group& group);

  Process& process_;
  transport::FrameMultiplexer& frames_;
  const std::string wanted_;
  Progress progress_;
  Communicators communicators_;
  MpiExchanges exchanges_;
  Native native_;
  mutable collective::TopologyMemo topologies_;
  Rooms rooms_;
};

}  // namespace farandole::backend::mpi
