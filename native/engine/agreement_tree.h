// Which links carry agreement: every rank but rank 0 has a parent, to which it reports, and from which it hears what is
// decided. In a star, that is rank 0 for all. In a tree, the nodes are hosts: a host's lowest rank is its leader, the
// other ranks of the host are its children, and the leaders are linked breadth first, in the order of their ranks.
#pragma once

#include <cstddef>
#include <vector>

namespace farandole::engine {

class AgreementTree {
 public:
  // `hosts` as transport::Mesh::hosts(). `fanout`: to how many further hosts a host passes on; 0: a star.
  AgreementTree(int rank, const std::vector<int>& hosts, int fanout);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(parents_.size()); }
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
  std::vector<int> parents_;  // by rank
  std::vector<bool> is_parent_;
  std::vector<int> children_;
};

}  // namespace farandole::engine
