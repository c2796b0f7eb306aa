// The kernel: the attributes of an op's node in a graph, read once for each node and used by each of its calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capi/farandole.h"
#include "plugins/own_progress.h"
#include "plugins/tensorflow/tensorflow_c.h"

namespace farandole::tensorflow {

struct OpRow;

struct Kernel {
  const OpRow* row;
  std::string node;  // the node's name; in eager mode, the op's
  std::string name;  // what the user named the call, or ""
  bool ignores_scope = false;
  uint32_t group = 0;
  std::optional<int32_t> root;            // of ops that have one
  bool leaves_one_alone = false;          // a reduction whose result is the input where there is one rank only
  std::vector<farandole_option> options;  // of its requests
  mutable plugins::OwnProgress progress;

  // Whether no name was given: the node has the name that eager mode gives to all nodes.
  bool is_unnamed() const;
  // The key by which ranks' calls match, without the operation. Not for unnamed calls.
  std::string key(TF_OpKernelContext* context) const;
};

// For TensorFlow: make and forget a kernel.
void* make_kernel(const OpRow* row, TF_OpKernelConstruction* construction);
void delete_kernel(void* kernel);

}  // namespace farandole::tensorflow
