#include "nccl/communicator.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "cuda/hooks.h"

namespace nccl_fake {
namespace {

using gpu_fake::Address;

int version() {
  const char* const text = std::getenv("FAKE_NCCL_VERSION");
  return text == nullptr ? 23007 : static_cast<int>(std::strtol(text, nullptr, 10));
}

bool is_eager() { return std::strcmp(gpu_fake::fake_gpu_time_mode(), "eager") == 0; }

// Where the fake itself can touch memory that a device can, pinned memory included. Null: a device cannot.
char* find_memory(const void* memory, size_t bytes) {
  const auto address = reinterpret_cast<Address>(memory);
  unsigned type = 0;
  // Device memory whose free stands in a stream is there until that stream has come to it.
  const bool is_known =
      gpu_fake::fake_gpu_device_of(address) >= 0 ||
      gpu_fake::cuPointerGetAttribute(&type, gpu_fake::kPointerMemoryType, address) == gpu_fake::kSuccess;
  return is_known ? static_cast<char*>(gpu_fake::fake_gpu_touch(address, bytes)) : nullptr;
}

// The context of the communicator's device is current for as long as this lives, as within the real library.
class Current {
 public:
  explicit Current(gpu_fake::Context* context) { gpu_fake::cuCtxPushCurrent_v2(context); }
  ~Current() { gpu_fake::cuCtxPopCurrent_v2(nullptr); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

}  // namespace

InUse::InUse(Comm& comm, const char* function) : comm_(comm) {
  if (const char* const other = comm.in_use_.exchange(function); other != nullptr) {
    stop(std::string(function) + " and " + other + " at once on one communicator: its calls are for one thread");
  }
}

Comm::Comm(int rank_, int size_, bool is_blocking_, gpu_fake::Device device_, gpu_fake::Context* context)
    : rank(rank_),
      size(size_),
      is_blocking(is_blocking_),
      device(device_),
      context_(context),
      random_(static_cast<unsigned>(rank_) + 1) {}

Comm::~Comm() {
  if (connection_ >= 0) {
    ::close(connection_);
  }
}

void Comm::let_go() { gpu_fake::cuDevicePrimaryCtxRelease_v2(device); }

// --- initialization ---

void Comm::begin(const UniqueId& id) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([self = shared_from_this(), id] { self->join(id); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Comm::join(const UniqueId& id) {
  count(Count::kInits);
  if (next_fault(Step::kInit, rank) == Fault::kInitHangs) {
    wait_for_abort();
    return;
  }
  std::string why;
  const Result result = connect(id, why);
  const std::lock_guard lock(mutex_);
  if (result != kSuccess && !is_aborted_) {
    error_ = warn(result, why);
  }
  is_joined_ = true;
  polls_left_ = is_eager() ? 0 : static_cast<int>(random_() % 3);
  changed_.notify_all();
}

Result Comm::connect(const UniqueId& id, std::string& why) {
  sockaddr_in address{};
  std::memcpy(&address, id.bytes, sizeof address);
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  {
    const std::lock_guard lock(mutex_);
    connection_ = connection;
    if (is_aborted_) {
      return kSystemError;
    }
  }
  if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    why = "socket connection to the hub of the unique id failed";
    return kSystemError;
  }
  const int one = 1;
  ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  Hello hello{};
  hello.rank = rank;
  hello.size = size;
  hello.version = version();
  const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  hello.may_share_gpu = shares != nullptr && std::strcmp(shares, "1") == 0 ? 1 : 0;
  const char* const host = std::getenv("FAKE_GPU_HOST");
  hello.host = std::hash<std::string>{}(host == nullptr ? "" : host);
  gpu_fake::cuDeviceGetAttribute(&hello.bus, gpu_fake::kDevicePciBusId, device);
  Verdict verdict{};
  if (!send_all(connection, &hello, sizeof hello) || !receive_all(connection, &verdict, sizeof verdict)) {
    why = "the connection to the hub of the unique id was lost";
    return kRemoteError;
  }
  why = verdict.text;
  return static_cast<Result>(verdict.result);
}

Result Comm::wait_until_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_joined_ || is_aborted_; });
  polls_left_ = 0;
  return error_;
}

void Comm::wait_for_abort() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_aborted_; });
}

