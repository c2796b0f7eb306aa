// Broadcast and transfer: what one rank has comes to the others, or to one of them.
#include "engine/kinds/checks.h"

namespace farandole::engine::kinds {
namespace {

using collective::Group;

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

collective::BroadcastJob job_of(const Group& group, const Request& request) {
  collective::BroadcastJob job;
  job.input = request.input;
  job.output = request.output;
  job.bytes = request.signature.bytes();
  job.root_index = group.index_of(request.signature.root);
  return job;
}

}  // namespace

constexpr KindRow kBroadcast = {
    .name = "broadcast",
    .has = kTensor | kRoot,
    .memory = Memory::kInputAndOutput,
    .operation = [](const Options&) { return collective::Operation::kBroadcast; },
    .check = [](const Request& request, const Group& group, int) { check_root(request, group); },
    .make_job = [](const Group& group, std::span<Runnable* const> bucket, collective::Copied&) -> collective::Job {
      return job_of(group, bucket.front()->pending->request);
    }};

// Its group has two members.
constexpr KindRow kTransfer = {
    .name = "transfer",
    .has = kTensor | kRoot | kPeer,
    .memory = Memory::kInputOrOutput,
    .operation = [](const Options&) { return collective::Operation::kTransfer; },
    .check = check_transfer,
    .make_job = [](const Group& group, std::span<Runnable* const> bucket, collective::Copied&) -> collective::Job {
      const Request& request = bucket.front()->pending->request;
      collective::BroadcastJob job = job_of(group, request);
      if (group.index == job.root_index) {
        // The root's output is its input, to which nothing is written.
        job.output = const_cast<void*>(request.input);
      }
      return job;
    }};

}  // namespace farandole::engine::kinds
