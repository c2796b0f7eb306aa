#pragma once
// TensorFlow's error for what the engine says, in one sentence that farandole.tensorflow.errors can read.

#include <cstdint>
#include <string>

#include "plugins/tensorflow/handles.h"

namespace farandole::tensorflow {

struct OpRow;

// The error for a status other than FARANDOLE_OK; lost_rank is -1 for nobody in particular.
OpError error_of(int status, const std::string& sentence, int32_t lost_rank);

// The error for a call that is wrong, whatever the other ranks do.
OpError invalid(const std::string& sentence);

// The error for a tensor without dimensions, where rows are needed.
OpError without_rows(const OpRow& row);

}  // namespace farandole::tensorflow
