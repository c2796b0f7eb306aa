// The interface of a backend, which moves and reduces one agreed bucket.
//
// The engine decides what runs, and in which order; a backend runs it, and nothing else. Each world has its own
// instance of each backend, so that a new world (after a loss, or with other members) begins with a new one. A backend
// is one folder of native/backend with one row in backend_table.cc. One that is not in a build is a row that says why.
//
// Threads: all methods are called by the thread that makes progress, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "collective/algorithm_table.h"
#include "device/gpu.h"
#include "transport/arena.h"
#include "transport/frame_multiplexer.h"

namespace farandole::backend {

// The memory of the tensors of a request. The numbers are part of the C ABI and of the wire format.
enum class MemoryKind : uint8_t { kHost = 0, kDevice = 1 };
inline constexpr uint32_t kLastMemoryKind = 1;
const char* name_of(MemoryKind memory) noexcept;  // "host"

using collective::Operation;
inline constexpr uint32_t kAllOperations = (uint32_t{1} << collective::kOperations) - 1;

// The needs of one request.
struct Need {
  Operation operation = Operation::kAllreduce;
  MemoryKind memory = MemoryKind::kHost;
  size_t bytes = 0;                   // of this member's tensor
  std::string_view compression = {};  // of a compressed allreduce: the name of its algorithm
  // The next four fields describe a reduction.
  reduce::Dtype dtype = reduce::Dtype::kF32;
  reduce::Op op = reduce::Op::kSum;
  bool averages = false;
  bool has_factors = false;  // before or after it, besides what an average divides by
};

// The values that must be the same on all workers of a world, so that they form the same buckets.
struct Tuning {
  size_t piece_bytes = size_t{3} << 19;  // of staging
  std::string algorithm;                 // a name that is asked for, or empty
  collective::Knobs knobs;
};

// The way in which tensors of GPUs are reduced. The numbers are part of the wire format.
enum class GpuMode : uint8_t {
  kAuto = 0,    // by a backend for device memory as soon as it is formed in a group, through host memory until then
  kNccl = 1,    // the same, but requests wait until it is formed, and the world ends when it cannot be
  kStaged = 2,  // through host memory
};

// How long they may take, in seconds.
struct GpuPatience {
  // To form a communicator. This usually takes less than a second, but loading kernels from a slow disk has taken a
  // minute.
  double forming = 120;
  // For NCCL to take up a call; the first one connects the members.
  double launch = 600;
  // To abort what was launched, in an elastic job. After this time, the worker ends, and counts as lost.
  double abort = 10;
  // For streams to finish the work behind a collective that was aborted. In a job that is not elastic, where none is
  // aborted: for the program to leave its wait for a collective that cannot end. After this time, its process ends.
  double stuck = 20;
};

// The objects that backends for device memory use in all worlds of an engine.
struct GpuParts {
  device::Gpus& gpus;
  std::string library;      // a path that is asked for, or empty
  bool is_elastic = false;  // another world may follow: the results of this one are waited for before they are used
  GpuPatience patience{};
};

// The objects that a backend uses in one world. It may open connections of its own among the ranks of the mesh.
struct World {
  transport::FrameMultiplexer& frames;
  transport::Arena& arena;
  Tuning tuning;
  const GpuParts* gpu = nullptr;  // outlives the backend; null: there are no requests in device memory
  class Backend* host = nullptr;  // that of host memory, for one of device memory
};

class Formation;

class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Sets the knobs for the next collective and later ones. Returns the knobs in use: values that this backend cannot
  // have are brought within bounds, on all members alike.
  virtual collective::Knobs set_knobs(const collective::Knobs& knobs) = 0;
  // Returns the algorithm for a request, the same on every member. Its row may be one of the backend's own, with
  // `index` kNoRow.
  virtual collective::Choice choose(const collective::Group& group, const Need& need) const = 0;

