// The error that XLA gets for a failed call.
#pragma once

#include <stdexcept>
#include <string>

#include "capi/farandole.h"
#include "plugins/jax/xla_ffi.h"

namespace farandole::jax {

class Failure : public std::runtime_error {
 public:
  Failure(xla::ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  // For a status of the engine. The end of the sentence is read by farandole.worker.core.status.
  static Failure of_status(int status, const char* sentence, int32_t lost_rank) {
    std::string text = std::string(sentence) + " (farandole status " + std::to_string(status);
    if (lost_rank >= 0) {
      text += ", rank " + std::to_string(lost_rank);
    }
    return {code_of(status), text + ")"};
  }
  // This call is wrong, whatever the other ranks do.
  static Failure of_call(const std::string& sentence) {
    return of_status(FARANDOLE_INVALID_ARGUMENT, sentence.c_str(), -1);
  }

  xla::Error* for_xla(const xla::Api& api) const {
    xla::CreateErrorArguments arguments{sizeof(arguments), nullptr, what(), code_};
    return api.create_error(&arguments);
  }

 private:
  static xla::ErrorCode code_of(int status) {
    switch (status) {
      case FARANDOLE_INVALID_ARGUMENT:
        return xla::ErrorCode::kInvalidArgument;
      case FARANDOLE_MISMATCH:
        return xla::ErrorCode::kFailedPrecondition;
      case FARANDOLE_UNAVAILABLE:
        return xla::ErrorCode::kResourceExhausted;
      case FARANDOLE_INTERNAL:
        return xla::ErrorCode::kInternal;
      default:
        return xla::ErrorCode::kUnknown;
    }
  }

  xla::ErrorCode code_;
};

}  // namespace farandole::jax
