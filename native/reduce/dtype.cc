#include "reduce/dtype.h"

namespace farandole::reduce {

std::optional<Dtype> dtype_from(uint32_t number) noexcept {
  switch (number) {
    case static_cast<uint32_t>(Dtype::kU8):
    case static_cast<uint32_t>(Dtype::kI8):
    case static_cast<uint32_t>(Dtype::kI16):
    case static_cast<uint32_t>(Dtype::kI32):
    case static_cast<uint32_t>(Dtype::kI64):
    case static_cast<uint32_t>(Dtype::kF16):
    case static_cast<uint32_t>(Dtype::kF32):
    case static_cast<uint32_t>(Dtype::kF64):
    case static_cast<uint32_t>(Dtype::kBool):
    case static_cast<uint32_t>(Dtype::kBf16):
      return static_cast<Dtype>(number);
    default:
      return std::nullopt;
  }
}

std::optional<Op> op_from(uint32_t number) noexcept {
  switch (number) {
    case static_cast<uint32_t>(Op::kSum):
    case static_cast<uint32_t>(Op::kMin):
    case static_cast<uint32_t>(Op::kMax):
    case static_cast<uint32_t>(Op::kProduct):
      return static_cast<Op>(number);
    default:
      return std::nullopt;
  }
}

size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kU8:
    case Dtype::kI8:
    case Dtype::kBool:
      return 1;
    case Dtype::kI16:
    case Dtype::kF16:
    case Dtype::kBf16:
      return 2;
    case Dtype::kI32:
    case Dtype::kF32:
      return 4;
    case Dtype::kI64:
    case Dtype::kF64:
      return 8;
  }
  __builtin_unreachable();
}

const char* name_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kU8:
      return "uint8";
    case Dtype::kI8:
      return "int8";
    case Dtype::kI16:
      return "int16";
    case Dtype::kI32:
      return "int32";
    case Dtype::kI64:
      return "int64";
    case Dtype::kF16:
      return "float16";
    case Dtype::kF32:
      return "float32";
    case Dtype::kF64:
      return "float64";
    case Dtype::kBool:
      return "bool";
    case Dtype::kBf16:
      return "bfloat16";
  }
  __builtin_unreachable();
}

const char* name_of(Op op) noexcept {
  switch (op) {
    case Op::kSum:
      return "Sum";
    case Op::kMin:
      return "Min";
    case Op::kMax:
      return "Max";
    case Op::kProduct:
      return "Product";
  }
  __builtin_unreachable();
}

Dtype accumulator_of(Dtype dtype) noexcept {
  return dtype == Dtype::kF16 || dtype == Dtype::kBf16 ? Dtype::kF32 : dtype;
}

}  // namespace farandole::reduce
