// Collectives among GPUs by NVIDIA's library, which is loaded when the first tensor on a GPU comes.
//
// All collectives of a GPU go into one stream, in the order that was agreed on, so the deadlocks of NCCL's users
// (another order on another rank, a rank that never comes) cannot arise among them. Calls do not block; until NCCL says
// that a call is over, the backend waits and watches the world, so that the wait ends when a worker is lost.
//
// The end of a world. In an elastic job, communicators are aborted when it is revoked, because the next world needs the
// GPU; results that the program has seen are complete then, because it waits for them on the host. In other jobs they
// are not aborted: an aborted collective leaves a partial sum, and the program's stream would go on with that.
//
// Threads: as backend/backend.h says, except for the thread that aborts.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/formation.h"
#include "backend/nccl/communicator.h"
#include "backend/nccl/launch.h"

namespace farandole::backend::nccl {

class Nccl final : public Backend, public Formation {
 public:
  explicit Nccl(const World& world);
  ~Nccl() override;

  collective::Knobs set_knobs(const collective::Knobs& knobs) override { return knobs; }
  collective::Choice choose(const collective::Group& group, const Need& need) const override;
  void begin(uint32_t) override {}
  bool stage(const collective::Group&, const collective::Choice&, const collective::AllreduceJob&) override {
    return false;
  }
  void reduce_staged(const collective::Group&, const collective::Choice&, const collective::AllreduceJob&) override {}
  device::MarkPointer run(const collective::Group& group, const collective::Choice& choice, const collective::Job& job,
                          std::span<const device::MarkPointer> after) override;
  void revoke() noexcept override;

  Formation* formation() noexcept override { return this; }
  base::Bytes introduce(const collective::Group& group, device::Gpu& gpu) override;
  base::Bytes prepare(const collective::Group& group, std::span<const base::Bytes> introductions) override;
  void form(const collective::Group& group, std::span<const std::byte> key) override;
  std::vector<Formed> formed() override;
  bool is_forming() const noexcept override { return forming_ > 0 || !failed_.empty(); }
  void drop(uint32_t group) noexcept override;
  void check() override;
  void await_end() noexcept override;

 private:
  std::vector<int64_t> exchange(const collective::Group& group, const std::vector<int64_t>& sent);
  // Moves all communicators to `dropped_`.
  void drop_all() noexcept;
  void begin_abort() noexcept;
  void await_aborted() noexcept;
  void await_launched() noexcept;

  transport::FrameMultiplexer& frames_;
  const GpuParts& gpu_;
  Backend& host_;
  const Library* library_ = nullptr;                                 // from the first introduction on
  std::map<uint32_t, std::unique_ptr<Communicator>> communicators_;  // by group
  std::vector<std::unique_ptr<Communicator>> dropped_;  // they end with the world, when all members are done
  std::vector<Formed> failed_;                          // those that failed at once
  int forming_ = 0;
  std::unique_ptr<Launch> launch_;  // while it runs, and from then on if the world broke meanwhile
  bool is_revoked_ = false;
  struct Aborted {
    device::Gpu* gpu;
    Comm comm;
  };
  std::vector<Aborted> aborted_;
  std::thread aborting_;
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace farandole::backend::nccl
