// TensorFlow's objects with one owner each.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "plugins/tensorflow/tensorflow_c.h"

namespace farandole::tensorflow {

struct Delete {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};

using Tensor = std::unique_ptr<TF_Tensor, Delete>;
using Shape = std::unique_ptr<TF_ShapeHandle, Delete>;

// The error that TensorFlow gets for a failed op.
class OpError : public std::runtime_error {
 public:
  OpError(TF_Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  TF_Code code() const noexcept { return code_; }

 private:
  TF_Code code_;
};

class Status {
 public:
  TF_Status* get() const noexcept { return status_.get(); }
  void set(TF_Code code, const std::string& message) const { TF_SetStatus(get(), code, message.c_str()); }
  // Throws OpError if the last call that was given this status has failed.
  void check() const {
    if (TF_GetCode(get()) != TF_OK) {
      throw OpError(TF_GetCode(get()), TF_Message(get()));
    }
  }

 private:
  std::unique_ptr<TF_Status, Delete> status_{TF_NewStatus()};
};

inline std::vector<int64_t> shape_of(const TF_Tensor* tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(TF_NumDims(tensor)));
  for (size_t i = 0; i < shape.size(); ++i) {
    shape[i] = TF_Dim(tensor, static_cast<int>(i));
  }
  return shape;
}

}  // namespace farandole::tensorflow
