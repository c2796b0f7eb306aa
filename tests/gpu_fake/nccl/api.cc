#include "nccl/api.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/api.h"
#include "cuda/hooks.h"
#include "nccl/communicator.h"
#include "nccl/hooks.h"

namespace nccl_fake {
namespace {

// The communicators that have not been destroyed or aborted.
class Registry {
 public:
  static Registry& get() {
    static auto* const one = new Registry;
    return *one;
  }
  Comm* add(std::shared_ptr<Comm> comm) {
    const std::lock_guard lock(mutex_);
    Comm* const handle = comm.get();
    comms_[handle] = std::move(comm);
    return handle;
  }
  // Null for what is none.
  std::shared_ptr<Comm> find(Comm* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = comms_.find(handle);
    return found == comms_.end() ? nullptr : found->second;
  }
  void remove(Comm* handle) {
    const std::lock_guard lock(mutex_);
    comms_.erase(handle);
  }
  size_t live() {
    const std::lock_guard lock(mutex_);
    return comms_.size();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Comm*, std::shared_ptr<Comm>> comms_;
};

// The calls of a thread since ncclGroupStart.
struct Gathered {
  std::shared_ptr<Comm> comm;
  gpu_fake::Stream* stream;
  std::vector<Call> calls;
};
struct OpenGroup {
  int depth = 0;
  Result error = kSuccess;                       // of a call in it: then nothing is launched
  std::vector<Gathered> operations;              // one for each communicator
  std::vector<std::shared_ptr<Comm>> beginning;  // blocking ones
  std::vector<std::shared_ptr<Comm>> aborting;
};

OpenGroup& group() {
  thread_local OpenGroup one;
  return one;
}

Result abort_now(const std::shared_ptr<Comm>& comm) {
  comm->abort();
  Registry::get().remove(comm.get());
  comm->let_go();
  return kSuccess;
}

Result no_such_comm(const char* function) {
  return warn(kInvalidArgument, std::string(function) + ": the communicator is null, or was destroyed or aborted");
}

bool is_wrong_overlap(const Call& call, size_t place) {
  const auto* const in = static_cast<const char*>(call.input);
  const auto* const out = static_cast<const char*>(call.output);
  const OperationHead& head = call.head;
  if (head.input_bytes == 0 || head.output_bytes == 0) {
    return false;
  }
  const bool is_in_place = head.kind == Kind::kAllGather       ? in == out + place
                           : head.kind == Kind::kReduceScatter ? out == in + place
                                                               : in == out;
  return !is_in_place && in < out + head.output_bytes && out < in + head.input_bytes;
}

// Checks an operation and puts it into the group, which is launched at once where none is open.
Result add(const char* function, Comm* handle, gpu_fake::Stream* stream, Call call, int op) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm(function);
  }
  const InUse in_use(*comm, function);
  if (const Result ready = comm->ready_for(function); ready != kSuccess) {
    return ready;
  }
  OperationHead& head = call.head;
  if (size_of(head.dtype) == 0) {
    return warn(kInvalidArgument, std::string(function) + ": invalid type " + std::to_string(head.dtype));
  }
  if (head.peer < 0 || head.peer >= comm->size) {
    return warn(kInvalidArgument, std::string(function) + ": invalid root or peer " + std::to_string(head.peer));
  }
  if (op >= kFirstCreated) {
    call.factor = comm->factor(op);
  }
  if (op < 0 || (op >= kFirstCreated && call.factor == nullptr)) {
    return warn(kInvalidArgument, std::string(function) + ": invalid reduction operation " + std::to_string(op));
  }
  if (call.factor != nullptr && call.factor->dtype != head.dtype) {
    return warn(kInvalidArgument, std::string(function) + ": the reduction operation was created for another type");
  }
  head.op = op >= kFirstCreated ? kSum : op;
  if (head.count == 0) {
    return kSuccess;
  }
  const size_t bytes = head.count * size_of(head.dtype);
  const auto all_bytes = bytes * static_cast<size_t>(comm->size);
  const bool is_root = comm->rank == head.peer;
  switch (head.kind) {
    case Kind::kAllReduce:
      head.input_bytes = head.output_bytes = bytes;
      break;
    case Kind::kReduce:
      head.input_bytes = bytes;
      head.output_bytes = is_root ? bytes : 0;
      break;
    case Kind::kBroadcast:
      head.input_bytes = is_root ? bytes : 0;
      head.output_bytes = bytes;
      break;
    case Kind::kAllGather:
      head.input_bytes = bytes;
      head.output_bytes = all_bytes;
      break;
    case Kind::kReduceScatter:
      head.input_bytes = all_bytes;
      head.output_bytes = bytes;
      break;
    case Kind::kSend:
      head.input_bytes = bytes;
      break;
    case Kind::kRecv:
      head.output_bytes = bytes;
      break;
  }
  if (is_wrong_overlap(call, static_cast<size_t>(comm->rank) * bytes)) {
    stop(std::string(function) + ": input and output overlap, and it is not in place");
  }
  if (gpu_fake::Stream* const given = stream; reinterpret_cast<uintptr_t>(given) > gpu_fake::kStreamPerThread) {
    gpu_fake::CaptureStatus status = gpu_fake::kCaptureNone;
    if (gpu_fake::fake_gpu_stream_device(given) != comm->device) {
      return warn(kUnhandledCudaError, std::string(function) + ": the stream is not one of the communicator's device");
    }
    if (gpu_fake::cuStreamIsCapturing(given, &status) == gpu_fake::kSuccess && status != gpu_fake::kCaptureNone) {
      return warn(kInvalidUsage, std::string(function) + ": the fake NCCL cannot be captured");
    }
  }
  auto& operations = group().operations;
  auto mine = std::find_if(operations.begin(), operations.end(), [&](auto& one) { return one.comm == comm; });
  if (mine == operations.end()) {
    mine = operations.insert(mine, {comm, stream, {}});
  }
  if (mine->stream != stream) {
    return warn(kInvalidUsage,
                std::string(function) + ": the fake NCCL takes one stream for a communicator in a group");
  }
  mine->calls.push_back(std::move(call));
  return kSuccess;
}

// The worse of two results: errors are worse than "in progress", which is worse than success.
Result worse(Result a, Result b) {
  if (a == kSuccess || (a == kInProgress && b != kSuccess)) {
    return b;
  }
  return a;
}

Result in_group(const char* function, Comm* comm, gpu_fake::Stream* stream, Call call, int op = kSum) {
  ncclGroupStart();
  const Result added = add(function, comm, stream, std::move(call), op);
  group().error = worse(group().error, added);
  const Result ended = ncclGroupEnd();
  return added == kSuccess ? ended : added;
}

Call call_of(Kind kind, const void* input, void* output, size_t count, Dtype dtype, int peer = 0) {
  return {{kind, dtype, 0, peer, count, 0, 0}, input, output, nullptr};
}

Result check_config(const Config* config, bool* is_blocking) {
  *is_blocking = true;
  if (config == nullptr) {
    return kSuccess;
  }
  if (config->magic != kConfigMagic || config->size < sizeof(Config)) {
    return warn(kInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking != kUndefined && config->blocking != 0 && config->blocking != 1) {
    return warn(kInvalidArgument, "Invalid config blocking attribute value " + std::to_string(config->blocking));
  }
  *is_blocking = config->blocking != 0;
  return kSuccess;
}

}  // namespace

extern "C" {

void fake_nccl_fault(const char* faults) { plan_faults(faults); }

uint64_t fake_nccl_count(const char* name) {
  return std::strcmp(name, "live_comms") == 0 ? Registry::get().live() : counted(name);
}

void fake_nccl_reset_counts() { reset_counts(); }

Result ncclGetVersion(int* version) {
  const char* const text = std::getenv("FAKE_NCCL_VERSION");
  *version = text == nullptr ? 23007 : static_cast<int>(std::strtol(text, nullptr, 10));
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  sockaddr_in address{};
  if (!start_hub(&address)) {
    return warn(kSystemError, "the hub of a communicator cannot listen on the loopback interface");
  }
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::memcpy(id->bytes, &address, sizeof address);
  return kSuccess;
}

const char* ncclGetErrorString(Result code) {
  switch (code) {
    case kSuccess:
      return "no error";
    case kUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case kInternalError:
      return "internal error";
    case kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(Comm*) { return last_error(); }

Result ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config) {
  bool is_blocking = true;
  if (const Result valid = check_config(config, &is_blocking); valid != kSuccess) {
    return valid;
  }
  if (comm == nullptr || size < 1 || rank < 0 || rank >= size) {
    return warn(kInvalidArgument, "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(size));
  }
  gpu_fake::Device device = -1;
  gpu_fake::Context* context = nullptr;
  if (gpu_fake::cuCtxGetDevice(&device) != gpu_fake::kSuccess ||
      gpu_fake::cuDevicePrimaryCtxRetain(&context, device) != gpu_fake::kSuccess) {
    return warn(kUnhandledCudaError, "Cuda failure 'no context is current, or its device is broken'");
  }
  const auto made = std::make_shared<Comm>(rank, size, is_blocking, device, context);
  *comm = Registry::get().add(made);
  made->begin(id);
  if (!is_blocking) {
    return kInProgress;
  }
  if (group().depth > 0) {
    group().beginning.push_back(made);
    return kSuccess;
  }
  return made->wait_until_ready();
}

Result ncclCommInitRank(Comm** comm, int size, UniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

Result ncclCommFinalize(Comm* handle) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclCommFinalize");
  }
  const InUse in_use(*comm, "ncclCommFinalize");
  if (const Result ready = comm->ready_for("ncclCommFinalize"); ready != kSuccess) {
    return ready;
  }
  comm->finalize();
  if (comm->is_blocking) {
    comm->wait_until_idle();
    return kSuccess;
  }
  return comm->poll();
}

Result ncclCommDestroy(Comm* handle) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclCommDestroy");
  }
  const InUse in_use(*comm, "ncclCommDestroy");
  if (const Result ready = comm->ready_for("ncclCommDestroy"); ready != kSuccess) {
    return ready;
  }
  comm->wait_until_idle();
  Registry::get().remove(handle);
  comm->let_go();
  return kSuccess;
}

Result ncclCommAbort(Comm* handle) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclCommAbort");
  }
  if (group().depth > 0) {
    group().aborting.push_back(comm);
    return kSuccess;
  }
  return abort_now(comm);
}

