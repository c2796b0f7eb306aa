// Which links carry agreement: every rank but rank 0 has a parent, to which it reports, and from which it hears what is
// decided. In a star, that is rank 0 for all. In a tree, the nodes are hosts: a host's lowest rank is its leader, the
// other ranks of the host are its children, and the leaders are linked breadth first, in the order of their ranks.
//
// A world of at most kMostHostsOfStar hosts is a star: there, a tree saves rank 0 little, and each leader whose process
// gets no processor time delays its host. A larger one is a tree, so that what rank 0 sends and receives does not grow
// with the number of ranks.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace farandole::engine {

inline constexpr int kMostHostsOfStar = 8;
inline constexpr int kUsualFanout = 16;

// Returns to how many further hosts each host of a world passes on; 0: a star. `hosts` as transport::Mesh::hosts(),
// `setting` as EngineSettings::agreement_fanout. It is the same on all ranks if the setting is.
int choose_fanout(const std::vector<int>& hosts, std::optional<int> setting);

class AgreementTree {
 public:
  // Both as in choose_fanout().
  AgreementTree(int rank, const std::vector<int>& hosts, int fanout);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(parents_.size()); }
  int fanout() const noexcept { return fanout_; }
  // Of this rank; -1 for rank 0.
  int parent() const noexcept { return parents_[static_cast<size_t>(rank_)]; }
  // Of this rank, in ascending order.
  const std::vector<int>& children() const noexcept { return children_; }
  bool is_child(int rank) const noexcept { return parents_[static_cast<size_t>(rank)] == rank_; }
  // Whether that rank has children, too: then it reports for its whole subtree.
  bool has_children(int rank) const noexcept { return is_parent_[static_cast<size_t>(rank)]; }
  // The child whose subtree contains that rank, or -1.
  int child_towards(int rank) const noexcept;
  // Whether that rank is this one, or below it.
  bool is_in_subtree(int rank) const noexcept { return rank == rank_ || child_towards(rank) >= 0; }

 private:
  const int rank_;
  const int fanout_;
  std::vector<int> parents_;  // by rank
  std::vector<bool> is_parent_;
  std::vector<int> children_;
};

}  // namespace farandole::engine
