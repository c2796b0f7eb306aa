// One job as calls of NCCL, put into the stream of collectives of a GPU.
//
// Threads: for the thread that makes progress, with the GPU's context.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/nccl/library.h"
#include "backend/nccl/visitors.h"

namespace farandole::backend::nccl {

// Whether NCCL does exactly this: see the table in docs/explanation/gpus.md.
bool takes(const Need& need);

// Who takes part in a launch.
struct Peers {
  device::Gpu& gpu;
  Comm comm;
  int rank;                  // of this member in the communicator
  int size;                  // of the communicator
  std::vector<int> ranks;    // in the communicator, of each member of the job's group
  bool is_transfer = false;  // a broadcast between two of them, of which no other member knows
};

class Launch {
 public:
  // Exchanges these numbers with the members of the group, one with each: gives what they have sent.
  using Exchange = std::function<std::vector<int64_t>(const std::vector<int64_t>& sent)>;

  Launch(const Library& library, device::Gpus& gpus, Peers peers, Exchange exchange)
      : library_(library),
        peers_(std::move(peers)),
        exchange_(std::move(exchange)),
        visitors_(gpus, peers_.gpu, peers_.rank) {}
  // Not before NCCL is done with the stream.
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // For a job with tensors on other GPUs than the communicator's.
  Visitors& visitors() noexcept { return visitors_; }
  // Makes the calls. What they began is not over before NCCL says so; then finish() is called, in the same context.
  // Throw Error(kUnavailable).
  void begin(const collective::Job& job);
  void finish();

 private:
  void run(const collective::AllreduceJob& job);
  [[noreturn]] void run(const collective::CompressedJob& job);
  void run(const collective::AllgatherJob& job);
  void run(const collective::BroadcastJob& job);
  void run(const collective::AlltoallJob& job);
  void run(const collective::ReducescatterJob& job);
  void run(const collective::ReduceJob& job);

  template <typename Reduction>
  Op op_of(const Reduction& job, Dtype dtype);
  // Memory that adds nothing to the others', for a member that is absent.
  std::byte* identity(const collective::AllreduceJob& job, size_t count);
  std::byte* scratch(size_t bytes);
  device::Stream stream() const noexcept { return peers_.gpu.collectives(); }
  void check(Result result, const char* what) const { library_.check(result, what, peers_.comm); }

  const Library& library_;
  const Peers peers_;
  const Exchange exchange_;
  Visitors visitors_;
  std::vector<device::Memory> scratch_;
  std::vector<device::Pinned> pinned_;
  std::optional<Op> created_;
  std::function<void()> last_;  // what is put into the stream after NCCL's calls
};

}  // namespace farandole::backend::nccl
