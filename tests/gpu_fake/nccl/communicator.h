// A communicator of the fake NCCL: its connection to the hub, its state, and the groups of operations that it launches.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/api.h"
#include "nccl/faults.h"
#include "nccl/wire.h"

namespace nccl_fake {

// A factor that a rank multiplies its input by, before it is summed.
struct Factor {
  int dtype = 0;
  Residence residence = kScalarHost;
  char immediate[8] = {};
  const void* on_device = nullptr;
};

// An operation as it was called.
struct Call {
  OperationHead head;
  const void* input;
  void* output;
  std::shared_ptr<Factor> factor;  // null: none
};

struct Comm : std::enable_shared_from_this<Comm> {
 public:
  Comm(int rank, int size, bool is_blocking, gpu_fake::Device device, gpu_fake::Context* context);
  ~Comm();

  // Joins the others, in a thread of its own.
  void begin(const UniqueId& id);
  // For blocking communicators, and those that begin in a group.
  Result wait_until_ready();

  // A program may call this at any time, from any thread; each call lets time pass.
  Result poll();
  // Launches a group, or leaves it to later polls: then the stream is forbidden until it is launched.
  Result launch(std::vector<Call> calls, gpu_fake::Stream* stream);
  // InProgress until all that was launched has happened.
  void finalize();
  void wait_until_idle();
  void abort();
  // Gives the context back. The handle is not used any more.
  void let_go();
  // The state that a call finds; anything but success is what it has to return.
  Result ready_for(const char* function);

  int add_factor(std::shared_ptr<Factor> factor);
  bool remove_factor(int op);
  std::shared_ptr<Factor> factor(int op);

  const int rank;
  const int size;
  const bool is_blocking;
  const gpu_fake::Device device;

 private:
  friend class InUse;
  struct Launch {
    std::shared_ptr<Comm> comm;
    std::vector<Call> calls;
    gpu_fake::Stream* stream = nullptr;
    uint64_t ticket = 0;
    Fault fault = Fault::kNone;
  };

  void join(const UniqueId& id);
  Result connect(const UniqueId& id, std::string& why);
  Result enqueue(std::unique_ptr<Launch> launch);
  void run(Launch& launch);
  void misbehave(Fault fault);
  bool exchange(const Launch& launch);
  void finish(uint64_t ticket);
  void wait_for_abort();

  gpu_fake::Context* const context_;
  std::atomic<const char*> in_use_{nullptr};  // by this function of the API
  std::mutex mutex_;
  std::condition_variable changed_;
  int connection_ = -1;
  bool is_joined_ = false;
  Result error_ = kSuccess;  // of the initialization, or asynchronous
  bool is_aborted_ = false;
  bool is_finalizing_ = false;
  int polls_left_ = 0;                 // until what is in progress is over
  std::unique_ptr<Launch> launching_;  // in progress
  uint64_t tickets_ = 0;
  std::set<uint64_t> running_;
  std::minstd_rand random_;
  int last_factor_ = kFirstCreated - 1;
  std::map<int, std::shared_ptr<Factor>> factors_;
};

// No two threads may be in calls of one communicator, except for polls and aborts.
class InUse {
 public:
  InUse(Comm& comm, const char* function);
  ~InUse() { comm_.in_use_ = nullptr; }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  Comm& comm_;
};

}  // namespace nccl_fake
