#include "plugins/tensorflow/errors.h"

#include <cctype>

#include "capi/farandole.h"
#include "plugins/tensorflow/op_table.h"

namespace farandole::tensorflow {

namespace {

TF_Code code_of(int status) {
  switch (status) {
    case FARANDOLE_INVALID_ARGUMENT:
      return TF_INVALID_ARGUMENT;
    case FARANDOLE_MISMATCH:
      return TF_FAILED_PRECONDITION;
    case FARANDOLE_WORKER_LOST:
    case FARANDOLE_SHUT_DOWN:
    case FARANDOLE_STALLED:
    case FARANDOLE_TIMEOUT:
      return TF_UNKNOWN;  // TF_ABORTED would let a MonitoredSession make new sessions for ever
    case FARANDOLE_UNAVAILABLE:
      return TF_RESOURCE_EXHAUSTED;
    default:
      return TF_INTERNAL;
  }
}

}  // namespace

// The end of the sentence is read by farandole.tensorflow.errors.
OpError error_of(int status, const std::string& sentence, int32_t lost_rank) {
  std::string text = sentence + " (farandole status " + std::to_string(status);
  if (lost_rank >= 0) {
    text += ", rank " + std::to_string(lost_rank);
  }
  return {code_of(status), text + ")"};
}

OpError invalid(const std::string& sentence) { return error_of(FARANDOLE_INVALID_ARGUMENT, sentence, -1); }

OpError without_rows(const OpRow& row) {
  std::string operation = row.operation;
  operation.erase(0, row.grouped ? operation.find('_') + 1 : 0);
  operation[0] = static_cast<char>(std::toupper(operation[0]));
  return invalid(operation +
                 " does not support scalar inputs: a tensor without dimensions (a rank-zero tensor) has no "
                 "rows. Pass tf.reshape(tensor, [1]).");
}

}  // namespace farandole::tensorflow
