// Connections of processes that are not, or not yet, workers of the world that forms.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/error.h"
#include "transport/attempt.h"
#include "transport/contact.h"
#include "transport/control.h"
#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

using base::Code;
using base::Deadline;
using base::Error;

// A connection that speaks as the test wants it to.
class Intruder {
 public:
  explicit Intruder(const Address& address) : fd_(start_connecting(address).fd) {
    pollfd polled = {.fd = fd_.get(), .events = POLLOUT, .revents = 0};
    EXPECT_EQ(::poll(&polled, 1, 5000), 1);
  }

  // As much as the other side takes.
  void say(const base::Bytes& bytes) {
    [[maybe_unused]] const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // True when the other side closed, within a time.
  bool is_shown_out(double seconds) {
    std::array<std::byte, 256> rubbish;
    return eventually(
        [&] {
          const ssize_t got = ::recv(fd_.get(), rubbish.data(), rubbish.size(), MSG_DONTWAIT);
          return got == 0 || (got < 0 && errno != EAGAIN);
        },
        seconds);
  }
  PrivateFd take_fd() { return std::move(fd_); }

 private:
  PrivateFd fd_;
};

Hello hello_for(const World& world, int from, int to) {
  std::string all;
  for (const std::string& contact : world.contacts) {
    all += contact + '\n';
  }
  Hello hello;
  hello.generation = world.generation;
  hello.from = from;
  hello.to = to;
  hello.world = base::sha256({reinterpret_cast<const std::byte*>(all.data()), all.size()});
  return hello;
}

Address door_of(const Endpoint& endpoint) {
  const Contact contact = parse_contact(endpoint.contact());
  return contact.unix_name.empty() ? contact.tcp.front() : unix_address(contact.unix_name);
}

// Proves itself as a worker would, and returns the connection.
PrivateFd prove_as(const World& world, int from, int to, Channel channel, const Address& door) {
  Hello hello = hello_for(world, from, to);
  hello.channel = channel;
  Attempt attempt(Intruder(door).take_fd(), false, Handshake::connecting(world.secret, hello),
                  Deadline::after_seconds(kPatience));
  while (!attempt.failed() && !attempt.proven()) {
    pollfd polled = {.fd = attempt.fd(), .events = attempt.events(), .revents = 0};
    ::poll(&polled, 1, 100);
    attempt.advance();
    if (attempt.convinced()) {
      attempt.prove();
    }
  }
  EXPECT_TRUE(attempt.proven());
  return attempt.take_fd();
}

// The outcome of a worker's form().
struct Outcome {
  Code code = Code::kOk;
  int lost_rank = -1;
  std::string text;
};

Outcome try_to_form(Endpoint& endpoint, const World& world, double seconds) {
  try {
    endpoint.form(world, Deadline::after_seconds(seconds));
    return {};
  } catch (const Error& error) {
    return {error.code(), error.lost_rank(), error.what()};
  }
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Tries with more and more time, until all is as it should be: workers that get no processor in the time they have to
// form cannot say which workers they have met, only which they have not. Gives whether it was, at last.
bool with_patience(const std::function<bool(double seconds, uint64_t generation)>& attempt) {
  uint64_t generation = 0;
  for (const double seconds : {1.0, 4.0, 16.0}) {
    if (attempt(seconds, ++generation)) {
      return true;
    }
  }
  return false;
}

class Strangers : public ::testing::TestWithParam<Wiring> {};

TEST_P(Strangers, AreRefusedAndDoNoHarm) {
  Workers workers(GetParam(), 2);
  const World world = workers.world({0, 1}, 0, 1);
  const Address door = door_of(workers.endpoint(0));

  std::vector<Intruder> intruders;
  const auto add = [&](const base::Bytes& words) {
    intruders.emplace_back(door);
    intruders.back().say(words);
  };
  const auto replayed = Handshake::connecting(world.secret, hello_for(world, 1, 0)).first();
  add(base::Bytes(96, std::byte{0xff}));                            // rubbish
  add(base::Bytes(size_t{1} << 20, std::byte{'A'}));                // too much
  add(Handshake::connecting("x", hello_for(world, 5, 0)).first());  // a rank that there is not
  add(Handshake::connecting("x", hello_for(world, 0, 0)).first());  // our own
  World other = world;
  other.generation = 2;
  add(Handshake::connecting(world.secret, hello_for(other, 1, 0)).first());  // another generation
  const size_t shown_out = intruders.size();
  add({});               // silence
  add(base::Bytes(10));  // half a hello
  add(replayed);         // a hello without a proof
  std::atomic<bool> all_out{false};

  const auto began = base::now_ns();
  in_threads(2, [&](int rank) {
    if (rank == 1) {
      // The worker comes when the others have been dealt with.
      for (size_t i = 0; i < shown_out; ++i) {
        EXPECT_TRUE(intruders[i].is_shown_out(kPatience)) << "intruder " << i;
      }
      all_out = true;
    }
    const auto mesh = workers.endpoint(rank).form(workers.world({0, 1}, rank, 1), Deadline::after_seconds(kPatience));
    EXPECT_TRUE(all_out);
    mesh->say_goodbye();
  });
  std::printf("formed among strangers after %.1f ms\n", static_cast<double>(base::now_ns() - began) * 1e-6);
  for (Intruder& intruder : intruders) {
    EXPECT_TRUE(intruder.is_shown_out(kPatience));
  }
}

TEST_P(Strangers, OldestIsDroppedIfThereAreTooMany) {
  Workers workers(GetParam(), 2);
  const Address door = door_of(workers.endpoint(0));
  std::vector<Intruder> crowd;
  for (int i = 0; i < 300; ++i) {
    crowd.emplace_back(door);
  }
  const auto meshes = workers.form(1);
  exchange_bytes(meshes, 3'001);
}

TEST_P(Strangers, WithAnotherSecretAreNamed) {
  Workers workers(GetParam(), 2);
  std::vector<Outcome> outcomes(2);
  EXPECT_TRUE(with_patience([&](double seconds, uint64_t generation) {
    in_threads(2, [&](int rank) {
      World world = workers.world({0, 1}, rank, generation);
      world.secret += rank == 1 ? "!" : "";
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      outcome = try_to_form(workers.endpoint(rank), world, rank == 0 ? seconds : 0.8 * seconds);
      EXPECT_EQ(outcome.code, Code::kTimeout);
      EXPECT_EQ(outcome.lost_rank, 1 - rank);
    });
    return contains(outcomes[0].text, "authentication failed") && contains(outcomes[1].text, "authentication failed");
  })) << outcomes[0].text
      << "; " << outcomes[1].text;
}

TEST_P(Strangers, WithAnotherWorldAreNamed) {
  Workers workers(GetParam(), 3);
  std::vector<Outcome> outcomes(2);
  EXPECT_TRUE(with_patience([&](double seconds, uint64_t generation) {
    in_threads(2, [&](int rank) {
      const auto members = rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
      outcomes[static_cast<size_t>(rank)] =
          try_to_form(workers.endpoint(rank), workers.world(members, rank, generation), seconds);
    });
    EXPECT_EQ(outcomes[0].code, Code::kTimeout);
    EXPECT_EQ(outcomes[1].code, Code::kTimeout);
    return contains(outcomes[0].text, "another list of workers");
  })) << outcomes[0].text;
}

TEST_P(Strangers, MissingWorkersAreNamedByAll) {
  Workers workers(GetParam(), 4);
  std::vector<Outcome> outcomes(2);
  EXPECT_TRUE(with_patience([&](double seconds, uint64_t generation) {
    in_threads(2, [&](int i) {
      const int rank = 2 * i;
      outcomes[static_cast<size_t>(i)] =
          try_to_form(workers.endpoint(rank), workers.world({0, 1, 2, 3}, rank, generation), seconds);
      EXPECT_EQ(outcomes[static_cast<size_t>(i)].code, Code::kTimeout);
    });
    return std::ranges::all_of(outcomes, [](const Outcome& outcome) {
      return outcome.lost_rank == 1 && contains(outcome.text, "ranks 1, 3 did not connect");
    });
  })) << outcomes[0].text
      << "; " << outcomes[1].text;
}

// The other one is late in the last generation; it must be waited for, and its old connections do no harm.
TEST_P(Strangers, EarlyWorkerIsMetInItsGeneration) {
  Workers workers(GetParam(), 2);
  in_threads(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_EQ(try_to_form(workers.endpoint(0), workers.world({0, 1}, 0, 1), 0.5).code, Code::kTimeout);
    }
    const auto mesh = workers.endpoint(rank).form(workers.world({0, 1}, rank, 2), Deadline::after_seconds(kPatience));
    EXPECT_EQ(mesh->generation(), 2u);
    mesh->say_goodbye();
  });
  in_threads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_EQ(try_to_form(workers.endpoint(1), workers.world({0, 1}, 1, 3), 0.5).code, Code::kTimeout);
    }
    const auto mesh = workers.endpoint(rank).form(workers.world({0, 1}, rank, 4), Deadline::after_seconds(kPatience));
    EXPECT_EQ(mesh->generation(), 4u);
    mesh->say_goodbye();
  });
}

