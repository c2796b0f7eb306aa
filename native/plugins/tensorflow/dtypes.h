// TensorFlow's element types as the engine's.
#pragma once

#include <algorithm>
#include <iterator>

#include "capi/farandole.h"
#include "plugins/tensorflow/handles.h"

namespace farandole::tensorflow {

struct ElementType {
  TF_DataType type;
  size_t bytes;
  farandole_dtype dtype;    // if the engine calculates with it
  const char* opaque_type;  // otherwise its name, which is the one that NumPy has; NULL: the engine calculates with it
};

inline constexpr ElementType kElementTypes[] = {
    {TF_FLOAT, 4, FARANDOLE_F32, nullptr},
    {TF_DOUBLE, 8, FARANDOLE_F64, nullptr},
    {TF_INT32, 4, FARANDOLE_I32, nullptr},
    {TF_UINT8, 1, FARANDOLE_U8, nullptr},
    {TF_INT16, 2, FARANDOLE_I16, nullptr},
    {TF_INT8, 1, FARANDOLE_I8, nullptr},
    {TF_INT64, 8, FARANDOLE_I64, nullptr},
    {TF_BOOL, 1, FARANDOLE_BOOL, nullptr},
    {TF_BFLOAT16, 2, FARANDOLE_BF16, nullptr},
    {TF_HALF, 2, FARANDOLE_F16, nullptr},
    {TF_COMPLEX64, 8, FARANDOLE_U8, "complex64"},
    {TF_QINT8, 1, FARANDOLE_U8, "qint8"},
    {TF_QUINT8, 1, FARANDOLE_U8, "quint8"},
    {TF_QINT32, 4, FARANDOLE_U8, "qint32"},
    {TF_QINT16, 2, FARANDOLE_U8, "qint16"},
    {TF_QUINT16, 2, FARANDOLE_U8, "quint16"},
    {TF_UINT16, 2, FARANDOLE_U8, "uint16"},
    {TF_COMPLEX128, 16, FARANDOLE_U8, "complex128"},
    {TF_UINT32, 4, FARANDOLE_U8, "uint32"},
    {TF_UINT64, 8, FARANDOLE_U8, "uint64"},
    {TF_FLOAT8_E5M2, 1, FARANDOLE_U8, "float8_e5m2"},
    {TF_FLOAT8_E4M3FN, 1, FARANDOLE_U8, "float8_e4m3fn"},
    {TF_FLOAT8_E4M3FNUZ, 1, FARANDOLE_U8, "float8_e4m3fnuz"},
    {TF_FLOAT8_E4M3B11FNUZ, 1, FARANDOLE_U8, "float8_e4m3b11fnuz"},
    {TF_FLOAT8_E5M2FNUZ, 1, FARANDOLE_U8, "float8_e5m2fnuz"},
    // In memory each of these has a byte of its own.
    {TF_INT4, 1, FARANDOLE_U8, "int4"},
    {TF_UINT4, 1, FARANDOLE_U8, "uint4"},
    {TF_INT2, 1, FARANDOLE_U8, "int2"},
    {TF_UINT2, 1, FARANDOLE_U8, "uint2"},
    {TF_FLOAT4_E2M1FN, 1, FARANDOLE_U8, "float4_e2m1fn"},
};

inline const ElementType& element_type_of(TF_DataType type) {
  const auto* const found = std::ranges::find(kElementTypes, type, &ElementType::type);
  if (found == std::end(kElementTypes)) {
    throw OpError(TF_INVALID_ARGUMENT, "tensors of this element type cannot be sent");
  }
  return *found;
}

inline size_t bytes_of(TF_DataType type) { return element_type_of(type).bytes; }

}  // namespace farandole::tensorflow