Result ncclCommGetAsyncError(Comm* handle, Result* error) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr || error == nullptr) {
    return no_such_comm("ncclCommGetAsyncError");
  }
  *error = comm->poll();
  return kSuccess;
}

Result ncclCommCount(Comm* handle, int* size) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclCommCount");
  }
  *size = comm->size;
  return kSuccess;
}

Result ncclCommUserRank(Comm* handle, int* rank) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclCommUserRank");
  }
  *rank = comm->rank;
  return kSuccess;
}

Result ncclCommCuDevice(Comm* handle, int* device) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclCommCuDevice");
  }
  *device = comm->device;
  return kSuccess;
}

Result ncclGroupStart() {
  ++group().depth;
  return kSuccess;
}

Result ncclGroupEnd() {
  OpenGroup& open = group();
  if (open.depth == 0) {
    return warn(kInvalidUsage, "ncclGroupEnd: not in a group call");
  }
  if (--open.depth > 0) {
    return kSuccess;
  }
  const OpenGroup all = std::exchange(open, OpenGroup{});
  if (all.error != kSuccess) {
    return all.error;
  }
  Result result = kSuccess;
  for (const auto& comm : all.aborting) {
    result = worse(result, abort_now(comm));
  }
  for (const auto& comm : all.beginning) {
    result = worse(result, comm->wait_until_ready());
  }
  for (const Gathered& operations : all.operations) {
    const InUse in_use(*operations.comm, "ncclGroupEnd");
    result = worse(result, operations.comm->launch(operations.calls, operations.stream));
  }
  return result;
}

