#include "transport/link_kind.h"

#include <gtest/gtest.h>

#include <set>

#include "transport/endpoint.h"

namespace farandole::transport {
namespace {

Contact contact(const std::string& host_key, const std::string& unix_name) {
  Contact contact;
  contact.id = random_id();
  contact.host_key = host_key;
  contact.unix_name = unix_name;
  contact.tcp = {parse_address("127.0.0.1:4567")};
  return contact;
}

const LinkKind& kind_named(std::string_view name) {
  for (const LinkKind& kind : link_kinds()) {
    if (kind.name == name) {
      return kind;
    }
  }
  throw std::runtime_error("no such kind");
}

TEST(LinkKinds, HaveNamesThatDifferAndASentence) {
  std::set<std::string_view> names;
  for (const LinkKind& kind : link_kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second);
    EXPECT_NE(kind.description, "");
  }
  EXPECT_EQ(names, (std::set<std::string_view>{"shm", "tcp"}));
}

TEST(LinkKinds, DependOnTypeOfControlConnection) {
  const Contact self = contact("a", "one");
  const Contact peer = contact("a", "two");
  EXPECT_EQ(kind_of_link(self, peer, true).name, "shm");
  EXPECT_EQ(kind_of_link(self, peer, false).name, "tcp");
  EXPECT_TRUE(kind_named("shm").shares_memory);
  EXPECT_FALSE(kind_named("tcp").shares_memory);
}

TEST(LinkKinds, SharedMemoryIsTriedIfBothHaveItAndSameHostKey) {
  const auto addresses = kind_named("shm").addresses;
  const Contact self = contact("a", "one");
  EXPECT_EQ(addresses(self, contact("a", "two")).size(), 1u);
  EXPECT_TRUE(addresses(self, contact("a", "two")).front().is_unix());
  EXPECT_TRUE(addresses(self, contact("b", "two")).empty());
  EXPECT_TRUE(addresses(self, contact("a", "")).empty());
  EXPECT_TRUE(addresses(contact("a", ""), contact("a", "two")).empty());
  EXPECT_EQ(kind_named("tcp").addresses(self, contact("b", "")).size(), 1u);
}

TEST(LinkKinds, ListenForWhatTheSettingsAllow) {
  EndpointSettings settings;
  settings.shared_memory = false;
  settings.listen_addresses = {"127.0.0.1"};
  std::vector<Listener> listeners;
  Contact self;
  for (const LinkKind& kind : link_kinds()) {
    kind.listen(settings, listeners, self);
  }
  EXPECT_EQ(listeners.size(), 1u);
  EXPECT_EQ(self.unix_name, "");
  EXPECT_EQ(self.tcp.size(), 1u);
}

}  // namespace
}  // namespace farandole::transport
