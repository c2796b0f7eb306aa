#include "transport/contact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace farandole::transport {
namespace {

TEST(ContactTest, IsSameAfterParsing) {
  Contact contact;
  contact.id = random_id();
  contact.host_key = "a host; with 100% = odd, name\n";
  contact.unix_name = "farandole-1";
  contact.tcp = {ip_address("127.0.0.1", 4567), ip_address("fd00::1", 4568)};
  const std::string text = contact.to_text();
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return std::isgraph(c) != 0 && c != ','; })) << text;

  const Contact read = parse_contact(text);
  EXPECT_EQ(read.id, contact.id);
  EXPECT_EQ(read.host_key, contact.host_key);
  EXPECT_EQ(read.unix_name, contact.unix_name);
  ASSERT_EQ(read.tcp.size(), 2u);
  EXPECT_EQ(to_text(read.tcp[0]), "127.0.0.1:4567");
  EXPECT_EQ(to_text(read.tcp[1]), "[fd00::1]:4568");
  EXPECT_EQ(read.to_text(), text);
}

TEST(ContactTest, SkipsFieldsOfALaterVersion) {
  const Contact contact = parse_contact("v1;id=00ff;quic=1.2.3.4:5;flag");
  EXPECT_EQ(contact.id, "00ff");
  EXPECT_TRUE(contact.unix_name.empty());
  EXPECT_TRUE(contact.tcp.empty());
}

TEST(ContactTest, RefusesMalformedContacts) {
  for (const char* text :
       {"", "v1", "v2;id=00", "id=00", "v1;id=", "v1;id=00;tcp=", "v1;id=00;tcp=1.2.3.4", "v1;id=00;tcp=1.2.3.4:0",
        "v1;id=00;tcp=1.2.3.4:70000", "v1;id=00;tcp=1.2.3.4:5x", "v1;id=00;tcp=localhost:5", "v1;id=00;tcp=[::1:5"}) {
    EXPECT_THROW(parse_contact(text), base::Error) << text;
  }
}

TEST(ContactTest, IdsAreUnique) {
  EXPECT_EQ(random_id().size(), 32u);
  EXPECT_NE(random_id(), random_id());
}

}  // namespace
}  // namespace farandole::transport
