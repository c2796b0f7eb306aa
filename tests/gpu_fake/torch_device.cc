// PyTorch's "PrivateUse1" on the fake GPU, for its CPU build: tensors in memory of the fake driver, on its streams.
//
// An operator runs on the CPU, on copies of its inputs as the current stream has them, and its result lands in device
// memory later, in the order of that stream. So a program that reads a tensor on another stream without waiting gets
// wrong numbers. Compiled on demand by tests/support/fake_gpu_device.py.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/api.h"
#include "cuda/hooks.h"

namespace {

using gpu_fake::Address;
using gpu_fake::Event;
using gpu_fake::Stream;

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 16;

void check(gpu_fake::Result result, const char* what) {
  if (result != gpu_fake::kSuccess) {
    const char* name = "?";
    gpu_fake::cuGetErrorName(result, &name);
    TORCH_CHECK(false, "fake GPU: ", what, ": ", name);
  }
}

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

// --- devices and streams ---

thread_local c10::DeviceIndex t_device = 0;
// The current stream of each device; 0 is the default one.
thread_local std::array<c10::StreamId, kMostDevices> t_streams{};
// Whether this thread is inside an operator, whose copies and waits are no concern of a program.
thread_local bool t_in_operator = false;

int device_count() {
  static const int count = [] {
    int found = 0;
    return gpu_fake::cuInit(0) == gpu_fake::kSuccess ? (gpu_fake::cuDeviceGetCount(&found), found) : 0;
  }();
  return count;
}

// The primary contexts are retained for as long as the process lives, as CUDA's runtime does.
gpu_fake::Context* context_of(c10::DeviceIndex device) {
  static const auto contexts = [] {
    std::array<gpu_fake::Context*, kMostDevices> all{};
    for (int one = 0; one < device_count() && one < kMostDevices; ++one) {
      check(gpu_fake::cuDevicePrimaryCtxRetain(&all[static_cast<size_t>(one)], one), "retain");
    }
    return all;
  }();
  TORCH_CHECK(device >= 0 && device < device_count(), "fake GPU: there is no device ", static_cast<int>(device));
  return contexts[static_cast<size_t>(device)];
}

// Its context is current for as long as this lives.
class On {
 public:
  explicit On(c10::DeviceIndex device) { check(gpu_fake::cuCtxPushCurrent_v2(context_of(device)), "push"); }
  ~On() { gpu_fake::cuCtxPopCurrent_v2(nullptr); }
  On(const On&) = delete;
  On& operator=(const On&) = delete;
};

// NOLINTNEXTLINE(performance-no-int-to-ptr)
Stream* handle_of(c10::StreamId id) { return reinterpret_cast<Stream*>(id); }
Stream* current_stream(c10::DeviceIndex device) { return handle_of(t_streams.at(static_cast<size_t>(device))); }

void wait_for(Stream* stream, bool is_counted) {
  check(is_counted ? gpu_fake::cuStreamSynchronize(stream) : gpu_fake::fake_gpu_drain(stream), "synchronize");
}

// --- memory ---

// A tensor's memory belongs to the stream that was current when it was made, and is freed in its order; with
// record_stream, behind other streams, too.
struct Block {
  Address address;
  c10::DeviceIndex device;
  Stream* stream;
  std::vector<Stream*> others;
};

void release(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  const On on(block->device);
  for (Stream* const other : block->others) {
    Event* event = nullptr;
    gpu_fake::cuEventCreate(&event, gpu_fake::kEventDisableTiming);
    gpu_fake::cuEventRecord(event, other);
    gpu_fake::cuStreamWaitEvent(block->stream, event, 0);
    gpu_fake::cuEventDestroy_v2(event);
  }
  gpu_fake::cuMemFreeAsync(block->address, block->stream);  // a broken device keeps it
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kType, t_device);
    if (bytes == 0) {
      return {nullptr, nullptr, [](void*) {}, device};
    }
    const On on(t_device);
    auto block = std::make_unique<Block>(Block{0, t_device, current_stream(t_device), {}});
    check(gpu_fake::cuMemAllocAsync(&block->address, bytes, block->stream), "allocate");
    void* const data = gpu_fake::pointer_to(block->address);
    return {data, block.release(), &release, device};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    const On on(t_device);
    check(gpu_fake::cuMemcpyAsync(address_of(target), address_of(source), bytes, current_stream(t_device)), "copy");
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const On on(t_device);
    void* memory = nullptr;
    if (bytes > 0) {
      check(gpu_fake::cuMemHostAlloc(&memory, bytes, gpu_fake::kHostAllocPortable), "allocate pinned memory");
    }
    return {memory, memory, &free, c10::Device(c10::DeviceType::CPU)};
  }
  // It stays: freeing it would wait for the device, as the caching allocator of CUDA's PyTorch never does.
  static void free(void*) {}
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
};

