#include "transport/lifeline.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <utility>

#include "base/thread.h"

namespace farandole::transport {
namespace {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free);

// A watcher that is woken just before it falls asleep misses that; it is woken again after this time.
constexpr std::chrono::milliseconds kTellAgain{1};

// Shared between processes: a private futex is known by its address, which differs.
long sleep_on(Word& word, uint32_t value) noexcept {
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void wake_all(Word& word) noexcept { ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool says_dead(uint32_t value) noexcept { return (value & FUTEX_OWNER_DIED) != 0; }

// This thread's robust list, with one word in it. The C library's own list is empty, since the thread takes none of
// its robust mutexes; it is put back before the thread ends.
class RobustList {
 public:
  explicit RobustList(Word& word) noexcept {
    entry_.next = &head_.list;
    head_.list.next = &entry_;
    head_.futex_offset = reinterpret_cast<const char*>(&word) - reinterpret_cast<const char*>(&entry_);
    head_.list_op_pending = nullptr;
    works_ = ::syscall(SYS_get_robust_list, 0, &before_, &before_bytes_) == 0 &&
             ::syscall(SYS_set_robust_list, &head_, sizeof head_) == 0;
  }
  ~RobustList() {
    if (works_) {
      ::syscall(SYS_set_robust_list, before_, before_bytes_);
    }
  }
  RobustList(const RobustList&) = delete;
  RobustList& operator=(const RobustList&) = delete;

  bool works() const noexcept { return works_; }

 private:
  robust_list entry_{};
  robust_list_head head_{};
  robust_list_head* before_ = nullptr;
  size_t before_bytes_ = 0;
  bool works_ = false;
};

}  // namespace

Lifeline::Lifeline(const ArenaView& own) : word_(own.header().lifeline) {
  thread_ = base::start_thread("farandole-life", [this] { run(); });
  held_.wait(0);
}

Lifeline::~Lifeline() {
  stop_.store(1);
  stop_.notify_one();
  thread_.join();
}

void Lifeline::run() {
  {
    const RobustList list(word_);
    // After the list: a word with an id that no list names would say for ever that the worker lives.
    word_.store(list.works() ? static_cast<uint32_t>(::syscall(SYS_gettid)) : 0, std::memory_order_release);
    held_.store(1);
    held_.notify_one();
    stop_.wait(0);
    word_.store(0, std::memory_order_release);
  }
  wake_all(word_);
}

bool has_died(const ArenaView& arena) noexcept {
  return says_dead(arena.header().lifeline.load(std::memory_order_acquire));
}

PeerDeathWatcher::PeerDeathWatcher(std::shared_ptr<const Mapping> memory, std::function<void()> died)
    : memory_(std::move(memory)), died_(std::move(died)) {
  thread_ = base::start_thread("farandole-peer", [this] { run(); });
}

PeerDeathWatcher::~PeerDeathWatcher() {
  stop_.store(true, std::memory_order_release);
  bool over = false;
  while (!over) {
    wake_all(memory_->view().header().lifeline);  // other sleepers check the word, and go on sleeping
    const base::MutexLock lock(mutex_);
    over = changed_.wait_for(mutex_, kTellAgain, [this] {
      mutex_.assert_held();
      return over_;
    });
  }
  thread_.join();
}

void PeerDeathWatcher::run() {
  if (sees_death()) {
    died_();
  }
  const base::MutexLock lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

bool PeerDeathWatcher::sees_death() {
  Word& word = memory_->view().header().lifeline;
  while (!stop_.load(std::memory_order_acquire)) {
    uint32_t value = word.load(std::memory_order_acquire);
    if (says_dead(value)) {
      wake_all(word);  // the kernel wakes one only
      return true;
    }
    if ((value & FUTEX_TID_MASK) == 0) {
      return false;
    }
    if ((value & FUTEX_WAITERS) == 0 && !word.compare_exchange_strong(value, value | FUTEX_WAITERS)) {
      continue;
    }
    if (sleep_on(word, value | FUTEX_WAITERS) != 0 && errno != EAGAIN && errno != EINTR) {
      return false;  // this kernel has no futexes for us; the sockets will tell
    }
  }
  return false;
}

}  // namespace farandole::transport
