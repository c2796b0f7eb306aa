#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

namespace farandole::base {
namespace {

static_assert(!std::is_copy_constructible_v<UniqueFd> && !std::is_copy_assignable_v<UniqueFd>);

int open_something() {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  return fd;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFd, WithoutDescriptorIsFalse) {
  const UniqueFd none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.get(), -1);
}

TEST(UniqueFd, ZeroIsAValidDescriptor) {
  // Kept aside and put back, so that this test leaves standard input as it was.
  const int aside = ::fcntl(0, F_DUPFD_CLOEXEC, 3);
  const int something = open_something();
  ASSERT_EQ(::dup2(something, 0), 0);
  {
    const UniqueFd zero(0);
    EXPECT_TRUE(zero);
  }
  EXPECT_FALSE(is_open(0));
  if (aside >= 0) {
    ::dup2(aside, 0);
    ::close(aside);
  }
  ::close(something);
}

TEST(UniqueFd, ClosesDescriptorWhenDestroyed) {
  const int raw = open_something();
  {
    const UniqueFd fd(raw);
    EXPECT_TRUE(fd);
    EXPECT_EQ(fd.get(), raw);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFd, MovesItsDescriptor) {
  const int raw = open_something();
  UniqueFd from(raw);
  const UniqueFd to(std::move(from));
  EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): the state after the move is what is tested
  EXPECT_EQ(to.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, AssignmentClosesPreviousDescriptor) {
  const int old_raw = open_something();
  const int new_raw = open_something();
  UniqueFd fd(old_raw);
  fd = UniqueFd(new_raw);
  EXPECT_FALSE(is_open(old_raw));
  EXPECT_TRUE(is_open(new_raw));
  EXPECT_EQ(fd.get(), new_raw);
}

TEST(UniqueFd, AssignmentToItselfKeepsIt) {
  const int raw = open_something();
  UniqueFd fd(raw);
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_EQ(fd.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, ResetClosesAndReplaces) {
  const int old_raw = open_something();
  const int new_raw = open_something();
  UniqueFd fd(old_raw);
  fd.reset(new_raw);
  EXPECT_FALSE(is_open(old_raw));
  EXPECT_TRUE(is_open(new_raw));
  fd.reset();
  EXPECT_FALSE(fd);
  EXPECT_FALSE(is_open(new_raw));
}

}  // namespace
}  // namespace farandole::base
