// A fake XLA: the foreign function interface that handlers get, and a place in a program that calls them.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "capi/farandole.h"
#include "plugins/jax/plugin.h"
#include "plugins/jax/xla_ffi.h"

namespace farandole::xla {

// The errors and futures that XLA would keep.
struct Error {
  std::string message;
};

struct Future {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::unique_ptr<Error> error;

  void complete(Error* failure) {
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
    error.reset(failure);
    changed.notify_all();
  }
  std::string wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return done; });
    return error ? error->message : "";
  }
};

struct ExecutionContext {
  void* site = nullptr;
  int64_t run = 0;
  int32_t device = 0;
  void* stream = nullptr;
};

}  // namespace farandole::xla

namespace farandole::testing {

inline void (*delete_site)(void*) = nullptr;

inline const xla::Api& api() {
  static const xla::Api made = [] {
    xla::Api api{};
    api.struct_size = sizeof(api);
    api.version = {sizeof(xla::ApiVersion), nullptr, xla::kMajorVersion, xla::kMinorVersion};
    api.create_error = [](xla::CreateErrorArguments* given) { return new xla::Error{given->message}; };
    api.destroy_error = [](xla::DestroyErrorArguments* given) { delete given->error; };
    api.get_stream = [](xla::StreamArguments* given) -> xla::Error* {
      given->stream = given->context->stream;
      return nullptr;
    };
    api.register_type = [](xla::RegisterTypeArguments* given) -> xla::Error* {
      given->type->id = 7;
      delete_site = given->info->deleter;
      return nullptr;
    };
    api.set_state = [](xla::StateArguments* given) -> xla::Error* {
      given->context->site = given->state;
      return nullptr;
    };
    api.get_state = [](xla::StateArguments* given) -> xla::Error* {
      given->state = given->context->site;
      return nullptr;
    };
    api.create_future = [](xla::FutureArguments* given) -> xla::Error* {
      given->future = new xla::Future;
      return nullptr;
    };
    api.set_available = [](xla::FutureArguments* given) -> xla::Error* {
      given->future->complete(nullptr);
      return nullptr;
    };
    api.set_error = [](xla::SetErrorArguments* given) -> xla::Error* {
      given->future->complete(given->error);
      return nullptr;
    };
    api.get_run_id = [](xla::RunIdArguments* given) -> xla::Error* {
      given->run_id = given->context->run;
      return nullptr;
    };
    api.get_device_ordinal = [](xla::DeviceOrdinalArguments* given) -> xla::Error* {
      given->device_ordinal = given->context->device;
      return nullptr;
    };
    return api;
  }();
  return made;
}

// A program's description of a collective, besides its name.
struct Said {
  int64_t program = 1;
  int64_t kind = FARANDOLE_ALLREDUCE;
  bool is_check = false;
  bool has_residuals = false;
  bool only_at_root = false;
  int64_t root = 0;
  std::string devices = {};
};

// A place in a program, as XLA keeps it.
class Site {
 public:
  explicit Site(const std::string& name, const Said& said = {}) {
    add_number("kind", said.kind);
    add_number("program", said.program);
    add_number("is_check", said.is_check ? 1 : 0);
    add_number("has_residuals", said.has_residuals ? 1 : 0);
    add_number("only_at_root", said.only_at_root ? 1 : 0);
    add_number("root", said.root);
    for (const char* const zero : {"group", "grouped"}) {
      add_number(zero, 0);
    }
    if (said.kind == FARANDOLE_ALLREDUCE) {
      add_factor("option_op", FARANDOLE_SUM);
      add_factor("option_prescale", 1.0);
    }
    add_text("name", name);
    add_text("devices", said.devices);
    xla::CallFrame frame = this->frame(xla::Stage::kInstantiate);
    auto* const error = static_cast<xla::Error*>(farandole_jax_instantiate(&frame));
    EXPECT_EQ(error, nullptr) << (error == nullptr ? "" : error->message);
  }
  ~Site() { delete_site(context_.site); }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  // Runs the site on arrays of float32 in host memory. The future, or nothing if it is done.
  std::unique_ptr<xla::Future> run(int64_t run, std::vector<float>& input, std::vector<float>& output,
                                   std::string& error) {
    return call(farandole_jax_execute, run, {input.data(), input.size()}, {output.data(), output.size()}, error);
  }

