#include "scale/star_and_mesh.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace farandole::scale {

using engine::AgreementCore;
using engine::Decision;
using engine::Pending;
using engine::Ready;
using engine::Report;
using transport::Cause;
using transport::Channel;
using transport::ControlFrame;
using transport::ControlKind;
using transport::SetupCore;
using transport::Sign;
using transport::WatchCore;

StarAndMesh::StarAndMesh(Layout layout, uint64_t seed, Costs costs, double deadline_seconds, const Belief& belief)
    : deadline_seconds_(deadline_seconds),
      network_(layout, costs, seed, *this),
      workers_(static_cast<size_t>(layout.size)) {
  collective::Group world;
  world.members.resize(workers_.size());
  std::iota(world.members.begin(), world.members.end(), 0);
  std::vector<int> hosts;
  for (int rank = 0; rank < layout.size; ++rank) {
    hosts.push_back(layout.host_of(rank) * layout.ranks_per_host);
  }
  for (int rank = 0; rank < layout.size; ++rank) {
    world.index = rank;
    std::vector<int> believed = hosts;
    if (belief) {
      belief(rank, believed);
    }
    worker(rank).agreement = std::make_unique<AgreementCore>(
        engine::AgreementTree(rank, believed, engine::choose_fanout(believed, layout.fanout)), world,
        /*waits_for_formed=*/false, recorder_);
  }
}

std::vector<int> StarAndMesh::others(int rank) const {
  std::vector<int> ranks;
  for (int other = 0; other < network_.layout().size; ++other) {
    if (other != rank) {
      ranks.push_back(other);
    }
  }
  return ranks;
}

// --- the set-up of the mesh

void StarAndMesh::connect(const std::function<int64_t(int)>& starts_ns) {
  for (int rank = 0; rank < network_.layout().size; ++rank) {
    const int64_t at_ns = starts_ns ? starts_ns(rank) : 0;
    network_.call(
        [this, rank, at_ns] {
          worker(rank).setup.emplace(rank, network_.layout().size, /*generation=*/1);
          for (int below = 0; below < rank; ++below) {
            send_handshake(rank, below, MessageKind::kHello, Channel::kControl, at_ns);
          }
          advance_setup(rank, at_ns);
        },
        at_ns);
  }
}

void StarAndMesh::form_at_once() {
  for (int rank = 0; rank < network_.layout().size; ++rank) {
    begin_watch(rank, 0);
  }
}

bool StarAndMesh::formed() const noexcept {
  return std::ranges::all_of(workers_, [](const Worker& each) { return each.watch.has_value(); });
}

void StarAndMesh::send_handshake(int from, int to, MessageKind kind, Channel channel, int64_t now_ns) {
  network_.send(from, to, std::make_shared<const Message>(Message{.kind = kind, .channel = channel}), now_ns);
}

// A worker that does not listen yet is dialled again: here its connection waits until it does.
void StarAndMesh::take_handshake(int to, int from, const Message& message, int64_t now_ns) {
  const auto answer = [&](MessageKind kind) { send_handshake(to, from, kind, message.channel, now_ns); };
  switch (message.kind) {
    case MessageKind::kHello:
      if (!worker(to).setup) {
        network_.call([this, to, from, message, now_ns] { handle(to, from, message, network_.now_ns()); },
                      now_ns + kMillisecond);
        return;
      }
      answer(MessageKind::kChallenge);
      break;
    case MessageKind::kChallenge:
      answer(MessageKind::kProof);
      break;
    case MessageKind::kProof:
      answer(MessageKind::kWelcome);
      prove(to, from, message.channel, /*connector=*/false, now_ns);
      break;
    case MessageKind::kWelcome:
      prove(to, from, message.channel, /*connector=*/true, now_ns);
      break;
    default:
      // The offers of shared memory: the link is complete with the other one's.
      worker(to).setup->prove(from);
      worker(to).setup->link(from);
  }
}

void StarAndMesh::prove(int to, int from, Channel channel, bool connector, int64_t now_ns) {
  SetupCore& setup = *worker(to).setup;
  const bool shares_memory = network_.layout().share_a_host(to, from);
  if (!connector) {
    ++(shares_memory ? counts_.unix_connections : counts_.tcp_connections);
  }
  if (channel == Channel::kData) {
    setup.prove(from);
    setup.link(from);
    return;
  }
  setup.join(from, connector, shares_memory);
  if (shares_memory) {
    send_handshake(to, from, MessageKind::kShmOffer, channel, now_ns);
  } else if (connector) {
    send_handshake(to, from, MessageKind::kHello, Channel::kData, now_ns);
  }
}

