// Rows of every length, at every address, with either kind of store: the same bits, and nothing beyond their ends.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "reduce/kernels.h"
#include "reduce/oracle.h"
#include "reduce/samples.h"

namespace farandole::reduce {
namespace {

constexpr size_t kGuard = 64;
constexpr unsigned char kUntouched = 0xa5;

// `count` elements that begin `offset` bytes after the beginning of a cache line, and guards around them.
template <typename T>
class Row {
 public:
  Row(size_t count, size_t offset) : count_(count), bytes_(count * sizeof(T) + 3 * kGuard, kUntouched) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data()) + kGuard;
    begin_ = kGuard + -address % 64 + offset;
  }

  T* data() { return reinterpret_cast<T*>(bytes_.data() + begin_); }
  std::vector<T> values() {
    std::vector<T> copied(count_);
    if (count_ > 0) {
      std::memcpy(copied.data(), data(), count_ * sizeof(T));
    }
    return copied;
  }
  void fill(const std::vector<T>& values) { std::memcpy(data(), values.data(), count_ * sizeof(T)); }
  bool guards_are_whole() const {
    const size_t end = begin_ + count_ * sizeof(T);
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if ((i < begin_ || i >= end) && bytes_[i] != kUntouched) {
        return false;
      }
    }
    return true;
  }

 private:
  const size_t count_;
  std::vector<unsigned char> bytes_;
  size_t begin_ = 0;
};

template <typename T>
std::vector<T> random_row(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> row(count);
  for (T& element : row) {
    element = random_element<T>(random);
  }
  return row;
}

struct Shape {
  size_t inputs;
  size_t count;
  std::vector<size_t> input_offsets;   // bytes, of each in turn
  std::vector<size_t> output_offsets;  // one output for each
  Scale scale;
  Stores stores;
  bool in_place = false;  // the first output is the last input
};

template <typename T>
T folded(const std::vector<std::vector<T>>& inputs, size_t i, Op op, const Scale& scale) {
  auto value = oracle::accumulator(inputs[0][i]);
  for (size_t k = 1; k < inputs.size(); ++k) {
    value = oracle::combined(op, value, oracle::accumulator(inputs[k][i]));
  }
  return oracle::rounded<T>(scale.is_one() ? value : oracle::scaled(value, scale));
}

template <typename T>
void check(Op op, const Shape& shape) {
  std::vector<std::vector<T>> original;
  std::vector<Row<T>> rows;
  std::vector<const void*> from;
  rows.reserve(shape.inputs + shape.output_offsets.size());
  for (size_t k = 0; k < shape.inputs; ++k) {
    original.push_back(random_row<T>(shape.count, k * 1'000'003 + shape.count));
    rows.emplace_back(shape.count, shape.input_offsets[k % shape.input_offsets.size()]);
    rows.back().fill(original.back());
    from.push_back(rows.back().data());
  }
  std::vector<Row<T>*> written;
  for (const size_t offset : shape.output_offsets) {
    if (shape.in_place && written.empty()) {
      written.push_back(&rows.back());
    } else {
      written.push_back(&rows.emplace_back(shape.count, offset));
    }
  }
  std::vector<void*> to;
  for (Row<T>* row : written) {
    to.push_back(row->data());
  }

  reduce_to(oracle::dtype<T>(), op, from, to, shape.count, shape.scale, shape.stores);

  const std::string what = std::string(active_isa()) + " " + name_of(oracle::dtype<T>()) + " " + name_of(op) + " of " +
                           std::to_string(shape.inputs) + " rows of " + std::to_string(shape.count);
  for (Row<T>& row : rows) {
    ASSERT_TRUE(row.guards_are_whole()) << what;
  }
  for (Row<T>* row : written) {
    const auto got = row->values();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(identity_of(got[i]), identity_of(folded(original, i, op, shape.scale))) << what << ", element " << i;
    }
  }
}

template <typename T>
class Rows : public ::testing::Test {};
TYPED_TEST_SUITE(Rows, AllTypes, TypeNames);

