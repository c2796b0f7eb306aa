// A simulated world: the set-up, watch and agreement of every rank are the ones of the library (SetupCore, WatchCore,
// AgreementCore), between them lies a simulated network. It counts what they send.
//
// Not simulated: tensors, late links (what needs one is sent without it), what workers of one host do in shared memory
// but for their lifelines, proofs (the messages of the handshake are sent, without HMACs), addresses that cannot be
// reached, second attempts to connect.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/agreement_core.h"
#include "scale/network.h"
#include "transport/setup_core.h"
#include "transport/watch_core.h"

namespace farandole::scale {

struct Counts {
  uint64_t tcp_connections = 0;  // of the whole job
  uint64_t unix_connections = 0;
  std::array<uint64_t, 7> control_frames{};  // by ControlKind
  std::array<uint64_t, 7> control_bytes{};   // of those, headers included
  // Of agreement: messages towards rank 0 and away from it, and their payloads.
  uint64_t up = 0;
  uint64_t down = 0;
  uint64_t agreement_bytes = 0;

  uint64_t frames(transport::ControlKind kind) const noexcept { return control_frames[static_cast<size_t>(kind)]; }
  uint64_t bytes(transport::ControlKind kind) const noexcept { return control_bytes[static_cast<size_t>(kind)]; }
};

class StarAndMesh final : private Receiver {
 public:
  // What a rank believes of the hosts, as Mesh::hosts(). A world in which that is wrong shows what an oracle finds.
  using Belief = std::function<void(int rank, std::vector<int>& hosts)>;
  StarAndMesh(Layout layout, uint64_t seed = 0, Costs costs = {}, double deadline_seconds = 1.0,
              const Belief& belief = nullptr);

  Network& network() noexcept { return network_; }
  const Counts& counts() const noexcept { return counts_; }

  // Every rank connects to its peers below it, from the time `starts_ns(rank)` on, and gives up this long after that.
  void connect(const std::function<int64_t(int)>& starts_ns = nullptr, int64_t patience_ns = 30 * kSecond);
  // Without a set-up.
  void form_at_once();
  bool formed() const noexcept;
  // When the last rank's world formed.
  int64_t last_formed_ns() const noexcept { return last_formed_ns_; }
  // The hosts as this rank sees them, once it has formed.
  std::vector<int> hosts(int rank) const { return worker(rank).setup->hosts(); }
  // To which it is linked from the start.
  const std::vector<int>& peers(int rank) const { return worker(rank).peers; }

  // This rank wants a barrier of this name, or something else.
  void submit(int rank, const std::string& name);
  void submit(int rank, engine::Request request);
  // The names of what has run on this rank, in order; of what was refused, with why.
  const std::vector<std::string>& done(int rank) const { return worker(rank).done; }
  // The messages of agreement that this rank has sent and received.
  uint64_t agreement_messages(int rank) const { return worker(rank).agreement_messages; }
  // When a rank obeyed the last decision.
  int64_t last_obeyed_ns() const noexcept { return last_obeyed_ns_; }
  int children(int rank) { return static_cast<int>(agreement(rank).tree().children().size()); }
  // What rank 0 knows to wait for.
  std::vector<engine::Coordinator::Waiting> waiting() { return agreement(0).coordinator()->waiting(); }

  // The process ends; its host sees that at once, and the kernel closes its connections this much later.
  void kill(int rank, int64_t closes_after_ns = 0);
  // Survivors close their connections this much after the end of their world. Without it they keep them, but for those
  // of a set-up that fails.
  void leave_after_end(int64_t after_ns) { leaves_after_ns_ = after_ns; }
  // Their programs end then, which looks like a death to the workers of their host.
  void end_programs() { programs_end_ = true; }
  // The process stops, as by SIGSTOP: it neither sends nor receives any more.
  void stop(int rank) { worker(rank).runs = false; }
  // A layer above ends the world at one rank.
  void revoke(int rank, const transport::Cause& cause);

  bool is_alive(int rank) const { return worker(rank).alive && worker(rank).runs; }
  bool has_formed(int rank) const { return worker(rank).watch.has_value(); }
  // Why the world ended for this rank, and when.
  const std::optional<transport::Cause>& cause(int rank) const { return worker(rank).cause; }
  // The same where it did not form in time.
  const std::optional<base::Error>& timeout(int rank) const { return worker(rank).timeout; }
  int64_t ended_ns(int rank) const { return worker(rank).ended_ns; }
  // When it gives up forming its world.
  int64_t deadline_ns(int rank) const { return worker(rank).deadline_ns; }
  // An error of a core, which a world without faults never has.
  const std::string& broken() const noexcept { return broken_; }

