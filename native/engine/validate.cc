// Errors of a request that do not depend on other ranks: it is refused at the call, and nothing of it remains.
#include "engine/kinds/checks.h"
#include "engine/submissions.h"

namespace farandole::engine {

using collective::Group;
using kinds::refuse;

std::string Submissions::not_a_member(const Request& request, const Group& group) const {
  return std::string(name_of(request.signature.kind)) + ": rank " + std::to_string(mesh_->rank()) +
         " is not a member of the provided process set (its ranks are " + kinds::ranks_of(group) + ").";
}

backend::Selection Submissions::check(const Request& request) const {
  const KindRow& row = row_of(request.signature.kind);
  const std::string kind = row.name;
  const auto found = groups_.find(request.group);
  if (found == groups_.end() || closing_groups_.contains(request.group)) {
    refuse(kind + ": the process set provided does not exist, or has not been registered.");
  }
  if (found->second.index < 0) {
    refuse(not_a_member(request, found->second));
  }
  for (const int64_t dimension : request.signature.shape) {
    if (dimension < 0) {
      refuse(kind + ": a shape cannot have a negative dimension: " + format_shape(request.signature.shape) + ".");
    }
  }
  if (row.check != nullptr) {
    row.check(request, found->second, mesh_->rank());
  }
  if (request.signature.kind == Kind::kJoin && joining_) {
    refuse("join: this rank has joined already, and not all others have yet.");
  }
  const auto need = need_of(request.signature);
  if (!need) {
    return {};
  }
  const backend::Selection selection =
      backend::select(backends_, *need, found->second, mesh_->hosts(), formed_.contains(request.group));
  if (selection.row == nullptr) {
    refuse(kind + " '" + request.name + "': " + backend::refusal_of(backends_, *need));
  }
  return selection;
}

}  // namespace farandole::engine
