#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"

namespace farandole::base {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override {
    set_log_level(Level::kWarning);
    set_log_copy(-1);
  }

  static std::string written(Level level, int rank) {
    ::testing::internal::CaptureStderr();
    log(level, rank, "the link is slow");
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, LineHasRankAndLevel) {
  EXPECT_EQ(written(Level::kWarning, 3), "farandole [rank 3] warning: the link is slow\n");
  EXPECT_EQ(written(Level::kError, 0), "farandole [rank 0] error: the link is slow\n");
  EXPECT_EQ(written(Level::kError, -1), "farandole error: the link is slow\n");
}

TEST_F(Log, PrintsNothingBelowItsLevel) {
  EXPECT_EQ(written(Level::kInfo, 0), "");
  set_log_level(Level::kDebug);
  EXPECT_EQ(written(Level::kDebug, 0), "farandole [rank 0] debug: the link is slow\n");
  EXPECT_EQ(written(Level::kInfo, 0), "farandole [rank 0] info: the link is slow\n");
  set_log_level(Level::kOff);
  EXPECT_EQ(written(Level::kError, 0), "");
}

// What is in the pipe now.
std::string read_all(int fd) {
  std::string text(1000, ' ');
  const ssize_t got = ::read(fd, text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

TEST_F(Log, WarningsAreCopiedIfStandardErrorIsAnotherFile) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  set_log_copy(writer.get());
  set_log_level(Level::kInfo);
  EXPECT_EQ(written(Level::kWarning, 3), "farandole [rank 3] warning: the link is slow\n");
  EXPECT_EQ(read_all(reader.get()), "farandole [rank 3] warning: the link is slow\n");
  written(Level::kInfo, 3);
  EXPECT_EQ(read_all(reader.get()), "");  // It does no harm.

  const UniqueFd kept(::dup(STDERR_FILENO));
  ::dup2(writer.get(), STDERR_FILENO);
  log(Level::kError, 0, "once");
  ::dup2(kept.get(), STDERR_FILENO);
  EXPECT_EQ(read_all(reader.get()), "farandole [rank 0] error: once\n");

  // The number is another file now.
  const int number = writer.get();
  int others[2];
  ASSERT_EQ(::pipe2(others, O_NONBLOCK | O_CLOEXEC), 0);
  const UniqueFd other_reader(others[0]);
  const UniqueFd other_writer(others[1]);
  ASSERT_EQ(::dup2(other_writer.get(), number), number);
  written(Level::kError, 0);
  EXPECT_EQ(read_all(other_reader.get()), "");
}

}  // namespace
}  // namespace farandole::base
