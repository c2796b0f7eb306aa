// The seeded simulation: small worlds over the loopback transport, whose links stall, move a few bytes at a time, are
// cut, and whose workers are killed at any operation, while they compute, disagree and join. Every seed must end with
// every survivor holding right numbers, or the one same error; never hung, never wrong. Then the survivors form the
// next generation and must compute right. Each rank has a fake GPU, too, and NCCL takes over its reductions in between.
//
//   FARANDOLE_SIMULATION_SEEDS  how many seeds (2000), and every tenth of them again with more than eight hosts
//   FARANDOLE_SIMULATION_FIRST  the first one (0): to run one seed again, set this and SEEDS=1
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "support/gpu_steps.h"
#include "support/worlds.h"

namespace farandole {
namespace {

using engine::Engine;
using engine::EngineSettings;
using engine::Handle;
using reduce::Dtype;
using transport::LinkFault;

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

enum class Worlds { kSmall, kOfManyHosts };

// What will go wrong in one seed. A pure function of the seed.
struct Scenario {
  explicit Scenario(uint64_t seed_in, Worlds worlds = Worlds::kSmall) : seed(seed_in), random(mix(seed_in)) {
    if (worlds == Worlds::kSmall) {
      choose_small_world();
    } else {
      choose_world_of_many_hosts();
    }
    stall_percent = pick(0, 3) * 10;
    short_percent = pick(0, 3) * 10;
    threshold = pick(0, 2) * 2000;
    tunes = pick(0, 1) == 1;
    if (pick(0, 3) > 0) {
      faulty_rank = pick(0, size - 1);
      fault_at = static_cast<uint64_t>(pick(0, 1000));
      is_cut = pick(0, 3) == 0;
    }
  }

  void choose_small_world() {
    size = pick(2, 4);
    fanout = pick(0, 2);
    switch (pick(0, 2)) {
      case 0:  // one host
        hosts.assign(static_cast<size_t>(size), 0);
        break;
      case 1:  // a host each
        hosts.resize(static_cast<size_t>(size));
        std::iota(hosts.begin(), hosts.end(), 0);
        break;
      default:  // two hosts
        for (int rank = 0; rank < size; ++rank) {
          hosts.push_back(rank % 2);
        }
    }
  }

  // Nine or ten hosts, the first of which have two ranks.
  void choose_world_of_many_hosts() {
    size = pick(9, 12);
    for (int rank = 0; rank < size; ++rank) {
      const int pairs = std::min(size - 9, 2);
      hosts.push_back(rank < 2 * pairs ? rank / 2 * 2 : rank);
    }
    if (pick(0, 2) == 0) {
      fanout = pick(1, 3);
    }
  }

  int pick(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); }

  LinkFault fault(int self, uint64_t operation) const {
    LinkFault result;
    const uint64_t dice = mix(seed * 1'000'003 + static_cast<uint64_t>(self) * 7919 + operation * 31);
    if (self == faulty_rank && operation == fault_at) {
      (is_cut ? result.cut : result.kill) = true;
    }
    result.stall = static_cast<int>(dice % 100) < stall_percent;
    if (static_cast<int>(dice / 100 % 100) < short_percent) {
      result.at_most = 1 + dice / 10'000 % 40;
    }
    return result;
  }

  uint64_t seed;
  std::mt19937_64 random;
  int size = 2;
  std::vector<int> hosts;
  int stall_percent = 0;
  int short_percent = 0;
  int threshold = 0;
  std::optional<int> fanout;
  bool tunes = false;  // knobs change while the world works
  int faulty_rank = -1;
  uint64_t fault_at = 0;
  bool is_cut = false;
};

constexpr int kSteps = 3;
constexpr int kTasks = 5;  // of a step

// One thing that the ranks do together in one step, and all that is particular to it: a pure function of the seed.
struct Plan {
  Plan(uint64_t seed, int step, int number)
      : dice(mix(seed + static_cast<uint64_t>(step) * 101 + static_cast<uint64_t>(number))),
        count(dice % 3 == 0 ? dice % 3000 : dice % 50),
        step(step),
        number(number) {
    constexpr engine::Kind kOthers[] = {engine::Kind::kAllreduce, engine::Kind::kAlltoall, engine::Kind::kReducescatter,
                                        engine::Kind::kTransfer, engine::Kind::kReduce};
    kind = kOthers[std::max<uint64_t>(dice / 3000 % 9, 4) - 4];
    is_adasum = kind == engine::Kind::kAllreduce && dice / 27'000 % 3 == 0;
  }

