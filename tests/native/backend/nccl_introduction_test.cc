// Which members can form a communicator of NCCL.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/nccl/introduction.h"

namespace farandole::backend::nccl {
namespace {

Introduction member(int gpu, int version = 23007, bool shares = false) {
  Introduction introduction;
  introduction.version = version;
  introduction.gpu.bytes[0] = static_cast<std::byte>(gpu);
  introduction.shares = shares;
  return introduction;
}

std::string obstacle_of(const std::vector<Introduction>& members) {
  std::vector<int> ranks;
  std::vector<Introduction> received;
  for (const Introduction& each : members) {
    ranks.push_back(2 * static_cast<int>(ranks.size()) + 1);
    received.push_back(decode_introduction(encode(each)));
  }
  return find_obstacle(ranks, received);
}

TEST(NcclIntroduction, MembersWithSeparateGpusAndOneVersionFormCommunicator) {
  EXPECT_EQ(obstacle_of({member(0)}), "");
  EXPECT_EQ(obstacle_of({member(0), member(1), member(2)}), "");
}

TEST(NcclIntroduction, FirstProblemOfAMemberIsReported) {
  Introduction without = member(1);
  without.problem = "NCCL cannot be loaded";
  EXPECT_EQ(obstacle_of({member(0), without, without}), "rank 3: NCCL cannot be loaded");
}

TEST(NcclIntroduction, VersionsMustBeTheSame) {
  EXPECT_EQ(obstacle_of({member(0), member(1), member(2, 22707)}),
            "rank 1 has NCCL 2.30.7 and rank 5 NCCL 2.27.7. Install the same version on all hosts");
}

TEST(NcclIntroduction, GpuIsSharedOnlyIfNcclSupportsIt) {
  const std::string refusal = "rank 1 and rank 5 use the same GPU.";
  EXPECT_EQ(obstacle_of({member(7), member(1), member(7)}).substr(0, refusal.size()), refusal);
  EXPECT_NE(obstacle_of({member(7, 23000, true), member(7, 23000, false)}), "");
  EXPECT_NE(obstacle_of({member(7, 22900, true), member(7, 22900, true)}), "");
  EXPECT_EQ(obstacle_of({member(7, 23000, true), member(7, 23000, true)}), "");
}

TEST(NcclIntroduction, MalformedIntroductionsAreErrors) {
  const base::Bytes bytes = encode(member(1));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(decode_introduction(std::span(bytes).first(length)), base::Error) << length;
  }
}

}  // namespace
}  // namespace farandole::backend::nccl