// For example, it has found out that another worker is lost before the other side's welcome came.
TEST_P(Strangers, WorkerThatClosesBeforeItKnowsThatItIsProvenIsNotLost) {
  Workers workers(GetParam(), 2);
  in_threads(2, [&](int rank) {
    const World world = workers.world({0, 1}, rank, 1);
    if (rank == 1) {
      prove_as(world, 1, 0, Channel::kControl, door_of(workers.endpoint(0)));
    }
    workers.endpoint(rank).form(world, Deadline::after_seconds(kPatience))->say_goodbye();
  });
}

INSTANTIATE_TEST_SUITE_P(All, Strangers, ::testing::Values(Wiring::kShm, Wiring::kTcp4, Wiring::kTcp6),
                         [](const auto& info) { return name_of(info.param); });

TEST(Silence, UnprovenConnectionMayBeSilentForSomeSeconds) {
  Workers workers(Wiring::kShm, 2);
  Intruder silent(door_of(workers.endpoint(0)));
  in_threads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_TRUE(silent.is_shown_out(kPatience / 2));
    }
    workers.endpoint(rank).form(workers.world({0, 1}, rank, 1), Deadline::after_seconds(kPatience))->say_goodbye();
  });
}

// A worker that was proven and closes is lost, and those that have met it say so alike.
TEST(Proven, ProvenWorkerIsLostWhenItCloses) {
  Workers workers(Wiring::kTcp4, 3);
  in_threads(3, [&](int rank) {
    const World world = workers.world({0, 1, 2}, rank, 1);
    if (rank < 2) {
      const Outcome outcome = try_to_form(workers.endpoint(rank), world, kPatience);
      EXPECT_EQ(outcome.code, Code::kWorkerLost) << outcome.text;
      EXPECT_EQ(outcome.lost_rank, 2);
      EXPECT_EQ(outcome.text, describe_loss(2, Sign::kClosed));
      return;
    }
    // Only rank 1 gets all that it needs.
    ControlChannel first(prove_as(world, 2, 0, Channel::kControl, door_of(workers.endpoint(0))));
    first.send(ControlFrame(ControlKind::kHeartbeat));
    const PrivateFd second = prove_as(world, 2, 1, Channel::kControl, door_of(workers.endpoint(1)));
    const PrivateFd data = prove_as(world, 2, 1, Channel::kData, door_of(workers.endpoint(1)));
  });
}

