// One GPU as an engine uses it: two streams of its own for copies, marks in them, and pinned host memory.
//
// Nothing here waits for the GPU. Work is put into a stream, a mark after it says later whether it is done, and another
// stream can be made to wait for a mark.
//
// Threads: any thread. The calling thread's current context is the same afterwards as before.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "device/driver.h"

namespace farandole::device {

class Gpu;

// A point in a stream of a GPU.
class Mark {
 public:
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  // Whether everything that was in the stream before it is done. Throws Error(kUnavailable) when the GPU has failed.
  bool is_reached();
  const Gpu& gpu() const noexcept { return gpu_; }

 private:
  friend class Gpu;
  Mark(Gpu& gpu, Event event) : gpu_(gpu), event_(event) {}

  Gpu& gpu_;
  const Event event_;
  std::atomic<bool> reached_ = false;
};
using MarkPointer = std::shared_ptr<Mark>;
// For an end, where somebody has to wait. False when the GPU has failed, too.
bool wait_until_reached(Mark& mark, const base::Deadline& deadline) noexcept;

// Looks through marks of one direction of copies, in the order in which they were made: after one that is not reached,
// those of the same GPU are not asked for.
class Sweep {
 public:
  // Throws as Mark::is_reached() does.
  bool is_reached(Mark& mark);

 private:
  std::vector<const Gpu*> behind_;
};

// Host memory that the GPU copies to and from by itself.
struct Pinned {
  std::byte* memory = nullptr;
  size_t bytes = 0;
};

class Gpu {
 public:
  // Throws Error(kUnavailable) when there is no such GPU or it cannot be used.
  explicit Gpu(Ordinal device);
  // No mark of it is left. Waits for copies that are on their way, for ten seconds at most.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Ordinal device() const noexcept { return device_; }

  // Throws Error(kInvalidArgument) when the memory is not of this GPU; `owner` names it in the sentence.
  void check_address(const void* address, const std::string& owner) const;
  // Throws Error(kInvalidArgument) when a CUDA graph is being captured in the stream.
  void check_not_capturing(Stream stream) const;

  // A mark after what is in a user's stream now.
  MarkPointer mark(Stream stream);
  // What is put into this stream of this GPU from now on begins after the mark, which may be another GPU's.
  void delay(Stream stream, const Mark& after) const;
  // Copies to the host begin after the mark.
  void delay_to_host(const Mark& after) const { delay(to_host_, after); }
  void copy_to_host(std::byte* target, const void* source, size_t bytes);
  void copy_to_device(void* target, const std::byte* source, size_t bytes);
  // After the copies in this direction that were begun until now.
  MarkPointer mark_to_host();
  MarkPointer mark_to_device();

  Pinned take_pinned(size_t bytes);
  // To be used again as soon as the mark is reached; null: at once.
  void give_back(Pinned pinned, MarkPointer in_use_until);

 private:
  friend class Mark;
  class Current;
  struct Returned {
    Pinned pinned;
    MarkPointer in_use_until;
  };

  Event take_event();
  void give_back(Event event) noexcept;
  MarkPointer mark_in(Stream stream);
  void release() noexcept;

  const Driver& driver_;
  const Ordinal device_;  // its number in this process
  Ordinal handle_ = 0;    // the driver's
  Context context_ = nullptr;
  Stream to_host_ = nullptr;
  Stream to_device_ = nullptr;

  base::Mutex mutex_;
  std::vector<Event> events_ GUARDED_BY(mutex_);               // not in use
  std::multimap<size_t, Returned> pinned_ GUARDED_BY(mutex_);  // not in use, or not for much longer; by size
};

// The GPUs that an engine has met.
class Gpus {
 public:
  // Throws as Gpu() does.
  Gpu& get(Ordinal device);

 private:
  base::Mutex mutex_;
  std::map<Ordinal, std::unique_ptr<Gpu>> gpus_ GUARDED_BY(mutex_);
};

}  // namespace farandole::device
