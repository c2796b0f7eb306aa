#include "reduce/dtype.h"

#include <gtest/gtest.h>

#include <string>

namespace farandole::reduce {
namespace {

struct Row {
  uint32_t number;
  Dtype dtype;
  size_t size;
  const char* name;
  Dtype accumulator;
};

// The numbers cross processes: they never change.
constexpr Row kRows[] = {
    {0, Dtype::kU8, 1, "uint8", Dtype::kU8},     {1, Dtype::kI8, 1, "int8", Dtype::kI8},
    {3, Dtype::kI16, 2, "int16", Dtype::kI16},   {4, Dtype::kI32, 4, "int32", Dtype::kI32},
    {5, Dtype::kI64, 8, "int64", Dtype::kI64},   {6, Dtype::kF16, 2, "float16", Dtype::kF32},
    {7, Dtype::kF32, 4, "float32", Dtype::kF32}, {8, Dtype::kF64, 8, "float64", Dtype::kF64},
    {9, Dtype::kBool, 1, "bool", Dtype::kBool},  {10, Dtype::kBf16, 2, "bfloat16", Dtype::kF32},
};

TEST(Dtypes, AreNumberedSizedAndNamed) {
  for (const Row& row : kRows) {
    EXPECT_EQ(dtype_from(row.number), row.dtype);
    EXPECT_EQ(size_of(row.dtype), row.size) << row.name;
    EXPECT_STREQ(name_of(row.dtype), row.name);
    EXPECT_EQ(accumulator_of(row.dtype), row.accumulator) << row.name;
  }
}

TEST(Dtypes, UnknownNumbersAreRefused) {
  for (const uint32_t number : {2u, 11u, 256u, 257u, 0xffffffffu}) {
    EXPECT_EQ(dtype_from(number), std::nullopt) << number;
  }
}

TEST(Ops, AreNumberedAndNamed) {
  EXPECT_EQ(op_from(1), Op::kSum);
  EXPECT_EQ(op_from(3), Op::kMin);
  EXPECT_EQ(op_from(4), Op::kMax);
  EXPECT_EQ(op_from(5), Op::kProduct);
  EXPECT_STREQ(name_of(Op::kSum), "Sum");
  EXPECT_STREQ(name_of(Op::kMin), "Min");
  EXPECT_STREQ(name_of(Op::kMax), "Max");
  EXPECT_STREQ(name_of(Op::kProduct), "Product");
}

TEST(Ops, UnknownNumbersAreRefused) {
  // 0 and 2 are Horovod's Average and Adasum, which are not operations of a kernel.
  for (const uint32_t number : {0u, 2u, 6u, 257u}) {
    EXPECT_EQ(op_from(number), std::nullopt) << number;
  }
}

}  // namespace
}  // namespace farandole::reduce