// As between two network namespaces: the Unix socket is refused at once, and the network serves.
TEST(Fallback, ToTcpIfUnixSocketCannotBeReached) {
  Workers workers(Wiring::kTwoHosts, 3);  // 0 and 2 share a host and listen on TCP too
  std::vector<std::unique_ptr<Mesh>> meshes(2);
  in_threads(2, [&](int rank) {
    World world = workers.world({0, 2}, rank, 1);
    Contact moved = parse_contact(world.contacts[0]);
    moved.unix_name += "-elsewhere";
    world.contacts[0] = moved.to_text();
    meshes[static_cast<size_t>(rank)] = workers.endpoint(2 * rank).form(world, Deadline::after_seconds(kPatience));
  });
  ASSERT_TRUE(meshes[0] && meshes[1]);
  EXPECT_EQ(meshes[0]->describe(), "tcp");
  EXPECT_EQ(meshes[1]->hosts(), std::vector<int>({0, 1}));
  exchange_bytes(meshes, 3'001);
}

// Of several addresses, the one that answers is taken; the others may refuse, or lead to another process.
TEST(Fallback, ToAddressThatAnswers) {
  Workers workers(Wiring::kTcp4, 2);
  const Listener deaf = listen_on(ip_address("127.0.0.1", 0));
  std::vector<std::unique_ptr<Mesh>> meshes(2);
  in_threads(2, [&](int rank) {
    World world = workers.world({0, 1}, rank, 1);
    Contact contact = parse_contact(world.contacts[0]);
    contact.tcp.insert(contact.tcp.begin(), {ip_address("127.0.0.1", 1), deaf.address});
    contact.tcp.push_back(ip_address("::1", 1));
    world.contacts[0] = contact.to_text();
    meshes[static_cast<size_t>(rank)] = workers.endpoint(rank).form(world, Deadline::after_seconds(kPatience));
  });
  ASSERT_TRUE(meshes[0] && meshes[1]);
  exchange_bytes(meshes, 3'001);
}

}  // namespace
}  // namespace farandole::transport::testing
