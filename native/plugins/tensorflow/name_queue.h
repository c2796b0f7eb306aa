// Calls of the same name, one after another.
//
// A name stands for one request at a time, but TensorFlow may run an op again while it still runs: in several threads
// of a tf.data pipeline, or when several Python threads call one tf.function. The second call then waits for the first.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

namespace farandole::tensorflow {

template <typename Call>
class NameQueue {
 public:
  // Whether the call may begin now. Otherwise end() returns it to the thread that ends the call before it.
  bool begin(const std::string& name, Call* call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [waiting, is_first] = in_flight_.try_emplace(name);
    if (!is_first) {
      waiting->second.push_back(call);
    }
    return is_first;
  }

  // The call in flight has ended: the next of its name, which is to begin now, or nullptr.
  Call* end(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto waiting = in_flight_.find(name);
    if (waiting->second.empty()) {
      in_flight_.erase(waiting);
      return nullptr;
    }
    Call* const next = waiting->second.front();
    waiting->second.pop_front();
    return next;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::deque<Call*>> in_flight_;
};

}  // namespace farandole::tensorflow