  // All following collectives belong to this decision. Decisions count from 1. Called again for the same one, if a job
  // has been staged for it.
  virtual void begin(uint32_t decision) = 0;
  // Does what can be done before it is agreed that all members run this job as the decision that has begun; returns
  // false if there is nothing. The next job may be another one, whether or not the members run this one.
  virtual bool stage(const collective::Group& group, const collective::Choice& choice,
                     const collective::AllreduceJob& job) = 0;
  // Called on one member, with a job that it has staged, when all members have staged theirs: does what one can do for
  // all. The members that then run the job are told which one that was. Throws as run() does.
  virtual void reduce_staged(const collective::Group& group, const collective::Choice& choice,
                             const collective::AllreduceJob& job) = 0;
  // Throws the world's error when it is revoked, at the latest within the failure deadline. In host memory: blocks
  // until done, and returns null. In device memory: returns the mark after which it is done, in a stream that has
  // waited for `after`; nothing else may be put into it before.
  virtual device::MarkPointer run(const collective::Group& group, const collective::Choice& choice,
                                  const collective::Job& job, std::span<const device::MarkPointer> after) = 0;
  // Null: it runs in every group from the beginning.
  virtual Formation* formation() noexcept { return nullptr; }

  // The world has been revoked: called once, after the last run(). Must not wait for other workers.
  virtual void revoke() noexcept = 0;
};

inline constexpr uint32_t kNoRow = UINT32_MAX;

// The abilities of a backend, as data, so that the selection needs no instance.
struct Capabilities {
  uint32_t memory = 0;                        // a bit for each MemoryKind that it takes
  uint32_t operations = 0;                    // a bit for each Operation
  bool across_hosts = true;                   // whether the members of a group may lie on several hosts
  bool (*takes)(const Need& need) = nullptr;  // which requests of these; null: all
  // Whether it launches its jobs in streams of GPUs: then it gets the marks of their inputs, and runs in a group only
  // after it was formed there (see Formation).
  bool launches = false;
};
template <typename Enumeration>
constexpr uint32_t bit_of(Enumeration value) noexcept {
  return uint32_t{1} << static_cast<uint32_t>(value);
}

// The settings with which a backend is started.
struct StartSettings {
  std::string library;           // a path that is asked for, or empty
  double patience_seconds = 60;  // for the other workers to start it as well
};

struct Row {
  const char* name;
  const char* description;
  const char* absent;  // why it is not in this build; null: it is
  Capabilities capabilities;
  // Null when it is not in this build. May throw base::Error.
  std::unique_ptr<Backend> (*make)(const World& world);
  // Makes the process ready, before its first world. Throws Error(kUnavailable) when it cannot be used here. Null:
  // there is nothing to do.
  void (*start)(const StartSettings& settings) = nullptr;
  // What start() would use, for people; starts nothing. `library` as in StartSettings. Throws as start() does.
  std::string (*probe)(const std::string& library) = nullptr;
};
// The table.
std::span<const Row* const> rows() noexcept;
// Returns the backends that run the requests of a job that asks for this one, in order of preference. A job that asks
// for none has "native". Throws Error(kInvalidArgument) if no backend of this name can be asked for.
std::span<const Row* const> rows_for(std::string_view name);

// The backend that runs a request, and the reason.
struct Selection {
  const Row* row = nullptr;   // null: none can
  bool through_host = false;  // it takes host memory, to which the engine copies the tensor from device memory
  std::string_view reason;
};
// Returns the first row that is in this build and can run the request; for device memory, rows that take it come before
// rows that take host memory. A pure function, so that all members select alike. `hosts` as in
// transport::Mesh::hosts(); `is_formed`: whether the backends that have to be formed in this group have been.
Selection select(std::span<const Row* const> rows, const Need& need, const collective::Group& group,
                 const std::vector<int>& hosts, bool is_formed);
// Returns why no row can run it, for people: one clause for each row.
std::string refusal_of(std::span<const Row* const> rows, const Need& need);

}  // namespace farandole::backend
