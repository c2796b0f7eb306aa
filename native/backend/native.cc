#include "backend/native.h"

#include <cstring>

#include "base/error.h"

namespace farandole::backend {
namespace {

using collective::AllgatherJob;
using collective::AllreduceJob;
using collective::BroadcastJob;
using collective::Choice;
using collective::Group;

std::byte* allocate_staging(transport::Arena& arena, size_t half_bytes) {
  void* const memory = arena.allocate(2 * half_bytes);
  if (memory == nullptr) {
    throw base::Error(base::Code::kUnavailable, "the arena has no room for " + std::to_string(2 * half_bytes) +
                                                    " bytes of staging; raise FARANDOLE_ARENA_BYTES");
  }
  return static_cast<std::byte*>(memory);
}

// A group of one: nothing moves, but the arithmetic stays.
void run_alone(const AllreduceJob& job) {
  for (const collective::Piece& piece : job.pieces) {
    reduce::scale_to(job.dtype, piece.input, piece.output, piece.count, job.prescale);
    reduce::scale_to(job.dtype, piece.output, piece.output, piece.count, job.postscale);
  }
}

void copy_alone(const void* input, void* output, size_t bytes) {
  if (input != output && bytes > 0) {
    std::memcpy(output, input, bytes);
  }
}

}  // namespace

Native::Native(transport::Pump& pump, transport::Arena& arena, Tuning tuning)
    : pump_(pump),
      arena_(arena),
      tuning_(std::move(tuning)),
      memory_(allocate_staging(arena, tuning_.half_bytes)),
      steps_(pump),
      staging_(steps_, memory_, tuning_.half_bytes) {}

Native::~Native() { arena_.release(memory_); }

collective::Topology Native::topology(const Group& group) const {
  return collective::topology_of(group, pump_.mesh().hosts());
}

collective::Context Native::context(const Group& group) { return {pump_, steps_, staging_, group}; }

Choice Native::choose_allreduce(const Group& group, size_t tensor_bytes) const {
  return collective::choose_allreduce(topology(group), tensor_bytes, tuning_.algorithm);
}

Choice Native::choose_allgather(const Group& group) const {
  return collective::choose_allgather(topology(group), tuning_.algorithm);
}

Choice Native::choose_broadcast(const Group& group) const {
  return collective::choose_broadcast(topology(group), tuning_.algorithm);
}

void Native::begin(uint32_t decision) {
  steps_.begin(decision);
  pump_.set_sequence(decision);
}

void Native::run(const Group& group, const Choice& choice, const AllreduceJob& job) {
  if (group.size() == 1) {
    run_alone(job);
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->allreduce(with, job);
}

void Native::run(const Group& group, const Choice& choice, const AllgatherJob& job) {
  if (group.size() == 1) {
    copy_alone(job.input, job.output, job.bytes.front());
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->allgather(with, job);
}

void Native::run(const Group& group, const Choice& choice, const BroadcastJob& job) {
  if (group.size() == 1) {
    copy_alone(job.input, job.output, job.bytes);
    return;
  }
  collective::Context with = context(group);
  choice.algorithm->broadcast(with, job);
}

}  // namespace farandole::backend
