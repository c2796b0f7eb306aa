#include "plugins/tensorflow/plugin.h"

#include <string>

#include "plugins/tensorflow/engine_link.h"
#include "plugins/tensorflow/handles.h"
#include "plugins/tensorflow/op_table.h"

namespace {

// TensorFlow notes the ops that are registered while it loads a library, so this must run then.
std::string register_all() {
  try {
    farandole::tensorflow::register_ops();
    return "";
  } catch (const farandole::tensorflow::OpError& error) {
    return error.what();
  }
}

const std::string& registration_error() noexcept {
  static const std::string error = register_all();
  return error;
}

[[maybe_unused]] const bool registered = registration_error().empty();

}  // namespace

extern "C" {

uint32_t farandole_tensorflow_abi_version(void) { return FARANDOLE_ABI_VERSION; }

const char* farandole_tensorflow_error(void) { return registration_error().c_str(); }

void farandole_tensorflow_attach(farandole_engine* engine, int32_t rank, int32_t local_rank, int32_t local_size) {
  farandole::tensorflow::EngineLink::of_process().enter(engine, {rank, local_rank, local_size});
}

void farandole_tensorflow_detach(void) { farandole::tensorflow::EngineLink::of_process().detach(); }

void farandole_tensorflow_restart_names(uint32_t restarts) {
  farandole::tensorflow::EngineLink::of_process().unnamed_calls().restart(restarts);
}

void farandole_tensorflow_restart_names_of(uint32_t group) {
  farandole::tensorflow::EngineLink::of_process().unnamed_calls().restart_group(group);
}

}  // extern "C"
