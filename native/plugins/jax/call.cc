#include "plugins/jax/call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "plugins/jax/continuations.h"
#include "plugins/jax/requests.h"
#include "plugins/jax/result_memory.h"

namespace farandole::jax {

namespace {

// The time for which a thread of XLA's makes progress itself, for calls up to this size: threads need not be woken
// then, which takes longer than a small collective.
constexpr double kHelpSeconds = 1e-3;
constexpr size_t kHelpBytes = size_t{1} << 20;

// Options are numbers, whatever they mean.
constexpr double kNoCompression{FARANDOLE_COMPRESSION_NONE};

std::atomic<int> calls_in_flight{0};

}  // namespace

xla::Error* Call::run(CallSite& site, xla::CallFrame& frame) {
  OnDevice* on_device = nullptr;
  try {
    on_device = &site.begin(frame);
  } catch (const Failure& failure) {
    return failure.for_xla(*frame.api);
  }
  auto* const call = new Call(site.collective(), *on_device, frame);
  {
    const plugins::EngineLink::Use use(engine_link());
    try {
      call->submit(use);
    } catch (const Failure& failure) {
      call->fail(failure);
    }
  }
  if (call->open_ > 1) {
    xla::FutureArguments arguments{sizeof(arguments), nullptr, nullptr};
    frame.api->create_future(&arguments);
    call->future_ = frame.future = arguments.future;
    if (--call->open_ == 0) {  // done meanwhile
      call->complete();
    }
    return nullptr;
  }
  const std::optional<Failure> failure = call->end();
  return failure ? failure->for_xla(*frame.api) : nullptr;
}

Call::Call(const Collective& collective, OnDevice& site, const xla::CallFrame& frame)
    : collective_(collective), site_(site), api_(*frame.api), parts_(site.members.size()) {
  ++calls_in_flight;
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].call = this;
    parts_[i].member = &site.members[i];
    parts_[i].input = frame.arguments.values[i]->data;
    parts_[i].output = frame.results.values[i]->data;
    if (collective.has_residuals) {
      take_residual(parts_[i], *frame.arguments.values[parts_.size() + i], *frame.results.values[parts_.size() + i]);
    }
  }
}

// The engine updates a residual in place, and XLA wants the new one elsewhere.
void Call::take_residual(Part& part, const xla::Buffer& before, const xla::Buffer& after) {
  part.residual = after.data;
  if (after.data != before.data) {
    const auto elements =
        std::accumulate(after.dimensions, after.dimensions + after.rank, int64_t{1}, std::multiplies<>());
    std::memcpy(after.data, before.data, static_cast<size_t>(elements) * sizeof(float));
  }
}

Call::~Call() {
  --calls_in_flight;
  site_.is_in_flight = false;
}

// --- from XLA to the engine

void Call::submit(const plugins::EngineLink::Use& use) {
  engine_ = use.get();
  rank_ = use.place().rank;
  const std::vector<int32_t> ranks = checked_ranks(use, collective_, site_.members);
  prepare_memory();
  if (is_alone(ranks)) {
    for (const Part& part : parts_) {
      std::memcpy(part.output, part.input, bytes_of(*part.member, part.member->result_shape));
    }
    return;
  }
  std::vector<farandole_request> requests;
  requests.reserve(parts_.size());
  for (Part& part : parts_) {
    requests.push_back(request_of(part));
  }
  open_ += requests.size();
  try {
    hand_over(requests);
  } catch (const Failure&) {
    open_ -= requests.size();
    throw;
  }
}

void Call::prepare_memory() const {
  for (const Part& part : parts_) {
    prepare_result(part.output, bytes_of(*part.member, part.member->result_shape));
  }
}

// Whether the results are the arguments.
bool Call::is_alone(const std::vector<int32_t>& ranks) const {
  return ranks.size() == 1 && ranks[0] == rank_ &&
         collective_.option("prescale", 1.0) * collective_.option("postscale", 1.0) == 1.0 &&
         collective_.option("compression", kNoCompression) == kNoCompression &&
         collective_.option("root", rank_) == rank_;
}

void Call::hand_over(const std::vector<farandole_request>& requests) {
  std::vector<uint64_t> handles(requests.size());
  const auto begin = plugins::OwnProgress::Clock::now();
  int status = FARANDOLE_OK;
  if (may_make_progress() && site_.progress.is_worth_it(begin)) {
    status = farandole_run(engine_, requests.data(), requests.size(), handles.data(), kHelpSeconds);
    if (handles[0] != 0) {
      const auto end = plugins::OwnProgress::Clock::now();
      site_.progress.attempted(status != FARANDOLE_TIMEOUT, end, end - begin);
      return;  // the callback of each request tells how it has ended, or will end
    }
  } else {
    status = farandole_submit(engine_, requests.data(), requests.size(), handles.data());
  }
  if (status != FARANDOLE_OK) {
    throw Failure::of_status(status, farandole_last_error(), farandole_last_lost_rank());
  }
}

farandole_request Call::request_of(Part& part) const {
  farandole_request request = jax::request_of(collective_, *part.member, part.input, part.output);
  request.residual = part.residual;
  request.callback = &Call::part_done;
  request.callback_context = &part;
  return request;
}

bool Call::may_make_progress() const {
  const auto add = [](size_t sum, const Part& part) { return sum + bytes_of(*part.member, part.member->shape); };
  return calls_in_flight == 1 && std::accumulate(parts_.begin(), parts_.end(), size_t{0}, add) <= kHelpBytes;
}

// --- from the engine to XLA

void Call::part_done(void* context, uint64_t handle, int status, const char* error, int32_t lost_rank) {
  auto& part = *static_cast<Part*>(context);
  Call& call = *part.call;
  if (status != FARANDOLE_OK) {
    call.fail(Failure::of_status(status, error, lost_rank));
  } else if (call.collective_.kind == FARANDOLE_ALLGATHER || call.collective_.kind == FARANDOLE_ALLTOALL) {
    call.check_rows(part, handle);
  }
  farandole_release_all(call.engine_, &handle, 1);  // from here on, the call needs no engine
  if (--call.open_ == 0) {
    Continuations::of_process().run([&call] { call.complete(); });
  }
}

// The engine has allocated the rows itself if ranks turned out to give different numbers of them.
void Call::check_rows(const Part& part, uint64_t handle) {
  const void* data = nullptr;
  const int64_t* rows = nullptr;
  size_t ranks = 0;
  farandole_result(engine_, handle, &data, &rows, &ranks);
  if (data != nullptr && !std::equal(rows + 1, rows + ranks, rows)) {
    fail(ragged(*part.member));
  }
}

void Call::fail(const Failure& failure) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (!failure_) {
    failure_.emplace(failure);
  }
}

// All parts are done. Deletes this.
std::optional<Failure> Call::end() {
  for (const Part& part : parts_) {
    if (collective_.only_at_root && collective_.root != rank_) {
      std::memset(part.output, 0, bytes_of(*part.member, part.member->result_shape));
    }
  }
  const std::optional<Failure> failure = failure_;
  delete this;
  return failure;
}

void Call::complete() {
  const xla::Api& api = api_;
  xla::Future* const future = future_;
  const std::optional<Failure> failure = end();
  if (failure) {
    xla::SetErrorArguments arguments{sizeof(arguments), nullptr, future, failure->for_xla(api)};
    api.set_error(&arguments);
  } else {
    xla::FutureArguments arguments{sizeof(arguments), nullptr, future};
    api.set_available(&arguments);
  }
}

}  // namespace farandole::jax
