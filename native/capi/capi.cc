// The C ABI: arguments in, status codes out. Exceptions end here.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "capi/farandole.h"
#include "capi/settings.h"
#include "collective/table.h"
#include "engine/engine.h"
#include "reduce/kernels.h"
#include "transport/endpoint.h"

using farandole::base::Code;
using farandole::base::Deadline;
using farandole::base::Error;
using farandole::engine::Compression;
using farandole::engine::Engine;
using farandole::engine::Kind;
using farandole::engine::ReduceOp;
using farandole::transport::Sign;

struct farandole_engine {
  farandole_engine(farandole::transport::EndpointSettings endpoint_settings,
                   farandole::engine::EngineSettings engine_settings, bool needs_shm)
      : endpoint(std::move(endpoint_settings)),
        engine(std::move(engine_settings)),
        contact(endpoint.contact()),
        needs_shared_memory(needs_shm) {}

  farandole::transport::Endpoint endpoint;
  Engine engine;
  const std::string contact;
  const bool needs_shared_memory;    // "shm": rather fail than use TCP
  farandole::base::Mutex lifecycle;  // one of form, leave at a time
  std::string links GUARDED_BY(lifecycle) = "alone";
  std::string routes GUARDED_BY(lifecycle);
  uint64_t generation GUARDED_BY(lifecycle) = 0;
  bool was_in_a_world GUARDED_BY(lifecycle) = false;
};

namespace {

thread_local std::string t_last_error;
thread_local int32_t t_last_lost_rank = -1;

int remember(Code code, const std::string& what, int lost_rank) {
  t_last_error = what;
  t_last_lost_rank = lost_rank;
  return static_cast<int>(code);
}

// Runs `body`, which may throw, and gives the status for what it threw.
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return FARANDOLE_OK;
  } catch (const Error& error) {
    return remember(error.code(), error.what(), error.lost_rank());
  } catch (const std::bad_alloc&) {
    return remember(Code::kUnavailable, "out of memory", -1);
  } catch (const std::exception& error) {
    return remember(Code::kInternal, error.what(), -1);
  }
}

[[noreturn]] void refuse(const std::string& why) { throw Error(Code::kInvalidArgument, why); }

std::string text_or(const char* text, const char* otherwise) { return text == nullptr ? otherwise : text; }

std::string json_of(const farandole::collective::Knobs& knobs) {
  std::string json;
  for (const farandole::collective::KnobName& knob : farandole::collective::kKnobNames) {
    json += (json.empty() ? "{\"" : ", \"") + std::string(knob.name) + "\": " + std::to_string(knobs.*knob.knob);
  }
  return json + "}";
}

std::string json_of(const farandole::collective::Choice& choice) {
  return R"({"algorithm": ")" + std::string(choice.algorithm->name) + R"(", "reason": ")" + choice.reason + "\"}";
}

std::string json_of(const farandole::engine::TuningReport& report) {
  const auto word = [](bool value) { return value ? "true" : "false"; };
  std::string json = std::string(R"({"on": )") + word(report.on) + R"(, "done": )" + word(report.done) +
                     R"(, "found": )" + word(report.found) + R"(, "gain": )" + std::to_string(report.gain) +
                     R"(, "summary": ")" + report.summary + R"(", "knobs": )" + json_of(report.knobs) +
                     R"(, "samples": [)";
  for (size_t i = 0; i < report.samples.size(); ++i) {
    const farandole::engine::Tuner::Sample& sample = report.samples[i];
    json += std::string(i == 0 ? "" : ", ") + R"({"phase": ")" + sample.phase + R"(", "why": ")" + sample.why +
            R"(", "bytes_per_second": )" + std::to_string(sample.bytes_per_second) + R"(, "knobs": )" +
            json_of(sample.knobs) + "}";
  }
  return json + "]}";
}

// A text that the calling thread may read until it asks for the next one; NULL after an error.
template <typename Body>
const char* answered(Body&& body) {
  thread_local std::string t_answer;
  return guarded([&] { t_answer = body(); }) == FARANDOLE_OK ? t_answer.c_str() : nullptr;
}