void StarAndMesh::advance_setup(int rank, int64_t now_ns) {
  Worker& self = worker(rank);
  if (!self.setup || self.watch || self.cause) {
    return;
  }
  if (const auto frame = self.setup->announce()) {
    send_control(rank, others(rank), *frame, now_ns);
  }
  if (self.setup->all_are_ready()) {
    self.hosts = self.setup->hosts();
    begin_watch(rank, now_ns);
  }
}

// --- the watch

void StarAndMesh::begin_watch(int rank, int64_t now_ns) {
  Worker& self = worker(rank);
  self.watch.emplace(rank, network_.layout().size, deadline_seconds_, now_ns);
  network_.call_tick(rank, now_ns);
  for (const int ended : std::exchange(self.ended, {})) {
    see_end(rank, ended, now_ns);
  }
}

void StarAndMesh::tick(int rank, int64_t now_ns) {
  Worker& self = worker(rank);
  if (!self.alive || !self.runs || self.watch->is_over()) {
    return;
  }
  const WatchCore::Tick tick = self.watch->tick(now_ns);
  send_control(rank, tick.beats, ControlFrame(ControlKind::kHeartbeat), now_ns);
  if (tick.cause) {
    end_world(rank, *tick.cause, now_ns);
  }
  network_.call_tick(rank, self.watch->next_tick_ns());
}

void StarAndMesh::send_control(int from, std::vector<int> to, const ControlFrame& frame, int64_t now_ns) {
  counts_.control_frames[static_cast<size_t>(frame.kind)] += to.size();
  counts_.control_bytes[static_cast<size_t>(frame.kind)] +=
      to.size() * (ControlFrame::kHeaderBytes + frame.text.size());
  network_.send_to(from, std::move(to), std::make_shared<const Message>(Message{.control = frame}), now_ns);
}

void StarAndMesh::take_control(int to, int from, const ControlFrame& frame, int64_t now_ns) {
  Worker& self = worker(to);
  const auto cause = self.watch ? self.watch->receive(from, frame, now_ns) : self.setup->receive(from, frame);
  if (cause) {
    end_world(to, *cause, now_ns);
  }
}

void StarAndMesh::see_end(int to, int from, int64_t now_ns) {
  Worker& self = worker(to);
  std::optional<Cause> cause;
  if (self.watch) {
    cause = self.watch->end(from, Sign::kClosed, now_ns);
  } else if (self.setup) {
    self.ended.push_back(from);
    cause = self.setup->end(from, Sign::kClosed);
  }
  if (cause) {
    end_world(to, *cause, now_ns);
  }
}

void StarAndMesh::end_world(int rank, const Cause& cause, int64_t now_ns) {
  Worker& self = worker(rank);
  if (self.cause) {
    return;
  }
  self.cause = cause;
  self.ended_ns = now_ns;
  if (!self.watch) {
    send_control(rank, others(rank), transport::revoke_frame(cause), now_ns);
  } else if (const auto outgoing = self.watch->spread(cause)) {
    send_control(rank, outgoing->to, outgoing->frame, now_ns);
  }
  if (leaves_after_ns_) {
    network_.call([this, rank] { network_.close(rank, others(rank), network_.now_ns()); }, now_ns + *leaves_after_ns_);
  }
}

void StarAndMesh::kill(int rank, int64_t closes_after_ns) {
  worker(rank).alive = false;
  network_.end(rank, others(rank), network_.now_ns() + closes_after_ns);
}

void StarAndMesh::revoke(int rank, const Cause& cause) { end_world(rank, cause, network_.now_ns()); }

// --- agreement

void StarAndMesh::submit(int rank, const std::string& name) {
  engine::Request request;
  request.name = name;
  request.signature.kind = engine::Kind::kBarrier;
  submit(rank, std::move(request));
}

void StarAndMesh::submit(int rank, engine::Request request) {
  if (!agrees(rank)) {
    return;
  }
  AgreementCore& core = *worker(rank).agreement;
  auto pending = std::make_unique<Pending>();
  pending->request = std::move(request);
  pending->completion = std::make_shared<engine::Completion>();
  Ready ready;
  core.reported().add(std::move(pending), ready);
  if (core.tree().children().empty() && rank != 0) {
    send_up(rank, encode(ready), network_.now_ns());
    return;
  }
  try {
    take_reports(rank, {core.own_report(std::move(ready))}, network_.now_ns());
  } catch (const base::Error& error) {
    broken_ = "rank " + std::to_string(rank) + ": " + error.what();
  }
}

