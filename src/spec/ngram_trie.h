// A trie of token sequences that were seen, with how often each was: what followed these tokens before?
//
// Edges stand in one hash table; the children of a node form a list, the one seen last first. Nodes are never taken
// out: whoever needs a bound clears a whole trie. Lookups and insertions take constant time. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace warpweave {

class NgramTrie {
 public:
  using NodeId = uint32_t;
  static constexpr NodeId kNone = UINT32_MAX;
  static constexpr size_t kMostAtOnce = 32;

  struct Node {
    NodeId parent = kNone;
    int32_t token = 0;
    uint32_t count = 0;            // visits
    uint32_t num_children = 0;
    NodeId first_child = kNone;    // the one visited last
    NodeId next = kNone, previous = kNone;  // among its siblings
  };

  NgramTrie() { slots_.assign(kFirstSlots, kNone); }

  // Forgets everything and keeps the memory, for a trie that fills again.
  void clear();

  // Where the sequences of one salt begin.
  NodeId root(std::string_view salt);
  // kNone where there is none, and of kNone.
  NodeId find_root(std::string_view salt) const;
  NodeId find(NodeId parent, int32_t token) const;
  // Counts one more visit of the child, which is made if it is new. Of kNone: kNone.
  NodeId visit(NodeId parent, int32_t token);
  // find() and visit() of a token behind each of at most kMostAtOnce nodes, from the last to the first, in whose place
  // the children come. What they read is asked for ahead, so that memory is waited for together.
  void find_all(int32_t token, std::span<NodeId> nodes) const;
  void visit_all(int32_t token, std::span<NodeId> nodes);

  const Node& node(NodeId id) const { return nodes_[id]; }
  size_t num_nodes() const { return nodes_.size(); }
  size_t reserved_bytes() const { return nodes_.capacity() * sizeof(Node) + slots_.capacity() * sizeof(NodeId); }
  size_t num_salts() const { return roots_.size(); }
  // The nodes, and as many as the salts' texts have room for: what a bound on memory counts.
  size_t num_nodes_with_salts() const { return nodes_.size() + salt_bytes_ / sizeof(Node); }

 private:
  static constexpr size_t kFirstSlots = 1024;  // a power of two
  static constexpr size_t kRootBytes = 64;     // of an entry of roots_ beside its text

  using Slots = std::array<size_t, kMostAtOnce>;

  size_t first_slot_of(NodeId parent, int32_t token) const;
  size_t slot_of(NodeId parent, int32_t token, size_t first) const;
  Slots prefetch(int32_t token, std::span<const NodeId> parents) const;
  NodeId visit_from(size_t first, NodeId parent, int32_t token);
  void grow();
  void move_to_front(NodeId id);

  std::vector<Node> nodes_;
  std::vector<NodeId> slots_;  // open addressing by (parent, token), at most half full
  size_t num_edges_ = 0;
  std::unordered_map<std::string, NodeId> roots_;  // by salt
  size_t salt_bytes_ = 0;      // of roots_
};

}  // namespace warpweave
