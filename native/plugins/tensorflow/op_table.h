// The ops of this library: one row each, most of them made from the engine's kinds of request.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "capi/farandole.h"
#include "plugins/tensorflow/tensorflow_c.h"

namespace farandole::tensorflow {

struct Kernel;

// The properties of a node of a graph besides its inputs; each stands for one or several attributes of TensorFlow's.
enum class Attribute {
  kType,        // T: the tensor's element type
  kTypes,       // T: the tensors' element types
  kSplits,      // has_splits: how many inputs say where rows go, 0 or 1
  kName,        // tensor_name, ignore_name_scope
  kProcessSet,  // process_set_id
  kReduction,   // reduce_op, prescale, postscale
  kRoot,        // root_rank
};

// The shape of the results, as far as it is known before the op runs.
enum class Outputs {
  kSame,           // of each input
  kRows,           // of each input, but for the first dimension
  kRowsAndCounts,  // the same for each input, then for each a vector: how many rows came from each rank
  kNumber,         // one number
};

// The way in which the engine's results become outputs.
enum class Flow {
  kReduce,   // into an output of the input's shape
  kCopy,     // the root's input is its output; others receive into theirs
  kOwnRows,  // into an output of this rank's share of the rows
  kRows,     // rows whose number is learnt while they move
  kNothing,  // no tensor moves
};

struct OpRow {
  std::string name;       // TensorFlow's name of the op
  std::string operation;  // begins the names by which ranks' calls match
  uint32_t kind = 0;      // farandole_kind
  Flow flow = Flow::kNothing;
  bool grouped = false;
  const char* types = "";  // of which its tensors may be
  std::vector<Attribute> attributes;
  Outputs outputs = Outputs::kNumber;
};

std::span<const OpRow> op_table();

// Tells TensorFlow of all ops and their kernels.
void register_ops();

}  // namespace farandole::tensorflow