Result ncclAllReduce(const void* input, void* output, size_t count, Dtype dtype, int op, Comm* comm,
                     gpu_fake::Stream* stream) {
  return in_group("ncclAllReduce", comm, stream, call_of(Kind::kAllReduce, input, output, count, dtype), op);
}

Result ncclReduce(const void* input, void* output, size_t count, Dtype dtype, int op, int root, Comm* comm,
                  gpu_fake::Stream* stream) {
  return in_group("ncclReduce", comm, stream, call_of(Kind::kReduce, input, output, count, dtype, root), op);
}

Result ncclBroadcast(const void* input, void* output, size_t count, Dtype dtype, int root, Comm* comm,
                     gpu_fake::Stream* stream) {
  return in_group("ncclBroadcast", comm, stream, call_of(Kind::kBroadcast, input, output, count, dtype, root));
}

Result ncclBcast(void* buffer, size_t count, Dtype dtype, int root, Comm* comm, gpu_fake::Stream* stream) {
  return ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream);
}

Result ncclAllGather(const void* input, void* output, size_t count, Dtype dtype, Comm* comm, gpu_fake::Stream* stream) {
  return in_group("ncclAllGather", comm, stream, call_of(Kind::kAllGather, input, output, count, dtype));
}

Result ncclReduceScatter(const void* input, void* output, size_t count, Dtype dtype, int op, Comm* comm,
                         gpu_fake::Stream* stream) {
  return in_group("ncclReduceScatter", comm, stream, call_of(Kind::kReduceScatter, input, output, count, dtype), op);
}

