// Checkpoints of recurrent layers: where a match may end, and how they come and go.
#include <algorithm>

#include "kv/common_prefix.h"
#include "kv/radix_node.h"
#include "kv/radix_tree.h"

namespace warpweave {
namespace {

// Siblings that part within a page which are asked for checkpoints, on either side of a query's place among them.
constexpr int kSiblingsAsked = 64;

}  // namespace

// The place of `position` on the way down to `node`, which holds it or lies below.
RadixTree::Cursor RadixTree::cut_at(Node* node, int position) const {
  Cursor at;
  const int pages = position / page_size_;
  at.tail_tokens = position % page_size_;
  if (at.tail_tokens > 0) {
    while (node->begin > pages * page_size_) node = node->parent;
    at.tail_node = node;
    at.tail_index = pages - node->begin / page_size_;
  }
  while (!node->is_root() && node->begin >= pages * page_size_) node = node->parent;
  at.node = node;
  at.full_tokens = pages * page_size_;
  at.pages_in_node = pages - node->begin / page_size_;  // of a root: 0
  return at;
}

// Whether a match may end at a checkpoint of `node` up to `limit`, on the way down to `last`: where every windowed
// group has the pages that the next row sees. Then it does.
bool RadixTree::end_at_checkpoint(const Node* node, Node* last, int limit, Cursor& at) const {
  for (auto it = node->checkpoints.upper_bound(limit); it != node->checkpoints.begin();) {
    const int position = (--it)->first;
    if (mode_ == PrefixMatchMode::page && position % page_size_ != 0) continue;
    Cursor here = cut_at(last, position);
    const Node* const holder = here.tail_node != nullptr ? here.tail_node : here.node;
    if (missing_page(holder, (position + page_size_ - 1) / page_size_, position) >= 0) continue;
    here.kv_tokens = at.kv_tokens;
    here.state_slot = it->second->slot;
    at = here;
    return true;
  }
  return false;
}

// The same for the first page of `node`, of which a match has the tokens up to `limit`, in its siblings. Sequences that
// part within a page begin alike, and each has some of the checkpoints of what they share. Neighbours share the most.
void RadixTree::end_at_sibling(Node* node, int limit, Cursor& at, int& found) const {
  const auto& siblings = node->parent->children;
  const auto key = first_page(node->tokens, page_size_);
  const auto more = [&](Node* sibling) {
    const int shared = common_prefix(first_page(sibling->tokens, page_size_), key);
    const int shared_to = std::min(limit, node->begin + shared);
    if (shared_to <= found) return false;
    Cursor here = at;
    if (end_at_checkpoint(sibling, sibling, shared_to, here) && here.tokens() > found) {
      at = here;
      found = here.tokens();
    }
    return true;
  };
  const auto home = siblings.find(node);
  auto right = std::next(home), left = home;
  for (int i = 0; i < kSiblingsAsked && right != siblings.end() && more(*right); ++i) ++right;
  for (int i = 0; i < kSiblingsAsked && left != siblings.begin() && more(*std::prev(left)); ++i) --left;
}

// Takes a match back to the last checkpoint that its tokens pass.
void RadixTree::limit_to_states(Cursor& at) const {
  const int limit = at.kv_tokens;
  Node* const last = at.tail_node != nullptr ? at.tail_node : at.node;
  for (Node* node = last; !node->is_root(); node = node->parent) {
    int found = end_at_checkpoint(node, last, limit, at) ? at.tokens() : node->begin;
    end_at_sibling(node, limit, at, found);
    if (found > node->begin) return;
    if (node->parent->is_root()) at.node = node->parent;
  }
  at.full_tokens = at.pages_in_node = 0;
  at.drop_tail();
}

void RadixTree::add_checkpoint(const Node* node, std::span<const int32_t> tokens, int32_t slot, CheckpointWorth worth) {
  while (!node->is_root()) node = node->parent;
  const Cursor at = walk_tokens(roots_.at(*node->salt).get(), tokens);
  Node* const holder = at.tail_node != nullptr ? at.tail_node : at.node;
  const int position = static_cast<int>(tokens.size());
  const auto there = holder->checkpoints.find(position);
  if (at.tokens() < position || holder->is_root() || there != holder->checkpoints.end()) {
    if (there != holder->checkpoints.end() && worth == CheckpointWorth::kept) use_checkpoint(there->second);
    states_->unref(slot);
    return;
  }
  Checkpoints& list = list_of(worth);
  holder->checkpoints[position] = list.insert(list.end(), {holder, position, slot, worth});
  ++version_;
}

void RadixTree::use_checkpoint(Checkpoints::iterator used) {
  kept_.splice(kept_.end(), list_of(used->worth), used);
  used->worth = CheckpointWorth::kept;
}

bool RadixTree::evict_checkpoint(CheckpointWorth most) {
  for (const CheckpointWorth worth : {CheckpointWorth::passed, CheckpointWorth::kept}) {
    if (worth > most) break;
    Checkpoints& list = list_of(worth);
    const auto unread =
        std::find_if(list.begin(), list.end(), [this](const Checkpoint& at) { return states_->refs(at.slot) == 1; });
    if (unread == list.end()) continue;
    states_->unref(unread->slot);
    unread->node->checkpoints.erase(unread->position);
    list.erase(unread);
    ++version_;
    return true;
  }
  return false;
}

// Takes the checkpoints after a position off a node; with keep_slots they stay the tree's for a while.
void RadixTree::drop_checkpoints(Node* node, int after, bool keep_slots) {
  for (auto it = node->checkpoints.upper_bound(after); it != node->checkpoints.end();) {
    Checkpoints& list = list_of(it->second->worth);
    if (keep_slots) {
      loose_checkpoints_.splice(loose_checkpoints_.end(), list, it->second);
    } else {
      states_->unref(it->second->slot);
      list.erase(it->second);
    }
    it = node->checkpoints.erase(it);
  }
}

std::vector<int32_t> RadixTree::checkpoints() const {
  std::vector<int32_t> slots;
  for (const Checkpoints* list : {&passed_, &kept_}) {
    for (const Checkpoint& checkpoint : *list) slots.push_back(checkpoint.slot);
  }
  return slots;
}

}  // namespace warpweave
