// The table of backends, and the selection among them.
#include <algorithm>
#include <array>

#include "backend/backend.h"
#include "base/error.h"

namespace farandole::backend {

// One a folder. A backend that this version lacks is a row as well, whose file gives the reason.
extern const Row kNative;
extern const Row kNccl;
extern const Row kMpi;

namespace {

constexpr std::array<const Row*, 3> kTable = {&kNative, &kNccl, &kMpi};
// MPI takes part where it is asked for, since the job must have been started by it.
constexpr std::array<const Row*, 2> kForNative = {&kNative, &kNccl};
constexpr std::array<const Row*, 2> kForMpi = {&kMpi, &kNccl};

bool takes(const Row& row, const Need& need) {
  return row.absent == nullptr && (row.capabilities.memory & bit_of(need.memory)) != 0 &&
         (row.capabilities.operations & bit_of(need.operation)) != 0 &&
         (row.capabilities.takes == nullptr || row.capabilities.takes(need));
}

}  // namespace

const char* name_of(MemoryKind memory) noexcept { return memory == MemoryKind::kHost ? "host" : "device"; }

std::span<const Row* const> rows() noexcept { return kTable; }

std::span<const Row* const> rows_for(std::string_view name) {
  if (name == kNative.name) {
    return kForNative;
  }
  if (name == kMpi.name) {
    return kForMpi;
  }
  throw base::Error(base::Code::kInvalidArgument,
                    "there is no backend '" + std::string(name) + "' to ask for: use native or mpi");
}

Selection select(std::span<const Row* const> rows, const Need& need, const collective::Group& group,
                 const std::vector<int>& hosts, bool is_formed) {
  for (const Row* const row : rows) {
    if (!takes(*row, need) || (row->capabilities.launches && !is_formed)) {
      continue;
    }
    if (row->capabilities.across_hosts) {
      return {row, false, "the first one that takes this operation in this kind of memory"};
    }
    if (collective::topology_of(group, hosts).hosts == 1) {
      return {row, false, "all members share a host, and it takes this operation in this kind of memory"};
    }
  }
  if (need.memory == MemoryKind::kDevice) {
    Need staged = need;
    staged.memory = MemoryKind::kHost;
    if (const Selection selection = select(rows, staged, group, hosts, is_formed); selection.row != nullptr) {
      return {selection.row, true, "no backend takes this operation in device memory, so it goes through host memory"};
    }
  }
  return {nullptr, false, "no backend takes this operation in this kind of memory among these members"};
}

std::string refusal_of(std::span<const Row* const> rows, const Need& need) {
  const std::string memory = std::string(name_of(need.memory)) + " memory";
  std::string text =
      "no backend of this build runs " + std::string(collective::name_of(need.operation)) + " in " + memory;
  for (const Row* const row : rows) {
    text += std::string("; ") + row->name;
    if (row->absent != nullptr) {
      text += std::string(": ") + row->absent;
    } else if ((row->capabilities.memory & bit_of(need.memory)) == 0) {
      text += " does not take " + memory;
    } else if ((row->capabilities.operations & bit_of(need.operation)) == 0) {
      text += " does not do that operation";
    } else if (row->capabilities.takes != nullptr && !row->capabilities.takes(need)) {
      text += " does not do it with this data type, reduction and factors";
    } else if (row->capabilities.launches) {
      text += " is not formed among these members";
    } else {
      text += " needs all members on one host";
    }
  }
  return text + ".";
}

}  // namespace farandole::backend
