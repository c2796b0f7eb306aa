// The native backend: runs one agreed bucket with the algorithm of collective/algorithm_table.h that was chosen for it.
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/backend.h"
#include "collective/link_exchange.h"

namespace farandole::backend {

// Returns the algorithm for a request in a group with this topology. `wanted` as in collective/algorithm_table.h.
collective::Choice choose_native(const collective::Topology& topology, const Need& need, const collective::Knobs& knobs,
                                 std::string_view wanted);

class Native final : public Backend {
 public:
  // Takes its staging from `arena`, the one that the mesh of `frames` shares. Throws Error(kUnavailable) when full.
  // `exchanges` carries what goes between hosts in exchanges; null: links do.
  Native(transport::FrameMultiplexer& frames, transport::Arena& arena, Tuning tuning,
         collective::ExchangeCarrier* exchanges = nullptr);
  ~Native() override;

  collective::Knobs set_knobs(const collective::Knobs& knobs) override;
  const collective::Knobs& knobs() const noexcept { return tuning_.knobs; }
  collective::Choice choose(const collective::Group& group, const Need& need) const override;
  void begin(uint32_t decision) override;
  bool stage(const collective::Group& group, const collective::Choice& choice,
             const collective::AllreduceJob& job) override;
  void reduce_staged(const collective::Group& group, const collective::Choice& choice,
                     const collective::AllreduceJob& job) override;
  // Throw the world's error as well when a worker whose memory was read has gone on to another generation meanwhile.
  device::MarkPointer run(const collective::Group& group, const collective::Choice& choice, const collective::Job& job,
                          std::span<const device::MarkPointer> after) override;
  // Nothing: its waits watch the mesh, which is revoked already.
  void revoke() noexcept override {}

 private:
  collective::Context context(const collective::Group& group);
  // Throws if a worker whose memory was read has gone on to another generation.
  void require_same_generation(std::span<const int> ranks);

  transport::FrameMultiplexer& frames_;
  transport::Arena& arena_;
  Tuning tuning_;
  std::byte* const memory_;
  collective::ShmSequence sequence_;
  collective::Staging staging_;
  collective::LinkExchanges links_;
  collective::ExchangeCarrier& exchanges_;
  mutable collective::TopologyMemo topologies_;
};

}  // namespace farandole::backend
