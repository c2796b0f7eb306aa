// Requests that move no data: they are done when all ranks have asked for them.
#include "engine/kinds/checks.h"

namespace farandole::engine::kinds {
namespace {

void check_is_in_world(const Request& request, const collective::Group&, int) {
  if (request.group != 0) {
    refuse(std::string(name_of(request.signature.kind)) +
           " concerns all ranks: it cannot be asked for in a process set.");
  }
}

}  // namespace

constexpr KindRow kBarrier = {.name = "barrier"};
constexpr KindRow kAddGroup = {.name = "add_process_set", .check = check_is_in_world};
constexpr KindRow kRemoveGroup = {.name = "remove_process_set", .check = check_is_in_world};
constexpr KindRow kJoin = {.name = "join", .check = check_is_in_world};

}  // namespace farandole::engine::kinds