// --- state ---

Result Comm::poll() {
  count(Count::kPolls);
  std::unique_lock lock(mutex_);
  if (error_ != kSuccess || is_aborted_) {
    return is_aborted_ ? kSuccess : error_;
  }
  if (!is_joined_) {
    return kInProgress;
  }
  if (polls_left_ > 0) {
    --polls_left_;
    return kInProgress;
  }
  if (launching_ != nullptr) {
    auto launch = std::move(launching_);
    gpu_fake::fake_gpu_permit(launch->stream);
    lock.unlock();
    return enqueue(std::move(launch));
  }
  return is_finalizing_ && !running_.empty() ? kInProgress : kSuccess;
}

Result Comm::ready_for(const char* function) {
  const std::lock_guard lock(mutex_);
  if (error_ != kSuccess) {
    return warn(error_, std::string(function) + ": the communicator has an error");
  }
  if (!is_joined_ || polls_left_ > 0 || launching_ != nullptr) {
    return warn(kInvalidArgument, std::string(function) +
                                      ": attempt to use the communicator before the previous operation has returned "
                                      "ncclSuccess");
  }
  if (is_finalizing_ && std::strcmp(function, "ncclCommDestroy") != 0) {
    return warn(kInvalidArgument, std::string(function) + ": the communicator has been finalized");
  }
  return kSuccess;
}

void Comm::finalize() {
  const std::lock_guard lock(mutex_);
  is_finalizing_ = true;
}

void Comm::wait_until_idle() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::seconds(100), [&] { return running_.empty(); })) {
    stop("an end of a communicator took 100 s, because its operations do not end");
  }
}

void Comm::abort() {
  count(Count::kAborts);
  if (next_fault(Step::kAbort, rank) == Fault::kAbortHangs) {
    for (;;) {
      ::pause();
    }
  }
  std::unique_lock lock(mutex_);
  is_aborted_ = true;
  if (launching_ != nullptr) {
    gpu_fake::fake_gpu_permit(std::exchange(launching_, nullptr)->stream);
  }
  if (connection_ >= 0) {
    ::shutdown(connection_, SHUT_RDWR);
  }
  changed_.notify_all();
  // What streams have queued is over soon, or is never come to: then it is dropped when they do.
}

// --- operations ---

Result Comm::launch(std::vector<Call> calls, gpu_fake::Stream* stream) {
  auto launch = std::make_unique<Launch>();
  launch->comm = shared_from_this();
  launch->stream = stream;
  launch->fault = next_fault(Step::kGroup, rank);
  count(Count::kGroups);
  count(Count::kOperations, calls.size());
  launch->calls = std::move(calls);
  {
    const std::lock_guard lock(mutex_);
    launch->ticket = ++tickets_;
    if (!is_blocking && !is_eager()) {
      count(Count::kInProgress);
      polls_left_ = static_cast<int>(random_() % 3);
      const Current current(context_);
      gpu_fake::fake_gpu_forbid(stream,
                                "on which a collective of NCCL is in progress: poll ncclCommGetAsyncError first");
      launching_ = std::move(launch);
      return kInProgress;
    }
  }
  return enqueue(std::move(launch));
}

Result Comm::enqueue(std::unique_ptr<Launch> launch) {
  {
    const std::lock_guard lock(mutex_);
    running_.insert(launch->ticket);
  }
  const Current current(context_);
  gpu_fake::Stream* const stream = launch->stream;
  const gpu_fake::Result queued = gpu_fake::fake_gpu_enqueue_or_drop(
      stream, "a collective of NCCL",
      [](void* argument) {
        const std::unique_ptr<Launch> own(static_cast<Launch*>(argument));
        const auto comm = own->comm;
        comm->run(*own);
        comm->finish(own->ticket);
      },
      [](void* argument) {
        const std::unique_ptr<Launch> own(static_cast<Launch*>(argument));
        own->comm->finish(own->ticket);
      },
      launch.release());
  return queued == gpu_fake::kSuccess ? kSuccess : warn(kUnhandledCudaError, "Cuda failure " + std::to_string(queued));
}

