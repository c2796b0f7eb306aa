// Settings behind the C ABI: names and texts in, an engine or a sentence out.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "capi/farandole.h"

namespace {

int create(std::vector<farandole_setting> settings, uint32_t abi_version = FARANDOLE_ABI_VERSION) {
  settings.push_back({"arena_bytes", "67108864"});
  farandole_engine* engine = nullptr;
  const int status = farandole_engine_create(abi_version, settings.data(), settings.size(), &engine);
  if (status == FARANDOLE_OK) {
    farandole_engine_destroy(engine);
  }
  return status;
}

TEST(CapiSettings, WrongValueIsRefusedWithValidOnes) {
  const struct {
    farandole_setting given;
    const char* why;
  } cases[] = {
      {{"no_such_setting", "1"}, "there is no setting 'no_such_setting'"},
      {{"arena_bytes", "many"}, "the setting arena_bytes is 'many', but should be a number of bytes"},
      {{"arena_bytes", "-1"}, "the setting arena_bytes is '-1', but should be a number of bytes"},
      {{"chunk_bytes", "1e6"}, "the setting chunk_bytes is '1e6', but should be a number of bytes"},
      {{"stall_shutdown_seconds", "soon"}, "the setting stall_shutdown_seconds is 'soon', but should be a number"},
      {{"spin_seconds", "inf"}, "the setting spin_seconds is 'inf', but should be a number of seconds"},
      {{"autotune", "yes"}, "the setting autotune is 'yes', but should be 0 or 1"},
      {{"transport", "pigeon"}, "there is no transport 'pigeon'"},
      {{"algorithm", "guess"}, "there is no algorithm 'guess'"},
      {{"listen", nullptr}, "a setting has a name and a value"},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(create({each.given}), FARANDOLE_INVALID_ARGUMENT) << each.given.name;
    EXPECT_NE(std::string(farandole_last_error()).find(each.why), std::string::npos) << farandole_last_error();
  }
}

TEST(CapiSettings, EngineAcceptsValidValues) {
  EXPECT_EQ(create({{"listen", ""},
                    {"transport", "auto"},
                    {"host_key", "a, b"},
                    {"staging_bytes", "65536"},
                    {"failure_deadline", "1.5"},
                    {"spin_seconds", "-1"},
                    {"algorithm", "auto"},
                    {"autotune", "1"},
                    {"autotune_warmup_samples", "0"},
                    {"stall_warning_seconds", "0"},
                    {"log_level", "0"},
                    {"fusion_threshold", "0"}}),
            FARANDOLE_OK)
      << farandole_last_error();
  EXPECT_NE(std::string(farandole_options()).find("{\"name\": \"op\", \"kinds\": [0, 7, 10]}"), std::string::npos);
  EXPECT_NE(std::string(farandole_setting_names()).find("\"stall_shutdown_seconds\""), std::string::npos);
}

TEST(CapiSettings, OtherAbiVersionIsRefused) {
  EXPECT_EQ(create({}, FARANDOLE_ABI_VERSION + 1), FARANDOLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(farandole_last_error()).find("reinstall farandole"), std::string::npos);
}

}  // namespace
