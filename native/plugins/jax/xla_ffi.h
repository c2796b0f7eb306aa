// What this library uses of XLA's foreign function interface (xla/ffi/api/c_api.h of OpenXLA), declared anew so that no
// XLA is needed to build it. Version 0.3, of which jaxlib 0.10 is; structs only grow at their ends, and say how large
// they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole::xla {

constexpr int kMajorVersion = 0;
constexpr int kMinorVersion = 3;

struct Error;
struct Future;
struct ExecutionContext;
struct InternalApi;

enum class ErrorCode : int32_t {
  kUnknown = 2,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kInternal = 13,
};

enum class DataType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBf16 = 16,
  kToken = 17,
  kC128 = 18,
  kF8E5m2 = 19,
  kF8E4m3Fn = 20,
  kF8E4m3B11Fnuz = 23,
  kF8E5m2Fnuz = 24,
  kF8E4m3Fnuz = 25,
  kF8E4m3 = 28,
  kF8E3m4 = 29,
  kF8E8m0Fnu = 33,
};

enum class Stage : int32_t { kInstantiate = 0, kExecute = 3 };

// --- extensions: XLA asks a handler for its version by calling it with one.

constexpr int32_t kMetadataExtension = 1;

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

struct ApiVersion {
  size_t struct_size;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

struct Metadata {
  size_t struct_size;
  ApiVersion api_version;  // out
  uint32_t traits;         // out
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

// --- arguments of a call

struct ByteSpan {
  const char* data;
  size_t size;
};

struct Scalar {
  DataType type;
  const void* value;
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType type;
  void* data;
  int64_t rank;
  const int64_t* dimensions;
};

struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int32_t* kinds;
  Buffer* const* values;
};

constexpr int32_t kScalarAttribute = 3;
constexpr int32_t kTextAttribute = 4;

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int32_t* kinds;
  const ByteSpan* const* names;
  const void* const* values;
};

struct Api;

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  // Out: the handler returns before it is done, and completes this later. Arguments and results stay until then.
  Future* future;
};

// --- functions of XLA, each with a struct of its arguments

struct CreateErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct DestroyErrorArguments {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};

struct StreamArguments {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  void* stream;  // out; of the platform CUDA, a CUstream
};

// Of CreateFuture, and of SetAvailable.
struct FutureArguments {
  size_t struct_size;
  Extension* extensions;
  Future* future;
};

struct SetErrorArguments {
  size_t struct_size;
  Extension* extensions;
  Future* future;
  Error* error;  // taken over
};

struct TypeId {
  int64_t id;
};

struct TypeInfo {
  size_t struct_size;
  Extension* extensions;
  void (*deleter)(void* object);
};

struct RegisterTypeArguments {
  size_t struct_size;
  Extension* extensions;
  ByteSpan name;
  TypeId* type;  // in and out: 0 asks for a new one
  const TypeInfo* info;
};

struct StateArguments {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  Stage stage;
  TypeId* type;
  void* state;
};

struct RunIdArguments {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  int64_t run_id;  // out
};

struct DeviceOrdinalArguments {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  int32_t device_ordinal;  // out
};

// Each returns NULL when it went well.
struct Api {
  size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const InternalApi* internal;
  Error* (*create_error)(CreateErrorArguments*);
  const void* error_message;
  void (*destroy_error)(DestroyErrorArguments*);
  const void* register_handler;
  Error* (*get_stream)(StreamArguments*);
  Error* (*register_type)(RegisterTypeArguments*);
  const void* execution_context;
  Error* (*set_state)(StateArguments*);
  Error* (*get_state)(StateArguments*);
  const void* allocate;
  const void* free;
  const void* schedule;
  const void* pool_threads;
  Error* (*create_future)(FutureArguments*);
  Error* (*set_available)(FutureArguments*);
  Error* (*set_error)(SetErrorArguments*);
  Error* (*get_run_id)(RunIdArguments*);
  Error* (*get_device_ordinal)(DeviceOrdinalArguments*);
};

}  // namespace farandole::xla