ReduceOp op_of(const farandole_request& request) {
  if (request.op != FARANDOLE_AVERAGE && request.op != FARANDOLE_ADASUM && !farandole::reduce::op_from(request.op)) {
    refuse("there is no reduction with number " + std::to_string(request.op));
  }
  return static_cast<ReduceOp>(request.op);
}

// What a kind does not use stays at its default, so that it never makes two ranks differ.
Compression compression_of(const farandole_request& request) {
  if (request.compression > farandole::engine::kLastCompression) {
    refuse("there is no compression with number " + std::to_string(request.compression));
  }
  return static_cast<Compression>(request.compression);
}

farandole::engine::Signature signature_of(const farandole_request& request) {
  farandole::engine::Signature signature;
  if (request.kind > farandole::engine::kLastKind) {
    refuse("there is no operation with number " + std::to_string(request.kind));
  }
  signature.kind = static_cast<Kind>(request.kind);
  const auto dtype = farandole::reduce::dtype_from(request.dtype);
  if (!dtype) {
    refuse("there is no data type with number " + std::to_string(request.dtype));
  }
  signature.dtype = *dtype;
  if (signature.kind == Kind::kAllreduce || signature.kind == Kind::kReducescatter) {
    signature.op = op_of(request);
    signature.prescale = request.prescale;
    signature.postscale = request.postscale;
  }
  if (signature.kind == Kind::kAllreduce) {
    signature.compression = compression_of(request);
    signature.compression_ratio = signature.compression == Compression::kTopk ? request.compression_ratio : 0;
  }
  if (signature.kind == Kind::kBroadcast || signature.kind == Kind::kTransfer) {
    signature.root = request.root;
  }
  if (signature.kind == Kind::kTransfer) {
    signature.peer = request.peer;
  }
  if (request.ndim > 0) {
    signature.shape.assign(request.shape, request.shape + request.ndim);
  }
  if (signature.kind == Kind::kRemoveGroup && signature.shape.size() != 1) {
    refuse("removing a process set takes its id as the only dimension of the shape");
  }
  return signature;
}

// Whether a request with elements needs memory of the caller to read from, and to write to.
bool lacks_memory(const farandole::engine::Request& request) {
  switch (request.signature.kind) {
    case Kind::kAllreduce:
    case Kind::kBroadcast:
      return request.input == nullptr || request.output == nullptr;
    case Kind::kAllgather:
    case Kind::kAlltoall:
    case Kind::kReducescatter:  // a member may get no rows
      return request.input == nullptr;
    case Kind::kTransfer:
      return request.input == nullptr && request.output == nullptr;
    default:
      return false;
  }
}

farandole::engine::Request request_of(const Engine& engine, const farandole_request& from) {
  if (from.name == nullptr || *from.name == '\0') {
    refuse("a request needs a name");
  }
  farandole::engine::Request request;
  request.group = from.group;
  request.name = from.name;
  request.signature = signature_of(from);
  request.input = from.input;
  request.output = from.output;
  if (request.signature.compression != Compression::kNone) {
    request.residual = static_cast<float*>(from.residual);
  }
  if (request.signature.kind == Kind::kAlltoall && from.splits != nullptr) {
    request.splits.assign(from.splits, from.splits + engine.size_of_group(from.group));
  }
  if (request.signature.elements() > 0 && lacks_memory(request)) {
    refuse("the request '" + request.name + "' has elements but no memory");
  }
  return request;
}

void submit(farandole_engine& engine, const farandole_request* requests, size_t count, uint64_t* handles,
            bool waits_at_once) {
  std::vector<farandole::engine::Request> all;
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    all.push_back(request_of(engine.engine, requests[i]));
  }
  const std::vector<farandole::engine::Handle> given = engine.engine.submit(std::move(all), waits_at_once);
  std::ranges::copy(given, handles);
}

