// What XLA asks of a driver of CUDA besides what the fake one has: more attributes, and memory whose addresses are
// reserved apart. Built together with the fake driver, whose cuDeviceGetAttribute is called otherwise there.
#include <cstdint>
#include <cstdlib>
#include <map>

#include "cuda/api.h"

#undef cuDeviceGetAttribute

namespace gpu_fake {
extern "C" {

// The fake driver's own, which knows the attributes that PyTorch and farandole ask for.
Result fake_gpu_attribute(int* value, DeviceAttribute attribute, Device device);

FAKE_GPU_API Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  static const std::map<int, int> numbers = {
      {2, 1024},      // threads of a block, by dimension
      {3, 1024},      //
      {4, 64},        //
      {5, 65535},     // blocks of a grid, by dimension
      {6, 65535},     //
      {7, 65535},     //
      {8, 49152},     // bytes of shared memory of a block
      {12, 65536},    // registers of a block
      {13, 1410000},  // kHz
      {32, 0},        // ECC
      {36, 1215000},  // kHz of the memory
      {37, 5120},     // bits of its bus
      {38, 1 << 22},  // bytes of the cache
      {39, 2048},     // threads of a multiprocessor
      {81, 163840},   // bytes of its shared memory
      {82, 65536},    // its registers
      {97, 166912},   // bytes of shared memory that a block may ask for
      {102, 1},       // addresses can be reserved
      {110, 0},       // GPUDirect RDMA
      {128, 0},       // handles of the fabric
      {132, 0},       // multicast
  };
  if (const auto found = numbers.find(attribute); found != numbers.end()) {
    *value = found->second;
    return kSuccess;
  }
  return fake_gpu_attribute(value, static_cast<DeviceAttribute>(attribute), device);
}

// Addresses that are reserved have memory from the beginning, so mapping does nothing.

FAKE_GPU_API Result cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = size_t{1} << 21;
  return kSuccess;
}
FAKE_GPU_API Result cuMemAddressReserve(Address* address, size_t bytes, size_t, Address, uint64_t) {
  return cuMemAlloc_v2(address, bytes);
}
FAKE_GPU_API Result cuMemAddressFree(Address address, size_t) { return cuMemFree_v2(address); }
FAKE_GPU_API Result cuMemCreate(uint64_t* handle, size_t, const void*, uint64_t) {
  *handle = 1;
  return kSuccess;
}
FAKE_GPU_API Result cuMemRelease(uint64_t) { return kSuccess; }
FAKE_GPU_API Result cuMemMap(Address, size_t, size_t, uint64_t, uint64_t) { return kSuccess; }
FAKE_GPU_API Result cuMemUnmap(Address, size_t) { return kSuccess; }
FAKE_GPU_API Result cuMemSetAccess(Address, size_t, const void*, size_t) { return kSuccess; }

}  // extern "C"
}  // namespace gpu_fake
