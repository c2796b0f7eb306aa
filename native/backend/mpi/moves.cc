#include "backend/mpi/moves.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

namespace farandole::backend::mpi {
namespace {

constexpr size_t kDepth = 2;
// The most bytes that one round moves to or from a worker, with all other members together.
constexpr size_t kRoundBytes = size_t{4} << 20;
constexpr size_t kLeastBytes = size_t{4} << 10;

// Leaves the rooms to MPI unless the collective has come to an end.
class Use {
 public:
  explicit Use(Rooms& rooms) : rooms_(rooms) {}
  ~Use() {
    if (!is_over_) {
      rooms_.leave_to_mpi();
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  void end() noexcept { is_over_ = true; }

 private:
  Rooms& rooms_;
  bool is_over_ = false;
};

// begin(round, request) starts a round, and end(round) takes the data that has arrived.
template <typename Begin, typename End>
void run_rounds(Progress& progress, size_t rounds, Begin&& begin, End&& end) {
  std::array<Request, kDepth> requests = {Request::kNone, Request::kNone};
  for (size_t round = 0; round < rounds + 1; ++round) {
    if (round < rounds) {
      begin(round, &requests[round % kDepth]);
    }
    if (round > 0) {
      progress.wait(requests[(round - 1) % kDepth]);
      end(round - 1);
    }
  }
}

// One member's share of a round.
size_t share_of(size_t members) { return Rooms::size_of(std::max(kRoundBytes / members, kLeastBytes)); }

size_t rounds_for(size_t bytes, size_t piece) { return (bytes + piece - 1) / piece; }

// Returns how many of `bytes` go in this round.
size_t in_round(size_t bytes, size_t round, size_t piece) {
  return std::min(bytes - std::min(bytes, round * piece), piece);
}

void put(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

std::vector<size_t> starts_of(const std::vector<size_t>& bytes) {
  std::vector<size_t> starts(bytes.size());
  std::exclusive_scan(bytes.begin(), bytes.end(), starts.begin(), size_t{0});
  return starts;
}

// Rooms for every member, and the lists that MPI reads.
struct Side {
  std::byte* rooms;
  int* counts;

  static size_t size_of(size_t members, size_t piece) {
    return members * piece + Rooms::size_of(members * sizeof(int));
  }
  static Side take(Rooms& rooms, size_t members, size_t piece) {
    return {rooms.take<std::byte>(members * piece), rooms.take<int>(members)};
  }
};

int* take_displacements(Rooms& rooms, size_t members, size_t piece) {
  int* const displacements = rooms.take<int>(members);
  for (size_t k = 0; k < members; ++k) {
    displacements[k] = static_cast<int>(k * piece);
  }
  return displacements;
}

// How many rows come from each member; `largest` becomes the bytes of the largest part that any member sends another.
std::vector<int64_t> exchange_counts(Progress& progress, Rooms& rooms, const Among& among,
                                     const collective::AlltoallJob& job, size_t& largest) {
  struct Told {
    int64_t rows;
    int64_t largest;  // of all parts that this member sends
  };
  rooms.reset(2 * Rooms::size_of(among.members * sizeof(Told)));
  Use use(rooms);
  Told* const out = rooms.take<Told>(among.members);
  Told* const in = rooms.take<Told>(among.members);
  const int64_t own = *std::ranges::max_element(job.rows);
  for (size_t k = 0; k < among.members; ++k) {
    out[k] = {job.rows[k], own};
  }
  Request request = Request::kNone;
  progress.require(progress.mpi().ialltoall(out, sizeof(Told), progress.constants().byte, in, sizeof(Told),
                                            progress.constants().byte, among.comm, &request),
                   "MPI_Ialltoall");
  progress.wait(request);
  use.end();
  std::vector<int64_t> rows(among.members);
  int64_t most = 0;
  for (size_t k = 0; k < among.members; ++k) {
    rows[k] = in[k].rows;
    most = std::max(most, in[k].largest);
  }
  largest = static_cast<size_t>(most) * job.row_bytes;
  return rows;
}

std::vector<size_t> in_bytes(const std::vector<int64_t>& rows, size_t row_bytes) {
  std::vector<size_t> bytes;
  for (const int64_t count : rows) {
    bytes.push_back(static_cast<size_t>(count) * row_bytes);
  }
  return bytes;
}

}  // namespace

void broadcast(Progress& progress, Rooms& rooms, const Among& among, const collective::BroadcastJob& job) {
  const bool is_root = static_cast<int>(among.me) == job.root_index;
  const auto* const input = static_cast<const std::byte*>(job.input);
  auto* const output = static_cast<std::byte*>(job.output);
  const size_t piece = Rooms::size_of(std::min(job.bytes, kRoundBytes));
  rooms.reset(kDepth * piece);
  std::byte* const room = rooms.take<std::byte>(kDepth * piece);
  Use use(rooms);
  run_rounds(
      progress, piece == 0 ? 0 : rounds_for(job.bytes, piece),
      [&](size_t round, Request* request) {
        std::byte* const at = room + round % kDepth * piece;
        const size_t bytes = in_round(job.bytes, round, piece);
        if (is_root) {
          put(at, input + round * piece, bytes);
        }
        progress.require(progress.mpi().ibcast(at, static_cast<int>(bytes), progress.constants().byte, job.root_index,
                                               among.comm, request),
                         "MPI_Ibcast");
      },
      [&](size_t round) {
        const std::byte* const from = is_root ? input + round * piece : room + round % kDepth * piece;
        put(output + round * piece, from, in_round(job.bytes, round, piece));
      });
  use.end();
}

void allgather(Progress& progress, Rooms& rooms, const Among& among, const collective::AllgatherJob& job) {
  const size_t piece = share_of(among.members);
  rooms.reset(kDepth * (piece + Side::size_of(among.members, piece)) + Rooms::size_of(among.members * sizeof(int)));
  std::byte* const out = rooms.take<std::byte>(kDepth * piece);
  const std::array<Side, kDepth> in = {Side::take(rooms, among.members, piece),
                                       Side::take(rooms, among.members, piece)};
  const int* const displacements = take_displacements(rooms, among.members, piece);
  const std::vector<size_t> starts = starts_of(job.bytes);
  Use use(rooms);
  run_rounds(
      progress, rounds_for(*std::ranges::max_element(job.bytes), piece),
      [&](size_t round, Request* request) {
        const Side& side = in[round % kDepth];
        for (size_t k = 0; k < among.members; ++k) {
          side.counts[k] = static_cast<int>(in_round(job.bytes[k], round, piece));
        }
        std::byte* const at = out + round % kDepth * piece;
        put(at, static_cast<const std::byte*>(job.input) + round * piece, static_cast<size_t>(side.counts[among.me]));
        progress.require(
            progress.mpi().iallgatherv(at, side.counts[among.me], progress.constants().byte, side.rooms, side.counts,
                                       displacements, progress.constants().byte, among.comm, request),
            "MPI_Iallgatherv");
      },
      [&](size_t round) {
        const Side& side = in[round % kDepth];
        for (size_t k = 0; k < among.members; ++k) {
          put(static_cast<std::byte*>(job.output) + starts[k] + round * piece, side.rooms + k * piece,
              static_cast<size_t>(side.counts[k]));
        }
      });
  use.end();
}

void alltoall(Progress& progress, Rooms& rooms, const Among& among, const collective::AlltoallJob& job) {
  size_t largest = 0;
  const std::vector<int64_t> rows = exchange_counts(progress, rooms, among, job, largest);
  const auto* const input = static_cast<const std::byte*>(job.input);
  auto* const output = static_cast<std::byte*>(job.output(rows));
  const std::vector<size_t> sent = in_bytes(job.rows, job.row_bytes);
  const std::vector<size_t> received = in_bytes(rows, job.row_bytes);
  const std::vector<size_t> sent_at = starts_of(sent);
  const std::vector<size_t> received_at = starts_of(received);
  const size_t piece = share_of(among.members);
  rooms.reset(2 * kDepth * Side::size_of(among.members, piece) + Rooms::size_of(among.members * sizeof(int)));
  std::array<Side, kDepth> out{};
  std::array<Side, kDepth> in{};
  for (size_t k = 0; k < kDepth; ++k) {
    out[k] = Side::take(rooms, among.members, piece);
    in[k] = Side::take(rooms, among.members, piece);
  }
  const int* const displacements = take_displacements(rooms, among.members, piece);
  Use use(rooms);
  run_rounds(
      progress, rounds_for(largest, piece),
      [&](size_t round, Request* request) {
        const Side& to = out[round % kDepth];
        const Side& from = in[round % kDepth];
        for (size_t k = 0; k < among.members; ++k) {
          to.counts[k] = static_cast<int>(in_round(sent[k], round, piece));
          from.counts[k] = static_cast<int>(in_round(received[k], round, piece));
          put(to.rooms + k * piece, input + sent_at[k] + round * piece, static_cast<size_t>(to.counts[k]));
        }
        progress.require(
            progress.mpi().ialltoallv(to.rooms, to.counts, displacements, progress.constants().byte, from.rooms,
                                      from.counts, displacements, progress.constants().byte, among.comm, request),
            "MPI_Ialltoallv");
      },
      [&](size_t round) {
        const Side& from = in[round % kDepth];
        for (size_t k = 0; k < among.members; ++k) {
          put(output + received_at[k] + round * piece, from.rooms + k * piece, static_cast<size_t>(from.counts[k]));
        }
      });
  use.end();
}

}  // namespace farandole::backend::mpi
