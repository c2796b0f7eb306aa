#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace farandole::base {
namespace {

enum class Fruit : uint16_t { kApple = 0x1234, kPear = 7 };

TEST(Bytes, ReaderReturnsWhatWriterPut) {
  Writer writer;
  writer.put(uint8_t{200});
  writer.put(std::numeric_limits<int64_t>::min());
  writer.put(0.1);
  writer.put(true);
  writer.put(Fruit::kPear);
  writer.put_string(std::string("a\0b", 3));
  writer.put_string("");
  writer.put_vector(std::vector<int32_t>{1, -2, 3});
  writer.put_vector(std::vector<Fruit>{});
  const size_t size = writer.size();
  const Bytes bytes = writer.take();
  EXPECT_EQ(bytes.size(), size);

  Reader reader(bytes);
  EXPECT_EQ(reader.get<uint8_t>(), 200);
  EXPECT_EQ(reader.get<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(reader.get<double>(), 0.1);
  EXPECT_EQ(reader.get<bool>(), true);
  EXPECT_EQ(reader.get<Fruit>(), Fruit::kPear);
  EXPECT_EQ(reader.get_string(), std::string("a\0b", 3));
  EXPECT_EQ(reader.get_string(), "");
  EXPECT_EQ(reader.get_vector<int32_t>(), (std::vector<int32_t>{1, -2, 3}));
  EXPECT_FALSE(reader.done());
  EXPECT_TRUE(reader.get_vector<Fruit>().empty());
  EXPECT_TRUE(reader.done());
}

// Other programs read this format: it does not change by accident.
TEST(Bytes, AreLittleEndianWithoutGaps) {
  Writer writer;
  writer.put(uint8_t{1});
  writer.put(Fruit::kApple);
  writer.put_string("hi");
  writer.put_vector(std::vector<uint16_t>{0xabcd});
  const unsigned char expected[] = {1, 0x34, 0x12, 2, 0, 0, 0, 'h', 'i', 1, 0, 0, 0, 0xcd, 0xab};
  const Bytes bytes = writer.take();
  ASSERT_EQ(bytes.size(), sizeof(expected));
  for (size_t i = 0; i < sizeof(expected); ++i) {
    EXPECT_EQ(std::to_integer<unsigned char>(bytes[i]), expected[i]) << i;
  }
}

// The code of the error that `read` throws, or kOk.
template <typename Read>
Code failure_of(const Bytes& bytes, Read read) {
  Reader reader(bytes);
  try {
    read(reader);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

Bytes whole_message() {
  Writer writer;
  writer.put(uint64_t{5});
  writer.put_string("gradient");
  writer.put_vector(std::vector<int64_t>{1, 2});
  return writer.take();
}

void read_whole(Reader& reader) {
  reader.get<uint64_t>();
  reader.get_string();
  reader.get_vector<int64_t>();
}

TEST(Reader, RefusesAMessageCutAnywhere) {
  const Bytes whole = whole_message();
  EXPECT_EQ(failure_of(whole, read_whole), Code::kOk);
  for (size_t size = 0; size < whole.size(); ++size) {
    // Its own memory, exactly as long: the address sanitizer sees a read past the end.
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(failure_of(cut, read_whole), Code::kInternal) << size;
  }
}

TEST(Reader, RefusesLengthsBeyondTheMessage) {
  for (const uint32_t length : {5u, 0x7fffffffu, 0xffffffffu}) {
    Writer writer;
    writer.put(length);
    writer.put(uint32_t{0});
    const Bytes bytes = writer.take();
    EXPECT_EQ(failure_of(bytes, [](Reader& reader) { reader.get_string(); }), Code::kInternal) << length;
    // 0x20000000 elements of 8 bytes would also overflow 32 bits.
    EXPECT_EQ(failure_of(bytes, [](Reader& reader) { reader.get_vector<int64_t>(); }), Code::kInternal) << length;
  }
}

TEST(Reader, RefusesABoolThatIsNeitherTrueNorFalse) {
  const Bytes bytes = {std::byte{2}};
  EXPECT_EQ(failure_of(bytes, [](Reader& reader) { reader.get<bool>(); }), Code::kInternal);
}

TEST(Reader, EmptyMessageIsDone) { EXPECT_TRUE(Reader({}).done()); }

}  // namespace
}  // namespace farandole::base
