// Alltoall with every algorithm, in every world: counts of all sorts, chunks larger and smaller than the data.
#include <gtest/gtest.h>

#include <cstring>

#include "collective/members.h"
#include "support/numbers.h"

namespace farandole::collective {
namespace {

using testing::Bytes;
using testing::Member;

// How many rows `from` sends to `to`.
using Counts = std::function<int64_t(int from, int to)>;

std::byte byte_at(int from, int to, size_t i) {
  return static_cast<std::byte>((i * 131 + static_cast<size_t>(from) * 17 + static_cast<size_t>(to) * 59 + 7) >> 1);
}

Bytes part(int from, int to, size_t bytes) {
  Bytes all(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    all[i] = byte_at(from, to, i);
  }
  return all;
}

void append(Bytes& to, const Bytes& what) { to.insert(to.end(), what.begin(), what.end()); }

void exchange(Member& member, const Group& group, const collective::Choice& row, const Counts& counts,
              size_t row_bytes) {
  Bytes input;
  Bytes expected;
  std::vector<int64_t> expected_rows;
  AlltoallJob job;
  job.row_bytes = row_bytes;
  for (const int other : group.members) {
    job.rows.push_back(counts(member.rank(), other));
    append(input, part(member.rank(), other, static_cast<size_t>(job.rows.back()) * row_bytes));
    expected_rows.push_back(counts(other, member.rank()));
    append(expected, part(other, member.rank(), static_cast<size_t>(expected_rows.back()) * row_bytes));
  }
  // Rows that go to nobody may follow.
  append(input, Bytes(row_bytes, std::byte{0xcc}));
  Bytes output;
  std::vector<int64_t> received;
  job.input = input.data();
  job.output = [&](const std::vector<int64_t>& rows) {
    EXPECT_TRUE(received.empty()) << "asked for memory twice";
    received = rows;
    size_t bytes = 0;
    for (const int64_t count : rows) {
      bytes += static_cast<size_t>(count) * row_bytes;
    }
    output.assign(bytes, std::byte{0xee});
    return bytes == 0 ? nullptr : output.data();
  };
  member.run(group, row, job);
  ASSERT_EQ(received, expected_rows) << row.algorithm->name;
  ASSERT_TRUE(output == expected) << row.algorithm->name << " on rank " << member.rank();
}

const Counts kCounts[] = {
    [](int, int) { return 0; },
    [](int, int) { return 1; },
    [](int from, int to) { return (from * 5 + to * 3) % 7; },
    [](int from, int to) { return from == 0 ? to * 100 : 0; },        // one gives to all
    [](int from, int to) { return to == 0 ? 1000 + from : 0; },       // all give to one
    [](int from, int to) { return from == to ? 333 : 0; },            // nobody gives to another
    [](int from, int to) { return (from + 1) * (to + 1) * 40; },      // several chunks
    [](int from, int to) { return from == 1 && to == 0 ? 2000 : 2; }  // one stream much longer than the others
};

class Alltoall : public testing::EveryWorld {};

TEST_P(Alltoall, BringsEveryRowToItsMember) {
  // Staging of 4 KB holds a small exchange whole and cuts a large one; 16 bytes do not hold the counts of three.
  for (const size_t piece_bytes : {size_t{4096}, size_t{16}}) {
    run(piece_bytes, [&](Member& member) {
      for (const auto& row : member.rows_of("alltoall", member.world)) {
        for (const Counts& counts : kCounts) {
          for (const size_t row_bytes : {size_t{1}, size_t{12}, size_t{0}}) {
            ASSERT_NO_FATAL_FAILURE(exchange(member, member.world, row, counts, row_bytes));
          }
        }
      }
    });
  }
}

TEST_P(Alltoall, MovesRowsThatAreLargerThanStaging) {
  run(4096, [&](Member& member) {
    for (const auto& row : member.rows_of("alltoall", member.world)) {
      const Counts counts = [](int from, int to) { return (from + to) % 3; };
      ASSERT_NO_FATAL_FAILURE(exchange(member, member.world, row, counts, 100'003));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backend, Alltoall, testing::every_world(), testing::name_of_world);

}  // namespace
}  // namespace farandole::collective
