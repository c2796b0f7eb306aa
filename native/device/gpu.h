// One GPU, as an engine uses it: streams of the engine's own, for copies and for collectives, marks in them, and
// memory.
//
// No function here waits for the GPU. Work is put into a stream, a mark after it says later whether it is done, and
// another stream can be made to wait for a mark.
//
// Threads: any thread. The calling thread's current context is the same afterwards as before.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
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
  Gpu& gpu() const noexcept { return gpu_; }
  Stream stream() const noexcept { return stream_; }

 private:
  friend class Gpu;
  friend class Memory;
  Mark(Gpu& gpu, Stream stream, Event event) : gpu_(gpu), stream_(stream), event_(event) {}

  Gpu& gpu_;
  const Stream stream_;
  const Event event_;
  std::atomic<bool> reached_ = false;
};
using MarkPointer = std::shared_ptr<Mark>;
// Waits for a mark when the engine ends. Returns false also if the GPU has failed.
bool wait_until_reached(Mark& mark, const base::Deadline& deadline) noexcept;

// Checks marks in the order in which they were made: after a mark that is not reached, those of the same stream are
// not queried.
class Sweep {
 public:
  // Throws as Mark::is_reached() does.
  bool is_reached(Mark& mark);

 private:
  std::vector<Stream> behind_;
};

// Host memory that the GPU copies to and from by itself.
struct Pinned {
  std::byte* memory = nullptr;
  size_t bytes = 0;
};

// Memory of a GPU, allocated in the order of a stream.
class Memory {
 public:
  Memory() = default;
  // Throws Error(kUnavailable) when the GPU has less memory left.
  Memory(Gpu& gpu, size_t bytes, Stream stream);
  // The memory is freed in the order of that stream, and after the mark of free_after(); use_in() names another stream
  // instead of both.
  ~Memory();
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }

  void* data() const noexcept;
  size_t bytes() const noexcept { return bytes_; }
  void free_after(MarkPointer mark) noexcept { after_ = std::move(mark); }
  void use_in(Stream stream) noexcept {
    stream_ = stream;
    after_ = nullptr;
  }

 private:
  void swap(Memory& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
    std::swap(after_, other.after_);
  }

  Gpu* gpu_ = nullptr;
  Address address_ = 0;
  size_t bytes_ = 0;
  Stream stream_ = nullptr;
  MarkPointer after_;
};

class Gpu {
 public:
  // Throws Error(kUnavailable) when there is no such GPU or it cannot be used.
  explicit Gpu(Ordinal device);
  // All of its marks must be destroyed before. Waits for copies in flight, for ten seconds at most.
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Ordinal device() const noexcept { return device_; }
  // The UUID of the GPU, whatever number processes know it by.
  const Uuid& uuid() const noexcept { return uuid_; }
  // The stream in which collectives of this GPU's tensors run, in the order that was agreed on.
  Stream collectives() const noexcept { return collectives_; }

  // While one of these lives, the GPU's context is the current one of this thread.
  class Current {
   public:
    explicit Current(const Gpu& gpu);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Functions& functions_;
  };

  // The number of the GPU whose memory this is; -1: of no GPU.
  Ordinal device_of(const void* address) const;
  // Throws Error(kInvalidArgument) when the memory is not of this GPU; `owner` names it in the sentence.
  void check_address(const void* address, const std::string& owner) const;
  // Throws Error(kInvalidArgument) when a CUDA graph is being captured in the stream.
  void check_not_capturing(Stream stream) const;

  // Returns a mark after the work that is in a stream now.
  MarkPointer mark(Stream stream);
  // Makes work that is put into this stream of this GPU from now on wait for the mark, which may be another GPU's.
  void delay(Stream stream, const Mark& after) const;
  // Makes copies to the host wait for the mark.
  void delay_to_host(const Mark& after) const { delay(to_host_, after); }
  void copy_to_host(std::byte* target, const void* source, size_t bytes);
  void copy_to_device(void* target, const std::byte* source, size_t bytes);
  // The same, in a stream other than that of copies.
  void copy_to_device(void* target, const std::byte* source, size_t bytes, Stream stream);
  // Copies within the memory of this GPU, or from or to the memory of another GPU of this process.
  void copy(void* target, const void* source, size_t bytes, Stream stream);
  // Fills memory of this GPU with zeros.
  void clear(void* target, size_t bytes, Stream stream);
  // Returns a mark after all copies in this direction that have been begun.
  MarkPointer mark_to_host();
  MarkPointer mark_to_device();

  // Allocates the result of a collective that is put into the stream of collectives from now on.
  Memory allocate_result(size_t bytes);

  Pinned take_pinned(size_t bytes);
  // Makes the memory reusable as soon as the mark is reached; null: at once.
  void give_back(Pinned pinned, MarkPointer in_use_until);

 private:
  friend class Mark;
  friend class Memory;
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
  Stream collectives_ = nullptr;
  Uuid uuid_;

  base::Mutex mutex_;
  std::vector<Event> events_ GUARDED_BY(mutex_);               // not in use
  std::multimap<size_t, Returned> pinned_ GUARDED_BY(mutex_);  // free once their marks are reached; by size
};

// The GPUs that an engine has used.
class Gpus {
 public:
  // Throws as Gpu() does.
  Gpu& get(Ordinal device);

 private:
  base::Mutex mutex_;
  std::map<Ordinal, std::unique_ptr<Gpu>> gpus_ GUARDED_BY(mutex_);
};

}  // namespace farandole::device
