// This rank's part in forming the backends that have to be formed in a group before they run there: see
// backend/formation.h. It goes on beside the work of other backends, in three steps, on which rank 0 decides as on
// everything else.
//
// Threads: for the thread with the progress lock.
#pragma once

#include <set>

#include "backend/formation.h"
#include "engine/formation_tally.h"
#include "engine/messages.h"
#include "engine/pending.h"

namespace farandole::engine {

class Formations {
 public:
  // `formation` may be null: there is no such backend.
  Formations(backend::Formation* formation, backend::GpuMode mode) : formation_(formation), mode_(mode) {}

  // Before a request of this group is reported: the first one in device memory introduces this rank.
  void introduce(const collective::Group& group, const Pending& pending, Ready& ready);
  // Returns the formations that are complete.
  void report(Ready& ready);
  bool is_forming() const noexcept { return formation_ != nullptr && formation_->is_forming(); }

  // Rank 0: returns the decision when all members of a group have introduced themselves.
  Decision prepare(const FormationTally::Introduced& introduced) const;
  // Forms the communicator of a group that has this rank, as rank 0 decided.
  void form(const collective::Group& group, const Decision& decision) { formation_->form(group, decision.key); }
  // Whether the backend runs in this group, of which this rank is a member, from now on. Throws Error(kUnavailable)
  // when it cannot, and has to.
  bool use(const Decision& decision, bool is_member);
  void remove(uint32_t group);

  // Throws Error(kUnavailable) when one in use has failed.
  void check() const {
    if (formation_ != nullptr) {
      formation_->check();
    }
  }
  void await_end() const noexcept {
    if (formation_ != nullptr) {
      formation_->await_end();
    }
  }

 private:
  backend::Formation* const formation_;
  const backend::GpuMode mode_;
  std::set<uint32_t> introduced_;  // groups
};

}  // namespace farandole::engine
