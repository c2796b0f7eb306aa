// What an op's node in a graph says: the kernel, made once for each node and used by each of its calls.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "capi/farandole.h"
#include "plugins/tensorflow/name_queue.h"
#include "plugins/tensorflow/tensorflow_c.h"

namespace farandole::tensorflow {

struct OpRow;

// Whether the thread of TensorFlow's that submits a call makes progress itself, for a moment: two threads then need not
// be woken, which takes longer than a small collective. Only for a call that is alone in flight, and as long as it is
// soon done: where other ranks are late, the thread has better things to do.
class OwnProgress {
 public:
  bool is_worth_it() {
    const int left = skips_.load(std::memory_order_relaxed);
    if (left > 0) {
      skips_.store(left - 1, std::memory_order_relaxed);
    }
    return left == 0;
  }
  void took(std::chrono::nanoseconds time) { skips_.store(time > kSoon ? kSkipped : 0, std::memory_order_relaxed); }

 private:
  static constexpr std::chrono::microseconds kSoon{200};
  static constexpr int kSkipped = 31;  // calls, until it is tried again

  std::atomic<int> skips_{0};
};

struct Kernel {
  const OpRow* row;
  std::string node;  // the node's name; in eager mode, the op's
  std::string name;  // what the user named the call, or ""
  bool ignores_scope = false;
  uint32_t group = 0;
  uint32_t op = FARANDOLE_SUM;
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  const std::shared_ptr<OwnProgress> progress = std::make_shared<OwnProgress>();  // outlives it while it is in use

  // Whether no name was given: the node has the name that eager mode gives to all.
  bool is_unnamed() const;
  // By what ranks' calls match, without the operation. Not for unnamed calls.
  std::string key(TF_OpKernelContext* context) const;
};

// For TensorFlow: make and forget a kernel.
void* make_kernel(const OpRow* row, TF_OpKernelConstruction* construction);
void delete_kernel(void* kernel);

}  // namespace farandole::tensorflow
