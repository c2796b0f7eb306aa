// From a collective in a program to the engine's requests, wherever the arrays are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "capi/farandole.h"
#include "plugins/engine_link.h"
#include "plugins/jax/call_site.h"
#include "plugins/jax/failure.h"

namespace farandole::jax {

// The engine of the process, which programs cannot reach in any other way.
plugins::EngineLink& engine_link();

// The size of an array of this shape, or of this shape of a result.
size_t bytes_of(const Member& member, const std::vector<int64_t>& shape);

// Runs the check of a program that omits a collective because it was made for one worker.
xla::Error* check_alone(const Collective& collective, const xla::Api& api);

// Returns the ranks of a collective's group. Throws Failure if there is no engine, no such group, or if the shapes of
// results that XLA has compiled into the program do not fit the world that there is now.
std::vector<int32_t> checked_ranks(const plugins::EngineLink::Use& use, const Collective& collective,
                                   const std::vector<Member>& members);

// Returns the request of a member, which points to what it is given.
farandole_request request_of(const Collective& collective, const Member& member, const void* input, void* output);

// The ranks turned out to give arrays of different numbers of rows.
Failure ragged(const Member& member);

}  // namespace farandole::jax