// Up to more than two packs of the widest registers.
TYPED_TEST(Rows, OfEveryLength) {
  const size_t longest = 2 * 256 / sizeof(TypeParam) + 5;
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Op op : {Op::kSum, Op::kMin, Op::kMax, Op::kProduct}) {
      for (size_t count = 1; count <= longest; ++count) {
        const Scale scale = count % 3 == 0 ? Scale{1.0, 3} : Scale{};
        check<TypeParam>(op, {.inputs = 2 + count % 2,
                              .count = count,
                              .input_offsets = {0, sizeof(TypeParam)},
                              .output_offsets = {2 * sizeof(TypeParam)},
                              .scale = scale,
                              .stores = Stores::kCached,
                              .in_place = count % 2 == 0});
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

// Long enough to be streamed, whatever the type.
TYPED_TEST(Rows, StreamedFromEveryAddress) {
  const size_t count = 4096 / sizeof(TypeParam) + 1003;
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const Op op : {Op::kSum, Op::kMin, Op::kMax, Op::kProduct}) {
      for (size_t offset = 0; offset < 64; offset += sizeof(TypeParam)) {
        Shape shape{.inputs = offset % 3 + 2,
                    .count = count,
                    .input_offsets = {0, sizeof(TypeParam), 32},
                    .output_offsets = {offset, offset},
                    .scale = offset % 2 == 0 ? Scale{} : Scale{1.0, 7},
                    .stores = Stores::kStreamed};
        check<TypeParam>(op, shape);
        if (this->HasFatalFailure()) return;
        offset += sizeof(TypeParam) == 1 ? 4 : 0;  // fewer of bytes
      }
    }
  }
}

TYPED_TEST(Rows, StreamedInPlaceAndToAddressesThatDoNotAgree) {
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const size_t count : {size_t{7}, size_t{9000}}) {
      Shape shape{.inputs = 3,
                  .count = count,
                  .input_offsets = {8},
                  .output_offsets = {8},
                  .scale = {1.0, 2},
                  .stores = Stores::kStreamed,
                  .in_place = true};
      check<TypeParam>(Op::kSum, shape);
      shape.output_offsets = {8, 16, 0};
      check<TypeParam>(Op::kSum, shape);
      if (this->HasFatalFailure()) return;
    }
  }
}

// A copy keeps every bit, also of values that are not numbers.
TEST(CopyStream, CopiesEveryLengthFromAndToEveryAddress) {
  std::mt19937_64 random(3);
  for (const auto isa : runnable_isas()) {
    const UsedIsa used(isa);
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{63}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{20'003}}) {
      for (const size_t from_offset : {0, 1, 32}) {
        for (size_t to_offset = 0; to_offset < 64; to_offset += 7) {
          Row<uint8_t> from(bytes, from_offset);
          Row<uint8_t> to(bytes, to_offset);
          for (size_t i = 0; i < bytes; ++i) {
            from.data()[i] = static_cast<uint8_t>(random());
          }
          copy_stream(to.data(), from.data(), bytes);
          ASSERT_EQ(to.values(), from.values()) << isa << " " << bytes << " bytes to " << to_offset;
          ASSERT_TRUE(to.guards_are_whole() && from.guards_are_whole()) << isa << " " << bytes;
        }
      }
    }
  }
}

TEST(CopyStream, EqualsScalingByOneWithStreamedStores) {
  const auto source = random_row<float>(3000, 1);
  std::vector<float> copied(source.size());
  scale_to(Dtype::kF32, source.data(), copied.data(), copied.size(), {}, Stores::kStreamed);
  EXPECT_EQ(std::memcmp(copied.data(), source.data(), source.size() * sizeof(float)), 0);
  auto in_place = source;
  scale_to(Dtype::kF32, in_place.data(), in_place.data(), in_place.size(), {}, Stores::kStreamed);
  EXPECT_EQ(std::memcmp(in_place.data(), source.data(), source.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace farandole::reduce
