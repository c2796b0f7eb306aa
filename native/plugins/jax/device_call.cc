#include "plugins/jax/device_call.h"

#include <algorithm>
#include <cstddef>

#include "plugins/jax/failure.h"
#include "plugins/jax/requests.h"

namespace farandole::jax {

namespace {

// The longest time until it is noticed that the engine is wanted back.
constexpr double kLookSeconds = 0.5;

void* stream_of(const xla::CallFrame& frame) {
  xla::StreamArguments arguments{sizeof(arguments), nullptr, frame.context, nullptr};
  xla::Error* const error = frame.api->get_stream(&arguments);
  if (error != nullptr) {
    xla::DestroyErrorArguments destroyed{sizeof(destroyed), nullptr, error};
    frame.api->destroy_error(&destroyed);
    throw Failure(xla::ErrorCode::kInternal, "XLA does not say in which stream of the GPU a collective is to run.");
  }
  return arguments.stream;
}

void check(int status) {
  if (status != FARANDOLE_OK) {
    throw Failure::of_status(status, farandole_last_error(), farandole_last_lost_rank());
  }
}

}  // namespace

xla::Error* DeviceCall::run(CallSite& site, const xla::CallFrame& frame) {
  try {
    DeviceCall call(site.collective(), site.begin(frame), frame);
    call.launch();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.for_xla(*frame.api);
  }
}

DeviceCall::DeviceCall(const Collective& collective, OnDevice& site, const xla::CallFrame& frame)
    : collective_(collective),
      site_(site),
      frame_(frame),
      device_(device_of(frame)),
      stream_(stream_of(frame)),
      options_(collective.options) {
  options_.push_back({"memory", FARANDOLE_MEMORY_DEVICE});
}

DeviceCall::~DeviceCall() { site_.is_in_flight = false; }

void DeviceCall::launch() {
  if (collective_.has_residuals) {
    throw Failure::of_call(collective_.name +
                           ": a compression with feedback does not work on GPUs in functions that JAX compiles. Use "
                           "Compression.fp16 or Compression.bf16, or none.");
  }
  use_.emplace(engine_link());
  checked_ranks(*use_, collective_, site_.members);
  engine_ = use_->get();
  const bool keeps_results = !collective_.only_at_root || collective_.root == use_->place().rank;
  const std::vector<farandole_request> all = requests();
  std::vector<uint64_t> handles(all.size());
  check(farandole_submit(engine_, all.data(), all.size(), handles.data()));
  const int status = wait_on(handles);
  try {
    check(status);
    check_rows(handles);
    if (!keeps_results) {
      clear_results();
    }
  } catch (const Failure&) {
    farandole_release_all(engine_, handles.data(), handles.size());
    throw;
  }
  farandole_release_all(engine_, handles.data(), handles.size());
}

std::vector<farandole_request> DeviceCall::requests() const {
  std::vector<farandole_request> all;
  all.reserve(site_.members.size());
  for (size_t i = 0; i < site_.members.size(); ++i) {
    farandole_request& request = all.emplace_back(
        request_of(collective_, site_.members[i], frame_.arguments.values[i]->data, frame_.results.values[i]->data));
    request.options = options_.data();
    request.option_count = options_.size();
    request.device = device_;
    request.stream = stream_;
  }
  return all;
}

// Waits until all are launched, or have failed. If the engine is wanted back meanwhile, its world is about to end,
// which ends this wait.
int DeviceCall::wait_on(const std::vector<uint64_t>& handles) {
  while (true) {
    const int status = farandole_wait_on(engine_, handles.data(), handles.size(), device_, stream_, kLookSeconds);
    if (status != FARANDOLE_TIMEOUT) {
      return status;
    }
    if (use_ && use_->is_wanted_back()) {
      use_.reset();
    }
  }
}

// Rows of different numbers are in memory of the engine.
void DeviceCall::check_rows(const std::vector<uint64_t>& handles) const {
  if (collective_.kind != FARANDOLE_ALLGATHER && collective_.kind != FARANDOLE_ALLTOALL) {
    return;
  }
  for (size_t i = 0; i < handles.size(); ++i) {
    const void* data = nullptr;
    const int64_t* rows = nullptr;
    size_t ranks = 0;
    check(farandole_result(engine_, handles[i], &data, &rows, &ranks));
    if (ranks > 1 && !std::equal(rows + 1, rows + ranks, rows)) {
      throw ragged(site_.members[i]);
    }
  }
}

void DeviceCall::clear_results() const {
  for (size_t i = 0; i < site_.members.size(); ++i) {
    const Member& member = site_.members[i];
    check(farandole_clear(engine_, frame_.results.values[i]->data, bytes_of(member, member.result_shape), device_,
                          stream_));
  }
}

}  // namespace farandole::jax
