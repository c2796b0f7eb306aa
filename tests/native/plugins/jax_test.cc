// The handlers for XLA, with an XLA of our own: two ranks, of which the plugin has one and the test the other.
#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "capi/farandole.h"
#include "plugins/jax/plugin.h"
#include "plugins/jax/xla_ffi.h"

namespace farandole::xla {

// What XLA would keep.
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
};

}  // namespace farandole::xla

namespace farandole {
namespace {

constexpr char kSecret[] = "the secret of a test";
constexpr double kPatience = 60.0;

void (*delete_site)(void*) = nullptr;

const xla::Api& api() {
  static const xla::Api made = [] {
    xla::Api api{};
    api.struct_size = sizeof(api);
    api.version = {sizeof(xla::ApiVersion), nullptr, xla::kMajorVersion, xla::kMinorVersion};
    api.create_error = [](xla::CreateErrorArguments* given) { return new xla::Error{given->message}; };
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

// A place in a program, as XLA keeps it.
class Site {
 public:
  Site(const std::string& name, int64_t program, int64_t kind, bool is_check = false) : name_(name) {
    const std::vector<std::string> wholes = {"kind",    "group",        "root",          "grouped",
                                             "program", "only_at_root", "has_residuals", "is_check"};
    const std::vector<int64_t> values = {kind, 0, 0, 0, program, 0, 0, is_check ? 1 : 0};
    for (size_t i = 0; i < wholes.size(); ++i) {
      add(wholes[i], xla::DataType::kS64, &wholes_.emplace_back(std::make_unique<int64_t>(values[i])));
    }
    if (kind == FARANDOLE_ALLREDUCE) {
      add_factor("option_op", FARANDOLE_SUM);
      add_factor("option_prescale", 1.0);
    }
    span_ = {name_.data(), name_.size()};
    kinds_.push_back(xla::kTextAttribute);
    names_.push_back(std::make_unique<std::string>("name"));
    values_.push_back(&span_);
    xla::CallFrame frame = this->frame(xla::Stage::kInstantiate);
    auto* const error = static_cast<xla::Error*>(farandole_jax_instantiate(&frame));
    EXPECT_EQ(error, nullptr) << (error == nullptr ? "" : error->message);
  }
  ~Site() { delete_site(context_.site); }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  // Runs the site. The future, or nothing if it is done.
  std::unique_ptr<xla::Future> run(int64_t run, std::vector<float>& input, std::vector<float>& output,
                                   std::string& error) {
    context_.run = run;
    const int64_t rows = static_cast<int64_t>(input.size());
    const int64_t result_rows = static_cast<int64_t>(output.size());
    xla::Buffer in{sizeof(xla::Buffer), nullptr, xla::DataType::kF32, input.data(), 1, &rows};
    xla::Buffer out{sizeof(xla::Buffer), nullptr, xla::DataType::kF32, output.data(), 1, &result_rows};
    xla::Buffer token{sizeof(xla::Buffer), nullptr, xla::DataType::kToken, nullptr, 0, nullptr};
    const std::array<xla::Buffer*, 2> arguments = {&in, &token};
    const std::array<xla::Buffer*, 2> results = {&out, &token};
    xla::CallFrame frame = this->frame(xla::Stage::kExecute);
    frame.arguments = {sizeof(xla::Buffers), nullptr, 2, nullptr, arguments.data()};
    frame.results = {sizeof(xla::Buffers), nullptr, 2, nullptr, results.data()};
    const std::unique_ptr<xla::Error> failure(static_cast<xla::Error*>(farandole_jax_execute(&frame)));
    error = failure ? failure->message : "";
    return std::unique_ptr<xla::Future>(frame.future);
  }

 private:
  void add(const std::string& name, xla::DataType type, const std::unique_ptr<int64_t>* value) {
    scalars_.push_back(std::make_unique<xla::Scalar>(xla::Scalar{type, value->get()}));
    kinds_.push_back(xla::kScalarAttribute);
    names_.push_back(std::make_unique<std::string>(name));
    values_.push_back(scalars_.back().get());
  }
  void add_factor(const char* name, double value) {
    factors_.push_back(std::make_unique<double>(value));
    scalars_.push_back(std::make_unique<xla::Scalar>(xla::Scalar{xla::DataType::kF64, factors_.back().get()}));
    kinds_.push_back(xla::kScalarAttribute);
    names_.push_back(std::make_unique<std::string>(name));
    values_.push_back(scalars_.back().get());
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

  std::string name_;
  xla::ByteSpan span_{};
  xla::ExecutionContext context_;
  std::vector<std::unique_ptr<int64_t>> wholes_;
  std::vector<std::unique_ptr<double>> factors_;
  std::vector<std::unique_ptr<xla::Scalar>> scalars_;
  std::vector<int32_t> kinds_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<std::unique_ptr<xla::ByteSpan>> spans_;
  std::vector<const xla::ByteSpan*> pointers_;
  std::vector<const void*> values_;
};

class Handlers : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<const char*, 2> contacts{};
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(farandole_engine_create(FARANDOLE_ABI_VERSION, nullptr, 0, &engines_[i]), FARANDOLE_OK);
      contacts[i] = farandole_engine_contact(engines_[i]);
    }
    std::array<std::thread, 2> threads;
    for (int32_t rank = 0; rank < 2; ++rank) {
      const farandole_world world = {1, rank, 2, contacts.data(), kSecret, sizeof kSecret, kPatience};
      threads[static_cast<size_t>(rank)] = std::thread([this, world] {
        EXPECT_EQ(farandole_engine_form(engines_[static_cast<size_t>(world.rank)], &world), FARANDOLE_OK)
            << farandole_last_error();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    farandole_jax_attach(engines_[0], 0, 0, 2);
  }
  void TearDown() override {
    farandole_jax_detach();
    for (farandole_engine* const engine : engines_) {
      farandole_engine_destroy(engine);
    }
  }

  // The other rank's part.
  std::string other(uint32_t kind, const char* name, std::vector<float>& tensor, std::vector<float>& output) {
    const auto rows = static_cast<int64_t>(tensor.size());
    farandole_request request{};
    request.kind = kind;
    request.dtype = FARANDOLE_F32;
    request.ndim = 1;
    request.shape = &rows;
    request.name = name;
    request.input = tensor.data();
    request.output = output.data();
    uint64_t handle = 0;
    const int status = farandole_run(engines_[1], &request, 1, &handle, kPatience);
    std::string error = status == FARANDOLE_OK ? "" : farandole_last_error();
    farandole_release_all(engines_[1], &handle, 1);
    return error;
  }

  std::array<farandole_engine*, 2> engines_{};
};

TEST_F(Handlers, GiveAFutureWhereTheOtherRankIsLate) {
  Site site("allreduce.late", 1, FARANDOLE_ALLREDUCE);
  for (int64_t run = 0; run < 20; ++run) {
    std::vector<float> input(1000, 1.0F);
    std::vector<float> output(1000);
    std::vector<float> theirs(1000, 2.0F);
    std::string error;
    const std::unique_ptr<xla::Future> future = site.run(run, input, output, error);
    ASSERT_EQ(error, "");
    ASSERT_NE(future, nullptr) << "the other rank has not begun";
    EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.late", theirs, theirs), "");
    EXPECT_EQ(future->wait(), "");
    EXPECT_EQ(output.front(), 3.0F);
    EXPECT_EQ(output.back(), 3.0F);
  }
}

TEST_F(Handlers, SayWhatIsWrongBeforeAnythingIsSubmitted) {
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(4);
  std::string error;
  Site gather("allgather.three", 1, FARANDOLE_ALLGATHER);
  std::vector<float> of_three(12);
  EXPECT_EQ(gather.run(1, input, of_three, error), nullptr);
  EXPECT_NE(error.find("compiled for another number of workers than the 2"), std::string::npos) << error;

  farandole_jax_detach();
  Site alone("allreduce.alone", 1, FARANDOLE_ALLREDUCE);
  EXPECT_EQ(alone.run(1, input, output, error), nullptr);
  EXPECT_NE(error.find("use hvd.init()"), std::string::npos) << error;
}

TEST_F(Handlers, RefuseProgramsThatWereMadeForOneWorker) {
  std::vector<float> nothing;
  std::string error;
  Site check("allreduce.check", 1, FARANDOLE_ALLREDUCE, /*is_check=*/true);
  EXPECT_EQ(check.run(1, nothing, nothing, error), nullptr);
  EXPECT_NE(error.find("compiled for another number of workers than the 2"), std::string::npos) << error;

  farandole_jax_attach(nullptr, -1, -1, -1);
  EXPECT_EQ(check.run(2, nothing, nothing, error), nullptr);
  EXPECT_NE(error.find("use hvd.init()"), std::string::npos) << error;
}

TEST_F(Handlers, ReduceArraysOfManyHugePages) {
  Site site("allreduce.large", 1, FARANDOLE_ALLREDUCE);
  std::vector<float> input(3000001, 1.0F);
  std::vector<float> output(3000001);
  std::vector<float> theirs(3000001, 2.0F);
  std::string error;
  const std::unique_ptr<xla::Future> future = site.run(1, input, output, error);
  ASSERT_NE(future, nullptr) << error;
  EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.large", theirs, theirs), "");
  EXPECT_EQ(future->wait(), "");
  EXPECT_EQ(output, std::vector<float>(3000001, 3.0F));
}

TEST_F(Handlers, RefuseCallsThatNobodyCouldTellApart) {
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(4);
  std::vector<float> unused(4);
  std::string error;
  Site site("allreduce.one", 5, FARANDOLE_ALLREDUCE);
  const std::unique_ptr<xla::Future> first = site.run(1, input, output, error);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(site.run(2, input, unused, error), nullptr);
  EXPECT_NE(error.find("two threads run the same compiled function"), std::string::npos) << error;

  Site copy("allreduce.one", 5, FARANDOLE_ALLREDUCE);
  EXPECT_EQ(copy.run(2, input, unused, error), nullptr);
  EXPECT_NE(error.find("used several times in one compiled program"), std::string::npos) << error;

  std::vector<float> theirs(4, 2.0F);
  EXPECT_EQ(other(FARANDOLE_ALLREDUCE, "allreduce.one", theirs, theirs), "");
  EXPECT_EQ(first->wait(), "");
  EXPECT_EQ(output[0], 3.0F);
}

TEST_F(Handlers, FailTheFutureWhereRanksDisagree) {
  Site gather("allgather.ragged", 1, FARANDOLE_ALLGATHER);
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(8);
  std::vector<float> theirs(5, 2.0F);
  std::vector<float> room(10);
  std::string error;
  const std::unique_ptr<xla::Future> future = gather.run(1, input, output, error);
  ASSERT_NE(future, nullptr);
  EXPECT_EQ(other(FARANDOLE_ALLGATHER, "allgather.ragged", theirs, room), "");
  EXPECT_NE(future->wait().find("different first dimensions"), std::string::npos);
}

TEST_F(Handlers, FailTheFutureWhenTheWorldEnds) {
  Site site("allreduce.broken", 1, FARANDOLE_ALLREDUCE);
  std::vector<float> input(4, 1.0F);
  std::vector<float> output(4);
  std::string error;
  const std::unique_ptr<xla::Future> future = site.run(1, input, output, error);
  ASSERT_NE(future, nullptr);
  EXPECT_EQ(farandole_engine_revoke(engines_[1], 1, 1, 1, "rank 1 was lost"), FARANDOLE_OK);
  const std::string sentence = future->wait();
  EXPECT_NE(sentence.find("rank 1 was lost (farandole status 3, rank 1)"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace farandole
