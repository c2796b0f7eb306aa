#include "plugins/tensorflow/call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>

#include "plugins/tensorflow/dtypes.h"
#include "plugins/tensorflow/errors.h"
#include "plugins/tensorflow/op_table.h"

namespace farandole::tensorflow {

namespace {

// Rows that have come are copied by the engine's thread up to this size; above, by a thread of their own, so that the
// engine goes on. Starting a thread takes about as long as copying this much.
constexpr size_t kCopyAtOnceBytes = size_t{1} << 18;

// The time for which a thread of TensorFlow's makes progress itself (a little longer if it finds work), with
// calls up to this size: with larger ones a wake-up does not count, and the thread can compute something meanwhile.
constexpr double kHelpSeconds = 1e-3;
constexpr size_t kHelpBytes = size_t{1} << 20;

std::atomic<int> calls_in_flight{0};

// Whether this thread calls the engine's callbacks, in which it must not wait for the engine.
thread_local bool t_in_callback = false;

// The prefix of all names, so that the same name in two front ends of a process becomes two names.
constexpr const char* kScope = "tensorflow.";

Tensor input_of(TF_OpKernelContext* context, int index) {
  const Status status;
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, index, &tensor, status.get());
  status.check();
  return Tensor(tensor);
}

void set_output(TF_OpKernelContext* context, int index, const Tensor& tensor) {
  const Status status;
  TF_SetOutput(context, index, tensor.get(), status.get());
  status.check();
}

Tensor allocate_output(TF_OpKernelContext* context, int index, TF_DataType type, const std::vector<int64_t>& shape) {
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const Status status;
  Tensor tensor(TF_AllocateOutput(context, index, type, shape.data(), static_cast<int>(shape.size()),
                                  static_cast<size_t>(elements) * bytes_of(type), status.get()));
  status.check();
  return tensor;
}

void require_rows(const OpRow& row, const std::vector<int64_t>& shape) {
  if (shape.empty()) {
    throw without_rows(row);
  }
}

}  // namespace

void Call::run(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  // TensorFlow hands over a std::function on its stack, which is gone when this returns: only a copy of it can be
  // called later. Calling TF_RunAsyncOpKernelDoneCallback later crashes, in 2.17 and in 2.21.
  const auto& function = *reinterpret_cast<const std::function<void()>*>(done);
  (new Call(*static_cast<const Kernel*>(kernel), context, function))->begin();
}

Call::Call(const Kernel& kernel, TF_OpKernelContext* context, std::function<void()> done)
    : kernel_(kernel), context_(context), done_(std::move(done)) {
  ++calls_in_flight;
}

// --- from TensorFlow to the engine

void Call::begin() {
  const std::string operation = kernel_.row->operation;
  if (kernel_.row->kind == FARANDOLE_JOIN) {
    base_ = operation;
  } else if (kernel_.is_unnamed()) {
    unnamed_ = EngineLink::of_process().unnamed_calls().take(operation, kernel_.group);
    base_ = kScope + operation + "." + name_of(*unnamed_);
  } else {
    base_ = kScope + operation + "." + kernel_.key(context_);
  }
  const EngineLink::Use use(EngineLink::of_process());
  try {
    engine_ = use.engine();
    add_parts(use);
    name_parts();
    std::vector<farandole_request> requests;
    for (Part& part : parts_) {
      if (part.call != nullptr) {
        requests.push_back(request_of(part));
      }
    }
    // One more, so that this call is not deleted while it is being submitted.
    open_ = requests.size() + 1;
    if (!requests.empty()) {
      hand_over(requests);
    }
  } catch (const OpError& error) {
    if (unnamed_) {
      EngineLink::of_process().unnamed_calls().give_back(*unnamed_);
    }
    open_ = 1;
    fail(error.code(), error.what());
  }
  if (--open_ == 0) {
    deliver();
  }
}

