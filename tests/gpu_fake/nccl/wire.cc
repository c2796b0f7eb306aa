#include "nccl/wire.h"

#include <sys/socket.h>

#include <array>

namespace nccl_fake {
namespace {

constexpr std::array<size_t, 10> kSizes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr std::array<const char*, 10> kDtypes = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                                 "uint64", "float16", "float32", "float64", "bfloat16"};
constexpr std::array<const char*, 5> kOps = {"sum", "product", "max", "min", "average"};
constexpr std::array<const char*, 7> kKinds = {"allreduce",     "reduce", "broadcast", "allgather",
                                               "reducescatter", "send",   "receive"};

}  // namespace

const char* name_of(Kind kind) { return kKinds.at(static_cast<size_t>(kind)); }

size_t size_of(int dtype) {
  return dtype < 0 || static_cast<size_t>(dtype) >= kSizes.size() ? 0 : kSizes[static_cast<size_t>(dtype)];
}

const char* name_of_dtype(int dtype) { return size_of(dtype) == 0 ? "?" : kDtypes[static_cast<size_t>(dtype)]; }

std::string describe(const OperationHead& head) {
  std::string text =
      std::string(name_of(head.kind)) + " of " + std::to_string(head.count) + " " + name_of_dtype(head.dtype);
  switch (head.kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      return text + ", " + kOps.at(static_cast<size_t>(head.op));
    case Kind::kReduce:
      return text + ", " + kOps.at(static_cast<size_t>(head.op)) + ", root " + std::to_string(head.peer);
    case Kind::kBroadcast:
      return text + ", root " + std::to_string(head.peer);
    case Kind::kAllGather:
      return text;
    case Kind::kSend:
      return text + " to " + std::to_string(head.peer);
    case Kind::kRecv:
      return text + " from " + std::to_string(head.peer);
  }
  return text;
}

bool send_all(int connection, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(connection, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int connection, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = ::recv(connection, at, bytes, 0);
    if (received <= 0) {
      return false;
    }
    at += received;
    bytes -= static_cast<size_t>(received);
  }
  return true;
}

}  // namespace nccl_fake
