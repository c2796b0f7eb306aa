// What the C ABI says about the ways between workers, of two engines of this process.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>

#include "capi/farandole.h"

namespace {

constexpr char kSecret[] = "the secret of a test";
constexpr double kPatience = 60.0;

class Engines : public ::testing::Test {
 protected:
  void open(const char* transport, const char* listen_addresses) {
    const std::array<farandole_setting, 3> settings = {
        {{"arena_bytes", "67108864"}, {"transport", transport}, {"listen", listen_addresses}}};
    for (farandole_engine*& engine : engines_) {
      ASSERT_EQ(farandole_engine_create(FARANDOLE_ABI_VERSION, settings.data(), settings.size(), &engine), FARANDOLE_OK)
          << farandole_last_error();
    }
  }

  void form(int32_t size) {
    const std::array<const char*, 2> contacts = {farandole_engine_contact(engines_[0]),
                                                 farandole_engine_contact(engines_[1])};
    std::array<std::thread, 2> threads;
    ++generation_;
    for (int32_t rank = 0; rank < size; ++rank) {
      farandole_world world{};
      world.generation = generation_;
      world.rank = rank;
      world.size = size;
      world.contacts = contacts.data();
      world.secret = kSecret;
      world.secret_bytes = sizeof kSecret;
      world.timeout_seconds = kPatience;
      threads[static_cast<size_t>(rank)] = std::thread([this, world] {
        EXPECT_EQ(farandole_engine_form(engines_[static_cast<size_t>(world.rank)], &world), FARANDOLE_OK)
            << farandole_last_error();
      });
    }
    for (int32_t rank = 0; rank < size; ++rank) {
      threads[static_cast<size_t>(rank)].join();
    }
  }

  void TearDown() override {
    for (farandole_engine* const engine : engines_) {
      farandole_engine_destroy(engine);
    }
  }

  std::array<farandole_engine*, 2> engines_{};
  uint64_t generation_ = 0;
};

TEST_F(Engines, SayWhichAddressesTheirConnectionsUse) {
  open("tcp", "127.0.0.2,127.0.0.1");
  EXPECT_STREQ(farandole_engine_routes(engines_[0]), "");
  form(2);
  const std::string route = farandole_engine_routes(engines_[1]);
  EXPECT_TRUE(route.ends_with(" -> 127.0.0.2\nitself\n")) << route;
}

TEST_F(Engines, SayThatTheyShareMemory) {
  open("auto", "");
  form(2);
  EXPECT_STREQ(farandole_engine_routes(engines_[0]), "itself\nshared memory\n");
  form(1);
  EXPECT_STREQ(farandole_engine_routes(engines_[0]), "itself\n");
}

}  // namespace