void Call::hand_over(const std::vector<farandole_request>& requests) {
  std::vector<uint64_t> handles(requests.size());
  const auto begin = plugins::OwnProgress::Clock::now();
  int status = FARANDOLE_OK;
  if (may_make_progress() && kernel_.progress.is_worth_it(begin)) {
    status = farandole_run(engine_, requests.data(), requests.size(), handles.data(), kHelpSeconds);
    if (handles[0] != 0) {
      const auto end = plugins::OwnProgress::Clock::now();
      kernel_.progress.attempted(status != FARANDOLE_TIMEOUT, end, end - begin);
      return;  // the callback of each request tells how it has ended, or will end
    }
  } else {
    status = farandole_submit(engine_, requests.data(), requests.size(), handles.data());
  }
  if (status != FARANDOLE_OK) {
    throw error_of(status, farandole_last_error(), farandole_last_lost_rank());
  }
}

bool Call::may_make_progress() const {
  const auto bytes = [](size_t sum, const Part& part) {
    const Tensor& tensor = part.output ? part.output : part.input;
    return sum + (tensor ? TF_TensorByteSize(tensor.get()) : 0);
  };
  return calls_in_flight == 1 && !t_in_callback &&
         std::accumulate(parts_.begin(), parts_.end(), size_t{0}, bytes) <= kHelpBytes;
}

void Call::add_parts(const EngineLink::Use& use) {
  const OpRow& row = *kernel_.row;
  if (row.flow == Flow::kNothing) {
    parts_.resize(1);
    parts_[0].call = this;
    return;
  }
  const std::vector<int32_t> ranks = use.ranks_of(kernel_.group);
  // All ops have their tensors first; an alltoall may have its splits after them.
  const int tensors = row.grouped ? TF_NumInputs(context_) : 1;
  parts_.resize(static_cast<size_t>(tensors));
  for (int i = 0; i < tensors; ++i) {
    Part& part = parts_[static_cast<size_t>(i)];
    part.index = i;
    part.input = input_of(context_, i);
    part.type = TF_TensorType(part.input.get());
    part.shape = shape_of(part.input.get());
    if (is_alone(part, ranks, use.place().rank)) {
      set_output(context_, i, part.input);  // nothing to do: `call` stays empty
      continue;
    }
    part.call = this;
    if (!row.grouped && TF_NumInputs(context_) > 1) {
      const Tensor splits = input_of(context_, 1);
      const auto* rows = static_cast<const int32_t*>(TF_TensorData(splits.get()));
      const size_t count = TF_TensorByteSize(splits.get()) / sizeof(int32_t);
      if (TF_NumDims(splits.get()) != 1) {
        throw invalid("alltoall expects a 1D splits tensor, but splits has " +
                      std::to_string(TF_NumDims(splits.get())) + " dimensions.");
      }
      if (count != ranks.size()) {
        throw invalid("alltoall: splits has " + std::to_string(count) + " entries, but " +
                      std::to_string(ranks.size()) +
                      " ranks take part. Number of entries in splits does not equal number of workers.");
      }
      part.splits.assign(rows, rows + count);
    }
    make_output(part, ranks, use.place().rank);
  }
}

// Returns whether the result is the input. A call that is not valid goes to the engine, also on a rank that is alone,
// so that the engine reports the error.
bool Call::is_alone(const Part& part, const std::vector<int32_t>& ranks, int32_t rank) const {
  if (ranks.size() != 1 || ranks[0] != rank || kernel_.root.value_or(rank) != rank) {
    return false;
  }
  switch (kernel_.row->flow) {
    case Flow::kReduce:
      return kernel_.leaves_one_alone && part.type != TF_BOOL;
    case Flow::kCopy:
      return true;
    default:
      return false;
  }
}