  float value(int rank) const { return static_cast<float>((rank + 1) * (step + 2) + number); }
  // Of an alltoall: rows of one element each.
  size_t rows(int from, int to) const { return mix(dice + static_cast<uint64_t>(from * 8 + to)) % (count + 1) / 3; }
  // Of a reduce and a transfer; a transfer's world has at least two ranks.
  int root(int size) const { return static_cast<int>(dice / 100'000 % static_cast<uint64_t>(size)); }
  int peer(int size) const {
    return (root(size) + 1 + static_cast<int>(dice / 1'000'000 % static_cast<uint64_t>(size - 1))) % size;
  }
  std::string name() const {
    return "step" + std::to_string(step % 2) + "." + std::to_string(number) + "." + std::to_string(count);
  }

  uint64_t dice;
  size_t count;
  int step;
  int number;
  engine::Kind kind = engine::Kind::kAllreduce;
  bool is_adasum = false;
};

// Some floats, in the arena or elsewhere.
class Tensor {
 public:
  Tensor(transport::Arena* arena, size_t count, float value) : arena_(arena), count_(count) {
    if (arena != nullptr) {
      data_ = static_cast<float*>(arena->allocate(count * sizeof(float) + 1));
    } else {
      elsewhere_.resize(count + 1);
      data_ = elsewhere_.data();
    }
    std::fill_n(data_, count, value);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (arena_ != nullptr) {
      arena_->release(data_);
    }
  }
  float* data() { return data_; }
  std::vector<float> values() const { return {data_, data_ + count_}; }
  size_t count() const { return count_; }

 private:
  transport::Arena* arena_;
  size_t count_;
  float* data_ = nullptr;
  std::vector<float> elsewhere_;
};

// One rank's part in a plan: its tensors, its request, and what must come of it.
class Task {
 public:
  Task(const Plan& plan, transport::Arena& arena, int rank, int size) : plan_(plan), rank_(rank), size_(size) {
    transport::Arena* const where = plan.number % 2 == 0 ? &arena : nullptr;
    switch (plan.kind) {
      case engine::Kind::kAlltoall:
        prepare_alltoall(where);
        break;
      case engine::Kind::kReducescatter:
        prepare(where, plan.count);
        output_.emplace(where, share(rank), -1.0F);
        request_.output = output_->data();
        break;
      case engine::Kind::kTransfer:
        prepare(where, plan.count);
        if (takes_part()) {
          request_.signature.root = plan.root(size);
          request_.signature.peer = plan.peer(size);
        }
        break;
      case engine::Kind::kReduce:
        prepare(where, plan.count);
        request_.signature.root = plan.root(size);
        break;
      default:
        prepare(where, plan.count);
        request_.signature.op = plan.is_adasum ? engine::ReduceOp::kAdasum : engine::ReduceOp::kSum;
        if (plan.is_adasum) {
          // Equal vectors: whatever the tree, their Adasum is what they are.
          std::fill_n(input_->data(), plan.count, plan.value(0));
        }
    }
  }

  bool takes_part() const {
    if (plan_.kind == engine::Kind::kTransfer && size_ == 1) {
      return false;
    }
    return plan_.kind != engine::Kind::kTransfer || rank_ == plan_.root(size_) || rank_ == plan_.peer(size_);
  }
  const engine::Request& request() const { return request_; }

  void expect_right(const engine::Completion& completion, uint64_t seed) const {
    EXPECT_EQ(result(completion), expected()) << "WRONG NUMBERS in seed " << seed << ", " << name_of(plan_.kind);
  }

 private:
  void prepare(transport::Arena* where, size_t count) {
    input_.emplace(where, count, plan_.value(rank_));
    request_ = testing::request_of(plan_.kind, plan_.name(), Dtype::kF32, {static_cast<int64_t>(count)}, input_->data(),
                                   input_->data());
  }

  void prepare_alltoall(transport::Arena* where) {
    std::vector<float> values;
    std::vector<int64_t> splits;
    for (int to = 0; to < size_; ++to) {
      splits.push_back(static_cast<int64_t>(plan_.rows(rank_, to)));
      values.insert(values.end(), plan_.rows(rank_, to), plan_.value(rank_ * 10 + to));
    }
    prepare(where, values.size());
    std::ranges::copy(values, input_->data());
    request_.output = nullptr;
    request_.splits = splits;
  }

  // The rows that a rank gets of a reducescatter.
  size_t share(int rank) const {
    const auto n = static_cast<size_t>(size_);
    return plan_.count / n + (static_cast<size_t>(rank) < plan_.count % n ? 1 : 0);
  }

  std::vector<float> result(const engine::Completion& completion) const {
    if (plan_.kind == engine::Kind::kAlltoall) {
      std::vector<float> values(completion.data.size() / sizeof(float));
      std::memcpy(values.data(), completion.data.data(), completion.data.size());
      return values;
    }
    return output_ ? output_->values() : input_->values();
  }

  std::vector<float> expected() const {
    float sum = 0;
    for (int r = 0; r < size_; ++r) {
      sum += plan_.value(r);
    }
    std::vector<float> values;
    switch (plan_.kind) {
      case engine::Kind::kAlltoall:
        for (int from = 0; from < size_; ++from) {
          values.insert(values.end(), plan_.rows(from, rank_), plan_.value(from * 10 + rank_));
        }
        return values;
      case engine::Kind::kReducescatter:
        values.assign(share(rank_), sum);
        return values;
      case engine::Kind::kTransfer:
        values.assign(plan_.count, plan_.value(plan_.root(size_)));
        return values;
      case engine::Kind::kReduce:
        values.assign(plan_.count, rank_ == plan_.root(size_) ? sum : plan_.value(rank_));
        return values;
      default:
        values.assign(plan_.count, plan_.is_adasum ? plan_.value(0) : sum);
        return values;
    }
  }

  const Plan plan_;
  const int rank_;
  const int size_;
  std::optional<Tensor> input_;
  std::optional<Tensor> output_;
  engine::Request request_;
};

// Submits requests in an order of this rank's own and waits for all of them; gives what ended the world, if anything
// did. `check(i, completion)` is told what came of request i, `must_fail(i)` says whether the ranks disagree about it.
template <typename Check, typename MustFail>
std::optional<base::Error> run(Engine& engine, const std::vector<engine::Request>& requests, std::mt19937_64& order,
                               Check&& check, MustFail&& must_fail) {
  std::vector<size_t> turn(requests.size());
  std::iota(turn.begin(), turn.end(), size_t{0});
  std::ranges::shuffle(turn, order);
  std::vector<Handle> handles;
  std::optional<base::Error> failure;
  try {
    for (const size_t i : turn) {
      handles.push_back(engine.submit({requests[i]}).front());
    }
  } catch (const base::Error& error) {
    failure = error;
  }
  // In any case: tensors in flight belong to the engine until they are done.
  for (size_t k = 0; k < handles.size(); ++k) {
    try {
      const auto completion = testing::finish(engine, handles[k]);
      EXPECT_FALSE(must_fail(turn[k])) << "the ranks did not want the same";
      check(turn[k], *completion);
    } catch (const base::Error& error) {
      if (error.code() != base::Code::kMismatch || !must_fail(turn[k])) {
        failure = error;
      }
    }
  }
  return failure;
}

// One step of a rank: its tasks, and in some steps a request that the ranks disagree about.
std::optional<base::Error> take_step(Engine& engine, transport::Arena& arena, uint64_t seed, int step, int rank,
                                     int size, std::mt19937_64& order) {
  std::deque<Task> tasks;
  std::vector<engine::Request> requests;
  for (int number = 0; number < kTasks; ++number) {
    const Task& task = tasks.emplace_back(Plan(seed, step, number), arena, rank, size);
    if (task.takes_part()) {
      requests.push_back(task.request());
    } else {
      tasks.pop_back();
    }
  }
  Tensor odd_one(nullptr, static_cast<size_t>(rank) + 1, 1);
  if (size > 1 && mix(seed + static_cast<uint64_t>(step)) % 2 == 0) {
    requests.push_back(testing::allreduce_request("odd one", Dtype::kF32, {rank + 1}, odd_one.data(), odd_one.data()));
  }
  return run(
      engine, requests, order, [&](size_t i, const engine::Completion& done) { tasks[i].expect_right(done, seed); },
      [&](size_t i) { return i >= tasks.size(); });
}

// A loop of single requests in which all ranks wait for each other, mostly: agreement without messages, and what gets
// in its way.
std::optional<base::Error> run_in_lockstep(Engine& engine, transport::Arena& arena, uint64_t seed, int rank, int size,
                                           std::mt19937_64& order) {
  constexpr int kBeats = 8;
  for (int beat = 0; beat < kBeats; ++beat) {
    const size_t count = Plan(seed, 60, beat % 2).count;
    Tensor tensor(order() % 2 == 0 ? &arena : nullptr, count, static_cast<float>(rank + beat));
    const engine::Request request = testing::allreduce_request(
        "beat " + std::to_string(beat % 2), Dtype::kF32, {static_cast<int64_t>(count)}, tensor.data(), tensor.data());
    try {
      const bool waits_at_once = order() % 4 != 0;
      const Handle handle = engine.submit({request}, waits_at_once).front();
      if (!waits_at_once && order() % 2 == 0) {
        std::this_thread::yield();
      }
      testing::finish(engine, handle);
    } catch (const base::Error& error) {
      return error;
    }
    const auto sum = static_cast<float>(size * beat + testing::sum_of_ranks(size));
    EXPECT_EQ(tensor.values(), std::vector<float>(count, sum)) << "WRONG NUMBERS in seed " << seed;
  }
  return std::nullopt;
}

// Some ranks have more steps than others, and then all join.
std::optional<base::Error> run_out(Engine& engine, transport::Arena& arena, uint64_t seed, int rank, int size,
                                   std::mt19937_64& order) {
  const auto steps_of = [&](int r) { return static_cast<int>(mix(seed + static_cast<uint64_t>(r)) % 3); };
  const auto nothing = [](size_t) { return false; };
  std::optional<base::Error> failure;
  for (int step = 0; step < steps_of(rank) && !failure; ++step) {
    float others = 0;
    for (int r = 0; r < size; ++r) {
      others += steps_of(r) > step ? 1.0F : 0.0F;
    }
    std::deque<Tensor> tensors;
    std::vector<engine::Request> requests;
    for (int number = 0; number < 2; ++number) {
      const size_t count = Plan(seed, 50, number).count;  // the same in every step: new at first, then known
      Tensor& tensor = tensors.emplace_back(number == 0 ? &arena : nullptr, count, 1.0F);
      requests.push_back(testing::allreduce_request("last " + std::to_string(number), Dtype::kF32,
                                                    {static_cast<int64_t>(count)}, tensor.data(), tensor.data()));
    }
    failure = run(
        engine, requests, order,
        [&](size_t i, const engine::Completion&) {
          EXPECT_EQ(tensors[i].values(), std::vector<float>(tensors[i].count(), others))
              << "WRONG NUMBERS in seed " << seed;
        },
        nothing);
  }
  if (failure) {
    return failure;
  }
  return run(
      engine, {testing::request_of(engine::Kind::kJoin, "join")}, order,
      [&](size_t, const engine::Completion& done) {
        EXPECT_TRUE(done.sizes.at(0) >= 0 && done.sizes[0] < size) << "in seed " << seed;
      },
      nothing);
}

// One rank's training. Gives what ended it, if anything did.
std::optional<base::Error> train(Engine& engine, transport::Arena& arena, uint64_t seed, int rank, int size,
                                 int device) {
  std::mt19937_64 order(mix(seed) + static_cast<uint64_t>(rank));
  std::optional<base::Error> failure;
  for (int step = 0; step < kSteps && !failure; ++step) {
    failure = take_step(engine, arena, seed, step, rank, size, order);
    if (!failure) {
      failure = run_in_lockstep(engine, arena, seed, rank, size, order);
    }
    if (!failure) {
      failure = testing::run_on_gpu(engine, device, rank, size, seed, order);
    }
  }
  return failure ? failure : run_out(engine, arena, seed, rank, size, order);
}

struct Ending {
  std::optional<base::Error> error;
};

std::vector<Ending> run_generation(transport::LoopbackWorld& world, std::vector<std::unique_ptr<Engine>>& engines,
                                   const std::vector<int>& members, uint64_t seed) {
  std::vector<Ending> endings(members.size());
  testing::on_all_ranks(static_cast<int>(members.size()), [&](int rank) {
    const int member = members[static_cast<size_t>(rank)];
    Engine& engine = *engines[static_cast<size_t>(member)];
    engine.abandon({-1, transport::Sign::kRevoked, "replaced"});
    engine.enter(world.mesh(rank), world.arena(rank));
    endings[static_cast<size_t>(rank)].error =
        train(engine, world.arena(rank), seed, rank, static_cast<int>(members.size()), member);
  });
  return endings;
}

// For each rank of the next world the lowest one of its host. Small worlds go on as one host.
std::vector<int> hosts_of_survivors(const Scenario& scenario, const std::vector<int>& survivors) {
  if (scenario.size <= engine::kMostHostsOfStar) {
    return {};
  }
  std::vector<int> hosts;
  std::map<int, int> leaders;  // by the one before
  for (const int survivor : survivors) {
    const int before = scenario.hosts[static_cast<size_t>(survivor)];
    hosts.push_back(leaders.emplace(before, static_cast<int>(hosts.size())).first->second);
  }
  return hosts;
}

void run_seed(uint64_t seed, Worlds worlds) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Scenario scenario(seed, worlds);
  EngineSettings settings;
  settings.knobs.fusion_threshold = scenario.threshold;
  settings.piece_bytes = 4096;
  settings.elastic = true;
  settings.gpu = static_cast<backend::GpuMode>(mix(seed) % 3);
  gpu_fake::fake_gpu_time(seed % 2 == 0 ? "eager" : "random", static_cast<unsigned>(seed), 200);
  settings.autotune = scenario.tunes;
  settings.agreement_fanout = scenario.fanout;
  settings.tuner = {.warmup_samples = 0, .steps_per_sample = 1, .max_samples = 30, .shortest_sample_ns = 0};
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<int> members;
  for (int rank = 0; rank < scenario.size; ++rank) {
    engines.push_back(std::make_unique<Engine>(settings));
    members.push_back(rank);
  }

  transport::LoopbackSettings loopback;
  loopback.size = scenario.size;
  loopback.generation = 1;
  loopback.hosts = scenario.hosts;
  loopback.arena_bytes = size_t{1} << 20;
  loopback.link_bytes = 512;
  transport::LoopbackWorld first(loopback,
                                 [&](int self, int, uint64_t operation) { return scenario.fault(self, operation); });
  const std::vector<Ending> endings = run_generation(first, engines, members, seed);

  std::vector<int> survivors;
  std::set<std::string> errors;
  for (const int rank : members) {
    if (first.killed(rank)) {
      continue;
    }
    survivors.push_back(rank);
    if (const auto& error = endings[static_cast<size_t>(rank)].error) {
      EXPECT_EQ(error->code(), base::Code::kWorkerLost) << error->what();
      EXPECT_EQ(error->lost_rank() == scenario.faulty_rank, !scenario.is_cut) << error->what();
      errors.insert(error->what());
    }
  }
  EXPECT_LE(errors.size(), 1U) << "survivors tell different stories: " << *errors.begin();
  if (scenario.faulty_rank < 0) {
    EXPECT_TRUE(errors.empty()) << *errors.begin();
  }

  transport::LoopbackSettings next = loopback;
  next.size = static_cast<int>(survivors.size());
  next.generation = 2;
  next.hosts = hosts_of_survivors(scenario, survivors);
  transport::LoopbackWorld second(next);
  for (const Ending& ending : run_generation(second, engines, survivors, seed + 1)) {
    EXPECT_FALSE(ending.error) << "after the change: " << ending.error->what();
  }
  testing::on_all_ranks(static_cast<int>(survivors.size()), [&](int rank) {
    engines[static_cast<size_t>(survivors[static_cast<size_t>(rank)])]->leave(
        base::Deadline::after_seconds(testing::kPatience));
  });
  // Those who died left their engines where they stood; they go while their world still exists.
  engines.clear();
}

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

using Simulation = testing::Gpus;

// One seed of `every`.
void run_seeds(Worlds worlds, uint64_t every) {
  const uint64_t first = number_from_environment("FARANDOLE_SIMULATION_FIRST", 0);
  const uint64_t seeds = number_from_environment("FARANDOLE_SIMULATION_SEEDS", 2000);
  for (uint64_t seed = first; seed < first + seeds; seed += every) {
    run_seed(seed, worlds);
    ASSERT_FALSE(testing::Gpus::HasFailure())
        << "run it again with FARANDOLE_SIMULATION_SEEDS=1 FARANDOLE_SIMULATION_FIRST=" << seed;
  }
}

TEST_F(Simulation, EverySeedEndsRight) { run_seeds(Worlds::kSmall, 1); }

TEST_F(Simulation, EveryTenthSeedEndsRightOnMoreThanEightHosts) { run_seeds(Worlds::kOfManyHosts, 10); }

}  // namespace
}  // namespace farandole
