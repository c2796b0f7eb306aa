#pragma once

// The memory that XLA gives a program for its results.

#include <cstddef>

namespace farandole::jax {

// Prepares a result for what will be written there. Call it before each run.
//
// XLA asks malloc for the results of each run anew, and malloc returns what was freed to the system where it is 32 MB
// or more, or twice the largest block that was freed. Then each run gets its memory page by page, which takes several
// times as long as a reduction. So
//
//  - once, when the first large result comes, malloc is told to keep freed memory of the process, up to 256 MB, unless
//    the user has said how malloc should behave, in its environment variables;
//  - for results from 4 MB on, of which some are too large to be kept, the system is asked for huge pages.
void prepare_result(void* data, size_t bytes);

// Whether the environment says how malloc behaves. Otherwise, and only then, we may.
bool user_has_tuned_malloc();

}  // namespace farandole::jax
