#include "transport/hosts.h"

#include <charconv>
#include <iterator>

namespace farandole::transport {
namespace {

// Takes a rank from the beginning of the text.
std::optional<int> take_rank(std::string_view& text, int size) {
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || rank < 0 || rank >= size) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return rank;
}

bool take(std::string_view& text, char expected) {
  if (!text.starts_with(expected)) {
    return false;
  }
  text.remove_prefix(1);
  return true;
}

bool take_entry(std::string_view& text, int size, HostCorrections& corrections) {
  const auto first = take_rank(text, size);
  const auto last = take(text, '-') ? take_rank(text, size) : first;
  const auto lowest = take(text, ':') ? take_rank(text, size) : std::nullopt;
  if (!first || !last || !lowest || *lowest > *first || *first > *last) {
    return false;
  }
  for (int rank = *first; rank <= *last; ++rank) {
    corrections.insert_or_assign(rank, *lowest);
  }
  return true;
}

}  // namespace

std::vector<int> hosts_of(std::span<const Contact> contacts) {
  std::map<std::string_view, int> lowest_by_key;
  std::vector<int> hosts;
  for (const Contact& contact : contacts) {
    const int rank = static_cast<int>(hosts.size());
    hosts.push_back(contact.unix_name.empty() ? rank : lowest_by_key.try_emplace(contact.host_key, rank).first->second);
  }
  return hosts;
}

std::string to_text(const HostCorrections& corrections) {
  std::string text;
  for (auto first = corrections.begin(); first != corrections.end();) {
    auto last = first;
    auto next = std::next(first);
    while (next != corrections.end() && next->first == last->first + 1 && next->second == first->second) {
      last = next++;
    }
    text += (text.empty() ? "" : ",") + std::to_string(first->first);
    text += first == last ? "" : "-" + std::to_string(last->first);
    text += ":" + std::to_string(first->second);
    first = next;
  }
  return text;
}

std::optional<HostCorrections> parse_host_corrections(std::string_view text, int size) {
  HostCorrections corrections;
  if (text.empty()) {
    return corrections;
  }
  do {
    if (!take_entry(text, size, corrections)) {
      return std::nullopt;
    }
  } while (take(text, ','));
  return text.empty() ? std::optional(corrections) : std::nullopt;
}

}  // namespace farandole::transport
