// TensorFlow's element types as the engine's.
#pragma once

#include "capi/farandole.h"
#include "plugins/tensorflow/handles.h"

namespace farandole::tensorflow {

inline farandole_dtype dtype_of(TF_DataType type) {
  switch (type) {
    case TF_FLOAT:
      return FARANDOLE_F32;
    case TF_DOUBLE:
      return FARANDOLE_F64;
    case TF_INT32:
      return FARANDOLE_I32;
    case TF_UINT8:
      return FARANDOLE_U8;
    case TF_INT16:
    case TF_UINT16:  // only for ops that move elements and do not look at them
      return FARANDOLE_I16;
    case TF_INT8:
      return FARANDOLE_I8;
    case TF_INT64:
      return FARANDOLE_I64;
    case TF_BOOL:
      return FARANDOLE_BOOL;
    case TF_BFLOAT16:
      return FARANDOLE_BF16;
    case TF_HALF:
      return FARANDOLE_F16;
  }
  throw OpError(TF_INVALID_ARGUMENT, "tensors of this element type cannot be sent");
}

inline size_t bytes_of(TF_DataType type) {
  switch (dtype_of(type)) {
    case FARANDOLE_U8:
    case FARANDOLE_I8:
    case FARANDOLE_BOOL:
      return 1;
    case FARANDOLE_I16:
    case FARANDOLE_F16:
    case FARANDOLE_BF16:
      return 2;
    case FARANDOLE_I32:
    case FARANDOLE_F32:
      return 4;
    default:
      return 8;
  }
}

}  // namespace farandole::tensorflow
