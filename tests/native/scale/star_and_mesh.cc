#include "scale/star_and_mesh.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "transport/start_graph.h"

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
using transport::Sign;
using transport::WatchCore;

StarAndMesh::StarAndMesh(Layout layout, uint64_t seed, Costs costs, double deadline_seconds, const Belief& belief)
    : deadline_seconds_(deadline_seconds),
      network_(layout, costs, seed, *this),
      belief_(belief),
      workers_(static_cast<size_t>(layout.size)) {
  for (int rank = 0; rank < layout.size; ++rank) {
    hosts_.push_back(layout.host_of(rank) * layout.ranks_per_host);
  }
  for (int rank = 0; rank < layout.size; ++rank) {
    worker(rank).peers = transport::start_peers(rank, hosts_);
  }
}

AgreementCore& StarAndMesh::agreement(int rank) {
  std::unique_ptr<AgreementCore>& core = worker(rank).agreement;
  if (core == nullptr) {
    collective::Group world;
    world.members.resize(workers_.size());
    std::iota(world.members.begin(), world.members.end(), 0);
    world.index = rank;
    std::vector<int> believed = hosts_;
    if (belief_) {
      belief_(rank, believed);
    }
    core = std::make_unique<AgreementCore>(
        engine::AgreementTree(rank, believed, engine::choose_fanout(believed, network_.layout().fanout)), world,
        /*waits_for_formed=*/false, recorder_);
  }
  return *core;
}

std::vector<int> StarAndMesh::mates(int rank) const {
  const Layout& layout = network_.layout();
  const int first = layout.host_of(rank) * layout.ranks_per_host;
  const int count = std::min(layout.ranks_per_host, layout.size - first);
  std::vector<int> ranks;
  for (int distance = 1; distance < count; ++distance) {
    ranks.push_back(first + (rank - first + distance) % count);
  }
  return ranks;
}

void StarAndMesh::form_at_once() {
  for (int rank = 0; rank < network_.layout().size; ++rank) {
    begin_watch(rank, 0);
  }
}

bool StarAndMesh::formed() const noexcept {
  return std::ranges::all_of(workers_, [](const Worker& each) { return each.watch.has_value(); });
}

// --- the watch

void StarAndMesh::begin_watch(int rank, int64_t now_ns) {
  Worker& self = worker(rank);
  last_formed_ns_ = now_ns;
  self.watch.emplace(rank, network_.layout().size, self.peers, deadline_seconds_, now_ns);
  network_.call_tick(rank, now_ns);
  for (const int ended : std::exchange(self.ended, {})) {
    see_end(rank, ended, now_ns);
  }
  for (const int mate : mates(rank)) {
    if (self.dead.contains(mate)) {
      see_death(rank, mate, now_ns);
    }
  }
}

