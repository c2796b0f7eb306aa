// One run of an op: from TensorFlow's tensors to requests of the engine, and back.
//
// A call is begun in one of TensorFlow's threads and ended by the engine's completion callback, so that no thread
// waits. It deletes itself when it has told TensorFlow that it is done.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capi/farandole.h"
#include "plugins/tensorflow/engine_link.h"
#include "plugins/tensorflow/handles.h"
#include "plugins/tensorflow/kernel.h"

namespace farandole::tensorflow {

class Call {
 public:
  // TensorFlow calls this for each run of an op of farandole's; see TF_NewAsyncKernelBuilder.
  static void run(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

 private:
  // One tensor's part of the call.
  struct Part {
    Call* call = nullptr;
    int index = 0;
    TF_DataType type = TF_FLOAT;
    std::vector<int64_t> shape;
    Tensor input;   // nothing if TensorFlow has given its memory to the output
    Tensor output;  // nothing if it is made when the rows are there
    std::vector<int64_t> splits;
    std::string name;
    uint64_t handle = 0;
    std::vector<int64_t> counts;  // rows from each rank
    const void* rows = nullptr;   // the engine's memory, until the handle is released
  };

  Call(const Kernel& kernel, TF_OpKernelContext* context, std::function<void()> done);

  void begin();
  void hand_over(const std::vector<farandole_request>& requests);
  bool may_make_progress() const;
  void add_parts(const EngineLink::Use& use);
  void make_output(Part& part, const std::vector<int32_t>& ranks, int32_t rank);
  void make_own_rows(Part& part, const std::vector<int32_t>& ranks, int32_t rank);
  void make_room_for_rows(Part& part, size_t ranks);
  void name_parts();
  farandole_request request_of(Part& part);

  static void part_done(void* part, uint64_t handle, int status, const char* error, int32_t lost_rank);
  void fail(TF_Code code, const std::string& message);
  void deliver();
  void deliver_rows(Part& part, int count_output);
  void end();

  bool is_alone(const Part& part, const std::vector<int32_t>& ranks, int32_t rank) const;

  const Kernel& kernel_;
  TF_OpKernelContext* const context_;
  const std::function<void()> done_;
  std::string base_;                                     // the operation and the key: begins the names of the parts
  std::optional<plugins::UnnamedCalls::Taken> unnamed_;  // the number in the name, if users gave none
  std::vector<Part> parts_;
  farandole_engine* engine_ = nullptr;
  std::atomic<size_t> open_{0};  // parts that are not done
  std::mutex failure_mutex_;
  std::optional<OpError> failure_;
};

}  // namespace farandole::tensorflow
