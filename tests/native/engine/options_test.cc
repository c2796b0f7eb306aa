// Options of requests: what follows from a row of their table.
#include "engine/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/fusion.h"
#include "engine/messages.h"
#include "engine/request.h"

namespace farandole::engine {
namespace {

struct Given {
  const char* name;
  double value;
};

template <typename Row>
Kind kind_of(const Row& row) {
  for (uint8_t number = 0; number <= kLastKind; ++number) {
    if (is_of(row, static_cast<Kind>(number))) {
      return static_cast<Kind>(number);
    }
  }
  ADD_FAILURE() << "no kind has " << row.name;
  return Kind::kBarrier;
}

// A request of a kind that has the option: with its default, and with the value 2 or, where there is no such value, 1.
template <typename Row>
std::vector<Signature> default_and_other(const Row& row) {
  std::vector<Signature> all(2);
  for (Signature& signature : all) {
    signature.kind = kind_of(row);
    signature.shape = {4};
    signature.compression = signature.kind == Kind::kAllreduce ? Compression::kTopk : Compression::kNone;
  }
  Options& options = all[1];
  try {
    set_option(options, all[1].kind, row.name, 2);
  } catch (const base::Error&) {
    set_option(options, all[1].kind, row.name, 1);
  }
  if (all[1].*row.field == all[0].*row.field) {
    set_option(options, all[1].kind, row.name, 1);
  }
  return all;
}

std::string refusal(Kind kind, const std::vector<Given>& given) {
  try {
    options_from(kind, given);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Options, EveryRowIsSetByNameEncodedComparedAndReported) {
  for_each_option([](const auto& row) {
    const std::vector<Signature> sent = default_and_other(row);
    EXPECT_NE(sent[0], sent[1]) << row.name;
    EXPECT_NE(fusion_key(sent[0], nullptr, 0), fusion_key(sent[1], nullptr, 0)) << row.name;
    EXPECT_TRUE(are_valid(sent[1])) << row.name;
    Ready ready;
    ready.fresh.push_back({0, "x", sent[1]});
    EXPECT_EQ(decode_ready(encode(ready)).fresh.at(0).signature, sent[1]) << row.name;
    const std::string told = find_mismatch("x", std::vector<int>{0, 1}, sent).value_or("nothing");
    EXPECT_TRUE(told.starts_with("Mismatched ")) << row.name << ": " << told;
  });
}

TEST(Options, OptionThatIsNotGivenHasItsDefault) {
  EXPECT_EQ(options_from(Kind::kBarrier, std::vector<Given>{}), Options{});
  const Options options = options_from(Kind::kBroadcast, std::vector<Given>{{"root", 3}});
  Options expected;
  expected.root = 3;
  EXPECT_EQ(options, expected);
}

TEST(Options, ARatioWithoutTopkNeverMakesRanksDiffer) {
  EXPECT_EQ(options_from(Kind::kAllreduce, std::vector<Given>{{"compression", 1}, {"compression_ratio", 0.5}}),
            options_from(Kind::kAllreduce, std::vector<Given>{{"compression", 1}, {"compression_ratio", 0.25}}));
  EXPECT_EQ(options_from(Kind::kAllreduce, std::vector<Given>{{"compression_ratio", 0.5}, {"compression", 2}})
                .compression_ratio,
            0.5);
}

TEST(Options, OptionOfAnotherKindIsRefusedWithValidOnes) {
  EXPECT_EQ(refusal(Kind::kBroadcast, {{"root", 1}, {"prescale", 2}}),
            "broadcast has no option 'prescale'; it has root, memory");
  EXPECT_EQ(refusal(Kind::kBarrier, {{"colour", 1}}), "barrier has no option 'colour'; it has none");
}

TEST(Options, UnknownValuesAreRefused) {
  const std::string reductions = "; there are 0 (Average), 1 (Sum), 2 (Adasum), 3 (Min), 4 (Max), 5 (Product)";
  EXPECT_EQ(refusal(Kind::kAllreduce, {{"op", 6}}), "there is no reduction with number 6" + reductions);
  EXPECT_EQ(refusal(Kind::kAllreduce, {{"op", -1}}), "there is no reduction with number -1" + reductions);
  EXPECT_TRUE(refusal(Kind::kAllreduce, {{"compression", 0.5}})
                  .starts_with("there is no compression with number 0.5; there are 0 ("));
  EXPECT_EQ(refusal(Kind::kBroadcast, {{"root", 1.5}}), "the option 'root' is a whole number, not 1.5");
  EXPECT_EQ(refusal(Kind::kBroadcast, {{"root", 1e10}}), "the option 'root' is a whole number, not 1e+10");
}

TEST(Options, TensorsInBothKindsOfMemoryDoNotMatch) {
  std::vector<Signature> sent(2);
  sent[0].shape = sent[1].shape = {2};
  sent[1].memory = MemoryKind::kDevice;
  EXPECT_EQ(
      find_mismatch("x", std::vector<int>{0, 1}, sent).value_or("none"),
      "Mismatched CPU/GPU device selection for 'x': rank 0 sent a tensor in host memory, but rank 1 sent a tensor "
      "in device memory.");
  sent[1].memory = static_cast<MemoryKind>(7);
  EXPECT_FALSE(are_valid(sent[1]));
}

}  // namespace
}  // namespace farandole::engine
