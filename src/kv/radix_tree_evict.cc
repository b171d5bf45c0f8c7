// What leaves the tree and in which order, and its audit.
#include <algorithm>
#include <cassert>

#include "kv/radix_node.h"
#include "kv/radix_tree.h"

namespace warpweave {

int RadixTree::evict(int num_pages, PagePart part) {
  const int free_before = pool_.num_free(part);
  const auto missing = [&] { return num_pages - (pool_.num_free(part) - free_before); };
  const bool frees_windows = !pool_.split() || part == PagePart::windows;
  while (frees_windows && missing() > 0 && !windowed_.empty()) {
    Node* oldest = *windowed_.begin();
    drop_window_pages(oldest, missing(), /*keep_end=*/true);
    if (missing() > 0) untrack_windows(oldest);
  }
  while (missing() > 0 && !evictable_leaves_.empty()) trim(*evictable_leaves_.begin(), missing());
  if (frees_windows && missing() > 0 && pool_.num_spare() > 0) drop_any_window_pages(missing());
  return num_pages - missing();
}

void RadixTree::clear() {
  while (!evictable_leaves_.empty()) {
    Node* const leaf = *evictable_leaves_.begin();
    trim(leaf, leaf->num_pages());
  }
}

// Drops up to num_pages pages of windowed groups that only the tree holds, the first ones first; with keep_end those
// that a hit at the end of the node needs stay. Returns how many came free.
int RadixTree::drop_window_pages(Node* node, int num_pages, bool keep_end) {
  int freed = 0;
  for (int i = 0; i < node->num_pages() && freed < num_pages; ++i) {
    for (int g = 0; g < num_groups_; ++g) {
      int32_t& page = node->page(i, g);
      if (!groups_[g].windowed() || page == kNoPage || pool_.refs(page) > 1) continue;
      if (keep_end && i >= groups_[g].first_seen(node->end()) / page_size_ - node->begin / page_size_) continue;
      disown(page, g);
      page = kNoPage;
      ++freed;
    }
  }
  if (freed > 0) ++version_;
  return freed;
}

// The last resort, when only windows that hits would need are left; it walks the tree, so it takes more than asked.
int RadixTree::drop_any_window_pages(int num_pages) {
  constexpr int kAtOnce = 64;
  int freed = 0;
  for (auto& [salt, root] : roots_) {
    std::vector<Node*> pending(root->children.begin(), root->children.end());
    while (!pending.empty() && freed < num_pages + kAtOnce) {
      Node* node = pending.back();
      pending.pop_back();
      pending.insert(pending.end(), node->children.begin(), node->children.end());
      freed += drop_window_pages(node, num_pages + kAtOnce - freed, /*keep_end=*/false);
    }
  }
  return freed;
}

// Takes up to num_pages pages of each group off the end of a leaf.
void RadixTree::trim(Node* leaf, int num_pages) {
  ++version_;
  const int keep_pages = std::max(0, leaf->num_pages() - num_pages);
  const int keep_tokens = std::min(keep_pages * page_size_, leaf->num_tokens());
  evicted_tokens_total_ += leaf->num_tokens() - keep_tokens;
  if (keep_pages == 0) return remove_leaf(leaf);
  drop_checkpoints(leaf, leaf->begin + keep_tokens, /*keep_slots=*/false);
  count(*leaf, -1);
  for (int i = keep_pages; i < leaf->num_pages(); ++i) {
    for (int g = 0; g < num_groups_; ++g) disown(leaf->page(i, g), g);
  }
  leaf->pages.resize(keep_pages * num_groups_);
  leaf->tokens.resize(keep_tokens);
  count(*leaf, +1);
}

void RadixTree::remove_leaf(Node* leaf) {
  assert(leaf->locks == 0 && leaf->children.empty());
  ++version_;
  Node* parent = leaf->parent;
  untrack(leaf);
  untrack_windows(leaf);
  drop_checkpoints(leaf, leaf->begin, /*keep_slots=*/false);
  count(*leaf, -1);
  parent->children.erase(leaf);
  for (size_t i = 0; i < leaf->pages.size(); ++i) disown(leaf->pages[i], static_cast<int>(i) % num_groups_);
  drop_node(leaf);
  track(parent);
  remove_root_if_unused(parent);
}

void RadixTree::remove_root_if_unused(Node* root) {
  if (root->is_root() && root->locks == 0 && root->children.empty()) {
    roots_.erase(roots_.find(*root->salt));
  }
}

void RadixTree::count(const Node& node, int sign) {
  (node.locks > 0 ? locked_tokens_ : evictable_tokens_) += sign * node.num_tokens();
  (node.locks > 0 ? locked_pages_ : evictable_pages_) += sign * node.num_pages() * full_groups_;
}

// Moves a node to its place in the order of use.
void RadixTree::set_last_use(Node* node) {
  const bool tracked = node->tracked, windowed = node->windowed;
  untrack(node);
  untrack_windows(node);
  node->last_use = ++tick_;
  if (tracked) track(node);
  if (windowed) track_windows(node);
}

// Puts an unlocked leaf among those to evict.
void RadixTree::track(Node* node) {
  if (node->is_root() || node->locks > 0 || !node->children.empty() || node->tracked) return;
  node->tracked = true;
  evictable_leaves_.insert(node);
}

void RadixTree::untrack(Node* node) {
  if (!node->tracked) return;
  node->tracked = false;
  evictable_leaves_.erase(node);
}

void RadixTree::track_windows(Node* node) {
  if (full_groups_ == num_groups_ || node->windowed) return;
  node->windowed = true;
  windowed_.insert(node);
}

void RadixTree::untrack_windows(Node* node) {
  if (!node->windowed) return;
  node->windowed = false;
  windowed_.erase(node);
}

std::string RadixTree::audit(const std::function<void(int32_t page)>& visit) const {
  int64_t tokens[2] = {0, 0}, pages[2] = {0, 0};  // evictable, locked
  size_t tracked = 0;
  for (const auto& [salt, root] : roots_) {
    if (root->locks == 0 && root->children.empty()) return "an unused root was kept";
    std::vector<const Node*> pending{root.get()};
    while (!pending.empty()) {
      const Node* node = pending.back();
      pending.pop_back();
      int child_locks = 0;
      for (const Node* child : node->children) {
        if (child->parent != node || child->begin != node->end()) return "a child is misplaced";
        child_locks += child->locks;
        pending.push_back(child);
      }
      if (node->locks < child_locks) return "a node has fewer locks than its children";
      for (const auto& [position, checkpoint] : node->checkpoints) {
        if (position <= node->begin || position > node->end() || checkpoint->node != node ||
            checkpoint->position != position) {
          return "a checkpoint is misplaced";
        }
      }
      if (node->is_root()) continue;
      if (node->tokens.empty() || node->num_pages() != pool_.pages_for(node->num_tokens())) {
        return "a node's pages do not fit its tokens";
      }
      if (node->num_tokens() % page_size_ != 0 &&
          (!node->children.empty() || node->locks > 1 || mode_ == PrefixMatchMode::page)) {
        return "a partly filled page is not a leaf of one owner";
      }
      if (node->tracked != (node->locks == 0 && node->children.empty())) {
        return "an unlocked leaf is not up for eviction, or another node is";
      }
      tracked += node->tracked;
      tokens[node->locks > 0] += node->num_tokens();
      pages[node->locks > 0] += node->num_pages() * full_groups_;
      for (size_t i = 0; i < node->pages.size(); ++i) {
        if (node->pages[i] != kNoPage) {
          visit(node->pages[i]);
        } else if (!groups_[i % num_groups_].windowed()) {
          return "a page of a group without a window is gone";
        }
      }
    }
  }
  if (tracked != evictable_leaves_.size()) return "evictable_leaves_ holds a stranger";
  if (tokens[0] != evictable_tokens_ || tokens[1] != locked_tokens_ ||
      pages[0] != evictable_pages_ || pages[1] != locked_pages_) {
    return "token or page counters are wrong";
  }
  return {};
}

}  // namespace warpweave
