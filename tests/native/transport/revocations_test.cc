// Worlds that are revoked before they have formed. No deadline ends these formings: only their revocation does.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "transport/contact.h"
#include "transport/worlds.h"

namespace farandole::transport::testing {
namespace {

using base::Code;
using base::Deadline;
using base::Error;

constexpr double kForEver = 1e9;

Cause loss_of(int rank) { return {.rank = rank, .sign = Sign::kSilent, .text = describe_loss(rank, Sign::kSilent)}; }

// Forms a world in a thread of its own, and keeps what came of it.
class Candidate {
 public:
  Candidate(Endpoint& endpoint, World world)
      : thread_([this, &endpoint, world = std::move(world)] {
          try {
            mesh_ = endpoint.form(world, Deadline::after_seconds(kForEver));
          } catch (const Error& error) {
            error_ = error;
          }
        }) {}
  ~Candidate() { wait(); }
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  void expect_ended_by(const Cause& cause) {
    wait();
    ASSERT_TRUE(error_.has_value());
    EXPECT_EQ(error_->code(), Code::kWorkerLost);
    EXPECT_EQ(error_->what(), cause.text);
    EXPECT_EQ(error_->lost_rank(), cause.rank);
  }
  // The world may have formed just before: then it has ended for the same cause. Or a worker has given up
  // when somebody was connected to it already, but not it to him, so that it could not say why.
  void expect_ended_or_ending_by(const Cause& cause) {
    wait();
    if (mesh_ == nullptr) {
      ASSERT_TRUE(error_.has_value());
      EXPECT_EQ(error_->code(), Code::kWorkerLost);
      const std::string text = error_->what();
      EXPECT_TRUE(text == cause.text || text.ends_with("its process ended without saying goodbye")) << text;
      return;
    }
    EXPECT_TRUE(eventually([this] { return mesh_->world_status().revoked(); }));
    EXPECT_EQ(mesh_->world_status().cause()->text, cause.text);
    mesh_.reset();  // before the next world forms
  }
  std::unique_ptr<Mesh> take_mesh() {
    wait();
    return std::move(mesh_);
  }

 private:
  void wait() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  std::unique_ptr<Mesh> mesh_;
  std::optional<Error> error_;
  std::thread thread_;  // last: it starts when all else is there
};

class Revocations : public ::testing::TestWithParam<std::tuple<Wiring, int>> {
 protected:
  Revocations() : workers_(std::get<0>(GetParam()), size() + 1), members_(static_cast<size_t>(size())) {
    std::iota(members_.begin(), members_.end(), 0);
  }
  static int size() { return std::get<1>(GetParam()); }

