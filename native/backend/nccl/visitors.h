// The tensors of a job that are on GPUs of this process other than the communicator's. They are copied to its GPU
// before the job runs, and the results are copied back after it.
//
// Threads: only the thread that makes progress uses it, with the communicator's GPU current.
#pragma once

#include <map>
#include <vector>

#include "collective/algorithm_table.h"
#include "device/gpu.h"

namespace farandole::backend::nccl {

class Visitors {
 public:
  // `rank` is this member's rank in the communicator.
  Visitors(device::Gpus& gpus, device::Gpu& home, int rank)
      : gpus_(gpus), home_(home), rank_(static_cast<size_t>(rank)) {}
  Visitors(const Visitors&) = delete;
  Visitors& operator=(const Visitors&) = delete;

  // Returns the job with all of its tensors on the communicator's GPU. This object must live until the job has run.
  collective::Job bring(collective::Job job);
  // Puts the copies of results into the stream of collectives.
  void send_back();

 private:
  void bring(collective::AllreduceJob& job);
  void bring(collective::CompressedJob&) {}  // NCCL does not run it
  void bring(collective::AlltoallJob& job);
  template <typename OneJob>
  void bring(OneJob& job);  // of one input and one output

  std::byte* place(const void* memory, size_t bytes);
  const void* input(const void* memory, size_t bytes);
  void* output(void* memory, size_t bytes);

  struct Return {
    void* target;
    const std::byte* source;
    size_t bytes;
  };
  device::Gpus& gpus_;
  device::Gpu& home_;
  const size_t rank_;
  std::map<const void*, device::Memory> guests_;  // by the memory that they are copies of
  std::vector<Return> returns_;
};

}  // namespace farandole::backend::nccl
