// The hub of a communicator: a thread in the process that made the unique id. It takes the ranks' groups of operations,
// and gives back the outputs when an operation has come from all that take part in it.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "nccl/faults.h"
#include "nccl/wire.h"

namespace nccl_fake {
namespace {

// A group of a rank, until all of its operations have happened.
struct Group {
  int connection = -1;
  size_t left = 0;
  std::vector<Bytes> outputs;
};

struct Operation {
  OperationHead head;
  Bytes input;
  std::shared_ptr<Group> group;
  size_t index;  // in its group
};

class Hub {
 public:
  explicit Hub(int listener) : listener_(listener) {}
  ~Hub() {
    ::close(listener_);
    for (const Peer& peer : peers_) {
      ::close(peer.connection);
    }
  }

  void run() {
    if (!gather() || !judge()) {
      return;
    }
    std::vector<std::thread> readers;
    for (const Peer& peer : peers_) {
      readers.emplace_back([this, &peer] { read(peer); });
    }
    for (std::thread& reader : readers) {
      reader.join();
    }
  }

 private:
  struct Peer {
    int connection;
    Hello hello;
  };

  // Waits until all ranks have come; false: those that had come are gone.
  bool gather() {
    for (;;) {
      std::vector<pollfd> watched = {{listener_, POLLIN, 0}};
      size_t gone = 0;
      for (const Peer& peer : peers_) {
        char byte = 0;
        gone += ::recv(peer.connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 ? 1 : 0;
      }
      if (gone > 0 && gone == peers_.size()) {
        return false;
      }
      // Who is gone is looked for now and then: a rank that gave up leaves the others waiting, as with NCCL.
      if (::poll(watched.data(), watched.size(), peers_.empty() ? -1 : 100) <= 0) {
        continue;
      }
      Peer peer{::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), {}};
      if (peer.connection < 0 || !receive_all(peer.connection, &peer.hello, sizeof peer.hello)) {
        ::close(peer.connection);
        continue;
      }
      const int one = 1;
      ::setsockopt(peer.connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      peers_.push_back(peer);
      if (peers_.size() == static_cast<size_t>(peers_[0].hello.size)) {
        return true;
      }
    }
  }

  bool judge() {
    std::sort(peers_.begin(), peers_.end(), [](auto& a, auto& b) { return a.hello.rank < b.hello.rank; });
    const Verdict verdict = verdict_on_all();
    for (const Peer& peer : peers_) {
      send_all(peer.connection, &verdict, sizeof verdict);
    }
    collectives_.resize(peers_.size());
    return verdict.result == kSuccess;
  }

  Verdict verdict_on_all() const {
    Verdict verdict{};
    const auto refuse = [&](const char* format, auto... numbers) {
      verdict.result = kInvalidUsage;
      std::snprintf(verdict.text, sizeof verdict.text, format, numbers...);
      return verdict;
    };
    for (size_t i = 0; i < peers_.size(); ++i) {
      const Hello& one = peers_[i].hello;
      if (one.rank != static_cast<int>(i) || one.size != static_cast<int>(peers_.size())) {
        return refuse("Ranks or sizes do not fit : rank %d of %d", one.rank, one.size);
      }
      for (size_t k = 0; k < i; ++k) {
        const Hello& other = peers_[k].hello;
        if (other.version != one.version) {
          return refuse("Mismatched NCCL version detected : rank %d version %d rank %d version %d", other.rank,
                        other.version, one.rank, one.version);
        }
        // Instances of MIG have one bus, and UUIDs of their own.
        const bool is_one_gpu = other.host == one.host && other.bus == one.bus;
        const bool is_allowed = one.version >= 23000 && one.may_share_gpu != 0 && other.may_share_gpu != 0;
        if (is_one_gpu && !is_allowed) {
          return refuse("Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", one.rank, other.rank,
                        static_cast<unsigned>(one.bus));
        }
      }
    }
    return verdict;
  }

  void read(const Peer& peer) {
    uint32_t count = 0;
    while (receive_all(peer.connection, &count, sizeof count)) {
      auto group = std::make_shared<Group>();
      group->connection = peer.connection;
      group->left = count;
      group->outputs.resize(count);
      std::vector<Operation> operations;
      for (uint32_t i = 0; i < count; ++i) {
        Operation operation{{}, {}, group, i};
        if (!receive_all(peer.connection, &operation.head, sizeof operation.head)) {
          return;
        }
        operation.input.resize(operation.head.input_bytes);
        if (!receive_all(peer.connection, operation.input.data(), operation.input.size())) {
          return;
        }
        operations.push_back(std::move(operation));
      }
      for (const auto& answered : take(peer.hello.rank, std::move(operations))) {
        send_all(answered->connection, &kDone, sizeof kDone);
        for (const Bytes& output : answered->outputs) {
          send_all(answered->connection, output.data(), output.size());
        }
      }
    }
  }

  // Returns the groups that are complete now. Their ranks wait for an answer, so that sending it cannot block for long.
  std::vector<std::shared_ptr<Group>> take(int rank, std::vector<Operation> operations) {
    const std::lock_guard lock(mutex_);
    for (Operation& operation : operations) {
      switch (operation.head.kind) {
        case Kind::kSend:
          points_[{rank, operation.head.peer}].sent.push_back(std::move(operation));
          break;
        case Kind::kRecv:
          points_[{operation.head.peer, rank}].received.push_back(std::move(operation));
          break;
        default:
          collectives_[static_cast<size_t>(rank)].push_back(std::move(operation));
      }
    }
    std::vector<std::shared_ptr<Group>> complete;
    match_points(complete);
    while (!is_stuck_ && std::none_of(collectives_.begin(), collectives_.end(), [](auto& q) { return q.empty(); })) {
      match_collective(complete);
    }
    return complete;
  }

  void match_points(std::vector<std::shared_ptr<Group>>& complete) {
    for (auto& [pair, point] : points_) {
      while (!is_stuck_ && !point.sent.empty() && !point.received.empty()) {
        Operation& sent = point.sent.front();
        Operation& received = point.received.front();
        if (sent.head.count != received.head.count || sent.head.dtype != received.head.dtype) {
          hang(pair.first, sent.head, pair.second, received.head);
          return;
        }
        finish(received, std::move(sent.input), complete);
        finish(sent, {}, complete);
        point.sent.pop_front();
        point.received.pop_front();
      }
    }
  }

  void match_collective(std::vector<std::shared_ptr<Group>>& complete) {
    const OperationHead head = collectives_[0].front().head;
    for (size_t rank = 1; rank < collectives_.size(); ++rank) {
      const OperationHead& other = collectives_[rank].front().head;
      if (other.kind != head.kind || other.dtype != head.dtype || other.op != head.op || other.peer != head.peer ||
          other.count != head.count) {
        hang(0, head, static_cast<int>(rank), other);
        return;
      }
    }
    std::vector<Operation> all;
    std::vector<Bytes> inputs;
    for (auto& queue : collectives_) {
      all.push_back(std::move(queue.front()));
      queue.pop_front();
      inputs.push_back(std::move(all.back().input));
    }
    for (size_t rank = 0; rank < all.size(); ++rank) {
      finish(all[rank], output_of(head, inputs, rank), complete);
    }
    reduced_.clear();
    ++done_;
  }

  Bytes output_of(const OperationHead& head, const std::vector<Bytes>& inputs, size_t rank) {
    const size_t bytes = head.count * size_of(head.dtype);
    switch (head.kind) {
      case Kind::kBroadcast:
        return inputs[static_cast<size_t>(head.peer)];
      case Kind::kAllGather: {
        Bytes all;
        for (const Bytes& input : inputs) {
          all.insert(all.end(), input.begin(), input.end());
        }
        return all;
      }
      case Kind::kReduceScatter: {
        if (reduced_.empty()) {
          reduced_ = reduce(inputs, head.dtype, head.op, head.count * inputs.size());
        }
        const auto begin = reduced_.begin() + static_cast<ptrdiff_t>(rank * bytes);
        return {begin, begin + static_cast<ptrdiff_t>(bytes)};
      }
      default:
        if (reduced_.empty()) {
          reduced_ = reduce(inputs, head.dtype, head.op, head.count);
        }
        const bool has_output = head.kind == Kind::kAllReduce || rank == static_cast<size_t>(head.peer);
        return has_output ? reduced_ : Bytes{};
    }
  }

  static void finish(const Operation& operation, Bytes output, std::vector<std::shared_ptr<Group>>& complete) {
    Group& group = *operation.group;
    group.outputs[operation.index] = std::move(output);
    if (--group.left == 0) {
      complete.push_back(operation.group);
    }
  }

  void hang(int rank, const OperationHead& head, int other_rank, const OperationHead& other) {
    is_stuck_ = true;
    std::fprintf(stderr, "fake NCCL: after %zu collectives, rank %d has %s, and rank %d has %s: this hangs\n", done_,
                 rank, describe(head).c_str(), other_rank, describe(other).c_str());
    count(Count::kMismatches);
  }

  struct Point {
    std::deque<Operation> sent;
    std::deque<Operation> received;
  };

  const int listener_;
  std::vector<Peer> peers_;
  std::mutex mutex_;
  std::vector<std::deque<Operation>> collectives_;  // for each rank
  std::map<std::pair<int, int>, Point> points_;     // from a rank to a rank
  Bytes reduced_;                                   // of the collective at hand
  size_t done_ = 0;
  bool is_stuck_ = false;
};

}  // namespace

bool start_hub(sockaddr_in* address) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *address = {};
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof *address;
  auto* const name = reinterpret_cast<sockaddr*>(address);
  if (listener < 0 || ::bind(listener, name, length) != 0 || ::listen(listener, SOMAXCONN) != 0 ||
      ::getsockname(listener, name, &length) != 0) {
    ::close(listener);
    return false;
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([listener] { Hub(listener).run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

}  // namespace nccl_fake
