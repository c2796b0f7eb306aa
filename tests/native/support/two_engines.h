// Two engines of this process behind the C ABI, for tests that need a world but no processes.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <thread>

#include "capi/farandole.h"
#include "support/patience.h"

namespace farandole::testing {

inline constexpr char kSecret[] = "the secret of a test";

class TwoEngines {
 public:
  explicit TwoEngines(std::span<const farandole_setting> settings = {}) {
    for (farandole_engine*& engine : engines_) {
      EXPECT_EQ(farandole_engine_create(FARANDOLE_ABI_VERSION, settings.data(), settings.size(), &engine), FARANDOLE_OK)
          << farandole_last_error();
    }
  }
  ~TwoEngines() {
    for (farandole_engine* const engine : engines_) {
      farandole_engine_destroy(engine);
    }
  }
  TwoEngines(const TwoEngines&) = delete;
  TwoEngines& operator=(const TwoEngines&) = delete;

  farandole_engine* operator[](size_t rank) const { return engines_.at(rank); }

  // Forms the next generation, of the first engine alone or of both.
  void form(int32_t size = 2) {
    ++generation_;
    std::array<std::thread, 2> threads;
    for (int32_t rank = 0; rank < size; ++rank) {
      threads.at(static_cast<size_t>(rank)) = std::thread(
          [=, this] { EXPECT_EQ(form_one(rank, generation_, size), FARANDOLE_OK) << farandole_last_error(); });
    }
    for (int32_t rank = 0; rank < size; ++rank) {
      threads.at(static_cast<size_t>(rank)).join();
    }
  }
  // Takes part in forming a world as this rank, and returns the status.
  int form_one(int32_t rank, uint64_t generation, int32_t size, double seconds = kPatience) {
    const std::array<const char*, 2> contacts = {farandole_engine_contact(engines_[0]),
                                                 farandole_engine_contact(engines_[1])};
    const farandole_world world = {generation, rank, size, contacts.data(), kSecret, sizeof kSecret, seconds};
    return farandole_engine_form(engines_.at(static_cast<size_t>(rank)), &world);
  }

 private:
  std::array<farandole_engine*, 2> engines_{};
  uint64_t generation_ = 0;
};

}  // namespace farandole::testing