void Comm::finish(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  running_.erase(ticket);
  changed_.notify_all();
}

// In the thread of the stream.
void Comm::run(Launch& launch) {
  {
    // The operations of a communicator happen one after the other, on whatever streams they are.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_aborted_ || *running_.begin() == launch.ticket; });
    if (is_aborted_) {
      return;
    }
  }
  if (launch.fault != Fault::kNone) {
    misbehave(launch.fault);
    return;
  }
  if (exchange(launch)) {
    return;
  }
  // Aborted in the middle: some of the output was there. While a lost peer is all that has happened, it hangs.
  wait_for_abort();
  for (const Call& call : launch.calls) {
    char* const there = find_memory(call.output, call.head.output_bytes);
    if (there != nullptr) {
      std::memset(there, 0xFD, call.head.output_bytes);
    }
  }
}

void Comm::misbehave(Fault fault) {
  switch (fault) {
    case Fault::kDie:
      ::raise(SIGKILL);
      return;
    case Fault::kSticky:
      gpu_fake::fake_gpu_break(device, gpu_fake::kLaunchFailed);
      return;
    case Fault::kAsyncError: {
      const std::lock_guard lock(mutex_);
      error_ = warn(kRemoteError, "a remote process exited or there was a network error");
      break;
    }
    default:
      break;
  }
  wait_for_abort();
}

// False: the connection ended.
bool Comm::exchange(const Launch& launch) {
  const auto touch = [&](const void* memory, size_t bytes) {
    char* const there = find_memory(memory, bytes);
    if (there == nullptr) {
      std::fprintf(stderr,
                   "fake NCCL: an operation on device %d touches %zu bytes that are not, or no longer, allocated\n",
                   device, bytes);
      gpu_fake::fake_gpu_break(device, gpu_fake::kIllegalAddress);
    }
    return there;
  };
  const auto count = static_cast<uint32_t>(launch.calls.size());
  if (!send_all(connection_, &count, sizeof count)) {
    return false;
  }
  for (const Call& call : launch.calls) {
    Bytes input(call.head.input_bytes);
    if (!input.empty()) {
      const char* const from = touch(call.input, input.size());
      if (from == nullptr) {
        return false;
      }
      std::memcpy(input.data(), from, input.size());
      if (call.factor != nullptr) {
        const Factor& factor = *call.factor;
        const void* scalar = factor.immediate;
        if (factor.residence == kScalarDevice) {
          scalar = touch(factor.on_device, size_of(call.head.dtype));
        }
        if (scalar == nullptr) {
          return false;
        }
        scale(input.data(), call.head.dtype, input.size() / size_of(call.head.dtype), scalar);
      }
    }
    if (!send_all(connection_, &call.head, sizeof call.head) || !send_all(connection_, input.data(), input.size())) {
      return false;
    }
  }
  char done = 0;
  if (!receive_all(connection_, &done, sizeof done)) {
    return false;
  }
  for (const Call& call : launch.calls) {
    Bytes output(call.head.output_bytes);
    if (!receive_all(connection_, output.data(), output.size())) {
      return false;
    }
    if (!output.empty()) {
      char* const to = touch(call.output, output.size());
      if (to == nullptr) {
        return false;
      }
      std::memcpy(to, output.data(), output.size());
    }
  }
  return true;
}

int Comm::add_factor(std::shared_ptr<Factor> factor) {
  const std::lock_guard lock(mutex_);
  factors_[++last_factor_] = std::move(factor);
  return last_factor_;
}

bool Comm::remove_factor(int op) {
  const std::lock_guard lock(mutex_);
  return factors_.erase(op) > 0;
}

std::shared_ptr<Factor> Comm::factor(int op) {
  const std::lock_guard lock(mutex_);
  const auto found = factors_.find(op);
  return found == factors_.end() ? nullptr : found->second;
}

}  // namespace nccl_fake
