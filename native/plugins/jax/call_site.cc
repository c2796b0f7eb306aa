#include "plugins/jax/call_site.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <sstream>
#include <tuple>
#include <utility>

#include "plugins/jax/failure.h"

namespace farandole::jax {

namespace {

// --- what the program says

// Begins the names of the attributes that are options of the requests.
constexpr char kOption[] = "option_";

class Reader {
 public:
  explicit Reader(const xla::Attributes& attributes) : attributes_(attributes) {}

  template <typename Number>
  Number number(const char* name) const {
    const auto& scalar = *static_cast<const xla::Scalar*>(find(name, xla::kScalarAttribute));
    switch (scalar.type) {
      case xla::DataType::kS64:
        return static_cast<Number>(*static_cast<const int64_t*>(scalar.value));
      case xla::DataType::kF64:
        return static_cast<Number>(*static_cast<const double*>(scalar.value));
      default:
        throw strange(name);
    }
  }

  // What follows the prefix in the names that have it.
  std::vector<std::string> names_after(std::string_view prefix) const {
    std::vector<std::string> names;
    for (int64_t i = 0; i < attributes_.size; ++i) {
      const std::string_view name(attributes_.names[i]->data, attributes_.names[i]->size);
      if (name.starts_with(prefix)) {
        names.emplace_back(name.substr(prefix.size()));
      }
    }
    return names;
  }

  std::string text(const char* name) const {
    const auto& span = *static_cast<const xla::ByteSpan*>(find(name, xla::kTextAttribute));
    return {span.data, span.size};
  }

 private:
  const void* find(const char* name, int32_t kind) const {
    for (int64_t i = 0; i < attributes_.size; ++i) {
      const xla::ByteSpan& each = *attributes_.names[i];
      if (std::string_view(each.data, each.size) == name && attributes_.kinds[i] == kind) {
        return attributes_.values[i];
      }
    }
    throw strange(name);
  }

  static Failure strange(const char* name) {
    return Failure::of_call(std::string("a program was compiled by another version of farandole: it lacks '") + name +
                            "'. Compile it again.");
  }

  const xla::Attributes& attributes_;
};

// --- which call sites have run

using Key = std::tuple<int64_t, std::string, int32_t>;  // program, name, device

struct LastRun {
  int64_t run;
  const CallSite* site;
};

struct Runs {
  std::mutex mutex;
  std::map<Key, LastRun> last;
};

Runs& runs() {
  static auto* const runs = new Runs;  // never destroyed: programs may outlive static objects
  return *runs;
}

// --- element types

struct Type {
  xla::DataType type;
  size_t bytes;
  uint32_t dtype;           // if the engine calculates with it
  const char* opaque_type;  // otherwise its name, which is the one that NumPy has; NULL: the engine calculates with it
};

constexpr Type kTypes[] = {
    {xla::DataType::kPred, 1, FARANDOLE_BOOL, nullptr},
    {xla::DataType::kU8, 1, FARANDOLE_U8, nullptr},
    {xla::DataType::kS8, 1, FARANDOLE_I8, nullptr},
    {xla::DataType::kS16, 2, FARANDOLE_I16, nullptr},
    {xla::DataType::kS32, 4, FARANDOLE_I32, nullptr},
    {xla::DataType::kS64, 8, FARANDOLE_I64, nullptr},
    {xla::DataType::kF16, 2, FARANDOLE_F16, nullptr},
    {xla::DataType::kBf16, 2, FARANDOLE_BF16, nullptr},
    {xla::DataType::kF32, 4, FARANDOLE_F32, nullptr},
    {xla::DataType::kF64, 8, FARANDOLE_F64, nullptr},
    {xla::DataType::kU16, 2, FARANDOLE_U8, "uint16"},
    {xla::DataType::kU32, 4, FARANDOLE_U8, "uint32"},
    {xla::DataType::kU64, 8, FARANDOLE_U8, "uint64"},
    {xla::DataType::kC64, 8, FARANDOLE_U8, "complex64"},
    {xla::DataType::kC128, 16, FARANDOLE_U8, "complex128"},
    {xla::DataType::kF8E5m2, 1, FARANDOLE_U8, "float8_e5m2"},
    {xla::DataType::kF8E4m3Fn, 1, FARANDOLE_U8, "float8_e4m3fn"},
    {xla::DataType::kF8E4m3B11Fnuz, 1, FARANDOLE_U8, "float8_e4m3b11fnuz"},
    {xla::DataType::kF8E5m2Fnuz, 1, FARANDOLE_U8, "float8_e5m2fnuz"},
    {xla::DataType::kF8E4m3Fnuz, 1, FARANDOLE_U8, "float8_e4m3fnuz"},
    {xla::DataType::kF8E4m3, 1, FARANDOLE_U8, "float8_e4m3"},
    {xla::DataType::kF8E3m4, 1, FARANDOLE_U8, "float8_e3m4"},
    {xla::DataType::kF8E8m0Fnu, 1, FARANDOLE_U8, "float8_e8m0fnu"},
};

const Type& type_of(xla::DataType type) {
  const auto* const found = std::ranges::find(kTypes, type, &Type::type);
  if (found == std::end(kTypes)) {
    throw Failure::of_call("arrays of this element type cannot be sent");
  }
  return *found;
}

int64_t run_of(const xla::CallFrame& frame) {
  xla::RunIdArguments arguments{sizeof(arguments), nullptr, frame.context, 0};
  frame.api->get_run_id(&arguments);
  return arguments.run_id;
}

std::vector<int32_t> numbers_in(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<int32_t>(stream), {}};
}

// Ranks use GPUs of different numbers: calls match by the place of a device among those that the process uses.
int32_t place_of(int32_t device, const std::vector<int32_t>& devices) {
  const auto found = std::ranges::find(devices, device);
  return found == devices.end() ? device : static_cast<int32_t>(found - devices.begin());
}

}  // namespace

