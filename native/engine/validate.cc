// What is wrong with a request, whatever the other ranks do: it is refused at the call, and nothing of it remains.
#include "engine/submissions.h"

namespace farandole::engine {

using base::Code;
using base::Error;
using collective::Group;

namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(Code::kInvalidArgument, why); }

bool is_float(reduce::Dtype dtype) {
  return dtype == reduce::Dtype::kF16 || dtype == reduce::Dtype::kBf16 || dtype == reduce::Dtype::kF32 ||
         dtype == reduce::Dtype::kF64;
}

std::string ranks_of(const Group& group) {
  return format_shape(std::vector<int64_t>(group.members.begin(), group.members.end()));
}

void check_splits(const Request& request, const Group& group) {
  const int64_t rows = request.signature.shape[0];
  const std::string name = "alltoall '" + request.name + "': ";
  if (request.splits.empty()) {
    if (rows % static_cast<int64_t>(group.size()) != 0) {
      refuse(name + "splits not provided, but first dimension of tensor (" + std::to_string(rows) +
             ") is not divisible by the number of workers (" + std::to_string(group.size()) + ").");
    }
    return;
  }
  if (request.splits.size() != group.size()) {
    refuse(name + "Number of entries in splits does not equal number of workers: " +
           std::to_string(request.splits.size()) + " entries for " + std::to_string(group.size()) + " workers.");
  }
  int64_t left = rows;
  for (const int64_t split : request.splits) {
    if (split < 0) {
      refuse(name + "splits cannot be negative: " + format_shape(request.splits) + ".");
    }
    if (split > left) {
      refuse(name + "Sum of splits entries is greater than the first dimension of tensor: " +
             format_shape(request.splits) + " for " + std::to_string(rows) + " rows.");
    }
    left -= split;
  }
}

void check_transfer(const Request& request, const Group& group, int rank) {
  const Signature& signature = request.signature;
  const std::string what = "transfer '" + request.name + "' from rank " + std::to_string(signature.root) + " to rank " +
                           std::to_string(signature.peer);
  if (signature.root == signature.peer) {
    refuse(what + ": a rank cannot send to itself.");
  }
  if (!group.contains(signature.root) || !group.contains(signature.peer)) {
    refuse(what + ": both must be in the process set, whose ranks are " + ranks_of(group) + ".");
  }
  if (!takes_part(signature, rank)) {
    refuse(what + ": rank " + std::to_string(rank) + " has no part in it.");
  }
  if (signature.elements() > 0 && (rank == signature.root ? request.input : request.output) == nullptr) {
    refuse(what + ": there are elements but no memory for them.");
  }
}

void check_reducible(const Request& request) {
  if (!request.signature.opaque.name.empty()) {
    refuse(std::string(name_of(request.signature.kind)) + ": '" + request.name + "' is of " +
           request.signature.type_name() + ", with which nothing is calculated. Convert it to another type.");
  }
}

void check_compression(const Request& request) {
  const Signature& signature = request.signature;
  if (signature.compression == Compression::kNone) {
    return;
  }
  const std::string what = std::string(name_of(signature.compression)) + " compression of '" + request.name + "': ";
  if (signature.op != ReduceOp::kSum && signature.op != ReduceOp::kAverage) {
    refuse(what + "it is for sums and averages, not for " + name_of(signature.op) + ". Send it without compression.");
  }
  if (reduce::accumulator_of(signature.dtype) != reduce::Dtype::kF32) {
    refuse(what + "it is for float16, bfloat16 and float32, not for " + reduce::name_of(signature.dtype) +
           ". Convert the tensor to float32, or send it without compression.");
  }
  if (signature.compression == Compression::kTopk) {
    if (!(signature.compression_ratio > 0 && signature.compression_ratio <= 1)) {
      refuse(what + "the ratio of elements to send is above 0 and at most 1, not " +
             std::to_string(signature.compression_ratio) + ".");
    }
    // Places of elements are sent as 32-bit numbers.
    if (signature.elements() > int64_t{1} << 32) {
      refuse(what + "it is for tensors of at most 2^32 elements. Cut the tensor, or send it without compression.");
    }
  }
}

