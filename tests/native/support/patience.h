#pragma once

namespace farandole::testing {

inline constexpr double kPatience = 60.0;  // seconds after which a test calls a wait a hang

}  // namespace farandole::testing
