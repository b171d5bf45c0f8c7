#include "spec/ngram_trie.h"

namespace warpweave {

void NgramTrie::clear() {
  nodes_.clear();
  slots_.assign(slots_.size(), kNone);
  num_edges_ = 0;
  roots_.clear();
  salt_bytes_ = 0;
}

NgramTrie::NodeId NgramTrie::root(std::string_view salt) {
  if (const NodeId known = find_root(salt); known != kNone) return known;
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.emplace_back();
  roots_.emplace(salt, id);
  salt_bytes_ += salt.size() + kRootBytes;
  return id;
}

NgramTrie::NodeId NgramTrie::find_root(std::string_view salt) const {
  const auto found = roots_.find(std::string(salt));
  return found == roots_.end() ? kNone : found->second;
}

// Where the search for the edge begins.
size_t NgramTrie::first_slot_of(NodeId parent, int32_t token) const {
  uint64_t hash = (uint64_t{parent} << 32 | static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  return hash & (slots_.size() - 1);
}

// Where the edge stands, or would.
size_t NgramTrie::slot_of(NodeId parent, int32_t token, size_t first) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = first;; slot = (slot + 1) & mask) {
    const NodeId id = slots_[slot];
    if (id == kNone || (nodes_[id].parent == parent && nodes_[id].token == token)) return slot;
  }
}

NgramTrie::NodeId NgramTrie::find(NodeId parent, int32_t token) const {
  return parent == kNone ? kNone : slots_[slot_of(parent, token, first_slot_of(parent, token))];
}

NgramTrie::NodeId NgramTrie::visit(NodeId parent, int32_t token) {
  if (parent == kNone) return kNone;
  if (2 * (num_edges_ + 1) > slots_.size()) grow();
  return visit_from(first_slot_of(parent, token), parent, token);
}

// With room for one more edge.
NgramTrie::NodeId NgramTrie::visit_from(size_t first, NodeId parent, int32_t token) {
  NodeId& slot = slots_[slot_of(parent, token, first)];
  if (slot == kNone) {
    const auto id = static_cast<NodeId>(nodes_.size());
    nodes_.push_back({.parent = parent, .token = token});
    slot = id;
    ++num_edges_;
    Node& above = nodes_[parent];
    ++above.num_children;
    nodes_[id].next = above.first_child;
    if (above.first_child != kNone) nodes_[above.first_child].previous = id;
    above.first_child = id;
  } else {
    move_to_front(slot);
  }
  ++nodes_[slot].count;
  return slot;
}

NgramTrie::Slots NgramTrie::prefetch(int32_t token, std::span<const NodeId> parents) const {
  Slots first;
  for (size_t i = 0; i < parents.size(); ++i) {
    first[i] = first_slot_of(parents[i], token);
    __builtin_prefetch(&slots_[first[i]]);
  }
  for (size_t i = 0; i < parents.size(); ++i) {
    if (const NodeId id = slots_[first[i]]; id != kNone) __builtin_prefetch(&nodes_[id]);
  }
  return first;
}

void NgramTrie::find_all(int32_t token, std::span<NodeId> nodes) const {
  const Slots first = prefetch(token, nodes);
  for (size_t i = nodes.size(); i-- > 0;) {
    if (nodes[i] != kNone) nodes[i] = slots_[slot_of(nodes[i], token, first[i])];
  }
}

void NgramTrie::visit_all(int32_t token, std::span<NodeId> nodes) {
  if (2 * (num_edges_ + nodes.size()) > slots_.size()) grow();
  const Slots first = prefetch(token, nodes);
  for (size_t i = nodes.size(); i-- > 0;) {
    if (nodes[i] != kNone) nodes[i] = visit_from(first[i], nodes[i], token);
  }
}

void NgramTrie::move_to_front(NodeId id) {
  Node& node = nodes_[id];
  if (node.previous == kNone) return;
  Node& above = nodes_[node.parent];
  nodes_[node.previous].next = node.next;
  if (node.next != kNone) nodes_[node.next].previous = node.previous;
  node.next = above.first_child;
  node.previous = kNone;
  nodes_[above.first_child].previous = id;
  above.first_child = id;
}

void NgramTrie::grow() {
  slots_.assign(slots_.size() * 2, kNone);
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (node.parent != kNone) slots_[slot_of(node.parent, node.token, first_slot_of(node.parent, node.token))] = id;
  }
}

}  // namespace warpweave
