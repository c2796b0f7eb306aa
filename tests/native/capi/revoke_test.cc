// Revoking a world that is still being formed, behind the C ABI.
#include <array>
#include <string>
#include <thread>

#include "capi/workers.h"

namespace farandole::testing {
namespace {

constexpr double kForEver = 1e9;

class Revoke : public ::testing::Test {
 protected:
  void SetUp() override {
    for (farandole_engine*& engine : engines_) {
      const farandole_setting settings = {"arena_bytes", "67108864"};
      ASSERT_EQ(farandole_engine_create(FARANDOLE_ABI_VERSION, &settings, 1, &engine), FARANDOLE_OK)
          << farandole_last_error();
    }
  }
  void TearDown() override {
    for (farandole_engine* const engine : engines_) {
      farandole_engine_destroy(engine);
    }
  }

  // The first engine's forming of a world of both, into which the second does not come.
  int form(uint64_t generation) {
    const std::array<const char*, 2> contacts = {farandole_engine_contact(engines_[0]),
                                                 farandole_engine_contact(engines_[1])};
    const farandole_world world = {generation, 0, 2, contacts.data(), kSecret, sizeof kSecret, kForEver};
    return farandole_engine_form(engines_[0], &world);
  }
  void expect_to_end(uint64_t generation) {
    EXPECT_EQ(form(generation), FARANDOLE_WORKER_LOST);
    EXPECT_EQ(farandole_last_error(), std::string("rank 1 has ended"));
    EXPECT_EQ(farandole_last_lost_rank(), 1);
  }
  void revoke(uint64_t generation) {
    EXPECT_EQ(farandole_engine_revoke(engines_[0], generation, 1, 1, "rank 1 has ended"), FARANDOLE_OK);
  }

  std::array<farandole_engine*, 2> engines_{};
};

TEST_F(Revoke, EndsAFormingAndDoesNotWaitForIt) {
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    std::thread forming([&] { expect_to_end(generation); });
    ::usleep(static_cast<useconds_t>(30'000 * (generation - 1)));
    revoke(generation);
    forming.join();
  }
}

TEST_F(Revoke, LeavesOtherGenerationsAlone) {
  const farandole_world alone = {1, 0, 1, nullptr, kSecret, sizeof kSecret, kPatience};
  ASSERT_EQ(farandole_engine_form(engines_[0], &alone), FARANDOLE_OK) << farandole_last_error();
  revoke(2);
  revoke(0);
  EXPECT_EQ(farandole_engine_health(engines_[0]), FARANDOLE_OK) << farandole_last_error();
  expect_to_end(2);
}

}  // namespace
}  // namespace farandole::testing
