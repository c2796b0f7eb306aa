#include "plugins/jax/requests.h"

#include <functional>
#include <numeric>

namespace farandole::jax {

namespace {

[[noreturn]] void throw_not_initialized() {
  throw Failure(xla::ErrorCode::kFailedPrecondition, "farandole has not been initialized; use hvd.init().");
}

Failure compiled_for_others(const std::string& name, size_t ranks) {
  return Failure::of_call(name + ": this function was compiled for another number of workers than the " +
                          std::to_string(ranks) +
                          " that there are now, and what it computes depends on it. Call jax.clear_caches() after each "
                          "init(), or call this collective outside of jitted functions.");
}

// A result's first dimension, for the argument's and this number of ranks.
int64_t rows_after(uint32_t kind, int64_t rows, int64_t ranks) {
  switch (farandole_kind_row_of(kind)->rows) {
    case FARANDOLE_ROWS_GATHERED:
      return rows * ranks;
    case FARANDOLE_ROWS_SHARED:
      return rows / ranks;
    default:
      return rows;
  }
}

}  // namespace

plugins::EngineLink& engine_link() {
  static auto* const link = new plugins::EngineLink;  // never destroyed: XLA's threads may outlive static objects
  return *link;
}

size_t bytes_of(const Member& member, const std::vector<int64_t>& shape) {
  return static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())) *
         member.bytes_each;
}

xla::Error* check_alone(const Collective& collective, const xla::Api& api) {
  try {
    const plugins::EngineLink::Use use(engine_link());
    if (use.get() == nullptr) {
      throw_not_initialized();
    }
    const size_t ranks = use.ranks_in(collective.group).size();
    if (ranks != 1) {
      throw compiled_for_others(collective.name, ranks);
    }
    return nullptr;
  } catch (const Failure& failure) {
    return failure.for_xla(api);
  }
}

std::vector<int32_t> checked_ranks(const plugins::EngineLink::Use& use, const Collective& collective,
                                   const std::vector<Member>& members) {
  if (use.get() == nullptr) {
    throw_not_initialized();
  }
  std::vector<int32_t> ranks = use.ranks_in(collective.group);
  if (ranks.empty()) {
    throw Failure::of_call("there is no process set with id " + std::to_string(collective.group) +
                           ". Pass it to init() or add_process_set() on all ranks first.");
  }
  for (const Member& member : members) {
    const auto size = static_cast<int64_t>(ranks.size());
    if (!member.shape.empty() && rows_after(collective.kind, member.shape[0], size) != member.result_shape[0]) {
      throw compiled_for_others(member.name, ranks.size());
    }
  }
  return ranks;
}

farandole_request request_of(const Collective& collective, const Member& member, const void* input, void* output) {
  farandole_request request{};
  request.kind = collective.kind;
  request.dtype = member.dtype;
  request.opaque_type = member.opaque_type;
  request.opaque_bytes = member.bytes_each;
  request.group = collective.group;
  request.options = collective.options.data();
  request.option_count = collective.options.size();
  request.ndim = static_cast<uint32_t>(member.shape.size());
  request.shape = member.shape.data();
  request.name = member.name.c_str();
  request.input = input;
  request.output = output;
  return request;
}

Failure ragged(const Member& member) {
  return Failure::of_status(
      FARANDOLE_MISMATCH,
      (member.name + ": ranks gave arrays of different first dimensions, and a compiled function has to know "
                     "the shape of its results. Pad them to one length, or call this collective outside of "
                     "jitted functions.")
          .c_str(),
      -1);
}

}  // namespace farandole::jax