Result ncclSend(const void* input, size_t count, Dtype dtype, int peer, Comm* comm, gpu_fake::Stream* stream) {
  return in_group("ncclSend", comm, stream, call_of(Kind::kSend, input, nullptr, count, dtype, peer));
}

Result ncclRecv(void* output, size_t count, Dtype dtype, int peer, Comm* comm, gpu_fake::Stream* stream) {
  return in_group("ncclRecv", comm, stream, call_of(Kind::kRecv, nullptr, output, count, dtype, peer));
}

Result ncclRedOpCreatePreMulSum(int* op, void* scalar, Dtype dtype, Residence residence, Comm* handle) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclRedOpCreatePreMulSum");
  }
  const InUse in_use(*comm, "ncclRedOpCreatePreMulSum");
  if (const Result ready = comm->ready_for("ncclRedOpCreatePreMulSum"); ready != kSuccess) {
    return ready;
  }
  if (size_of(dtype) == 0 || scalar == nullptr) {
    return warn(kInvalidArgument, "ncclRedOpCreatePreMulSum: invalid type or scalar");
  }
  auto factor = std::make_shared<Factor>();
  factor->dtype = dtype;
  factor->residence = residence;
  factor->on_device = scalar;
  if (residence == kScalarHost) {
    std::memcpy(factor->immediate, scalar, size_of(dtype));
  }
  *op = comm->add_factor(std::move(factor));
  return kSuccess;
}

Result ncclRedOpDestroy(int op, Comm* handle) {
  const auto comm = Registry::get().find(handle);
  if (comm == nullptr) {
    return no_such_comm("ncclRedOpDestroy");
  }
  const InUse in_use(*comm, "ncclRedOpDestroy");
  return comm->remove_factor(op) ? kSuccess
                                 : warn(kInvalidArgument, "ncclRedOpDestroy: operation " + std::to_string(op) +
                                                              " was not created with this communicator");
}

}  // extern "C"
}  // namespace nccl_fake
