#include "kv/radix_tree.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kv/common_prefix.h"

namespace warpweave {
namespace {

// Any order does in which sequences that begin alike stand together; bytes compare fastest.
bool bytes_less(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t size = std::min(a.size(), b.size());
  const int order = size == 0 ? 0 : std::memcmp(a.data(), b.data(), size * sizeof(int32_t));
  return order != 0 ? order < 0 : a.size() < b.size();
}

std::span<const int32_t> first_page(std::span<const int32_t> tokens, int page_size) {
  return tokens.first(std::min<size_t>(tokens.size(), page_size));
}

}  // namespace

struct RadixTree::Node {
  struct ByFirstPage {
    using is_transparent = void;
    int page_size;
    std::span<const int32_t> key(const Node* node) const {
      return first_page(node->tokens, page_size);
    }
    std::span<const int32_t> key(std::span<const int32_t> tokens) const { return tokens; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return bytes_less(key(a), key(b));
    }
  };

  Node(Node* parent_node, int page_size)
      : parent(parent_node), children(ByFirstPage{page_size}) {}

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_pages() const { return static_cast<int>(pages.size()); }
  int end() const { return begin + num_tokens(); }
  bool is_root() const { return parent == nullptr; }

  Node* parent;
  std::set<Node*, ByFirstPage> children;
  int begin = 0;                 // position of the first token; a multiple of page_size
  std::vector<int32_t> tokens;   // not empty but in a root
  std::vector<int32_t> pages;    // of the tokens; the last may be partly filled in a leaf
  int locks = 0;                 // requests that stand here or below
  uint64_t last_use = 0;
  uint64_t serial = 0;           // breaks ties, so that runs repeat exactly
  bool tracked = false;          // in evictable_leaves_
  const std::string* salt = nullptr;  // of a root: the key in roots_
};

// Where the longest match of a query ends.
struct RadixTree::Cursor {
  Node* node = nullptr;        // holds the last full page that matched; a root when none did
  int pages_in_node = 0;       // full pages that match in it
  int full_tokens = 0;
  Node* tail_node = nullptr;   // holds the page that matches partly
  int32_t tail_page = kNoPage;
  int tail_tokens = 0;
};

bool RadixTree::OlderFirst::operator()(const Node* a, const Node* b) const {
  return a->last_use != b->last_use ? a->last_use < b->last_use : a->serial < b->serial;
}

RadixTree::RadixTree(PagePool& pool, PrefixMatchMode mode)
    : pool_(pool), mode_(mode), page_size_(pool.page_size()) {}

RadixTree::~RadixTree() {
  std::vector<Node*> pending;
  for (auto& [salt, root] : roots_) {
    pending.assign(root->children.begin(), root->children.end());
    while (!pending.empty()) {
      Node* node = pending.back();
      pending.pop_back();
      pending.insert(pending.end(), node->children.begin(), node->children.end());
      delete node;
    }
  }
}

RadixTree::Node* RadixTree::root_for(const std::string& salt) {
  auto [it, inserted] = roots_.try_emplace(salt);
  if (inserted) {
    it->second = std::make_unique<Node>(nullptr, page_size_);
    it->second->salt = &it->first;
  }
  return it->second.get();
}

RadixTree::Node* RadixTree::find_full_page(const Node& node,
                                           std::span<const int32_t> tokens) const {
  if (static_cast<int>(tokens.size()) < page_size_) return nullptr;
  const auto it = node.children.find(tokens.first(page_size_));
  return it == node.children.end() ? nullptr : *it;
}

// The child that shares the most, but less than a page, with the beginning of `tokens`.
RadixTree::Cursor RadixTree::best_tail(const Node& node, std::span<const int32_t> tokens) const {
  Cursor best;
  const auto key = first_page(tokens, page_size_);
  const auto consider = [&](Node* child) {
    const int common = common_prefix(first_page(child->tokens, page_size_), key);
    if (common <= best.tail_tokens) return;
    best.tail_node = child;
    best.tail_page = child->pages[0];
    best.tail_tokens = common;
  };
  const auto it = node.children.lower_bound(key);
  if (it != node.children.end()) consider(*it);
  if (it != node.children.begin()) consider(*std::prev(it));
  return best;
}

RadixTree::Cursor RadixTree::walk(Node* root, std::span<const int32_t> tokens) const {
  Cursor at;
  at.node = root;
  for (;;) {
    const auto rest = tokens.subspan(at.full_tokens);
    Node* child = find_full_page(*at.node, rest);
    if (child == nullptr) {
      if (mode_ == PrefixMatchMode::token && !rest.empty()) {
        const Cursor tail = best_tail(*at.node, rest);
        at.tail_node = tail.tail_node;
        at.tail_page = tail.tail_page;
        at.tail_tokens = tail.tail_tokens;
      }
      return at;
    }
    const int common = common_prefix(child->tokens, rest);
    at.node = child;
    at.pages_in_node = common / page_size_;
    at.full_tokens += at.pages_in_node * page_size_;
    if (at.pages_in_node < child->num_pages()) {
      const int tail_tokens = common % page_size_;
      if (mode_ == PrefixMatchMode::token && tail_tokens > 0) {
        at.tail_node = child;
        at.tail_page = child->pages[at.pages_in_node];
        at.tail_tokens = tail_tokens;
      }
      return at;
    }
  }
}

int RadixTree::match_length(const std::string& salt, std::span<const int32_t> tokens) const {
  const auto it = roots_.find(salt);
  if (it == roots_.end()) return 0;
  const Cursor at = walk(it->second.get(), tokens);
  return at.full_tokens + at.tail_tokens;
}

RadixTree::Match RadixTree::match_and_lock(const std::string& salt,
                                           std::span<const int32_t> tokens,
                                           std::vector<int32_t>& pages) {
  const Cursor at = walk(root_for(salt), tokens);
  Match match;
  match.full_tokens = at.full_tokens;
  match.tail_page = at.tail_page;
  match.tail_tokens = at.tail_tokens;
  match.node = at.node;
  if (!at.node->is_root() && at.pages_in_node < at.node->num_pages()) {
    match.node = split(at.node, at.pages_in_node);
  }
  lock_up_to(match.node, nullptr);

  const size_t first = pages.size();
  pages.resize(first + at.full_tokens / page_size_);
  for (const Node* node = match.node; !node->is_root(); node = node->parent) {
    std::copy(node->pages.begin(), node->pages.end(),
              pages.begin() + first + node->begin / page_size_);
  }
  for (size_t i = first; i < pages.size(); ++i) pool_.ref(pages[i]);
  if (at.tail_node != nullptr) {
    pool_.ref(at.tail_page);
    touch(at.tail_node);
  }
  return match;
}

RadixTree::Node* RadixTree::insert(Node* node, std::span<const int32_t> tokens,
                                   std::span<int32_t> pages, std::vector<int32_t>& displaced) {
  node = drop_own_tail(node);
  const Node* const stood_on = node;
  int begin = node->end();
  const int end = mode_ == PrefixMatchMode::token
                      ? static_cast<int>(tokens.size())
                      : static_cast<int>(tokens.size()) / page_size_ * page_size_;
  while (begin < end) {
    const auto rest = tokens.subspan(begin, end - begin);
    Node* child = find_full_page(*node, rest);
    if (child == nullptr) {
      const int common = best_tail(*node, rest).tail_tokens;
      // A short tail with which a sibling's page begins is cached already.
      if (common == static_cast<int>(rest.size())) break;
      drop_shadowed_leaf(node, rest, common);
      node = add_leaf(node, rest, pages.subspan(begin / page_size_));
      break;
    }
    const int full_pages = common_prefix(child->tokens, rest) / page_size_;
    if (full_pages < child->num_pages()) child = split(child, full_pages);
    for (int i = 0; i < full_pages; ++i) {
      int32_t& page = pages[begin / page_size_ + i];
      if (page == child->pages[i]) continue;
      displaced.push_back(page);
      page = child->pages[i];
      pool_.ref(page);
    }
    begin += full_pages * page_size_;
    node = child;
  }
  lock_up_to(node, stood_on);
  return node;
}

// A partly filled page is written on by the request that inserted it, so its leaf is taken back
// before the longer sequence goes in. Nobody else stands on such a leaf.
RadixTree::Node* RadixTree::drop_own_tail(Node* node) {
  const int tail_tokens = node->num_tokens() % page_size_;
  if (tail_tokens == 0) return node;
  assert(node->locks == 1 && node->children.empty());
  ++version_;
  count(*node, -1);
  const int32_t page = node->pages.back();
  const bool whole = node->num_pages() == 1;
  if (whole) node->parent->children.erase(node);
  node->pages.pop_back();
  node->tokens.resize(node->tokens.size() - tail_tokens);
  [[maybe_unused]] const bool freed = pool_.unref(page);
  assert(!freed);  // the request still holds it
  if (!whole) {
    count(*node, +1);
    return node;
  }
  Node* parent = node->parent;
  delete node;
  return parent;
}

// Drops an unlocked leaf of less than a page that the new sequence repeats and goes beyond.
void RadixTree::drop_shadowed_leaf(Node* parent, std::span<const int32_t> tokens,
                                   int common_tokens) {
  if (common_tokens == 0) return;
  const auto it = parent->children.find(tokens.first(common_tokens));
  if (it != parent->children.end() && (*it)->locks == 0) remove_leaf(*it);
}

RadixTree::Node* RadixTree::add_leaf(Node* parent, std::span<const int32_t> tokens,
                                     std::span<const int32_t> pages) {
  Node* leaf = new Node(parent, page_size_);
  leaf->begin = parent->end();
  leaf->tokens.assign(tokens.begin(), tokens.end());
  leaf->pages.assign(pages.begin(), pages.begin() + pool_.pages_for(tokens.size()));
  leaf->serial = ++next_serial_;
  leaf->last_use = ++tick_;
  for (const int32_t page : leaf->pages) pool_.ref(page);
  untrack(parent);
  parent->children.insert(leaf);
  track(leaf);
  count(*leaf, +1);
  ++version_;
  return leaf;
}

// Cuts `node` after num_pages pages; returns the new upper part. Whoever stands on `node` stands on
// the lower part, so the upper one has the same locks.
RadixTree::Node* RadixTree::split(Node* node, int num_pages) {
  assert(num_pages > 0 && num_pages < node->num_pages());
  Node* parent = node->parent;
  const int num_tokens = num_pages * page_size_;
  Node* upper = new Node(parent, page_size_);
  parent->children.erase(node);
  upper->begin = node->begin;
  upper->tokens.assign(node->tokens.begin(), node->tokens.begin() + num_tokens);
  upper->pages.assign(node->pages.begin(), node->pages.begin() + num_pages);
  upper->locks = node->locks;
  upper->last_use = node->last_use;
  upper->serial = ++next_serial_;
  node->tokens.erase(node->tokens.begin(), node->tokens.begin() + num_tokens);
  node->pages.erase(node->pages.begin(), node->pages.begin() + num_pages);
  node->begin += num_tokens;
  node->parent = upper;
  upper->children.insert(node);
  parent->children.insert(upper);
  return upper;
}

// Locks the way from `node` up to, not including, `stop` (null: up to the root).
void RadixTree::lock_up_to(Node* node, const Node* stop) {
  for (; node != stop; node = node->parent) {
    if (node->locks == 0) {
      untrack(node);
      count(*node, -1);
      node->locks = 1;
      count(*node, +1);
    } else {
      ++node->locks;
    }
    if (node->is_root()) break;
  }
}

void RadixTree::unlock(Node* node) {
  ++tick_;
  for (;;) {
    assert(node->locks > 0);
    Node* parent = node->parent;
    node->last_use = tick_;
    if (node->locks == 1) {
      count(*node, -1);
      node->locks = 0;
      count(*node, +1);
      track(node);
    } else {
      --node->locks;
    }
    if (parent == nullptr) break;
    node = parent;
  }
  remove_root_if_unused(node);
}

int RadixTree::evict(int num_pages) {
  int freed = 0;
  while (freed < num_pages && !evictable_leaves_.empty()) {
    freed += trim(*evictable_leaves_.begin(), num_pages - freed);
  }
  return freed;
}

// Takes up to num_pages pages off the end of a leaf; returns how many came free.
int RadixTree::trim(Node* leaf, int num_pages) {
  ++version_;
  const int keep_pages = std::max(0, leaf->num_pages() - num_pages);
  const int keep_tokens = std::min(keep_pages * page_size_, leaf->num_tokens());
  evicted_tokens_total_ += leaf->num_tokens() - keep_tokens;
  if (keep_pages == 0) {
    const int free_before = pool_.num_free();
    remove_leaf(leaf);
    return pool_.num_free() - free_before;
  }
  int freed = 0;
  count(*leaf, -1);
  for (int i = keep_pages; i < leaf->num_pages(); ++i) freed += pool_.unref(leaf->pages[i]);
  leaf->pages.resize(keep_pages);
  leaf->tokens.resize(keep_tokens);
  count(*leaf, +1);
  return freed;
}

void RadixTree::remove_leaf(Node* leaf) {
  assert(leaf->locks == 0 && leaf->children.empty());
  ++version_;
  Node* parent = leaf->parent;
  untrack(leaf);
  count(*leaf, -1);
  parent->children.erase(leaf);
  for (const int32_t page : leaf->pages) pool_.unref(page);
  delete leaf;
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
  (node.locks > 0 ? locked_pages_ : evictable_pages_) += sign * node.num_pages();
}

void RadixTree::touch(Node* node) {
  const bool tracked = node->tracked;
  untrack(node);
  node->last_use = ++tick_;
  if (tracked) track(node);
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
      pages[node->locks > 0] += node->num_pages();
      for (const int32_t page : node->pages) visit(page);
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