void wait(farandole_engine& engine, std::span<const uint64_t> handles, const Deadline& deadline) {
  using farandole::engine::Waited;
  std::shared_ptr<const farandole::engine::Completion> failed;
  const Waited waited = engine.engine.wait(handles, deadline, &failed);
  if (waited == Waited::kUnknown) {
    refuse("a handle that is waited for was not created or has been cleared");
  }
  if (waited == Waited::kTimeout) {
    throw Error(Code::kTimeout, "the request is not done yet");
  }
  if (failed != nullptr) {
    throw Error(failed->code, failed->error, failed->lost_rank);
  }
}

// Why a world of several workers over shared memory only cannot be.
void require_shared_memory(const farandole::transport::Mesh& mesh) {
  const std::vector<int>& hosts = mesh.hosts();
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != hosts[static_cast<size_t>(mesh.rank())]) {
      throw Error(Code::kUnavailable, "rank " + std::to_string(mesh.rank()) + " shares no memory with rank " +
                                          std::to_string(rank) + ", and the transport is set to shm; use auto");
    }
  }
}

// As farandole_engine_routes() gives it.
std::string routes_of(const farandole::transport::Mesh& mesh) {
  std::string lines;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    lines += (rank == mesh.rank() ? "itself" : mesh.describe_route(rank)) + "\n";
  }
  return lines;
}

std::string algorithms_as_json() {
  std::string json = "[";
  for (const auto& row : farandole::collective::algorithms()) {
    json += std::string(json.size() > 1 ? ", " : "") + R"({"name": ")" + row.name + R"(", "collective": ")" +
            row.collective + R"(", "description": ")" + row.description + R"("})";
  }
  return json + "]";
}

}  // namespace

