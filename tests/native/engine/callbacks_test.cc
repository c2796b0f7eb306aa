// Completion callbacks: each is called once, whatever becomes of its request, by the thread that makes progress and
// without a lock of the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "support/worlds.h"

namespace farandole {
namespace {

using base::Code;
using base::Error;
using engine::Completion;
using engine::Engine;
using engine::Handle;
using engine::Kind;
using engine::Request;
using reduce::Dtype;
using testing::finish;
using testing::in_world;
using World = testing::Kind;

// The calls of callbacks, by handle.
class Calls {
 public:
  engine::Callback note() {
    return [this](const Completion& completion) {
      const std::lock_guard lock(mutex_);
      ++times_[completion.handle];
      codes_[completion.handle] = completion.code;
      errors_[completion.handle] = completion.error;
      threads_.insert(std::this_thread::get_id());
      changed_.notify_all();
    };
  }
  // Of how many different handles.
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return times_.size();
  }
  bool wait_for(size_t count) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(testing::kPatience),
                             [&] { return times_.size() >= count; });
  }
  int times(Handle handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = times_.find(handle);
    return found == times_.end() ? 0 : found->second;
  }
  bool all_once() const {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(times_, [](const auto& each) { return each.second == 1; });
  }
  Code code(Handle handle) const {
    const std::lock_guard lock(mutex_);
    return codes_.at(handle);
  }
  std::string error(Handle handle) const {
    const std::lock_guard lock(mutex_);
    return errors_.at(handle);
  }
  std::set<std::thread::id> threads() const {
    const std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<Handle, int> times_;
  std::map<Handle, Code> codes_;
  std::map<Handle, std::string> errors_;
  std::set<std::thread::id> threads_;
};

Request reduced(const std::string& name, std::vector<float>& values, engine::Callback callback = nullptr) {
  Request request = testing::allreduce_request(name, Dtype::kF32, {static_cast<int64_t>(values.size())}, values.data(),
                                               values.data());
  request.callback = std::move(callback);
  return request;
}

TEST(Callbacks, EngineThreadCallsThemIfNoThreadWaits) {
  in_world(World::kShm, 2, {}, [](int, Engine& engine) {
    Calls calls;
    std::vector<float> values = {1};
    const Handle handle = engine.submit({reduced("x", values, calls.note())}).front();
    ASSERT_TRUE(calls.wait_for(1));
    EXPECT_EQ(calls.code(handle), Code::kOk);
    EXPECT_EQ(values, std::vector<float>{2});
    EXPECT_FALSE(calls.threads().contains(std::this_thread::get_id()));
    EXPECT_EQ(engine.completions().poll(handle), 1) << "the handle stays";
    engine.completions().release({&handle, 1});
    EXPECT_TRUE(calls.all_once());
  });
}

TEST(Callbacks, WaitingThreadThatMakesProgressCallsThem) {
  // With a wait that looks for long, the waiting thread mostly does the work itself: at least once in this number of
  // calls.
  engine::EngineSettings settings;
  settings.spin_ns = 1'000'000;
  in_world(World::kShm, 2, settings, [](int, Engine& engine) {
    Calls calls;
    std::vector<float> values = {1};
    for (int step = 0; step < 200; ++step) {
      const Handle handle = engine.submit({reduced("x", values, calls.note())}, /*waits_at_once=*/true).front();
      finish(engine, handle);
      ASSERT_TRUE(calls.wait_for(static_cast<size_t>(step) + 1));
    }
    EXPECT_TRUE(calls.all_once());
    EXPECT_TRUE(calls.threads().contains(std::this_thread::get_id()));
  });
}

