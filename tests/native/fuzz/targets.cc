#include "fuzz/targets.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backend/nccl/introduction.h"
#include "engine/coordinator.h"
#include "engine/messages.h"
#include "engine/subtree_tally.h"
#include "transport/contact.h"
#include "transport/control.h"
#include "transport/handshake.h"
#include "transport/link_frames.h"

namespace farandole::fuzz {
namespace {

using base::Bytes;
using engine::Decision;
using engine::Ready;
using Input = std::span<const std::byte>;

Bytes bytes_of(const std::string& text) {
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// --- messages of agreement

engine::Signature signature(engine::Kind kind, std::vector<int64_t> shape = {2, 3}) {
  engine::Signature made;
  made.kind = kind;
  made.shape = std::move(shape);
  return made;
}

std::vector<Ready> some_ready() {
  Ready fresh;
  fresh.fresh.push_back({0, "gradient of a layer", signature(engine::Kind::kAllreduce)});
  fresh.fresh.push_back({0, "rows", signature(engine::Kind::kAllgather)});
  fresh.age_ns = 1000;
  Ready known;
  known.add_known(0, 0);
  known.add_known(0, 70);
  Ready rest;
  rest.introductions.push_back({0, bytes_of("who I am")});
  rest.formed.push_back({0, "it cannot be formed"});
  rest.answers.push_back({7, true, "train.py:12"});
  Ready leaving;
  leaving.leaving = leaving.finished = true;
  Ready joined;
  joined.fresh.push_back({0, "join", signature(engine::Kind::kJoin, {})});
  Ready group;
  group.fresh.push_back({0, "add", signature(engine::Kind::kAddGroup, {0, 1})});
  return {fresh, known, rest, leaving, joined, group};
}

std::vector<Decision> some_decisions() {
  std::vector<Decision> made;
  for (int type = static_cast<int>(Decision::Type::kInitialConfig);
       type <= static_cast<int>(Decision::Type::kUseFormed); ++type) {
    Decision decision;
    decision.type = static_cast<Decision::Type>(type);
    decision.number = 3;
    decision.algorithm = "ring";
    decision.backend = "native";
    decision.absent = {1};
    decision.known.set(5);
    decision.agreed.push_back({4, "rows", signature(engine::Kind::kAllgather), {2, 3}});
    decision.refused.push_back({"x", "shapes differ", {0, 1}});
    decision.key = bytes_of("a key");
    decision.obstacle = "why not";
    decision.asked = engine::RankSet(2);
    made.push_back(decision);
  }
  return made;
}

// What a rank with children tells its parent.
std::vector<std::vector<engine::Report>> some_reports() {
  std::vector<std::vector<engine::Report>> all;
  for (const Ready& ready : some_ready()) {
    engine::Report of_two{engine::RankSet(2), 2, 7, ready};
    of_two.ranks.add(engine::RankSet(4));
    all.push_back({of_two, {engine::RankSet(3), 3, 1, ready}});
  }
  return all;
}

template <typename Message>
std::vector<Bytes> encoded(const std::vector<Message>& messages) {
  std::vector<Bytes> all;
  for (const Message& message : messages) {
    all.push_back(encode(message));
  }
  return all;
}

// What was decoded is encoded again, and is then decoded to the same.
template <typename Decode>
void survives_the_wire(Input bytes, Decode&& decode) {
  const Bytes once = encode(decode(bytes));
  require(encode(decode(Input(once))) == once, "a message is another one after it went over the wire");
}

// Rank 0 hears a world of four: each message has the rank that sends it and its length before it.
constexpr size_t kRanks = 4;

Bytes told_by(std::initializer_list<std::pair<size_t, Ready>> messages) {
  base::Writer writer;
  for (const auto& [rank, ready] : messages) {
    writer.put(static_cast<uint8_t>(rank));
    writer.put_vector(encode(ready));
  }
  return writer.take();
}

std::vector<Bytes> some_rounds() {
  const auto messages = some_ready();
  std::vector<Bytes> all;
  for (const size_t number : {0, 3, 4, 5}) {
    const Ready& ready = messages[number];
    all.push_back(told_by({{0, ready}, {1, ready}, {2, ready}, {3, ready}}));
  }
  const Ready& fresh = messages.front();
  Ready known;
  known.add_known(0, 0);
  // A name that comes a second time gets a bit.
  all.push_back(told_by({{0, fresh},
                         {1, fresh},
                         {2, fresh},
                         {3, fresh},
                         {0, fresh},
                         {1, fresh},
                         {2, fresh},
                         {3, fresh},
                         {0, known},
                         {1, known},
                         {2, known},
                         {3, fresh}}));
  all.push_back(told_by({{3, messages[4]}, {0, fresh}, {1, fresh}, {2, fresh}, {0, messages[3]}}));
  return all;
}

void coordinate(Input bytes) {
  engine::Coordinator coordinator(kRanks);
  base::Reader reader(bytes);
  while (!reader.done()) {
    const auto rank = reader.get<uint8_t>();
    const Bytes message = reader.get_vector<std::byte>();
    coordinator.receive(rank % kRanks, engine::decode_ready(message));
    for (const Decision& decision : coordinator.decide()) {
      engine::decode_decision(encode(decision));
    }
    coordinator.waiting();
  }
}

// --- between workers

constexpr const char* kSecret = "nobody who guesses knows this";

transport::Hello hello(int from, int to) {
  return {.channel = transport::Channel::kData, .generation = 3, .from = from, .to = to, .world = {}};
}

void meet_a_stranger(Input bytes, transport::Handshake handshake) {
  while (handshake.state() == transport::Handshake::State::kGoing && handshake.wanted() > 0 &&
         bytes.size() >= handshake.wanted()) {
    const Input message = bytes.first(handshake.wanted());
    bytes = bytes.subspan(message.size());
    handshake.feed(message);
  }
  require(handshake.state() == transport::Handshake::State::kGoing ||
              handshake.state() == transport::Handshake::State::kRefused,
          "somebody who does not know the secret has proven that they do");
}

std::vector<Bytes> half_handshakes() {
  transport::Handshake connector = transport::Handshake::connecting("another secret", hello(1, 0));
  Bytes all = connector.first();
  all.resize(all.size() + 32);
  return {all, Bytes(64)};
}

std::vector<Bytes> control_frames() {
  std::vector<Bytes> all(1);
  for (uint8_t kind = 1; kind <= 5; ++kind) {
    base::Writer writer;
    writer.put(kind);
    writer.put(static_cast<uint8_t>(transport::Sign::kRevoked));
    writer.put(uint16_t{5});
    writer.put(int32_t{2});
    Bytes frame = writer.take();
    const Bytes text = bytes_of("cause");
    frame.insert(frame.end(), text.begin(), text.end());
    all.front().insert(all.front().end(), frame.begin(), frame.end());
    all.push_back(frame);
  }
  return all;
}

void hear_control_frames(Input bytes) {
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0, "no socket");
  base::UniqueFd mine(ends[0]);
  // More than a socket holds is left out.
  require(::send(mine.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || bytes.empty(), "no send");
  mine.reset();
  transport::ControlChannel channel(transport::PrivateFd(ends[1], transport::ForkHold()));
  while (const auto frame = channel.receive()) {
    require(frame->text.size() <= transport::ControlFrame::kLongestText, "a text longer than may be sent");
    transport::cause_of(*frame);
  }
  require(channel.ended().has_value(), "the end of a connection is not noticed");
}

// A link whose other end has said these bytes.
class Recorded final : public transport::Link {
 public:
  explicit Recorded(Input bytes) : rest_(bytes) {}
  size_t try_send(Input bytes) override { return bytes.size(); }
  size_t try_recv(std::span<std::byte> bytes) override {
    const size_t count = std::min(bytes.size(), rest_.size());
    std::copy_n(rest_.begin(), count, bytes.begin());
    rest_ = rest_.subspan(count);
    return count;
  }

 private:
  Input rest_;
};

class MeshOfOneLink final : public transport::Mesh {
 public:
  explicit MeshOfOneLink(Input bytes) : link_(bytes) {}
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 2; }
  uint64_t generation() const noexcept override { return 1; }
  transport::Link& link(int) override { return link_; }
  transport::Doorbell& doorbell() override { return doorbell_; }
  transport::WorldStatus& world_status() override { return status_; }
  const transport::ArenaView* arena(int) const noexcept override { return nullptr; }
  void wake(int, transport::Sleep) noexcept override {}
  const std::vector<int>& hosts() const noexcept override { return hosts_; }
  void say_goodbye() noexcept override {}
  std::string describe() const override { return "recorded"; }
  std::string describe_route(int) const override { return "recorded"; }

 private:
  Recorded link_;
  std::atomic<uint32_t> sleeping_{0};
  transport::Doorbell doorbell_{&sleeping_, -1};
  transport::WorldStatus status_{&doorbell_};
  std::vector<int> hosts_{0, 1};
};

constexpr std::array<size_t, 2> kPosted{8, 3};

Bytes frame(transport::FrameKind kind, uint32_t collective, size_t size) {
  base::Writer writer;
  writer.put(static_cast<uint32_t>(kind));
  writer.put(collective);
  writer.put(static_cast<uint64_t>(size));
  Bytes made = writer.take();
  made.resize(made.size() + size, std::byte{7});
  return made;
}

std::vector<Bytes> link_frames() {
  Bytes all;
  for (const Bytes& each : {frame(transport::FrameKind::kMessage, 0, 5), frame(transport::FrameKind::kData, 1, 8),
                            frame(transport::FrameKind::kMessage, 0, 0), frame(transport::FrameKind::kData, 2, 3)}) {
    all.insert(all.end(), each.begin(), each.end());
  }
  return {all};
}

void move_frames(Input bytes) {
  MeshOfOneLink mesh(bytes);
  transport::LinkFrames frames(mesh, 1);
  std::array<std::vector<std::byte>, kPosted.size()> memory;
  for (size_t i = 0; i < kPosted.size(); ++i) {
    memory[i].resize(kPosted[i]);
    frames.post(static_cast<uint32_t>(i + 1), memory[i]);
  }
  std::deque<transport::Message> inbox;
  while (frames.move_in(inbox)) {
  }
}

// Rank 1 of a tree hears the hosts below it. All know the bits of some_ready().
void count_subtree(Input bytes) {
  engine::SubtreeTally tally(engine::AgreementTree(1, {0, 1, 2, 3, 4}, /*fanout=*/1), /*hold_ns=*/1);
  Decision agreed;
  for (uint32_t bit = 0; bit <= 70; ++bit) {
    agreed.agreed.push_back({bit, std::to_string(bit), signature(engine::Kind::kAllreduce), {}});
  }
  tally.follow(agreed);
  base::Reader reader(bytes);
  for (int64_t now_ns = 1; !reader.done(); ++now_ns) {
    for (const engine::Report& report : engine::decode_reports(reader.get_vector<std::byte>())) {
      tally.add(report, now_ns);
    }
    engine::decode_reports(encode(tally.take(now_ns)));
  }
}

std::vector<Bytes> some_subtrees() {
  std::vector<Bytes> all;
  for (const Bytes& reports : encoded(some_reports())) {
    base::Writer writer;
    writer.put_vector(reports);
    all.push_back(writer.take());
    writer.put_vector(reports);
    all.push_back(writer.take());
  }
  return all;
}

}  // namespace

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
}

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"ready", encoded(some_ready()), [](Input bytes) { survives_the_wire(bytes, engine::decode_ready); }},
      {"decision", encoded(some_decisions()), [](Input bytes) { survives_the_wire(bytes, engine::decode_decision); }},
      {"coordinator", some_rounds(), coordinate},
      {"reports", encoded(some_reports()), [](Input bytes) { survives_the_wire(bytes, engine::decode_reports); }},
      {"subtree", some_subtrees(), count_subtree},
      {"introduction",
       {backend::nccl::encode({.problem = "no NCCL", .version = 23007, .gpu = {}, .shares = true})},
       [](Input bytes) { survives_the_wire(bytes, backend::nccl::decode_introduction); }},
      {"acceptor", half_handshakes(),
       [](Input bytes) { meet_a_stranger(bytes, transport::Handshake::accepting(kSecret, hello(0, 0), kRanks)); }},
      {"connector", half_handshakes(),
       [](Input bytes) {
         transport::Handshake handshake = transport::Handshake::connecting(kSecret, hello(1, 0));
         handshake.first();
         meet_a_stranger(bytes, std::move(handshake));
       }},
      {"control", control_frames(), hear_control_frames},
      {"link", link_frames(), move_frames},
      {"contact",
       {bytes_of(
           transport::Contact{.id = std::string(32, 'a'), .host_key = "h", .unix_name = "u", .tcp = {}}.to_text())},
       [](Input bytes) {
         transport::parse_contact({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).to_text();
       }},
  };
  return all;
}

const Target& target(const std::string& name) {
  for (const Target& each : targets()) {
    if (each.name == name) {
      return each;
    }
  }
  std::fprintf(stderr, "there is no target %s; there are:", name.c_str());
  for (const Target& each : targets()) {
    std::fprintf(stderr, " %s", each.name.c_str());
  }
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace farandole::fuzz