  // The same in the memory of a GPU, whose results are on their way in the stream.
  std::string run_on_device(int64_t run, std::span<float> input, std::span<float> output, int32_t device,
                            void* stream) {
    context_.device = device;
    context_.stream = stream;
    std::string error;
    EXPECT_EQ(call(farandole_jax_execute_on_device, run, input, output, error), nullptr);
    return error;
  }

 private:
  std::unique_ptr<xla::Future> call(void* (*execute)(void*), int64_t run, std::span<float> input,
                                    std::span<float> output, std::string& error) {
    context_.run = run;
    const auto rows = static_cast<int64_t>(input.size());
    const auto result_rows = static_cast<int64_t>(output.size());
    xla::Buffer in{sizeof(xla::Buffer), nullptr, xla::DataType::kF32, input.data(), 1, &rows};
    xla::Buffer out{sizeof(xla::Buffer), nullptr, xla::DataType::kF32, output.data(), 1, &result_rows};
    xla::Buffer token{sizeof(xla::Buffer), nullptr, xla::DataType::kToken, nullptr, 0, nullptr};
    const std::array<xla::Buffer*, 2> arguments = {&in, &token};
    const std::array<xla::Buffer*, 2> results = {&out, &token};
    xla::CallFrame frame = this->frame(xla::Stage::kExecute);
    frame.arguments = {sizeof(xla::Buffers), nullptr, 2, nullptr, arguments.data()};
    frame.results = {sizeof(xla::Buffers), nullptr, 2, nullptr, results.data()};
    const std::unique_ptr<xla::Error> failure(static_cast<xla::Error*>(execute(&frame)));
    error = failure ? failure->message : "";
    return std::unique_ptr<xla::Future>(frame.future);
  }
  void add_number(const char* name, int64_t value) {
    wholes_.push_back(std::make_unique<int64_t>(value));
    add_scalar(name, xla::DataType::kS64, wholes_.back().get());
  }
  void add_factor(const char* name, double value) {
    factors_.push_back(std::make_unique<double>(value));
    add_scalar(name, xla::DataType::kF64, factors_.back().get());
  }
  void add_scalar(const char* name, xla::DataType type, const void* value) {
    scalars_.push_back(std::make_unique<xla::Scalar>(xla::Scalar{type, value}));
    add(name, xla::kScalarAttribute, scalars_.back().get());
  }
  void add_text(const char* name, const std::string& text) {
    texts_.push_back(std::make_unique<std::string>(text));
    text_spans_.push_back(std::make_unique<xla::ByteSpan>(xla::ByteSpan{texts_.back()->data(), text.size()}));
    add(name, xla::kTextAttribute, text_spans_.back().get());
  }
  void add(const char* name, int32_t kind, const void* value) {
    kinds_.push_back(kind);
    names_.push_back(std::make_unique<std::string>(name));
    values_.push_back(value);
  }
  xla::CallFrame frame(xla::Stage stage) {
    spans_.clear();
    pointers_.clear();
    for (const auto& name : names_) {
      spans_.push_back(std::make_unique<xla::ByteSpan>(xla::ByteSpan{name->data(), name->size()}));
      pointers_.push_back(spans_.back().get());
    }
    xla::CallFrame frame{};
    frame.struct_size = sizeof(frame);
    frame.api = &api();
    frame.context = &context_;
    frame.stage = stage;
    frame.attributes = {sizeof(xla::Attributes), nullptr,          static_cast<int64_t>(names_.size()),
                        kinds_.data(),           pointers_.data(), values_.data()};
    return frame;
  }

  xla::ExecutionContext context_;
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<std::unique_ptr<xla::ByteSpan>> text_spans_;
  std::vector<std::unique_ptr<int64_t>> wholes_;
  std::vector<std::unique_ptr<double>> factors_;
  std::vector<std::unique_ptr<xla::Scalar>> scalars_;
  std::vector<int32_t> kinds_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<std::unique_ptr<xla::ByteSpan>> spans_;
  std::vector<const xla::ByteSpan*> pointers_;
  std::vector<const void*> values_;
};

}  // namespace farandole::testing
