// What ranks and the hub of a communicator say to each other, over a connection for each rank.
//
//   rank -> hub   Hello, once
//   hub -> rank   Verdict, once all ranks have come
//   rank -> hub   a group: uint32_t how many operations, and for each an OperationHead and its input
//   hub -> rank   when all of them have happened: kDone, and their outputs
//
// A rank sends its next group when it has the outputs of the one before. If ranks disagree, or one is gone, no answer
// comes: as with NCCL, that hangs until the communicator is aborted.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nccl/abi.h"

namespace nccl_fake {

using Bytes = std::vector<char>;

enum class Kind : int32_t { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv };
const char* name_of(Kind kind);

struct Hello {
  int32_t rank;
  int32_t size;
  int32_t version;
  int32_t may_share_gpu;
  uint64_t host;
  int32_t bus;
};

struct Verdict {
  int32_t result;
  char text[252];
};

inline constexpr char kDone = 1;

struct OperationHead {
  Kind kind;
  int32_t dtype;
  int32_t op;    // 0 where there is none; those that multiply first are sums here
  int32_t peer;  // the root, or the peer of a send or a receive
  uint64_t count;
  uint64_t input_bytes;
  uint64_t output_bytes;
};

// Both return false when the connection has ended.
bool send_all(int connection, const void* data, size_t bytes);
bool receive_all(int connection, void* data, size_t bytes);

size_t size_of(int dtype);  // 0: the fake does not know it
const char* name_of_dtype(int dtype);
// An operation in words, for messages.
std::string describe(const OperationHead& head);

// Reduces element by element, each result rounded to the type, and begins with another rank in each block of elements,
// as rings do. An average multiplies floating-point numbers by 1/size before it adds them, and divides a sum of
// integers.
Bytes reduce(const std::vector<Bytes>& inputs, int dtype, int op, uint64_t count);
// Multiplies by a scalar of the same type.
void scale(char* data, int dtype, uint64_t count, const void* scalar);

// Starts the hub of a communicator; its address goes into the id.
bool start_hub(sockaddr_in* address);

}  // namespace nccl_fake
