// Revoking a world that is still being formed, behind the C ABI.
#include <array>
#include <string>
#include <thread>

#include "capi/workers.h"

namespace farandole::testing {
namespace {

constexpr double kForEver = 1e9;

constexpr std::array<farandole_setting, 1> kSmallArena = {{{"arena_bytes", "67108864"}}};

class Revoke : public ::testing::Test {
 protected:
  // The first engine forms a world of both, which the second one does not join.
  int form(uint64_t generation) { return engines_.form_one(0, generation, 2, kForEver); }
  void expect_to_end(uint64_t generation) {
    EXPECT_EQ(form(generation), FARANDOLE_WORKER_LOST);
    EXPECT_EQ(farandole_last_error(), std::string("rank 1 has ended"));
    EXPECT_EQ(farandole_last_lost_rank(), 1);
  }
  void revoke(uint64_t generation) {
    EXPECT_EQ(farandole_engine_revoke(engines_[0], generation, 1, 1, "rank 1 has ended"), FARANDOLE_OK);
  }

  TwoEngines engines_{kSmallArena};
};

TEST_F(Revoke, EndsFormationWithoutWaitingForIt) {
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    std::thread forming([&] { expect_to_end(generation); });
    ::usleep(static_cast<useconds_t>(30'000 * (generation - 1)));
    revoke(generation);
    forming.join();
  }
}

TEST_F(Revoke, HasNoEffectOnOtherGenerations) {
  const farandole_world alone = {1, 0, 1, nullptr, kSecret, sizeof kSecret, kPatience};
  ASSERT_EQ(farandole_engine_form(engines_[0], &alone), FARANDOLE_OK) << farandole_last_error();
  revoke(2);
  revoke(0);
  EXPECT_EQ(farandole_engine_health(engines_[0]), FARANDOLE_OK) << farandole_last_error();
  expect_to_end(2);
}

}  // namespace
}  // namespace farandole::testing