void StarAndMesh::send_up(int rank, base::Bytes bytes, int64_t now_ns) {
  const int parent = worker(rank).agreement->tree().parent();
  ++counts_.up;
  ++worker(rank).agreement_messages;
  ++worker(parent).agreement_messages;
  counts_.agreement_bytes += bytes.size();
  network_.send(rank, parent,
                std::make_shared<const Message>(Message{.kind = MessageKind::kReady, .bytes = std::move(bytes)}),
                now_ns);
}

void StarAndMesh::take_reports(int rank, const std::vector<Report>& reports, int64_t now_ns) {
  AgreementCore& core = *worker(rank).agreement;
  if (core.subtree() != nullptr) {
    for (const Report& report : reports) {
      core.subtree()->add(report, now_ns);
    }
    pass_up(rank, now_ns);
    return;
  }
  for (const Report& report : reports) {
    core.coordinator()->receive(report, now_ns);
  }
  for (Decision& decision : core.coordinator()->decide(now_ns)) {
    decision.number = core.next_number();
    pass_down(rank, decision, now_ns);
    obey(rank, decision, now_ns);
  }
}

void StarAndMesh::pass_up(int rank, int64_t now_ns) {
  if (!agrees(rank)) {
    return;
  }
  engine::SubtreeTally& subtree = *worker(rank).agreement->subtree();
  if (const std::vector<Report> reports = subtree.take(now_ns); !reports.empty()) {
    send_up(rank, encode(reports), now_ns);
  }
  if (const int64_t due_ns = subtree.due_ns(); due_ns != 0 && due_ns != worker(rank).alarm_ns) {
    worker(rank).alarm_ns = due_ns;
    network_.call([this, rank] { pass_up(rank, network_.now_ns()); }, due_ns);
  }
}

void StarAndMesh::pass_down(int rank, const Decision& decision, int64_t now_ns) {
  AgreementCore& core = *worker(rank).agreement;
  if (core.subtree() != nullptr) {
    core.subtree()->follow(decision);
  }
  const std::vector<int> hops = core.next_hops(decision);
  base::Bytes bytes = encode(decision);
  counts_.down += hops.size();
  counts_.agreement_bytes += bytes.size() * hops.size();
  worker(rank).agreement_messages += hops.size();
  for (const int child : hops) {
    ++worker(child).agreement_messages;
  }
  if (!hops.empty()) {
    network_.send_to(
        rank, hops, std::make_shared<const Message>(Message{.kind = MessageKind::kDecision, .bytes = std::move(bytes)}),
        now_ns);
  }
}

void StarAndMesh::obey(int rank, const Decision& decision, int64_t now_ns) {
  last_obeyed_ns_ = std::max(last_obeyed_ns_, now_ns);
  AgreementCore& core = *worker(rank).agreement;
  core.advance(decision);
  if (core.group(decision.group) == nullptr) {
    return;  // not its group
  }
  AgreementCore::Taken taken;
  core.take(decision, taken);
  std::vector<std::string>& done = worker(rank).done;
  for (const engine::Runnable& runnable : taken.runnables) {
    if (runnable.pending->completion != nullptr) {  // otherwise this rank has joined, and takes part for others
      done.push_back(runnable.pending->request.name);
    }
  }
  for (const AgreementCore::Taken::Refused& refused : taken.refused) {
    done.push_back(refused.pending->request.name + ": " + refused.reason);
  }
}

// --- what comes over the network

void StarAndMesh::receive(int to, int from, const Message& message, int64_t now_ns) {
  if (!worker(to).alive || !worker(to).runs) {
    return;
  }
  try {
    handle(to, from, message, now_ns);
    advance_setup(to, now_ns);
  } catch (const base::Error& error) {
    broken_ = "rank " + std::to_string(to) + ": " + error.what();
  }
}

void StarAndMesh::handle(int to, int from, const Message& message, int64_t now_ns) {
  const bool is_agreement = message.kind == MessageKind::kReady || message.kind == MessageKind::kDecision;
  if (is_agreement && !agrees(to)) {
    return;
  }
  switch (message.kind) {
    case MessageKind::kControl:
      take_control(to, from, message.control, now_ns);
      break;
    case MessageKind::kReady:
      take_reports(to, worker(to).agreement->read(from, message.bytes), now_ns);
      break;
    case MessageKind::kDecision:
      pass_down(to, engine::decode_decision(message.bytes), now_ns);
      obey(to, engine::decode_decision(message.bytes), now_ns);
      break;
    case MessageKind::kEnd:
      see_end(to, from, now_ns);
      break;
    default:
      take_handshake(to, from, message, now_ns);
  }
}

}  // namespace farandole::scale
