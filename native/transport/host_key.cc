#include "transport/host_key.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include "base/hmac.h"
#include "transport/private_fd.h"

namespace farandole::transport {
namespace {

constexpr size_t kDigits = 16;
constexpr size_t kLongest = 128;  // more than these texts have

PrivateFd open_file(const char* path) {
  const ForkHold hold;
  return {::open(path, O_RDONLY | O_CLOEXEC), hold};
}

// Empty if the file cannot be read.
std::string content_of(const char* path) {
  const PrivateFd file = open_file(path);
  std::array<char, kLongest> text{};
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size()) : 0;
  return {text.data(), length > 0 ? static_cast<size_t>(length) : 0};
}

// The same of what a link points to.
std::string target_of(const char* path) {
  std::array<char, kLongest> text{};
  const ssize_t length = ::readlink(path, text.data(), text.size());
  return {text.data(), length > 0 ? static_cast<size_t>(length) : 0};
}

}  // namespace

std::string make_host_key(const std::string& setting) {
  const std::string machine = content_of("/proc/sys/kernel/random/boot_id");
  const std::string network = target_of("/proc/self/ns/net");
  const std::string text = machine + network + '\n' + setting;
  const base::Digest digest = base::sha256({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  return base::to_hex(digest).substr(0, kDigits);
}

}  // namespace farandole::transport
