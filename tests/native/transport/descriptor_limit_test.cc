#include "transport/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/error.h"
#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

// Runs it in a child, whose limits are its own. A child that returns has passed.
template <typename Body>
void in_child(Body&& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

rlimit limit_of_open_files() {
  rlimit limit{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit;
}

void set_limit(rlim_t soft, rlim_t hard) {
  const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(DescriptorLimit, IsRaisedForAWorldThatNeedsMore) {
  in_child([] {
    const rlim_t hard = limit_of_open_files().rlim_max;
    set_limit(64, hard);
    reserve_descriptors(2, 1);
    EXPECT_EQ(limit_of_open_files().rlim_cur, 64U) << "only when it is needed";
    reserve_descriptors(100, 99);
    EXPECT_EQ(limit_of_open_files().rlim_cur, hard);
  });
}

TEST(DescriptorLimit, LimitThatIsTooLowIsErrorWithNextStep) {
  in_child([] {
    set_limit(100, 100);
    try {
      reserve_descriptors(64, 63);
      ADD_FAILURE() << "it does not fit";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::Code::kUnavailable);
      EXPECT_NE(std::string(error.what()).find("a world of 64 workers takes about "), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("the hard limit is 100; raise it"), std::string::npos);
    }
  });
}

TEST(DescriptorLimit, HasToBeEnoughForLinksFromTheStartOnly) {
  in_child([] {
    const auto hard = static_cast<rlim_t>(open_descriptors()) + 200;
    set_limit(hard - 20, hard);
    reserve_descriptors(1'000, 20);
    EXPECT_EQ(limit_of_open_files().rlim_cur, hard);
    EXPECT_THROW(reserve_descriptors(1'000, 100), base::Error);
  });
}

TEST(DescriptorLimit, WorldFormsWithLowSoftLimit) {
  in_child([] {
    set_limit(static_cast<rlim_t>(open_descriptors()) + 40, limit_of_open_files().rlim_max);
    Workers workers(Wiring::kShm, 5);
    EXPECT_EQ(workers.form().size(), 5U);
  });
}

}  // namespace
}  // namespace farandole::transport::testing