  std::unique_ptr<Candidate> start(int rank, uint64_t generation) {
    return std::make_unique<Candidate>(workers_.endpoint(rank), workers_.world(members_, rank, generation));
  }
  // All but one, which never comes.
  std::vector<std::unique_ptr<Candidate>> start_without(int missing, uint64_t generation) {
    std::vector<std::unique_ptr<Candidate>> candidates;
    for (const int rank : members_) {
      if (rank != missing) {
        candidates.push_back(start(rank, generation));
      }
    }
    return candidates;
  }
  void revoke_without(int missing, uint64_t generation, const Cause& cause) {
    for (const int rank : members_) {
      if (rank != missing) {
        workers_.endpoint(rank).revoke(generation, cause);
      }
    }
  }
  void expect_to_form(uint64_t generation) {
    const auto meshes = workers_.form(members_, generation);
    exchange_bytes(meshes, 3'001);
    for (const auto& mesh : meshes) {
      EXPECT_FALSE(mesh->world_status().revoked());
      mesh->say_goodbye();
    }
  }

  Workers workers_;
  std::vector<int> members_;
};

TEST_P(Revocations, EndWaitForRankThatNeverComes) {
  uint64_t generation = 0;
  for (const int missing : {0, size() / 2, size() - 1}) {
    for (const int after_ms : {0, 30}) {
      const auto candidates = start_without(missing, ++generation);
      std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
      revoke_without(missing, generation, loss_of(missing));
      for (const auto& candidate : candidates) {
        candidate->expect_ended_by(loss_of(missing));
      }
    }
    expect_to_form(++generation);
  }
}

TEST_P(Revocations, EndFormationAtAnyTime) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> up_to_us(0, 1'000 * size());
  uint64_t generation = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const auto candidates = start_without(-1, ++generation);
    std::vector<int> delays_us(members_.size());
    std::ranges::generate(delays_us, [&] { return up_to_us(random); });
    in_threads(size(), [&](int rank) {
      std::this_thread::sleep_for(std::chrono::microseconds(delays_us[static_cast<size_t>(rank)]));
      workers_.endpoint(rank).revoke(generation, loss_of(0));
    });
    for (const auto& candidate : candidates) {
      candidate->expect_ended_or_ending_by(loss_of(0));
    }
  }
  expect_to_form(++generation);
}

TEST_P(Revocations, OfEarlierWorldHaveNoEffect) {
  expect_to_form(1);
  const int last = size() - 1;
  auto candidates = start_without(last, 2);
  revoke_without(last, 1, loss_of(last));
  revoke_without(last, 0, loss_of(last));
  candidates.push_back(start(last, 2));
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (const auto& candidate : candidates) {
    meshes.push_back(candidate->take_mesh());
    ASSERT_NE(meshes.back(), nullptr);
    EXPECT_FALSE(meshes.back()->world_status().revoked());
  }
}

TEST_P(Revocations, OfALaterWorldAreKeptForIt) {
  const int last = size() - 1;
  revoke_without(-1, 2, loss_of(last));
  expect_to_form(1);
  revoke_without(-1, 3, loss_of(last));
  const auto candidates = start_without(-1, 3);
  for (const auto& candidate : candidates) {
    candidate->expect_ended_by(loss_of(last));
  }
  expect_to_form(4);
}

TEST_P(Revocations, OfAWorldThatHasFormedEndIt) {
  const auto meshes = workers_.form(members_, 1);
  workers_.endpoint(size() - 1).revoke(1, loss_of(0));
  workers_.endpoint(size() - 1).revoke(1, loss_of(1));  // the first one counts
  for (const auto& mesh : meshes) {
    EXPECT_TRUE(eventually([&] { return mesh->world_status().revoked(); }));
    EXPECT_EQ(mesh->world_status().cause()->text, loss_of(0).text);
    EXPECT_EQ(mesh->world_status().cause()->sign, Sign::kSilent);
  }
}

TEST_P(Revocations, OfWorldThatWasLeftHaveNoEffectOnNextOne) {
  auto meshes = workers_.form(members_, 1);
  meshes[0]->say_goodbye();
  workers_.endpoint(0).revoke(1, loss_of(0));
  meshes[0].reset();
  workers_.endpoint(0).revoke(1, loss_of(0));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (size_t rank = 1; rank < meshes.size(); ++rank) {
    EXPECT_FALSE(meshes[rank]->world_status().revoked());
    meshes[rank]->say_goodbye();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Revocations,
                         ::testing::Combine(::testing::ValuesIn(kAllWirings), ::testing::Values(2, 3, 4, 8)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(RevocationsOfOne, EndAWorldOfOne) {
  Workers workers(Wiring::kShm, 1);
  workers.endpoint(0).revoke(1, loss_of(0));
  Candidate(workers.endpoint(0), workers.world({0}, 0, 1)).expect_ended_by(loss_of(0));
  workers.form(2);
}

// Something accepts connections there and sends nothing: the waits are those of handshakes.
TEST(RevocationsOfOne, EndWaitForHandshake) {
  Workers workers(Wiring::kTcp4, 2);
  const Listener mute = listen_on(ip_address("127.0.0.1", 0));
  Contact contact = parse_contact(workers.endpoint(0).contact());
  contact.tcp = {mute.address};
  World world = workers.world({0, 1}, 1, 1);
  world.contacts[0] = contact.to_text();
  Candidate candidate(workers.endpoint(1), world);
  PrivateFd accepted;
  EXPECT_TRUE(eventually([&] {
    int error = 0;
    accepted = accept_from(mute, error);
    return static_cast<bool>(accepted);
  }));
  workers.endpoint(1).revoke(1, loss_of(0));
  candidate.expect_ended_by(loss_of(0));
}

int mapped_arenas() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("farandole-arena") != std::string::npos ? 1 : 0;
  }
  return count;
}

// A worker that is linked hears it from the worker that heard it first.
TEST(RevocationsOfOne, ArePassedOnToAllThatAreLinked) {
  Workers workers(Wiring::kShm, 3);
  const int before = mapped_arenas();
  Candidate first(workers.endpoint(0), workers.world({0, 1, 2}, 0, 1));
  Candidate second(workers.endpoint(1), workers.world({0, 1, 2}, 1, 1));
  ASSERT_TRUE(eventually([&] { return mapped_arenas() == before + 2; }));
  workers.endpoint(0).revoke(1, loss_of(2));
  first.expect_ended_by(loss_of(2));
  second.expect_ended_by(loss_of(2));
}

}  // namespace
}  // namespace farandole::transport::testing