extern "C" {

const char* farandole_version(void) { return FARANDOLE_VERSION; }

uint32_t farandole_abi_version(void) { return FARANDOLE_ABI_VERSION; }

const char* farandole_last_error(void) { return t_last_error.c_str(); }

int32_t farandole_last_lost_rank(void) { return t_last_lost_rank; }

const char* farandole_algorithms(void) {
  static const std::string kJson = algorithms_as_json();
  return kJson.c_str();
}

const char* farandole_knobs(void) {
  static const std::string kNames = json_of(farandole::collective::Knobs{});
  return kNames.c_str();
}

const char* farandole_choose_for(uint32_t kind, uint32_t op, uint64_t bytes, int32_t members, int32_t hosts,
                                 int32_t fewest) {
  return answered([&] {
    if (kind > farandole::engine::kLastKind) {
      refuse("there is no operation with number " + std::to_string(kind));
    }
    return json_of(farandole::engine::choose_for(static_cast<Kind>(kind), static_cast<ReduceOp>(op),
                                                 {members, hosts, fewest}, bytes, {}, ""));
  });
}

const char* farandole_setting_names(void) {
  return answered([] { return farandole::capi::setting_names(); });
}

void farandole_log_copy_to(int fd) { farandole::base::set_log_copy(fd); }

const char* farandole_isa(void) { return farandole::reduce::active_isa().data(); }

int farandole_engine_create(uint32_t abi_version, const farandole_setting* settings, size_t count,
                            farandole_engine** engine) {
  return guarded([&] {
    if (abi_version != FARANDOLE_ABI_VERSION) {
      refuse("the caller was made for ABI version " + std::to_string(abi_version) + ", this library has " +
             std::to_string(FARANDOLE_ABI_VERSION) + "; reinstall farandole");
    }
    farandole::capi::Settings read = farandole::capi::read_settings({settings, count});
    if (read.log_level) {
      farandole::base::set_log_level(*read.log_level);
    }
    *engine = new farandole_engine(std::move(read.endpoint), std::move(read.engine), read.needs_shared_memory);
  });
}

void farandole_engine_destroy(farandole_engine* engine) { delete engine; }

const char* farandole_engine_contact(farandole_engine* engine) { return engine->contact.c_str(); }

int farandole_engine_form(farandole_engine* engine, const farandole_world* world) {
  return guarded([&] {
    const farandole::base::MutexLock lock(engine->lifecycle);
    if (engine->was_in_a_world && world->generation <= engine->generation) {
      refuse("generation " + std::to_string(world->generation) + " is not newer than " +
             std::to_string(engine->generation) + ", in which this engine has been");
    }
    if (world->size < 1 || world->rank < 0 || world->rank >= world->size) {
      refuse("rank " + std::to_string(world->rank) + " does not lie in a world of " + std::to_string(world->size));
    }
    if (world->contacts == nullptr && world->size > 1) {
      refuse("a world of several workers needs their contacts");
    }
    engine->engine.abandon(
        {-1, Sign::kRevoked, "this generation was replaced by generation " + std::to_string(world->generation)});
    farandole::transport::World description;
    description.generation = world->generation;
    description.rank = world->rank;
    if (world->contacts == nullptr) {
      description.contacts = {engine->contact};
    } else {
      description.contacts.assign(world->contacts, world->contacts + world->size);
    }
    description.secret.assign(static_cast<const char*>(world->secret), world->secret_bytes);
    engine->was_in_a_world = true;
    engine->generation = world->generation;
    auto mesh = engine->endpoint.form(description, Deadline::after_seconds(world->timeout_seconds));
    if (engine->needs_shared_memory) {
      require_shared_memory(*mesh);
    }
    engine->links = world->size == 1 ? "alone" : mesh->describe();
    engine->routes = routes_of(*mesh);
    engine->engine.enter(std::move(mesh), engine->endpoint.arena());
  });
}

int farandole_engine_leave(farandole_engine* engine, double timeout_seconds) {
  return guarded([&] {
    const farandole::base::MutexLock lock(engine->lifecycle);
    engine->engine.leave(Deadline::after_seconds(timeout_seconds));
  });
}

int farandole_engine_revoke(farandole_engine* engine, uint64_t generation, int32_t lost_rank, int32_t certain,
                            const char* reason) {
  return guarded([&] {
    const Sign sign = certain != 0 ? Sign::kRevoked : Sign::kSilent;
    engine->endpoint.revoke(generation, {lost_rank, sign, text_or(reason, "the world was revoked")});
  });
}

int farandole_engine_health(farandole_engine* engine) {
  return guarded([&] { engine->engine.check_health(); });
}

int farandole_engine_cause(farandole_engine* engine, int32_t* lost_rank, int32_t* certain) {
  const std::optional<farandole::engine::Ending> ending = engine->engine.ending();
  if (!ending) {
    return 0;
  }
  *lost_rank = ending->lost_rank;
  *certain = ending->certain;
  return 1;
}

const char* farandole_engine_links(farandole_engine* engine) {
  const farandole::base::MutexLock lock(engine->lifecycle);
  return engine->links.c_str();
}

const char* farandole_engine_routes(farandole_engine* engine) {
  const farandole::base::MutexLock lock(engine->lifecycle);
  return engine->routes.c_str();
}

int farandole_keep_knobs(farandole_engine* engine, const char* knobs) {
  return guarded([&] {
    farandole::collective::Knobs kept = engine->engine.settings().knobs;
    farandole::capi::read_knobs(text_or(knobs, ""), kept);
    engine->engine.keep(kept);
  });
}

const char* farandole_tuning(farandole_engine* engine) {
  return answered([&] { return json_of(engine->engine.tuning()); });
}

const char* farandole_choose(farandole_engine* engine, uint32_t kind, uint32_t op, uint32_t group, uint64_t bytes) {
  return answered([&] {
    if (kind > farandole::engine::kLastKind) {
      refuse("there is no operation with number " + std::to_string(kind));
    }
    return json_of(engine->engine.choose(static_cast<Kind>(kind), static_cast<ReduceOp>(op), group, bytes));
  });
}

int farandole_submit(farandole_engine* engine, const farandole_request* requests, size_t count, uint64_t* handles) {
  return guarded([&] { submit(*engine, requests, count, handles, /*waits_at_once=*/false); });
}

int farandole_poll(farandole_engine* engine, uint64_t handle) { return engine->engine.completions().poll(handle); }

int farandole_wait(farandole_engine* engine, uint64_t handle, double timeout_seconds) {
  return farandole_wait_all(engine, &handle, 1, timeout_seconds);
}

int farandole_wait_all(farandole_engine* engine, const uint64_t* handles, size_t count, double timeout_seconds) {
  return guarded([&] { wait(*engine, {handles, count}, Deadline::after_seconds(timeout_seconds)); });
}

int farandole_run(farandole_engine* engine, const farandole_request* requests, size_t count, uint64_t* handles,
                  double timeout_seconds) {
  return guarded([&] {
    if (count > 0) {
      handles[0] = 0;
    }
    submit(*engine, requests, count, handles, /*waits_at_once=*/true);
    wait(*engine, {handles, count}, Deadline::after_seconds(timeout_seconds));
  });
}

int farandole_result(farandole_engine* engine, uint64_t handle, const void** data, const int64_t** sizes,
                     size_t* sizes_count) {
  return guarded([&] {
    if (engine->engine.completions().poll(handle) != 1) {
      refuse("handle " + std::to_string(handle) + " is not done, or was not created");
    }
    const auto completion = engine->engine.completions().find(handle);
    *data = completion->data.data();
    *sizes = completion->sizes.data();
    *sizes_count = completion->sizes.size();
  });
}

int farandole_release(farandole_engine* engine, uint64_t handle) {
  return guarded([&] {
    if (!engine->engine.completions().release({&handle, 1})) {
      refuse("handle " + std::to_string(handle) + " was not created or has been cleared");
    }
  });
}

int farandole_release_all(farandole_engine* engine, const uint64_t* handles, size_t count) {
  return guarded([&] {
    if (!engine->engine.completions().release({handles, count})) {
      refuse("one of these handles was not created or has been cleared");
    }
  });
}

void* farandole_arena_alloc(farandole_engine* engine, size_t bytes) { return engine->endpoint.arena().allocate(bytes); }

void farandole_arena_free(farandole_engine* engine, void* block) { engine->endpoint.arena().release(block); }

int farandole_get_stats(farandole_engine* engine, farandole_stats* stats) {
  const farandole::engine::Stats now = engine->engine.stats();
  stats->rounds = now.rounds;
  stats->sleeps = now.sleeps;
  static_assert(FARANDOLE_KINDS == farandole::engine::kKinds);
  for (size_t kind = 0; kind < now.kinds.size(); ++kind) {
    const farandole::engine::KindStats& from = now.kinds[kind];
    stats->kinds[kind] = {from.requests,   from.buckets,        from.bytes,
                          from.waiting_ns, from.negotiating_ns, from.moving_ns};
  }
  return FARANDOLE_OK;
}

size_t farandole_read_events(farandole_engine* engine, uint64_t* cursor, farandole_event* events, size_t capacity,
                             uint64_t* lost) {
  std::vector<farandole::engine::Event> read(capacity);
  const size_t count = engine->engine.events().read(*cursor, read, *lost);
  for (size_t i = 0; i < count; ++i) {
    const farandole::engine::Event& from = read[i];
    events[i] = {from.time_ns,
                 from.bytes,
                 static_cast<uint32_t>(from.phase),
                 static_cast<uint32_t>(from.kind),
                 from.group,
                 from.algorithm,
                 from.bucket,
                 from.name,
                 from.rank};
  }
  return count;
}

const char* farandole_event_name(farandole_engine* engine, uint32_t name) {
  return engine->engine.events().name_of(name).c_str();
}

const char* farandole_event_signature(farandole_engine* engine, uint32_t name) {
  thread_local std::string t_signature;
  t_signature = engine->engine.events().signature_of(name);
  return t_signature.c_str();
}

int farandole_wait_stall_query(farandole_engine* engine, double timeout_seconds, uint64_t* query) {
  return engine->engine.wait_stall_query(Deadline::after_seconds(timeout_seconds), *query);
}

int farandole_answer_stall_query(farandole_engine* engine, uint64_t query, const char* text) {
  return guarded([&] { engine->engine.answer_stall_query(query, text_or(text, "")); });
}

}  // extern "C"