void StarAndMesh::tick(int rank, int64_t now_ns) {
  Worker& self = worker(rank);
  if (!self.hears() || self.watch->is_over() || now_ns < self.watch->next_tick_ns()) {
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
  std::optional<Cause> cause;
  if (self.watch) {
    cause = self.watch->receive(from, frame, now_ns);
  } else if (sets_up(to) && self.channels.contains(from)) {
    cause = self.setup->receive(from, frame);
  }
  if (cause) {
    end_world(to, *cause, now_ns);
  }
}

void StarAndMesh::see_end(int to, int from, int64_t now_ns) {
  if (!worker(to).watch) {
    see_end_during_setup(to, from, now_ns);
  } else if (const auto cause = worker(to).watch->end(from, Sign::kClosed, now_ns)) {
    end_world(to, *cause, now_ns);
  } else {
    network_.call_tick(to, worker(to).watch->next_tick_ns());
  }
}

// The workers of a host watch each other's lifelines in cyclic order.
void StarAndMesh::see_death(int to, int from, int64_t now_ns) {
  Worker& self = worker(to);
  if (!self.watch) {
    if (self.setup) {
      self.dead.insert(from);
    }
    return;
  }
  if (mates(to).front() == from) {
    if (const auto cause = self.watch->die(from, now_ns)) {
      end_world(to, *cause, now_ns);
    } else {
      network_.call_tick(to, self.watch->next_tick_ns());
    }
  }
}

void StarAndMesh::end_world(int rank, const Cause& cause, int64_t now_ns) {
  Worker& self = worker(rank);
  if (self.is_over()) {
    return;
  }
  self.cause = cause;
  self.ended_ns = now_ns;
  if (!self.watch) {
    fail_setup(rank, transport::revoke_frame(cause), now_ns);
  } else if (const auto outgoing = self.watch->spread(cause)) {
    send_control(rank, outgoing->to, outgoing->frame, now_ns);
  }
  leave(rank, now_ns);
}

void StarAndMesh::leave(int rank, int64_t now_ns) {
  if (!leaves_after_ns_) {
    return;
  }
  network_.call(
      [this, rank] {
        if (!worker(rank).hears()) {
          return;
        }
        worker(rank).left = true;
        if (programs_end_) {
          network_.send_to(rank, mates(rank), std::make_shared<const Message>(Message{.kind = MessageKind::kLifeline}),
                           network_.now_ns());
        }
        network_.close(rank, worker(rank).peers, network_.now_ns());
      },
      now_ns + *leaves_after_ns_);
}

void StarAndMesh::kill(int rank, int64_t closes_after_ns) {
  worker(rank).alive = false;
  network_.break_lifeline(rank, mates(rank), network_.now_ns());
  network_.end(rank, worker(rank).peers, network_.now_ns() + closes_after_ns);
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
  AgreementCore& core = agreement(rank);
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
  const int parent = agreement(rank).tree().parent();
  ++counts_.up;
  ++worker(rank).agreement_messages;
  ++worker(parent).agreement_messages;
  counts_.agreement_bytes += bytes.size();
  network_.send(rank, parent,
                std::make_shared<const Message>(Message{.kind = MessageKind::kReady, .bytes = std::move(bytes)}),
                now_ns);
}

void StarAndMesh::take_reports(int rank, const std::vector<Report>& reports, int64_t now_ns) {
  AgreementCore& core = agreement(rank);
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
  engine::SubtreeTally& subtree = *agreement(rank).subtree();
  if (const std::vector<Report> reports = subtree.take(now_ns); !reports.empty()) {
    send_up(rank, encode(reports), now_ns);
  }
  if (const int64_t due_ns = subtree.due_ns(); due_ns != 0 && due_ns != worker(rank).alarm_ns) {
    worker(rank).alarm_ns = due_ns;
    network_.call([this, rank] { pass_up(rank, network_.now_ns()); }, due_ns);
  }
}

void StarAndMesh::pass_down(int rank, const Decision& decision, int64_t now_ns) {
  AgreementCore& core = agreement(rank);
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
  AgreementCore& core = agreement(rank);
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
  if (!worker(to).hears()) {
    return;
  }
  try {
    handle(to, from, message, now_ns);
    if (!sleeps_on(to, from, message, now_ns)) {
      advance_setup(to, now_ns);
    }
  } catch (const base::Error& error) {
    if (error.code() == base::Code::kTimeout && sets_up(to)) {
      obey_timeout(to, error, now_ns);
    } else {
      broken_ = "rank " + std::to_string(to) + ": " + error.what();
    }
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
      take_reports(to, agreement(to).read(from, message.bytes), now_ns);
      break;
    case MessageKind::kDecision:
      pass_down(to, engine::decode_decision(message.bytes), now_ns);
      obey(to, engine::decode_decision(message.bytes), now_ns);
      break;
    case MessageKind::kEnd:
      see_end(to, from, now_ns);
      break;
    case MessageKind::kLifeline:
      see_death(to, from, now_ns);
      break;
    default:
      take_handshake(to, from, message, now_ns);
  }
}

}  // namespace farandole::scale
