#include "plugins/tensorflow/kernel.h"

#include <cstdlib>

#include "plugins/tensorflow/handles.h"
#include "plugins/tensorflow/op_table.h"

namespace farandole::tensorflow {

namespace {

// Iterations of a tf.while_loop run side by side, up to its parallel_iterations (10 if the user does not say), and not
// in the same order on all ranks. So two iterations that may run at the same time need different names, or ranks could
// match one iteration with another. With this many names, that cannot happen in a loop with fewer parallel_iterations.
// Iterations do not have one name each, because the engine remembers a limited number of names, and requests with a
// name that it does not know take longer.
constexpr int64_t kIterationNames = 64;

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  int64_t whole(const char* name) const {
    int64_t value = 0;
    TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_.get());
    status_.check();
    return value;
  }

  std::string text(const char* name) const {
    int32_t count = 0;
    int32_t size = 0;
    TF_OpKernelConstruction_GetAttrSize(construction_, name, &count, &size, status_.get());
    status_.check();
    std::string value(static_cast<size_t>(size), '\0');
    TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status_.get());
    status_.check();
    return value;
  }

  // TensorFlow has no attribute of double precision, so numbers travel as texts.
  double number(const char* name) const { return std::strtod(text(name).c_str(), nullptr); }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

}  // namespace

bool Kernel::is_unnamed() const { return name.empty() && node == row->name; }

std::string Kernel::key(TF_OpKernelContext* context) const {
  std::string key = name.empty() ? node : name;
  if (ignores_scope) {
    key.erase(0, key.rfind('/') + 1);  // npos + 1 is 0
  }
  const uint64_t frame = TF_GetFrameId(context);
  const int64_t iteration = TF_GetIterId(context);
  if (frame != 0 || iteration != 0) {
    key += "@" + std::to_string(frame) + "." + std::to_string(iteration % kIterationNames);
  }
  return key;
}

void* make_kernel(const OpRow* row, TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  kernel->row = row;
  const TF_StringView node = TF_OpKernelConstruction_GetName(construction);
  kernel->node.assign(node.data, node.len);
  try {
    const Attributes attributes(construction);
    for (const Attribute attribute : row->attributes) {
      switch (attribute) {
        case Attribute::kName:
          kernel->name = attributes.text("tensor_name");
          kernel->ignores_scope = attributes.whole("ignore_name_scope") != 0;
          break;
        case Attribute::kProcessSet:
          kernel->group = static_cast<uint32_t>(attributes.whole("process_set_id"));
          break;
        case Attribute::kReduction: {
          const int64_t op = attributes.whole("reduce_op");
          const double prescale = attributes.number("prescale");
          const double postscale = attributes.number("postscale");
          kernel->options = {{"op", static_cast<double>(op)}, {"prescale", prescale}, {"postscale", postscale}};
          // For integers, even scales that cancel each other out matter, because values are truncated in between.
          const bool is_known = op >= 0 && op <= FARANDOLE_PRODUCT;
          kernel->leaves_one_alone = is_known && op != FARANDOLE_ADASUM && prescale == 1.0 && postscale == 1.0;
          break;
        }
        case Attribute::kRoot:
          kernel->root = static_cast<int32_t>(attributes.whole("root_rank"));
          kernel->options.push_back({"root", static_cast<double>(*kernel->root)});
          break;
        case Attribute::kType:
        case Attribute::kTypes:
        case Attribute::kSplits:
          break;  // the inputs say it
      }
    }
  } catch (const OpError& error) {
    const Status status;
    status.set(error.code(), error.what());
    TF_OpKernelConstruction_Failure(construction, status.get());
  }
  return kernel.release();
}

void delete_kernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

}  // namespace farandole::tensorflow
