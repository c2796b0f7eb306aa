#include "engine/kinds/checks.h"

#include <vector>

#include "base/error.h"

namespace farandole::engine::kinds {

void refuse(const std::string& why) { throw base::Error(base::Code::kInvalidArgument, why); }

std::string ranks_of(const collective::Group& group) {
  return format_shape(std::vector<int64_t>(group.members.begin(), group.members.end()));
}

void check_reducible(const Request& request) {
  if (!request.signature.opaque.name.empty()) {
    refuse(std::string(name_of(request.signature.kind)) + ": '" + request.name + "' is of " +
           request.signature.type_name() + ", with which nothing is calculated. Convert it to another type.");
  }
}

void check_is_not_adasum(const Request& request) {
  if (request.signature.op == ReduceOp::kAdasum) {
    refuse(std::string(name_of(request.signature.kind)) + " does not support Adasum: '" + request.name +
           "'. Use Sum, Average, Min, Max or Product.");
  }
}

void check_has_rows(const Request& request) {
  if (request.signature.shape.empty()) {
    refuse(std::string(name_of(request.signature.kind)) + " needs a tensor with at least one dimension: '" +
           request.name + "' has none.");
  }
}

void check_root(const Request& request, const collective::Group& group) {
  if (!group.contains(request.signature.root)) {
    refuse(std::string(name_of(request.signature.kind)) + " received invalid root rank " +
           std::to_string(request.signature.root) + " for the provided process set, whose ranks are " +
           ranks_of(group) + ".");
  }
}

}  // namespace farandole::engine::kinds
