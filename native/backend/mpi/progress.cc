#include "backend/mpi/progress.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace farandole::backend::mpi {
namespace {

constexpr int64_t kLookNs = 50'000;
constexpr int64_t kLeastPauseNs = 20'000;
constexpr int64_t kMostPauseNs = 200'000;
// For waits that are longer than any of the network.
constexpr int64_t kLongNs = 20'000'000;
constexpr int64_t kLongPauseNs = 1'000'000;
// Two polls are 1 to 10 us apart, unless another thread has had this core in between.
constexpr int64_t kTurnNs = 40'000;
// The time for which that is remembered, before it is tried again.
constexpr int64_t kCrowdedNs = 500'000'000;
// An error of MPI is often the first sign of a loss. This is the time that the cause of the loss may take to reach us.
constexpr double kRevokePatienceSeconds = 1.0;

}  // namespace

int64_t pause_after(int64_t waited_ns, bool core_is_free) noexcept {
  if (core_is_free && waited_ns < kLookNs) {
    return 0;
  }
  return waited_ns < kLongNs ? std::clamp(waited_ns / 8, kLeastPauseNs, kMostPauseNs) : kLongPauseNs;
}

void Progress::pause() noexcept {
  const int64_t now = base::now_ns();
  if (in_vain_since_ns_ == 0) {
    in_vain_since_ns_ = now;
  }
  const int64_t pause_ns = pause_after(now - in_vain_since_ns_, now >= core_is_free_from_ns_);
  looked_ns_ = pause_ns == 0 ? now : 0;
  frames_.set_pause(pause_ns);
}

bool Progress::test(Request& request) noexcept {
  if (request == Request::kNone || failed_ != kSuccess) {
    return true;
  }
  if (looked_ns_ != 0) {
    if (const int64_t now = base::now_ns(); now - looked_ns_ > kTurnNs) {
      core_is_free_from_ns_ = now + kCrowdedNs;
    }
  }
  int flag = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the number is the ABI's
  failed_ = mpi().test(&request, &flag, reinterpret_cast<void*>(constants().status_ignore));
  if (failed_ == kSuccess && flag == 0) {
    pause();
    return false;
  }
  request = Request::kNone;
  in_vain_since_ns_ = 0;
  looked_ns_ = 0;
  return true;
}

const void* Progress::in_place() const noexcept {
  return reinterpret_cast<const void*>(constants().in_place);  // NOLINT(performance-no-int-to-ptr): the same
}

void Progress::check() { require(failed_, "MPI_Test"); }

void Progress::require(int code, const char* name) {
  if (code != kSuccess) {
    fail(code, name);
  }
}

void Progress::fail(int code, const char* name) {
  const auto deadline = base::Deadline::after_seconds(kRevokePatienceSeconds);
  frames_.wait([&] {
    frames_.set_pause(kLongPauseNs);
    return deadline.passed();
  });  // throws when the revoke comes
  process_.require(code, name);
  std::abort();  // it throws for every failure
}

void Progress::wait(Request& request) {
  frames_.wait([&] { return test(request); });
  check();
}

void Progress::run(std::function<void()> body) {
  const auto call = process_.begin(std::move(body));
  const int64_t began = base::now_ns();
  frames_.wait([&] {
    frames_.set_pause(pause_after(base::now_ns() - began, false));
    return call->is_done.load();
  });
  if (call->error) {
    std::rethrow_exception(call->error);
  }
}

}  // namespace farandole::backend::mpi
