// A collective in a compiled program: made once when XLA loads the program, and used by each of its runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "capi/farandole.h"
#include "plugins/jax/xla_ffi.h"
#include "plugins/own_progress.h"

namespace farandole::jax {

// A program's description of a collective. The numbers are those of the C ABI.
struct Collective {
  uint32_t kind = FARANDOLE_ALLREDUCE;
  uint32_t group = 0;
  int32_t root = 0;  // see `only_at_root`
  std::vector<farandole_option> options;
  std::deque<std::string> option_names;  // which the options point to
  bool grouped = false;
  bool has_residuals = false;  // of a compressed reduction: after the arrays come as many residuals
  bool only_at_root = false;   // of a reduction: other ranks than `root` get zeros
  bool is_check = false;       // no collective: it only makes sure that there is one worker, as the program takes it
  std::string name;            // by which ranks' calls match
  int64_t program = 0;         // which program it is in, within this process
  // The numbers of the devices of its platform that this process uses, in order; none: 0, 1, 2 and so on.
  std::vector<int32_t> devices;

  // What it asks for of that name.
  double option(std::string_view name, double otherwise) const;
};

// One tensor of a call, as it is in every run.
struct Member {
  std::string name;
  uint32_t dtype = 0;
  size_t bytes_each = 0;              // of an element
  const char* opaque_type = nullptr;  // its type, if the engine does not calculate with it; NULL: it is `dtype`
  std::vector<int64_t> shape;
  std::vector<int64_t> result_shape;
};

// The call site on one of the devices that JAX makes of this process's processors.
struct OnDevice {
  std::vector<Member> members;
  std::atomic<bool> is_in_flight{false};
  plugins::OwnProgress progress;
};

// The number of the device on which a frame runs, in this process.
int32_t device_of(const xla::CallFrame& frame);

class CallSite {
 public:
  // Throws Failure if this library does not understand what the program says.
  explicit CallSite(const xla::Attributes& attributes);
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  const Collective& collective() const noexcept { return collective_; }

  // A run begins. Throws Failure if no one could say which call this is: the site's function is used twice in the
  // program, so that XLA has two of it and may run them in any order; or two threads run the program at once.
  OnDevice& begin(const xla::CallFrame& frame);

 private:
  void check_clones(int64_t run, int32_t device);
  void learn(const xla::CallFrame& frame, int32_t device, OnDevice& site) const;

  Collective collective_;
  std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<OnDevice>> devices_;
};

}  // namespace farandole::jax
