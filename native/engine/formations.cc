#include "engine/formations.h"

namespace farandole::engine {

void Formations::introduce(const collective::Group& group, const Pending& pending, Ready& ready) {
  if (pending.ready == nullptr || formation_ == nullptr || mode_ == backend::GpuMode::kStaged ||
      introduced_.contains(group.id)) {
    return;
  }
  device::Gpu& gpu = pending.ready->gpu();
  introduced_.insert(group.id);
  ready.introductions.push_back({group.id, formation_->introduce(group, gpu)});
}

void Formations::report(Ready& ready) {
  if (is_forming()) {
    ready.formed = formation_->formed();
  }
}

Decision Formations::prepare(const FormationTally::Introduced& introduced) const {
  Decision decision;
  decision.group = introduced.group;
  try {
    const collective::Group group{introduced.group, introduced.members};
    decision.key = formation_->prepare(group, introduced.introductions);
    decision.type = Decision::Type::kForm;
  } catch (const base::Error& error) {
    decision.type = Decision::Type::kUseFormed;
    decision.obstacle = error.what();
  }
  return decision;
}

bool Formations::use(const Decision& decision, bool is_member) {
  if (decision.obstacle.empty()) {
    return is_member;
  }
  if (is_member) {
    formation_->drop(decision.group);
  }
  if (mode_ == backend::GpuMode::kNccl) {
    throw base::Error(base::Code::kUnavailable,
                      "FARANDOLE_GPU=nccl asks for NCCL, which cannot be used. " + decision.obstacle);
  }
  return false;
}

void Formations::remove(uint32_t group) {
  if (introduced_.erase(group) > 0) {
    formation_->drop(group);
  }
}

}  // namespace farandole::engine
