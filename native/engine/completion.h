// What becomes of requests: one Completion per handle, and the table of all handles of an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"

namespace farandole::engine {

using Handle = uint64_t;

// Written by the engine thread before it is done, read by anyone after.
struct Completion {
  bool done = false;
  base::Code code = base::Code::kOk;
  std::string error;
  int lost_rank = -1;
  base::Bytes data;            // allgather: the gathered elements
  std::vector<int64_t> sizes;  // allgather: first dimensions by member; add group: the id
};

class Completions {
 public:
  Handle open(std::shared_ptr<Completion>& completion);
  // Null when there is no such handle.
  std::shared_ptr<const Completion> find(Handle handle) const;
  bool release(Handle handle);

  // Engine thread: makes it known that these are done.
  void finish(const std::vector<std::shared_ptr<Completion>>& finished);

  // 1: done, 0: not yet, -1: no such handle.
  int poll(Handle handle) const;
  // The same, after waiting at most until the deadline.
  int wait(Handle handle, const base::Deadline& deadline) const;

 private:
  mutable base::Mutex mutex_;
  mutable base::Condition changed_;
  Handle last_ GUARDED_BY(mutex_) = 0;
  // Completion::done is guarded by mutex_ too.
  std::unordered_map<Handle, std::shared_ptr<Completion>> table_ GUARDED_BY(mutex_);
};

}  // namespace farandole::engine
