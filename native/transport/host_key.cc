#include "transport/host_key.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/hmac.h"

namespace farandole::transport {
namespace {

constexpr size_t kDigits = 16;

// Empty if the file cannot be read.
std::string content_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string make_host_key(const std::string& setting) {
  std::error_code unknown;
  const std::string machine = content_of("/proc/sys/kernel/random/boot_id");
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", unknown).string();
  const std::string text = machine + network + '\n' + setting;
  const base::Digest digest = base::sha256({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  return base::to_hex(digest).substr(0, kDigits);
}

}  // namespace farandole::transport