 private:
  struct Worker {
    std::optional<transport::SetupCore> setup;
    int64_t starts_ns = 0;
    int64_t last_moments_ns = 0;  // before the deadline, see MeshSetup
    int64_t deadline_ns = 0;
    std::vector<int> peers;
    std::set<int> channels;  // those whose control connection is proven here, and has not ended
    std::set<int> memories;  // those of this host whose memory is here
    std::set<int> dead;      // those whose memory shows that they have died
    std::optional<transport::WatchCore> watch;
    std::unique_ptr<engine::AgreementCore> agreement;  // null: it has had nothing to do; it has a place for each rank
    std::vector<int> ended;                            // whose connections ended during the set-up
    std::vector<std::string> done;
    uint64_t agreement_messages = 0;
    int64_t alarm_ns = 0;  // the last one that was set
    std::optional<transport::Cause> cause;
    std::optional<base::Error> timeout;
    int64_t ended_ns = 0;
    bool alive = true;
    bool runs = true;
    bool left = false;  // it has closed its connections after the end of its world

    bool hears() const noexcept { return alive && runs && !left; }
    bool is_over() const noexcept { return cause || timeout; }
  };

  Worker& worker(int rank) { return workers_[static_cast<size_t>(rank)]; }
  const Worker& worker(int rank) const { return workers_[static_cast<size_t>(rank)]; }
  engine::AgreementCore& agreement(int rank);
  std::vector<int> mates(int rank) const;  // the others of its host, the next one above it first, in cyclic order
  // Whether this rank still takes part in agreement: not once its world has ended.
  bool agrees(int rank) const { return is_alive(rank) && !worker(rank).cause; }

  void receive(int to, int from, const Message& message, int64_t now_ns) override;
  void tick(int rank, int64_t now_ns) override;
  void handle(int to, int from, const Message& message, int64_t now_ns);
  void take_handshake(int to, int from, const Message& message, int64_t now_ns);
  void prove(int to, int from, transport::Channel channel, bool connector, int64_t now_ns);
  void take_control(int to, int from, const transport::ControlFrame& frame, int64_t now_ns);
  void see_end(int to, int from, int64_t now_ns);
  void take_reports(int rank, const std::vector<engine::Report>& reports, int64_t now_ns);
  void pass_up(int rank, int64_t now_ns);
  void send_up(int rank, base::Bytes bytes, int64_t now_ns);
  void pass_down(int rank, const engine::Decision& decision, int64_t now_ns);
  void obey(int rank, const engine::Decision& decision, int64_t now_ns);
  void begin_setup(int rank, int64_t patience_ns, int64_t now_ns);
  void advance_setup(int rank, int64_t now_ns);
  int64_t gives_up_ns(int rank) const;
  void await_giving_up(int rank);
  void obey_timeout(int rank, const base::Error& error, int64_t now_ns);
  void fail_setup(int rank, const transport::ControlFrame& frame, int64_t now_ns);
  void see_end_during_setup(int to, int from, int64_t now_ns);
  void see_death(int to, int from, int64_t now_ns);
  void handle_deaths(int rank, int64_t now_ns);
  bool sets_up(int rank) const { return worker(rank).setup && !worker(rank).watch && !worker(rank).is_over(); }
  bool sleeps_on(int to, int from, const Message& message, int64_t now_ns) const;
  void begin_watch(int rank, int64_t now_ns);
  void end_world(int rank, const transport::Cause& cause, int64_t now_ns);
  void leave(int rank, int64_t now_ns);

  void send_handshake(int from, int to, MessageKind kind, transport::Channel channel, int64_t now_ns);
  void send_control(int from, std::vector<int> to, const transport::ControlFrame& frame, int64_t now_ns);

  const double deadline_seconds_;
  std::optional<int64_t> leaves_after_ns_;
  bool programs_end_ = false;
  Network network_;
  const Belief belief_;
  std::vector<int> hosts_;     // as the contacts say
  engine::Recorder recorder_;  // of all ranks: nothing is read from it
  std::vector<Worker> workers_;
  Counts counts_;
  std::string broken_;
  int64_t last_formed_ns_ = 0;
  int64_t last_obeyed_ns_ = 0;
};

}  // namespace farandole::scale
