// Workers with several addresses, of several kinds: which of them carry a pair's connections.
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "transport/contact.h"
#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

using Addresses = std::vector<std::string>;

// One endpoint for each list of addresses, TCP only; and their world.
class Reachable {
 public:
  explicit Reachable(const std::vector<Addresses>& lists) {
    for (const Addresses& addresses : lists) {
      EndpointSettings settings = settings_for(Wiring::kTcp4);
      settings.listen_addresses = addresses;
      endpoints_.push_back(std::make_unique<Endpoint>(settings));
      contacts_.push_back(parse_contact(endpoints_.back()->contact()));
    }
  }

  const Contact& contact(size_t rank) const { return contacts_[rank]; }

  std::vector<std::unique_ptr<Mesh>> form() {
    std::vector<std::unique_ptr<Mesh>> meshes(endpoints_.size());
    in_threads(static_cast<int>(endpoints_.size()), [&](int rank) {
      World world;
      world.generation = 1;
      world.rank = rank;
      world.secret = "the secret of a test";
      for (const auto& endpoint : endpoints_) {
        world.contacts.push_back(endpoint->contact());
      }
      const auto at = static_cast<size_t>(rank);
      meshes[at] = endpoints_[at]->form(world, base::Deadline::after_seconds(kPatience));
    });
    return meshes;
  }

 private:
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<Contact> contacts_;
};

// How many sockets of this process are connected to an address.
int connections_to(const Address& address) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    Address peer;
    peer.length = sizeof peer.storage;
    count += ::getpeername(fd, peer.get(), &peer.length) == 0 && to_text(peer) == to_text(address) ? 1 : 0;
  }
  return count;
}

// The address of its link that an interface of this machine has, such as fe80::1%eth0; "" if none has one.
std::string own_link_local_address() {
  ifaddrs* all = nullptr;
  std::string found;
  EXPECT_EQ(::getifaddrs(&all), 0);
  for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next) {
    if (one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET6) {
      Address address;
      address.length = sizeof(sockaddr_in6);
      std::memcpy(&address.storage, one->ifa_addr, address.length);
      found = is_link_local(address) ? host_of(address) : "";
    }
  }
  ::freeifaddrs(all);
  return found;
}

// Two hosts with two networks each, two workers on each host, which list their addresses rotated by local rank.
TEST(Addresses, AreTriedInOrderOfTheirWorker) {
  const Addresses first = {"127.0.0.2", "127.0.0.3"};
  const Addresses second = {"127.0.0.3", "127.0.0.2"};
  Reachable workers({first, second, first, second});
  const auto meshes = workers.form();
  for (size_t rank = 0; rank < meshes.size(); ++rank) {
    for (size_t lower = 0; lower < rank; ++lower) {
      const std::string chosen = host_of(workers.contact(lower).tcp.front());
      const std::string route = meshes[rank]->describe_route(static_cast<int>(lower));
      EXPECT_TRUE(route.ends_with(" -> " + chosen)) << "rank " << rank << " to " << lower << ": " << route;
      const std::string back = meshes[lower]->describe_route(static_cast<int>(rank));
      EXPECT_TRUE(back.starts_with(chosen + " -> ")) << "rank " << lower << " to " << rank << ": " << back;
    }
  }
  exchange_bytes(meshes, 3'001);
}

TEST(Addresses, SameAddressIsUsedForBothConnections) {
  Reachable workers({{"127.0.0.2", "127.0.0.3"}, {"127.0.0.1"}});
  const auto meshes = workers.form();
  ASSERT_TRUE(meshes[0] && meshes[1]);
  EXPECT_EQ(connections_to(workers.contact(0).tcp[0]), 2);
  EXPECT_EQ(connections_to(workers.contact(0).tcp[1]), 0);
}

TEST(Addresses, BothFamiliesWork) {
  Reachable workers({{"::1", "127.0.0.1"}, {"127.0.0.1"}, {"127.0.0.1", "[::1]"}});
  const auto meshes = workers.form();
  ASSERT_TRUE(meshes[0] && meshes[1] && meshes[2]);
  EXPECT_EQ(meshes[1]->describe_route(0), "::1 -> ::1");
  EXPECT_EQ(meshes[2]->describe_route(1), "127.0.0.1 -> 127.0.0.1");
  exchange_bytes(meshes, 3'001);
}

TEST(Addresses, LinkLocalAddressWorksOnAnyInterfaceOfItsLink) {
  const std::string address = own_link_local_address();
  if (address.empty()) {
    GTEST_SKIP() << "no interface of this machine has an IPv6 address of its link";
  }
  Reachable workers({{address}, {address}});
  EXPECT_TRUE(lacks_scope(workers.contact(0).tcp.front())) << "an interface's name means nothing elsewhere";
  const auto meshes = workers.form();
  ASSERT_TRUE(meshes[0] && meshes[1]);
  EXPECT_EQ(meshes[1]->describe_route(0), address + " -> " + address);
  exchange_bytes(meshes, 3'001);
}

TEST(Addresses, AreInContactInTheirOrder) {
  const Reachable workers({{"127.0.0.3", "::1", "127.0.0.2"}});
  const auto& tcp = workers.contact(0).tcp;
  ASSERT_EQ(tcp.size(), 3u);
  EXPECT_EQ(host_of(tcp[0]), "127.0.0.3");
  EXPECT_EQ(host_of(tcp[1]), "::1");
  EXPECT_EQ(host_of(tcp[2]), "127.0.0.2");
}

TEST(Addresses, WildcardAddressesAreRecognized) {
  for (const char* address : {"0.0.0.0", "0", "::", "[::]", "0:0::0"}) {
    EXPECT_TRUE(is_wildcard(ip_address(address, 0))) << address;
  }
  for (const char* address : {"127.0.0.1", "::1", "[fd00::1]", "fe80::1"}) {
    EXPECT_FALSE(is_wildcard(ip_address(address, 0))) << address;
  }
}

TEST(Addresses, LinkLocalAddressIsSentWithoutScope) {
  EXPECT_EQ(to_text(without_scope(ip_address("fe80::1%lo", 5))), "[fe80::1]:5");
  EXPECT_EQ(to_text(without_scope(ip_address("fd00::1", 5))), "[fd00::1]:5");
  const auto ordinary = as_reached_from_here(ip_address("fd00::1", 5));
  ASSERT_EQ(ordinary.size(), 1u);
  EXPECT_EQ(to_text(ordinary.front()), "[fd00::1]:5");
  for (const Address& address : as_reached_from_here(ip_address("fe80::1", 5))) {
    EXPECT_FALSE(lacks_scope(address));
  }
}

TEST(Addresses, TextIsSameAfterParsing) {
  for (const char* address : {"127.0.0.1:5", "[::1]:5", "[fd00::1]:5", "[fe80::1%lo]:5"}) {
    EXPECT_EQ(to_text(parse_address(address)), address);
  }
  EXPECT_EQ(host_of(parse_address("[fe80::1%lo]:5")), "fe80::1%lo");
  EXPECT_EQ(host_of(unix_address("a name")), "?");
}

}  // namespace
}  // namespace farandole::transport::testing