TEST(Callbacks, CallsFromWaitingThreadWakeNoOtherThread) {
  in_world(World::kShm, 1, {}, [](int, Engine& engine) {
    constexpr uint64_t kRequests = 100;
    Calls calls;
    std::vector<float> values = {1};
    finish(engine, engine.submit({reduced("x", values)}).front());
    const uint64_t before = engine.stats().sleeps;
    for (uint64_t step = 0; step < kRequests; ++step) {
      finish(engine, engine.submit({reduced("x", values, calls.note())}, /*waits_at_once=*/true).front());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // it would wake up now
    }
    EXPECT_EQ(calls.count(), kRequests);
    // By itself the engine thread looks around once a second.
    EXPECT_LT(engine.stats().sleeps - before, kRequests / 5);
  });
}

TEST(Callbacks, CanReadResultAndError) {
  in_world(World::kShm, 2, {}, [](int rank, Engine& engine) {
    Calls calls;
    std::vector<float> values(2, static_cast<float>(rank));
    std::atomic<size_t> gathered = 0;
    Request gather = testing::request_of(Kind::kAllgather, "g", Dtype::kF32, {rank + 1}, values.data());
    gather.callback = [&](const Completion& completion) {
      const auto found = engine.completions().find(completion.handle);
      gathered = found->data.size() / sizeof(float) * 10 + found->sizes.size();
    };
    const Handle gathering = engine.submit({gather}).front();
    while (gathered == 0) {
      std::this_thread::yield();
    }
    EXPECT_EQ(gathered, 32U);
    finish(engine, gathering);
    Request wrong = reduced("w", values, calls.note());
    wrong.signature.shape = {rank + 1};
    const Handle handle = engine.submit({wrong}).front();
    ASSERT_TRUE(calls.wait_for(1));
    EXPECT_EQ(calls.code(handle), Code::kMismatch);
    EXPECT_NE(calls.error(handle).find("Mismatched allreduce tensor shapes for 'w'"), std::string::npos);
  });
}

// Waits until this number of ranks have come this far.
void meet(std::atomic<int>& arrived, int ranks) {
  ++arrived;
  while (arrived < ranks) {
    std::this_thread::yield();
  }
}

TEST(Callbacks, RefusedRequestIsNotCalledBack) {
  in_world(World::kShm, 1, {}, [](int, Engine& engine) {
    Calls calls;
    std::vector<float> values = {1};
    std::vector<Request> requests = {reduced("x", values, calls.note()), reduced("x", values, calls.note())};
    EXPECT_THROW(engine.submit(std::move(requests)), Error);
    finish(engine, engine.submit({reduced("x", values)}).front());
    EXPECT_EQ(calls.count(), 0U);
  });
}

TEST(Callbacks, CanSubmitRequests) {
  in_world(World::kShm, 2, {}, [](int, Engine& engine) {
    constexpr int kChain = 20;
    Calls calls;
    std::vector<float> values = {1};
    std::atomic<int> left = kChain;
    engine::Callback next;
    next = [&](const Completion& completion) {
      if (--left > 0) {
        engine.submit({reduced("link " + std::to_string(left), values, next)});
      }
      calls.note()(completion);  // last: the captured objects may be destroyed after the last note
    };
    engine.submit({reduced("first", values, next)});
    ASSERT_TRUE(calls.wait_for(kChain));
    EXPECT_TRUE(calls.all_once());
    EXPECT_EQ(values.front(), 1 << kChain);
  });
}

TEST(Callbacks, WaitInCallbackIsRefused) {
  in_world(World::kShm, 1, {}, [](int, Engine& engine) {
    std::vector<float> values = {1};
    std::vector<float> others = {1};
    std::atomic<Handle> submitted = 0;
    std::atomic<int> refused = 0;
    Request request = reduced("x", values);
    request.callback = [&](const Completion& completion) {
      EXPECT_EQ(engine.wait({&completion.handle, 1}, base::Deadline::after_seconds(1)), engine::Waited::kDone)
          << "what is done can be asked for";
      const Handle other = engine.submit({reduced("y", others)}).front();
      submitted = other;
      try {
        engine.wait({&other, 1}, base::Deadline::after_seconds(1));
      } catch (const Error& error) {
        refused = error.code() == Code::kInvalidArgument ? 1 : -1;
      }
    };
    const Handle handle = engine.submit({request}).front();
    while (refused == 0) {
      std::this_thread::yield();
    }
    EXPECT_EQ(refused, 1);
    finish(engine, handle);
    finish(engine, submitted);
  });
}

