// Who does the engine's work: the one thread that is at the helm.
//
// Most of the time nobody is: the engine thread sleeps until something happens, takes the helm, does what is to be done
// and sleeps again. But a user thread that waits for a result has nothing better to do, and is awake: it takes the helm
// itself, so that a small collective needs no other thread to be woken, and none to be waited for. When nothing happens
// for a while it leaves the rest to the engine thread.
//
// Rules: whoever leaves the helm has looked at everything, after saying that the engine sleeps (Pump::lie_down), or has
// called the engine thread. The engine thread goes before users, who come in great numbers; users that want the helm
// are let in as soon as the engine thread has nothing to do.
#pragma once

#include <atomic>

#include "base/mutex.h"

namespace farandole::engine {

class Helm {
 public:
  // The engine thread's: waits until the helm is free.
  void take();
  // A user's: false when somebody is at the helm, or the engine thread waits for it.
  bool try_take();
  void leave();
  // Whether a user could take it now.
  bool is_free() const;

  // While one of these lives, a user waits for the helm.
  class Wish {
   public:
    explicit Wish(Helm& helm) : helm_(helm) { ++helm_.wishes_; }
    ~Wish() { --helm_.wishes_; }
    Wish(const Wish&) = delete;
    Wish& operator=(const Wish&) = delete;

   private:
    Helm& helm_;
  };
  bool is_wanted() const noexcept { return wishes_ > 0; }

 private:
  mutable base::Mutex mutex_;
  base::Condition left_;
  // The engine thread is born at the helm, and dies there: nobody else is let in when there is none.
  bool taken_ GUARDED_BY(mutex_) = true;
  bool engine_waits_ GUARDED_BY(mutex_) = false;
  std::atomic<int> wishes_ = 0;
};

}  // namespace farandole::engine
