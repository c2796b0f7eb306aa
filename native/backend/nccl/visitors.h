// Tensors of a job that are on other GPUs of this process than its communicator. They are copied to that GPU before the
// job runs, and the results are copied back after it.
//
// Threads: for the thread that makes progress, with the communicator's GPU as the current one.
#pragma once

#include <map>
#include <vector>

#include "collective/algorithm_table.h"
#include "device/gpu.h"

namespace farandole::backend::nccl {

class Visitors {
 public:
  // `rank`: of this member in the communicator.
  Visitors(device::Gpus& gpus, device::Gpu& home, int rank)
      : gpus_(gpus), home_(home), rank_(static_cast<size_t>(rank)) {}
  Visitors(const Visitors&) = delete;
  Visitors& operator=(const Visitors&) = delete;

  // The job with all of its tensors on the communicator's GPU. This object must live until it has run.
  collective::Job bring(collective::Job job);
  // Puts the copies of results into the stream of collectives.
  void send_back();

 private:
  void bring(collective::AllreduceJob& job);
  void bring(collective::CompressedJob&) {}  // NCCL does not run it
  void bring(collective::AllgatherJob& job);
  void bring(collective::BroadcastJob& job);
  void bring(collective::AlltoallJob& job);
  void bring(collective::ReducescatterJob& job);
  void bring(collective::ReduceJob& job);

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
  std::map<const void*, device::Memory> guests_;  // by where they come from
  std::vector<Return> returns_;
};

}  // namespace farandole::backend::nccl
