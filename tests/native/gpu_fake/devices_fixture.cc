#include <cstdlib>

namespace {

// Before anything calls cuInit. Tests run in processes of their own again for what ends a process.
const int g_devices = ::setenv("FAKE_GPU_DEVICES", "4", 1) + ::setenv("FAKE_GPU_MEMORY", "1048576", 1) +
                      ::setenv("FAKE_GPU_LAZY_MS", "600000", 1);

}  // namespace
