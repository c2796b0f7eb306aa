#include "plugins/jax/plugin.h"

#include <memory>

#include "plugins/jax/call.h"
#include "plugins/jax/call_site.h"
#include "plugins/jax/device_call.h"
#include "plugins/jax/failure.h"
#include "plugins/jax/requests.h"
#include "plugins/jax/xla_ffi.h"

namespace farandole::jax {

namespace {

// XLA registers a handler after it has asked it, by a frame with an extension, which version it was made for.
bool answers_for_version(const xla::CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != xla::kMetadataExtension) {
    return false;
  }
  xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame.extensions)->metadata;
  metadata.api_version.major = xla::kMajorVersion;
  metadata.api_version.minor = xla::kMinorVersion;
  metadata.traits = 0;
  return true;
}

void delete_site(void* site) { delete static_cast<CallSite*>(site); }

// The type by which XLA keeps call sites for us.
xla::TypeId& site_type(const xla::Api& api) {
  static xla::TypeId type = [&api] {
    static const xla::TypeInfo info{sizeof(info), nullptr, &delete_site};
    xla::TypeId made{0};
    xla::RegisterTypeArguments arguments{sizeof(arguments), nullptr, {"farandole.call_site", 19}, &made, &info};
    api.register_type(&arguments);
    return made;
  }();
  return type;
}

void check_api(const xla::CallFrame& frame) {
  // A frame's size does not include its future, which exists since the functions for it do.
  if (frame.api->struct_size < sizeof(xla::Api) || frame.api->version.major != xla::kMajorVersion) {
    throw Failure(xla::ErrorCode::kFailedPrecondition,
                  "this jaxlib is too old for farandole's collectives in compiled functions: its foreign function "
                  "interface cannot complete calls later, or say which run a call belongs to. Install jax 0.10 or "
                  "newer.");
  }
}

xla::Error* instantiate(const xla::CallFrame& frame) {
  if (answers_for_version(frame)) {
    return nullptr;
  }
  try {
    check_api(frame);
    auto site = std::make_unique<CallSite>(frame.attributes);
    xla::StateArguments arguments{sizeof(arguments),      nullptr,       frame.context, xla::Stage::kInstantiate,
                                  &site_type(*frame.api), site.release()};
    xla::Error* const error = frame.api->set_state(&arguments);
    if (error != nullptr) {
      delete_site(arguments.state);  // XLA has not taken it over
    }
    return error;
  } catch (const Failure& failure) {
    return failure.for_xla(*frame.api);
  }
}

// `run` is that of the class whose calls are for the memory in which the arrays are.
template <typename Run>
xla::Error* execute(xla::CallFrame& frame, Run&& run) {
  if (answers_for_version(frame)) {
    return nullptr;
  }
  xla::StateArguments arguments{sizeof(arguments),      nullptr, frame.context, xla::Stage::kInstantiate,
                                &site_type(*frame.api), nullptr};
  xla::Error* const error = frame.api->get_state(&arguments);
  if (error != nullptr) {
    return error;
  }
  CallSite& site = *static_cast<CallSite*>(arguments.state);
  return site.collective().is_check ? check_alone(site.collective(), *frame.api) : run(site, frame);
}

}  // namespace

}  // namespace farandole::jax

extern "C" {

uint32_t farandole_jax_abi_version(void) { return FARANDOLE_ABI_VERSION; }

void* farandole_jax_instantiate(void* frame) {
  return farandole::jax::instantiate(*static_cast<const farandole::xla::CallFrame*>(frame));
}

void* farandole_jax_execute(void* frame) {
  return farandole::jax::execute(*static_cast<farandole::xla::CallFrame*>(frame), farandole::jax::Call::run);
}

void* farandole_jax_execute_on_device(void* frame) {
  return farandole::jax::execute(*static_cast<farandole::xla::CallFrame*>(frame), farandole::jax::DeviceCall::run);
}

void farandole_jax_attach(farandole_engine* engine, int32_t rank, int32_t local_rank, int32_t local_size) {
  farandole::jax::engine_link().attach(engine, {rank, local_rank, local_size});
}

void farandole_jax_detach(void) { farandole::jax::engine_link().detach(); }

}  // extern "C"
