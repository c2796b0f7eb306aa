// Whether these tests run under a sanitizer, which slows down everything, and memory tenfold or more.
#pragma once

namespace farandole::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace farandole::testing
