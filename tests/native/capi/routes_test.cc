// The routes between workers as the C ABI reports them, for two engines of this process.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/two_engines.h"

namespace farandole::testing {
namespace {

std::array<farandole_setting, 3> settings_of(const char* transport, const char* listen_addresses) {
  return {{{"arena_bytes", "67108864"}, {"transport", transport}, {"listen", listen_addresses}}};
}

TEST(Routes, NameAddressesOfConnections) {
  TwoEngines engines(settings_of("tcp", "127.0.0.2,127.0.0.1"));
  EXPECT_STREQ(farandole_engine_routes(engines[0]), "");
  engines.form(2);
  const std::string route = farandole_engine_routes(engines[1]);
  EXPECT_TRUE(route.ends_with(" -> 127.0.0.2\nitself\n")) << route;
}

TEST(Routes, NameSharedMemory) {
  TwoEngines engines(settings_of("auto", ""));
  engines.form(2);
  EXPECT_STREQ(farandole_engine_routes(engines[0]), "itself\nshared memory\n");
  engines.form(1);
  EXPECT_STREQ(farandole_engine_routes(engines[0]), "itself\n");
}

}  // namespace
}  // namespace farandole::testing
