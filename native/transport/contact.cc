#include "transport/contact.h"

#include <array>
#include <cctype>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/hmac.h"

namespace farandole::transport {
namespace {

constexpr std::string_view kVersion = "v1";
constexpr std::string_view kHexDigits = "0123456789abcdef";

// Host keys are free text: whatever could end a field is written as %XX.
std::string escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (std::isalnum(code) != 0 || c == '.' || c == '_' || c == '-') {
      escaped += c;
    } else {
      escaped += '%';
      escaped += kHexDigits[code >> 4];
      escaped += kHexDigits[code & 15];
    }
  }
  return escaped;
}

std::string unescape(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    unsigned code = 0;
    if (text[0] == '%' && text.size() >= 3 &&
        std::from_chars(text.data() + 1, text.data() + 3, code, 16).ptr == text.data() + 3) {
      plain += static_cast<char>(code);
      text.remove_prefix(3);
    } else {
      plain += text[0];
      text.remove_prefix(1);
    }
  }
  return plain;
}

void set_field(Contact& contact, std::string_view name, std::string_view value) {
  if (name == "id") {
    contact.id = value;
  } else if (name == "host") {
    contact.host_key = unescape(value);
  } else if (name == "unix") {
    contact.unix_name = value;
  } else if (name == "tcp") {
    contact.tcp.push_back(parse_address(std::string(value)));
  }
  // Unknown fields belong to a later version, and are not needed.
}

}  // namespace

std::string Contact::to_text() const {
  std::string text = std::string(kVersion) + ";id=" + id;
  if (!host_key.empty()) {
    text += ";host=" + escape(host_key);
  }
  if (!unix_name.empty()) {
    text += ";unix=" + unix_name;
  }
  for (const Address& address : tcp) {
    text += ";tcp=" + transport::to_text(without_scope(address));
  }
  return text;
}

Contact parse_contact(const std::string& text) {
  Contact contact;
  std::string_view rest = text;
  std::string_view version = rest.substr(0, rest.find(';'));
  rest.remove_prefix(version.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view field = rest.substr(0, rest.find(';'));
    rest.remove_prefix(field.size());
    const size_t equals = field.find('=');
    if (equals != std::string_view::npos) {
      set_field(contact, field.substr(0, equals), field.substr(equals + 1));
    }
  }
  if (version != kVersion || contact.id.empty()) {
    throw base::Error(base::Code::kInvalidArgument,
                      "'" + text + "' is not the contact of a worker; pass on what its engine gave, unchanged");
  }
  return contact;
}

std::string random_id() {
  std::array<std::byte, 16> raw;
  base::fill_random(raw);
  return base::to_hex(raw);
}

}  // namespace farandole::transport