DeviceAllocator g_memory;
PinnedAllocator g_pinned;

// --- what PyTorch asks of a device ---

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, t_device}; }
  void setDevice(c10::Device device) const override {
    check(gpu_fake::cuCtxSetCurrent(context_of(device.index())), "set the context");
    t_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.index() != before.index()) {
      setDevice(device);
    }
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const On on(device);
    check(gpu_fake::cuCtxSynchronize(), "synchronize");
  }

  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  // A device without an index is the current one.
  static c10::Device indexed(c10::Device device) { return {kType, device.has_index() ? device.index() : t_device}; }
  c10::Stream getStream(c10::Device device) const override {
    const c10::Device one = indexed(device);
    return stream(one, t_streams.at(static_cast<size_t>(one.index())));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(indexed(device), 0); }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const c10::Device one = indexed(device);
    const On on(one.index());
    Stream* made = nullptr;
    check(gpu_fake::cuStreamCreateWithPriority(&made, gpu_fake::kStreamNonBlocking, priority), "create a stream");
    return stream(one, reinterpret_cast<c10::StreamId>(made));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto& current = t_streams.at(static_cast<size_t>(next.device_index()));
    return stream(next.device(), std::exchange(current, next.id()));
  }
  void* getStreamNativeHandle(const c10::Stream one) const override { return handle_of(one.id()); }
  bool queryStream(const c10::Stream& one) const override {
    const On on(one.device_index());
    const gpu_fake::Result result = gpu_fake::cuStreamQuery(handle_of(one.id()));
    return result == gpu_fake::kNotReady ? false : (check(result, "query"), true);
  }
  void synchronizeStream(const c10::Stream& one) const override {
    const On on(one.device_index());
    wait_for(handle_of(one.id()), true);
  }
  bool isStreamCapturing(const c10::Stream& one) const override {
    const On on(one.device_index());
    gpu_fake::CaptureStatus status = gpu_fake::kCaptureNone;
    check(gpu_fake::cuStreamIsCapturing(handle_of(one.id()), &status), "ask for a capture");
    return status != gpu_fake::kCaptureNone;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& one) const override {
    if (auto* const block = static_cast<Block*>(data.get_context());
        block != nullptr && handle_of(one.id()) != block->stream) {
      block->others.push_back(handle_of(one.id()));
    }
  }

  void record(void** event, const c10::Stream& one, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    const On on(one.device_index());
    auto* made = static_cast<Event*>(*event);
    if (made == nullptr) {
      const bool has_time = flag == c10::EventFlag::BACKEND_DEFAULT;
      check(gpu_fake::cuEventCreate(&made, has_time ? 0 : gpu_fake::kEventDisableTiming), "create an event");
      *event = made;
    }
    check(gpu_fake::cuEventRecord(made, handle_of(one.id())), "record an event");
  }
  void block(void* event, const c10::Stream& one) const override {
    if (event != nullptr) {
      const On on(one.device_index());
      check(gpu_fake::cuStreamWaitEvent(handle_of(one.id()), static_cast<Event*>(event), 0), "wait for an event");
    }
  }
  bool queryEvent(void* event) const override {
    const gpu_fake::Result result =
        event == nullptr ? gpu_fake::kSuccess : gpu_fake::cuEventQuery(static_cast<Event*>(event));
    return result == gpu_fake::kNotReady ? false : (check(result, "query"), true);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      const On on(t_device);
      check(gpu_fake::cuEventSynchronize(static_cast<Event*>(event)), "synchronize");
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event != nullptr) {
      const On on(device);
      gpu_fake::cuEventDestroy_v2(static_cast<Event*>(event));
    }
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex device) const override {
    const On on(device);
    float milliseconds = 0;
    check(gpu_fake::cuEventElapsedTime(&milliseconds, static_cast<Event*>(start), static_cast<Event*>(end)), "time");
    return milliseconds;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Gives a storage other memory, with what it holds as far as there is room.
void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::DeviceIndex before = std::exchange(t_device, storage.device().index());
  c10::DataPtr memory = g_memory.allocate(bytes);
  if (const size_t held = std::min(bytes, storage.nbytes()); held > 0) {
    g_memory.copy_data(memory.get(), storage.data(), held);
  }
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
  t_device = before;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return t_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({kType, device}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({kType, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? t_device : exchangeDevice(device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    return {kType, static_cast<c10::DeviceIndex>(gpu_fake::fake_gpu_device_of(address_of(data)))};
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &g_pinned; }
  bool isPinnedPtr(const void* data) const override {
    unsigned type = 0;
    return gpu_fake::cuPointerGetAttribute(&type, gpu_fake::kPointerMemoryType, address_of(data)) ==
               gpu_fake::kSuccess &&
           type == gpu_fake::kMemoryHost;
  }
};
const bool g_is_registered = [] {
  c10::SetAllocator(kType, &g_memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// --- copies ---

// The bytes between a tensor's first and its last element.
size_t span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  int64_t last = 0;
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    last += (tensor.size(dimension) - 1) * tensor.stride(dimension);
  }
  return static_cast<size_t>(last + 1) * tensor.element_size();
}

// A copy with the same strides, as the current stream of the tensor's device has it.
at::Tensor to_host(const at::Tensor& tensor, bool is_counted) {
  at::Tensor host = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  const On on(tensor.device().index());
  wait_for(current_stream(tensor.device().index()), is_counted);
  gpu_fake::fake_gpu_read(host.data_ptr(), address_of(tensor.data_ptr()), span_of(tensor));
  return host;
}

// What is on its way to a tensor.
struct Landing {
  at::Tensor host;
  Address target;
  size_t bytes;
  c10::DeviceIndex device;
};

// `host` has the target's strides. The tensor is not held: its memory may be freed too early, as on a device.
void land(at::Tensor host, const at::Tensor& target) {
  const c10::DeviceIndex device = target.device().index();
  const On on(device);
  auto* const landing = new Landing{std::move(host), address_of(target.data_ptr()), span_of(target), device};
  check(gpu_fake::fake_gpu_enqueue_or_drop(
            current_stream(device), "an operator of PyTorch",
            [](void* argument) {
              const std::unique_ptr<Landing> own(static_cast<Landing*>(argument));
              if (void* const there = gpu_fake::fake_gpu_touch(own->target, own->bytes); there != nullptr) {
                std::memcpy(there, own->host.data_ptr(), own->bytes);
              } else {
                gpu_fake::fake_gpu_break(own->device, gpu_fake::kIllegalAddress);
              }
            },
            [](void* argument) { delete static_cast<Landing*>(argument); }, landing),
        "launch");
}

bool is_plain(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous();
}

bool is_on_device(const at::Tensor& tensor) { return tensor.device().type() == kType; }

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0) {
    return target;
  }
  const bool from = is_on_device(self);
  const bool to = is_on_device(target);
  const c10::DeviceIndex device = (from ? self : target).device().index();
  if (is_plain(self, target) && !t_in_operator && !(from && to && self.device() != target.device())) {
    const On on(device);
    Stream* const stream = current_stream(device);
    check(gpu_fake::cuMemcpyAsync(address_of(target.data_ptr()), address_of(self.data_ptr()), span_of(self), stream),
          "copy");
    if (!non_blocking && from != to) {
      wait_for(stream, true);
    }
    return target;
  }
  const at::Tensor source = from ? to_host(self, !to && !t_in_operator) : self;
  if (!to) {
    target.copy_(source);
    return target;
  }
  // What lies between the elements of a strided tensor stays as it is.
  at::Tensor host = is_plain(source, target) ? at::empty_like(source) : to_host(target, false);
  host.copy_(source);
  land(std::move(host), target);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  if (target.sizes() != self.sizes()) {
    target.resize_(self.sizes());
  }
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) { return to_host(tensor, !t_in_operator).item(); }

// --- tensors without arithmetic ---

at::ScalarType type_of(std::optional<at::ScalarType> type) {
  const at::ScalarType one = type.value_or(at::kFloat);
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(one), "fake GPU: complex numbers are not supported");
  return one;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

class OfDevice {
 public:
  explicit OfDevice(std::optional<at::Device> device) : before_(t_device) {
    const c10::DeviceIndex wanted = device && device->has_index() ? device->index() : t_device;
    context_of(wanted);  // throws where there is no such device
    t_device = wanted;
  }
  ~OfDevice() { t_device = before_; }
  OfDevice(const OfDevice&) = delete;
  OfDevice& operator=(const OfDevice&) = delete;

 private:
  const c10::DeviceIndex before_;
};

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const OfDevice of(device);
  return at::detail::empty_generic(size, &g_memory, kKeys, type_of(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const OfDevice of(device);
  return at::detail::empty_strided_generic(size, stride, &g_memory, kKeys, type_of(type));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat>) {
  const auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  const auto elements = c10::multiply_integers(size) + self.storage_offset();
  const auto bytes = static_cast<size_t>(elements) * self.element_size();
  if (bytes > self.storage().nbytes()) {
    resize_storage(self.storage(), bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  const auto begin = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), begin);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_storage(at::Tensor& result, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  return at::native::set_storage_meta__symint(result, std::move(storage), std::move(offset), size, stride);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  Guard().recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

// --- everything else ---

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  struct InOperator {
    const bool before = std::exchange(t_in_operator, true);
    ~InOperator() { t_in_operator = before; }
  } const inside;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("resize_", resize);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("record_stream", record_stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

}  // namespace