void Call::make_output(Part& part, const std::vector<int32_t>& ranks, int32_t rank) {
  switch (kernel_.row->flow) {
    case Flow::kReduce: {
      // If nothing else uses the input, its memory becomes the output's. TensorFlow gives it away only while this
      // library holds no reference to it.
      part.input.reset();
      const Status status;
      int given = -1;
      part.output.reset(TF_ForwardInputOrAllocateOutput(context_, &part.index, 1, part.index, part.shape.data(),
                                                        static_cast<int>(part.shape.size()), &given, status.get()));
      status.check();
      if (given != part.index) {
        part.input = input_of(context_, part.index);
      }
      break;
    }
    case Flow::kCopy:
      if (kernel_.root == rank) {
        set_output(context_, part.index, part.input);
      } else {
        part.output = allocate_output(context_, part.index, part.type, part.shape);
      }
      break;
    case Flow::kOwnRows:
      make_own_rows(part, ranks, rank);
      break;
    case Flow::kRows:
      make_room_for_rows(part, ranks.size());
      break;
    case Flow::kNothing:
      break;
  }
}

// The first ranks get one row more where the rows cannot be shared equally.
void Call::make_own_rows(Part& part, const std::vector<int32_t>& ranks, int32_t rank) {
  require_rows(*kernel_.row, part.shape);
  const auto size = static_cast<int64_t>(ranks.size());
  const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  std::vector<int64_t> shape = part.shape;
  shape[0] = part.shape[0] / size + (place < part.shape[0] % size ? 1 : 0);
  part.output = allocate_output(context_, part.index, part.type, shape);
}

// Memory that is used if all ranks turn out to give equally many rows; it then becomes the output without a copy.
void Call::make_room_for_rows(Part& part, size_t ranks) {
  require_rows(*kernel_.row, part.shape);
  if (!part.splits.empty()) {
    return;
  }
  std::vector<int64_t> shape = part.shape;
  if (kernel_.row->kind == FARANDOLE_ALLGATHER) {
    shape[0] *= static_cast<int64_t>(ranks);
  }
  const Status status;
  TF_AllocatorAttributes on_host{offsetof(TF_AllocatorAttributes, on_host) + 1, 1};
  part.output.reset(
      TF_AllocateTemp(context_, part.type, shape.data(), static_cast<int>(shape.size()), &on_host, status.get()));
  status.check();
}

void Call::name_parts() {
  for (Part& part : parts_) {
    part.name = base_;
    if (kernel_.row->grouped) {
      part.name += "_" + std::to_string(part.index + 1) + "of" + std::to_string(parts_.size());
    }
  }
}

farandole_request Call::request_of(Part& part) {
  farandole_request request{};
  request.kind = kernel_.row->kind;
  request.group = kernel_.group;
  request.options = kernel_.options.data();
  request.option_count = kernel_.options.size();
  request.name = part.name.c_str();
  // TensorFlow may run an op again while it still runs: in several threads of a tf.data pipeline, or when several
  // Python threads call one tf.function.
  request.in_turn = 1;
  request.callback = &Call::part_done;
  request.callback_context = &part;
  if (kernel_.row->flow == Flow::kNothing) {
    return request;
  }
  const ElementType& type = element_type_of(part.type);
  request.dtype = type.dtype;
  request.opaque_type = type.opaque_type;
  request.opaque_bytes = type.bytes;
  request.ndim = static_cast<uint32_t>(part.shape.size());
  request.shape = part.shape.data();
  // A reduction may write over its input, a receiver of a broadcast gives none, and its root has its result already.
  TF_Tensor* const input = (part.input ? part.input : part.output).get();
  TF_Tensor* const output = kernel_.row->flow == Flow::kCopy && !part.output ? part.input.get() : part.output.get();
  request.input = TF_TensorData(input);
  request.output = output == nullptr ? nullptr : TF_TensorData(output);
  request.splits = part.splits.empty() ? nullptr : part.splits.data();
  return request;
}

// --- from the engine to TensorFlow

void Call::part_done(void* context, uint64_t handle, int status, const char* error, int32_t lost_rank) {
  auto& part = *static_cast<Part*>(context);
  Call& call = *part.call;
  part.handle = handle;
  if (status != FARANDOLE_OK) {
    const OpError failure = error_of(status, error, lost_rank);
    call.fail(failure.code(), failure.what());
  } else if (call.kernel_.row->flow == Flow::kRows || call.kernel_.row->kind == FARANDOLE_JOIN) {
    const int64_t* counts = nullptr;
    size_t members = 0;
    farandole_result(call.engine_, handle, &part.rows, &counts, &members);
    part.counts.assign(counts, counts + members);
  }
  if (--call.open_ == 0) {
    t_in_callback = true;
    call.deliver();
    t_in_callback = false;
  }
}