// The lock that makes progress is free meanwhile: a callback that waits for another thread's collective is a bad idea,
// but it does not stop that thread.
TEST(Callbacks, BlockedCallbackDoesNotStopWaitingThread) {
  in_world(World::kShm, 2, {}, [](int, Engine& engine) {
    std::vector<float> values = {1};
    std::vector<float> others = {1};
    std::atomic<bool> entered = false;
    std::atomic<bool> other_is_done = false;
    std::atomic<bool> returns = false;
    Request request = reduced("x", values);
    request.callback = [&](const Completion&) {
      entered = true;
      const auto deadline = base::Deadline::after_seconds(testing::kPatience);
      while (!other_is_done && !deadline.passed()) {
        std::this_thread::yield();
      }
      returns = true;
    };
    const Handle handle = engine.submit({request}).front();
    while (!entered) {
      std::this_thread::yield();
    }
    finish(engine, engine.submit({reduced("y", others)}, /*waits_at_once=*/true).front());
    other_is_done = true;
    while (!returns) {
      std::this_thread::yield();
    }
    finish(engine, handle);
    EXPECT_EQ(others, std::vector<float>{2});
  });
}

TEST(Callbacks, RequestsOfManyThreadsAreCalledBackOnce) {
  in_world(World::kShm, 2, {}, [](int, Engine& engine) {
    constexpr int kThreads = 4;
    constexpr int kEach = 100;
    Calls calls;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::vector<float> values = {1};
        for (int step = 0; step < kEach; ++step) {
          const std::string name = std::to_string(thread) + "." + std::to_string(step);
          const Handle handle = engine.submit({reduced(name, values, calls.note())}, step % 2 == 0).front();
          finish(engine, handle);
          values = {1};
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    ASSERT_TRUE(calls.wait_for(size_t{kThreads} * kEach));
    EXPECT_EQ(calls.count(), size_t{kThreads} * kEach);
    EXPECT_TRUE(calls.all_once());
  });
}

TEST(Callbacks, ReleasedHandleIsCalledBack) {
  in_world(World::kShm, 2, {}, [](int, Engine& engine) {
    Calls calls;
    std::vector<float> values = {1};
    const Handle handle = engine.submit({reduced("x", values, calls.note())}).front();
    engine.completions().release({&handle, 1});
    ASSERT_TRUE(calls.wait_for(1));
    EXPECT_EQ(calls.times(handle), 1);
    EXPECT_EQ(engine.completions().find(handle), nullptr);
  });
}

// However a world ends, the calls have returned when the engine is out of it.
void expect_failed(const Calls& calls, Handle handle, Code code) {
  EXPECT_EQ(calls.times(handle), 1);
  EXPECT_EQ(calls.code(handle), code) << calls.error(handle);
  EXPECT_FALSE(calls.error(handle).empty());
}

TEST(Callbacks, PendingRequestIsCalledBackWhenAWorkerIsLost) {
  testing::Meshes meshes(World::kShm, 2);
  std::atomic<bool> submitted = false;
  testing::on_all_ranks(2, [&](int rank) {
    Engine engine((engine::EngineSettings()));
    engine.enter(meshes.form(rank), meshes.arena(rank));
    testing::allreduce(engine, "begin", {1});
    if (rank == 1) {
      while (!submitted) {
        std::this_thread::yield();
      }
      return;  // destroyed without leaving
    }
    Calls calls;
    std::vector<float> values = {1};
    const Handle handle = engine.submit({reduced("x", values, calls.note())}).front();
    submitted = true;
    ASSERT_TRUE(calls.wait_for(1));
    expect_failed(calls, handle, Code::kWorkerLost);
    engine.abandon({-1, transport::Sign::kRevoked, "the test is over"});
  });
}

TEST(Callbacks, PendingRequestIsCalledBackWhenEngineIsDestroyed) {
  testing::Meshes meshes(World::kShm, 2);
  std::atomic<int> arrived = 0;
  testing::on_all_ranks(2, [&](int rank) {
    Calls calls;
    std::vector<float> values = {1};
    Handle handle = 0;
    std::atomic<int> refused = 0;
    {
      Engine engine((engine::EngineSettings()));
      engine.enter(meshes.form(rank), meshes.arena(rank));
      if (rank == 0) {
        Request request = reduced("never", values);
        request.callback = [&](const Completion& completion) {
          calls.note()(completion);
          try {
            engine.submit({reduced("more", values, calls.note())});
          } catch (const Error&) {
            ++refused;
          }
        };
        handle = engine.submit({request}).front();
      }
      meet(arrived, 2);
    }
    if (rank == 0) {
      expect_failed(calls, handle, Code::kWorkerLost);
      EXPECT_EQ(refused, 1) << "nothing new in a world that is over";
      EXPECT_EQ(calls.count(), 1U);
    }
  });
}

TEST(Callbacks, PendingRequestIsCalledBackWhenARankLeaves) {
  testing::Meshes meshes(World::kShm, 2);
  std::atomic<int> arrived = 0;
  testing::on_all_ranks(2, [&](int rank) {
    Engine engine((engine::EngineSettings()));
    engine.enter(meshes.form(rank), meshes.arena(rank));
    Calls calls;
    std::vector<float> values = {1};
    const Handle handle = rank == 0 ? engine.submit({reduced("never", values, calls.note())}).front() : Handle{0};
    meet(arrived, 2);
    engine.leave(base::Deadline::after_seconds(testing::kPatience));
    if (rank == 0) {
      expect_failed(calls, handle, Code::kShutDown);
    }
  });
}

TEST(Callbacks, PendingRequestIsCalledBackWhenWorldIsRevoked) {
  testing::Meshes meshes(World::kShm, 2);
  std::atomic<int> arrived = 0;
  testing::on_all_ranks(2, [&](int rank) {
    Engine engine((engine::EngineSettings()));
    engine.enter(meshes.form(rank), meshes.arena(rank));
    Calls calls;
    std::vector<float> values = {1};
    const Handle handle = engine.submit({reduced("of " + std::to_string(rank), values, calls.note())}).front();
    meet(arrived, 2);
    if (rank == 0) {
      engine.revoke({-1, transport::Sign::kRevoked, "the test revokes it"});
    }
    ASSERT_TRUE(calls.wait_for(1));
    expect_failed(calls, handle, Code::kWorkerLost);
    engine.abandon({-1, transport::Sign::kRevoked, "the test is over"});
    EXPECT_TRUE(calls.all_once());
  });
}

// A user thread waits for the same handle, a second one ends the world meanwhile.
TEST(Callbacks, CallbackAndWaitOnSameHandleBothReportEndOfWorld) {
  testing::Meshes meshes(World::kShm, 2);
  std::atomic<int> arrived = 0;
  testing::on_all_ranks(2, [&](int rank) {
    Engine engine((engine::EngineSettings()));
    engine.enter(meshes.form(rank), meshes.arena(rank));
    Calls calls;
    std::vector<float> values = {1};
    const Handle handle = engine.submit({reduced("of " + std::to_string(rank), values, calls.note())}).front();
    meet(arrived, 2);
    std::thread ends([&] {
      if (rank == 0) {
        engine.revoke({-1, transport::Sign::kRevoked, "the test revokes it"});
      }
    });
    EXPECT_THROW(finish(engine, handle), Error);
    ends.join();
    engine.abandon({-1, transport::Sign::kRevoked, "the test is over"});
    expect_failed(calls, handle, Code::kWorkerLost);
  });
}

}  // namespace
}  // namespace farandole