int32_t device_of(const xla::CallFrame& frame) {
  xla::DeviceOrdinalArguments arguments{sizeof(arguments), nullptr, frame.context, 0};
  frame.api->get_device_ordinal(&arguments);
  return arguments.device_ordinal;
}

double Collective::option(std::string_view name, double otherwise) const {
  const auto found = std::ranges::find(options, name, [](const farandole_option& each) { return each.name; });
  return found == options.end() ? otherwise : found->value;
}

CallSite::CallSite(const xla::Attributes& attributes) {
  const Reader read(attributes);
  collective_.kind = read.number<uint32_t>("kind");
  collective_.group = read.number<uint32_t>("group");
  collective_.root = read.number<int32_t>("root");
  for (std::string& name : read.names_after(kOption)) {
    const double value = read.number<double>((std::string(kOption) + name).c_str());
    collective_.options.push_back({collective_.option_names.emplace_back(std::move(name)).c_str(), value});
  }
  collective_.grouped = read.number<int>("grouped") != 0;
  collective_.has_residuals = read.number<int>("has_residuals") != 0;
  collective_.only_at_root = read.number<int>("only_at_root") != 0;
  collective_.is_check = read.number<int>("is_check") != 0;
  collective_.name = read.text("name");
  collective_.program = read.number<int64_t>("program");
  collective_.devices = numbers_in(read.text("devices"));
}

CallSite::~CallSite() {
  const std::lock_guard<std::mutex> lock(runs().mutex);
  std::erase_if(runs().last, [this](const auto& entry) { return entry.second.site == this; });
}

OnDevice& CallSite::begin(const xla::CallFrame& frame) {
  const int32_t device = device_of(frame);
  check_clones(run_of(frame), device);
  OnDevice* site = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<OnDevice>& known = devices_[device];
    if (known == nullptr) {
      auto learnt = std::make_unique<OnDevice>();
      learn(frame, device, *learnt);
      known = std::move(learnt);
    }
    site = known.get();
  }
  if (site->is_in_flight.exchange(true)) {
    throw Failure::of_call(collective_.name +
                           ": two threads run the same compiled function at the same time, so that the ranks could not "
                           "tell the calls of its collectives apart. Call it from one thread, or after each other.");
  }
  return *site;
}

void CallSite::check_clones(int64_t run, int32_t device) {
  const std::lock_guard<std::mutex> lock(runs().mutex);
  LastRun& last =
      runs().last.try_emplace({collective_.program, collective_.name, device}, LastRun{run, this}).first->second;
  if (last.site != this && last.run == run) {
    throw Failure::of_call(
        collective_.name +
        ": the function around this collective is used several times in one compiled program. JAX compiles such a "
        "function once, and XLA may then run its copies in any order, so that the ranks could not tell them apart. Use "
        "jax.jit(function, inline=True) where it is an inner jit, or call the collective outside of it.");
  }
  last = {run, this};
}

void CallSite::learn(const xla::CallFrame& frame, int32_t device, OnDevice& site) const {
  // The last argument and the last result are the token.
  const int64_t count = (frame.results.size - 1) / (collective_.has_residuals ? 2 : 1);
  for (int64_t i = 0; i < count; ++i) {
    const xla::Buffer& argument = *frame.arguments.values[i];
    const xla::Buffer& result = *frame.results.values[i];
    const Type& type = type_of(argument.type);
    Member member;
    member.name = collective_.name;
    if (const int32_t place = place_of(device, collective_.devices); place > 0) {
      member.name += "@" + std::to_string(place);
    }
    if (collective_.grouped) {
      member.name += "_" + std::to_string(i + 1) + "of" + std::to_string(count);
    }
    member.dtype = type.dtype;
    member.bytes_each = type.bytes;
    member.opaque_type = type.opaque_type;
    member.shape.assign(argument.dimensions, argument.dimensions + argument.rank);
    member.result_shape.assign(result.dimensions, result.dimensions + result.rank);
    site.members.push_back(std::move(member));
  }
}

}  // namespace farandole::jax
