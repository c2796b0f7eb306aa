// A backend for tests: it records what the engine asks of it, waits before each run, and leaves the work to another
// one.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/native/native.h"

namespace farandole::testing {

// What all instances of one row recorded, of all ranks. "make", "knobs", "choose allreduce", "begin 3", "stage",
// "run allreduce", "revoke", "end".
class Recording {
 public:
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    all_.push_back(what);
  }
  size_t count(const std::string& what) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count(all_.begin(), all_.end(), what));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    all_.clear();
  }

  std::chrono::microseconds delay{0};  // before each run; set while no engine runs
  bool fails = false;                  // each run throws

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
};

class RecordingBackend final : public backend::Backend {
 public:
  RecordingBackend(const backend::World& world, Recording& recording)
      : recording_(recording), native_(world.frames, world.arena, world.tuning) {
    recording_.add("make");
  }
  ~RecordingBackend() override { recording_.add("end"); }

  collective::Knobs set_knobs(const collective::Knobs& knobs) override {
    recording_.add("knobs");
    return native_.set_knobs(knobs);
  }
  collective::Choice choose(const collective::Group& group, const backend::Need& need) const override {
    recording_.add(std::string("choose ") + collective::name_of(need.operation));
    collective::Choice choice = native_.choose(group, need);
    choice.reason = "recorded";
    return choice;
  }
  void begin(uint32_t decision) override { native_.begin(decision); }
  bool stage(const collective::Group& group, const collective::Choice& choice,
             const collective::AllreduceJob& job) override {
    recording_.add("stage");
    return native_.stage(group, choice, job);
  }
  void reduce_staged(const collective::Group& group, const collective::Choice& choice,
                     const collective::AllreduceJob& job) override {
    native_.reduce_staged(group, choice, job);
  }
  device::MarkPointer run(const collective::Group& group, const collective::Choice& choice, const collective::Job& job,
                          std::span<const device::MarkPointer> after) override {
    // In the order of the alternatives of Job.
    constexpr std::array kNames = {"allreduce", "compressed",    "allgather", "broadcast",
                                   "alltoall",  "reducescatter", "reduce"};
    recording_.add(std::string("run ") + kNames.at(job.index()));
    std::this_thread::sleep_for(recording_.delay);
    if (recording_.fails) {
      throw base::Error(base::Code::kUnavailable, "the backend of the test has failed");
    }
    return native_.run(group, choice, job, after);
  }
  void revoke() noexcept override { recording_.add("revoke"); }

 private:
  Recording& recording_;
  backend::Native native_;
};

// One for host memory and one for device memory (which in a test is memory like any other), so that tests see which one
// ran what. A row's functions know nothing but the world, so these are for all engines of the process.
inline Recording& host_recording() {
  static Recording recording;
  return recording;
}
inline Recording& device_recording() {
  static Recording recording;
  return recording;
}
inline constexpr backend::Row kRecordingHost = {
    "recording",
    "records and delays, for tests",
    nullptr,
    {backend::bit_of(backend::MemoryKind::kHost), backend::kAllOperations, true},
    [](const backend::World& world) -> std::unique_ptr<backend::Backend> {
      return std::make_unique<RecordingBackend>(world, host_recording());
    }};
inline constexpr backend::Row kRecordingDevice = {
    "recording_device",
    "records and delays, for tests",
    nullptr,
    {backend::bit_of(backend::MemoryKind::kDevice),
     backend::bit_of(backend::Operation::kAllreduce) | backend::bit_of(backend::Operation::kBroadcast), true},
    [](const backend::World& world) -> std::unique_ptr<backend::Backend> {
      return std::make_unique<RecordingBackend>(world, device_recording());
    }};

}  // namespace farandole::testing
