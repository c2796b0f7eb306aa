// The common parts of the checks of several kinds of requests.
#pragma once

#include <string>

#include "collective/group.h"
#include "engine/pending.h"

namespace farandole::engine::kinds {

// Throws Error(kInvalidArgument).
[[noreturn]] void refuse(const std::string& why);

std::string ranks_of(const collective::Group& group);  // "[0, 2]"

// Refuses element types that are only moved, never calculated with.
void check_reducible(const Request& request);
// Refuses Adasum, which needs whole tensors everywhere.
void check_is_not_adasum(const Request& request);
// Refuses a tensor without dimensions.
void check_has_rows(const Request& request);
// Refuses a root that is not in the group.
void check_root(const Request& request, const collective::Group& group);

}  // namespace farandole::engine::kinds
