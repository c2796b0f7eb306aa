#include "backend/mpi/progress.h"

#include <utility>

#include "base/clock.h"

namespace farandole::backend::mpi {
namespace {

constexpr int64_t kLookNs = 20'000'000;
constexpr int64_t kPauseNs = 1'000'000;
// An error of MPI is often how a loss shows first: how long the news of that may take to reach us.
constexpr double kRevokePatienceSeconds = 1.0;

}  // namespace

void Progress::stay_awake() noexcept {
  const int64_t now = base::now_ns();
  if (in_vain_since_ns_ == 0) {
    in_vain_since_ns_ = now;
  }
  frames_.set_alarm(now - in_vain_since_ns_ < kLookNs ? now : now + kPauseNs);
}

bool Progress::test(Request& request) noexcept {
  if (request == Request::kNone || failed_ != kSuccess) {
    return true;
  }
  int flag = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the number is the ABI's
  failed_ = mpi().test(&request, &flag, reinterpret_cast<void*>(constants().status_ignore));
  if (failed_ == kSuccess && flag == 0) {
    stay_awake();
    return false;
  }
  request = Request::kNone;
  in_vain_since_ns_ = 0;
  frames_.set_alarm(0);
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
    frames_.set_alarm(base::now_ns() + kPauseNs);
    return deadline.passed();
  });  // throws when the revoke comes
  process_.require(code, name);
  std::abort();  // it throws for whatever is no success
}

void Progress::wait(Request& request) {
  frames_.wait([&] { return test(request); });
  check();
}

void Progress::run(std::function<void()> body) {
  const auto call = process_.begin(std::move(body));
  frames_.wait([&] {
    frames_.set_alarm(base::now_ns() + kPauseNs);
    return call->is_done.load();
  });
  frames_.set_alarm(0);
  if (call->error) {
    std::rethrow_exception(call->error);
  }
}

}  // namespace farandole::backend::mpi
