// The library of convolutions, of which XLA wants a handle before it compiles a program without any.
#define CUDNN extern "C" __attribute__((visibility("default")))

// The version that jaxlib 0.10.2 was compiled with: 9.12.0.
CUDNN int cudnnGetProperty(int part, int* number) {
  *number = part == 0 ? 9 : part == 1 ? 12 : 0;
  return 0;
}
CUDNN int cudnnCreate(void** handle) {
  static int the_only_one = 0;
  *handle = &the_only_one;
  return 0;
}
CUDNN int cudnnDestroy(void*) { return 0; }
