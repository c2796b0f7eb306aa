// The numbers of the unnamed calls of an operation in a group, by which ranks match them: in the order of the program.
//
// Threads: safe. Each call that was refused gives back its own number, not the last one: meanwhile other threads may
// have made calls that count.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace farandole::plugins {

class UnnamedCalls {
  struct Numbers {
    uint64_t next = 0;
    std::vector<uint64_t> given_back;
  };

 public:
  // A number that a call has. It belongs to the count in which it was taken, which may be over.
  struct Taken {
    uint64_t number = 0;
    uint64_t restarts = 0;
    std::shared_ptr<Numbers> from;
  };

  Taken take(const std::string& operation, uint32_t group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Numbers>& numbers = counts_[{group, operation}];
    if (numbers == nullptr) {
      numbers = std::make_shared<Numbers>();
    }
    Taken taken{.number = numbers->next, .restarts = restarts_, .from = numbers};
    if (numbers->given_back.empty()) {
      ++numbers->next;
    } else {
      taken.number = numbers->given_back.back();
      numbers->given_back.pop_back();
    }
    return taken;
  }
  // The call was refused on this rank, so the others do not count it: another call gets its number.
  void give_back(const Taken& taken) {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken.from->given_back.push_back(taken.number);
  }
  // All ranks begin to count again, after this many restarts.
  void restart(uint64_t restarts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.clear();
    restarts_ = restarts;
  }
  void restart_once_more() {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.clear();
    ++restarts_;
  }
  // The id of a group was given to other ranks.
  void restart_group(uint32_t group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(counts_, [group](const auto& count) { return count.first.first == group; });
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint32_t, std::string>, std::shared_ptr<Numbers>> counts_;
  uint64_t restarts_ = 0;  // in this world
};

}  // namespace farandole::plugins
