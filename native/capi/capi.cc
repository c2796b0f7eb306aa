// The C ABI: versions, errors, an engine and its worlds, its arena.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "capi/boundary.h"
#include "capi/settings.h"

using farandole::base::Code;
using farandole::base::Deadline;
using farandole::base::Error;
using farandole::capi::answered;
using farandole::capi::guarded;
using farandole::capi::refuse;
using farandole::capi::refuse_in_callback;
using farandole::capi::text_or;
using farandole::transport::Sign;

namespace {

thread_local std::string t_last_error;
thread_local int32_t t_last_lost_rank = -1;

// Returns why there cannot be a world of several workers over shared memory alone.
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

}  // namespace

int farandole::capi::remember(Code code, const std::string& what, int lost_rank) {
  t_last_error = what;
  t_last_lost_rank = lost_rank;
  return static_cast<int>(code);
}

extern "C" {

const char* farandole_version(void) { return FARANDOLE_VERSION; }

uint32_t farandole_abi_version(void) { return FARANDOLE_ABI_VERSION; }

const char* farandole_last_error(void) { return t_last_error.c_str(); }

int32_t farandole_last_lost_rank(void) { return t_last_lost_rank; }

const char* farandole_setting_names(void) {
  return answered([] { return farandole::capi::setting_names(); });
}

void farandole_log_copy_to(int fd) { farandole::base::set_log_copy(fd); }

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
    for (const farandole::backend::Row* const row : read.engine.backends) {
      if (row->start != nullptr) {
        row->start(read.start);
      }
    }
    *engine = new farandole_engine(std::move(read.endpoint), std::move(read.engine), read.needs_shared_memory);
  });
}

void farandole_engine_destroy(farandole_engine* engine) { delete engine; }

const char* farandole_engine_contact(farandole_engine* engine) { return engine->contact.c_str(); }

int farandole_engine_form(farandole_engine* engine, const farandole_world* world) {
  return guarded([&] {
    refuse_in_callback("form a world");
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
    refuse_in_callback("leave the world");
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

size_t farandole_group_ranks(farandole_engine* engine, uint32_t group, int32_t* ranks, size_t capacity) {
  const std::vector<int> members = engine->engine.ranks_of_group(group);
  std::copy_n(members.begin(), std::min(capacity, members.size()), ranks);
  return members.size();
}

void* farandole_arena_alloc(farandole_engine* engine, size_t bytes) { return engine->endpoint.arena().allocate(bytes); }

void farandole_arena_free(farandole_engine* engine, void* block) { engine->endpoint.arena().release(block); }

}  // extern "C"
