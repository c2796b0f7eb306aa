// One job, as calls of NCCL that are put into the stream of collectives of a GPU.
//
// Threads: only the thread that makes progress uses it, with the GPU's context current.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/nccl/library.h"
#include "backend/nccl/visitors.h"

namespace farandole::backend::nccl {

// The row of an operation in NCCL's table: by which functions it does it.
const collective::Algorithm& algorithm_of(Operation operation);

// Whether NCCL does exactly what is needed, by the table in docs/explanation/gpus.md.
bool takes(const Need& need);

// The participants of a launch.
struct Peers {
  device::Gpu& gpu;
  Comm comm;
  int rank;                  // of this member in the communicator
  int size;                  // of the communicator
  std::vector<int> ranks;    // in the communicator, of each member of the job's group
  bool is_transfer = false;  // a broadcast between two members, which the others do not know of
};

class Launch {
 public:
  // Exchanges numbers with the members of the group, one with each, and returns the numbers that they sent.
  using Exchange = std::function<std::vector<int64_t>(const std::vector<int64_t>& sent)>;

  Launch(const Library& library, device::Gpus& gpus, Peers peers, Exchange exchange)
      : library_(library),
        peers_(std::move(peers)),
        exchange_(std::move(exchange)),
        visitors_(gpus, peers_.gpu, peers_.rank) {}
  // Must not be called before NCCL is done with the stream.
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Set for a job with tensors on GPUs other than the communicator's.
  Visitors& visitors() noexcept { return visitors_; }
  // Makes the calls. They are over only when NCCL says so; then finish() is called, in the same context.
  // Throw Error(kUnavailable).
  void begin(const collective::Job& job);
  void finish();

 private:
  template <typename OneJob>
  void run(const OneJob& job);  // launch.cc has one for each job

  template <typename Reduction>
  Op op_of(const Reduction& job, Dtype dtype);
  // Memory with the identity of the reduction, as the input of a member that is absent.
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
  std::function<void()> last_;  // puts further work into the stream after NCCL's calls
};

}  // namespace farandole::backend::nccl