void Call::fail(TF_Code code, const std::string& message) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (!failure_) {
    failure_.emplace(code, message);
  }
}

// All parts are done.
void Call::deliver() {
  size_t bytes = 0;
  for (const Part& part : parts_) {
    if (part.rows != nullptr && !part.shape.empty()) {
      const int64_t rows = std::accumulate(part.counts.begin(), part.counts.end(), int64_t{0});
      bytes +=
          static_cast<size_t>(std::accumulate(part.shape.begin() + 1, part.shape.end(), rows, std::multiplies<>())) *
          bytes_of(part.type);
    }
  }
  // The engine's memory stays while its handles do, and the engine while it is in use. Once it has been taken back, it
  // stays only until this callback returns.
  auto use = std::make_unique<const EngineLink::Use>(EngineLink::of_process());
  if (bytes <= kCopyAtOnceBytes || use->get() == nullptr) {
    use.reset();
    end();
    return;
  }
  try {
    std::thread([this, use = std::move(use)]() { end(); }).detach();
  } catch (const std::system_error&) {  // no more threads
    end();
  }
}

void Call::end() {
  const Status status;
  try {
    if (failure_) {
      throw *failure_;
    }
    const int count_output = static_cast<int>(parts_.size());
    switch (kernel_.row->outputs) {
      case Outputs::kRowsAndCounts: {
        const auto members = static_cast<int64_t>(parts_[0].counts.size());
        const bool is_short = kernel_.row->kind == FARANDOLE_ALLTOALL;
        const Tensor counts = allocate_output(context_, count_output, is_short ? TF_INT32 : TF_INT64,
                                              {static_cast<int64_t>(parts_.size()), members});
        size_t at = 0;
        for (Part& part : parts_) {
          deliver_rows(part, part.index);
          for (const int64_t count : part.counts) {
            if (is_short) {
              static_cast<int32_t*>(TF_TensorData(counts.get()))[at++] = static_cast<int32_t>(count);
            } else {
              static_cast<int64_t*>(TF_TensorData(counts.get()))[at++] = count;
            }
          }
        }
        break;
      }
      case Outputs::kNumber: {
        const Tensor number = allocate_output(context_, 0, TF_INT32, {});
        *static_cast<int32_t*>(TF_TensorData(number.get())) =
            parts_[0].counts.empty() ? 0 : static_cast<int32_t>(parts_[0].counts[0]);
        break;
      }
      case Outputs::kSame:
      case Outputs::kRows:
        break;  // in place already
    }
  } catch (const OpError& error) {
    status.set(error.code(), error.what());
    TF_OpKernelContext_Failure(context_, status.get());
  }
  for (const Part& part : parts_) {
    if (part.handle != 0) {
      farandole_release_all(engine_, &part.handle, 1);
    }
  }
  if (kernel_.row->kind == FARANDOLE_JOIN) {
    EngineLink::of_process().unnamed_calls().restart_once_more();
  }
  parts_.clear();
  // Before TensorFlow begins its next operation, which may be a call that is the only one in flight.
  --calls_in_flight;
  done_();
  delete this;
}

void Call::deliver_rows(Part& part, int count_output) {
  const int64_t rows = std::accumulate(part.counts.begin(), part.counts.end(), int64_t{0});
  std::vector<int64_t> shape = part.shape;
  shape[0] = rows;
  // If rows have no elements, only their number is received.
  if (part.rows == nullptr && part.output != nullptr && shape_of(part.output.get()) == shape) {
    set_output(context_, count_output, part.output);
    return;
  }
  const Tensor output = allocate_output(context_, count_output, part.type, shape);
  if (const size_t bytes = TF_TensorByteSize(output.get()); bytes > 0) {
    std::memcpy(TF_TensorData(output.get()), part.rows, bytes);
  }
}

}  // namespace farandole::tensorflow