void check_reducescatter(const Request& request, const Group& group) {
  const Signature& signature = request.signature;
  if (signature.shape.empty()) {
    refuse("Reducescatter does not support scalar inputs: '" + request.name + "' has no dimension to cut.");
  }
  if (signature.op == ReduceOp::kAdasum) {
    refuse("reducescatter does not support Adasum: '" + request.name + "'. Use Sum, Average, Min, Max or Product.");
  }
  // The first members get a row more than the last ones.
  const auto members = static_cast<int64_t>(group.size());
  const bool gets_rows = signature.shape[0] / members > 0 || group.index < signature.shape[0] % members;
  if (gets_rows && signature.row_elements() > 0 && request.output == nullptr) {
    refuse("reducescatter '" + request.name + "': this rank gets rows, but there is no memory for them.");
  }
}

}  // namespace

std::string Submissions::not_a_member(const Request& request, const Group& group) const {
  return std::string(name_of(request.signature.kind)) + ": rank " + std::to_string(mesh_->rank()) +
         " is not a member of the provided process set (its ranks are " + ranks_of(group) + ").";
}

void Submissions::check(const Request& request) const {
  const std::string kind = name_of(request.signature.kind);
  const auto found = groups_.find(request.group);
  if (found == groups_.end() || closing_groups_.contains(request.group)) {
    refuse(kind + ": the process set provided does not exist, or has not been registered.");
  }
  if (found->second.index < 0) {
    refuse(not_a_member(request, found->second));
  }
  for (const int64_t dimension : request.signature.shape) {
    if (dimension < 0) {
      refuse(kind + ": a shape cannot have a negative dimension: " + format_shape(request.signature.shape) + ".");
    }
  }
  check_kind(request, found->second);
  if (const auto need = need_of(request.signature);
      need && backend::select(backends_, *need, found->second, mesh_->hosts()).row == nullptr) {
    refuse(kind + " '" + request.name + "': " + backend::refusal_of(backends_, *need));
  }
}

// What this kind of request needs besides. What depends on the other ranks is seen when all have asked.
void Submissions::check_kind(const Request& request, const Group& group) const {
  const Signature& signature = request.signature;
  const std::string kind = name_of(signature.kind);
  switch (signature.kind) {
    case Kind::kBroadcast:
      if (!group.contains(signature.root)) {
        refuse("broadcast received invalid root rank " + std::to_string(signature.root) +
               " for the provided process set, whose ranks are " + ranks_of(group) + ".");
      }
      break;
    case Kind::kAllreduce:
      check_reducible(request);
      check_compression(request);
      if (signature.op == ReduceOp::kAdasum && !is_float(signature.dtype)) {
        refuse("allreduce: Adasum needs a floating-point type, but '" + request.name + "' is of " +
               reduce::name_of(signature.dtype) + ". Convert it, or use another operation.");
      }
      break;
    case Kind::kAllgather:
    case Kind::kAlltoall:
      if (signature.shape.empty()) {
        refuse(kind + " needs a tensor with at least one dimension: '" + request.name + "' has none.");
      }
      if (signature.kind == Kind::kAlltoall) {
        check_splits(request, group);
      }
      break;
    case Kind::kReducescatter:
      check_reducible(request);
      check_reducescatter(request, group);
      break;
    case Kind::kTransfer:
      check_transfer(request, group, mesh_->rank());
      break;
    case Kind::kJoin:
    case Kind::kAddGroup:
    case Kind::kRemoveGroup:
      if (request.group != 0) {
        refuse(kind + " concerns all ranks: it cannot be asked for in a process set.");
      }
      if (signature.kind == Kind::kJoin && joining_) {
        refuse("join: this rank has joined already, and not all others have yet.");
      }
      break;
    case Kind::kBarrier:
      break;
  }
}

}  // namespace farandole::engine
