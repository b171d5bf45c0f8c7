#include "kv/radix_tree.h"

#include <algorithm>
#include <cassert>

#include "kv/common_prefix.h"
#include "kv/radix_node.h"

namespace warpweave {

bool RadixTree::OlderFirst::operator()(const Node* a, const Node* b) const {
  return a->last_use != b->last_use ? a->last_use < b->last_use : a->serial < b->serial;
}

RadixTree::RadixTree(PagePool& pool, PrefixMatchMode mode, std::vector<CacheGroupRule> groups, StatePool* states)
    : pool_(pool),
      mode_(mode),
      page_size_(pool.page_size()),
      groups_(std::move(groups)),
      num_groups_(static_cast<int>(groups_.size())),
      states_(states) {
  assert(num_groups_ >= 1 && num_groups_ <= kMaxCacheGroups);
  for (const CacheGroupRule& group : groups_) full_groups_ += !group.windowed();
}

RadixTree::~RadixTree() {
  while (made_ != nullptr) drop_node(made_);
}

RadixTree::Node* RadixTree::make_node(Node* parent) {
  Node* const node = new Node(parent, page_size_, num_groups_);
  node->made_before = made_;
  if (made_ != nullptr) made_->made_after = node;
  return made_ = node;
}

void RadixTree::drop_node(Node* node) {
  (node->made_after != nullptr ? node->made_after->made_before : made_) = node->made_before;
  if (node->made_before != nullptr) node->made_before->made_after = node->made_after;
  delete node;
}

RadixTree::Node* RadixTree::root_for(const std::string& salt) {
  auto [it, inserted] = roots_.try_emplace(salt);
  if (inserted) {
    it->second = std::make_unique<Node>(nullptr, page_size_, num_groups_);
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
    best.tail_index = 0;
    best.tail_tokens = common;
  };
  const auto it = node.children.lower_bound(key);
  if (it != node.children.end()) consider(*it);
  if (it != node.children.begin()) consider(*std::prev(it));
  return best;
}

RadixTree::Cursor RadixTree::walk(Node* root, std::span<const int32_t> tokens) const {
  Cursor at = walk_tokens(root, tokens);
  if (full_groups_ < num_groups_) limit_to_windows(at);
  at.kv_tokens = at.tokens();
  if (states_ != nullptr) limit_to_states(at);
  return at;
}

// The last of the `num_pages` pages up to and in `node` that a windowed group needs for a row at `position` and does
// not have; -1: none.
int RadixTree::missing_page(const Node* node, int num_pages, int position) const {
  int first = num_pages;
  for (const CacheGroupRule& group : groups_) {
    if (group.windowed()) first = std::min(first, group.first_seen(position) / page_size_);
  }
  for (int i = num_pages - 1; i >= first; --i) {
    while (node->begin > i * page_size_) node = node->parent;
    for (int g = 0; g < num_groups_; ++g) {
      if (i < groups_[g].first_seen(position) / page_size_) continue;
      if (node->page(i - node->begin / page_size_, g) == kNoPage) return i;
    }
  }
  return -1;
}

// Takes a match back to where every windowed group has the pages that the next row sees.
void RadixTree::limit_to_windows(Cursor& at) const {
  if (at.tail_node != nullptr) {
    const auto tail = at.tail_node->pages.begin() + at.tail_index * num_groups_;
    if (std::count(tail, tail + num_groups_, kNoPage) > 0) at.drop_tail();
  }
  const int matched_pages = at.full_tokens / page_size_;
  int pages = matched_pages;
  for (int missing; (missing = missing_page(at.node, pages, pages * page_size_ + at.tail_tokens)) >= 0;) {
    pages = missing;
    at.drop_tail();
  }
  if (pages == matched_pages) return;
  while (!at.node->is_root() && at.node->begin >= pages * page_size_) at.node = at.node->parent;
  at.full_tokens = pages * page_size_;
  at.pages_in_node = pages - at.node->begin / page_size_;  // of a root: 0
}

RadixTree::Cursor RadixTree::walk_tokens(Node* root, std::span<const int32_t> tokens) const {
  Cursor at;
  at.node = root;
  for (;;) {
    const auto rest = tokens.subspan(at.full_tokens);
    Node* child = find_full_page(*at.node, rest);
    if (child == nullptr) {
      if (mode_ == PrefixMatchMode::token && !rest.empty()) {
        const Cursor tail = best_tail(*at.node, rest);
        at.tail_node = tail.tail_node;
        at.tail_index = tail.tail_index;
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
        at.tail_index = at.pages_in_node;
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
  return at.tokens();
}

RadixTree::Match RadixTree::match_and_lock(const std::string& salt,
                                           std::span<const int32_t> tokens,
                                           std::vector<int32_t>& pages) {
  const Cursor at = walk(root_for(salt), tokens);
  Match match;
  match.full_tokens = at.full_tokens;
  match.tail_tokens = at.tail_tokens;
  match.kv_tokens = at.kv_tokens;
  match.state_slot = at.state_slot;
  if (at.state_slot != kNoStateSlot) {
    states_->ref(at.state_slot);
    use_checkpoint((at.tail_node != nullptr ? at.tail_node : at.node)->checkpoints.at(at.tokens()));
  }
  match.node = at.node;
  int tail_index = at.tail_index;
  if (!at.node->is_root() && at.pages_in_node < at.node->num_pages()) {
    const int split_at = at.pages_in_node;
    if (at.tail_node == at.node) tail_index -= split_at;
    match.node = split(at.node, split_at);
  }
  lock_up_to(match.node, nullptr);

  const size_t first = pages.size();
  pages.resize(first + at.full_tokens / page_size_ * num_groups_);
  for (const Node* node = match.node; !node->is_root(); node = node->parent) {
    std::copy(node->pages.begin(), node->pages.end(),
              pages.begin() + first + node->begin / page_size_ * num_groups_);
  }
  for (size_t i = first; i < pages.size(); ++i) {
    const int group = static_cast<int>(i - first) % num_groups_;
    const int index = static_cast<int>(i - first) / num_groups_;
    if (index < groups_[group].first_seen(at.tokens()) / page_size_) pages[i] = kNoPage;
    if (pages[i] != kNoPage) pool_.ref(pages[i]);
  }
  if (at.tail_node != nullptr) {
    for (int g = 0; g < num_groups_; ++g) {
      match.tail_pages[g] = at.tail_node->page(tail_index, g);
      pool_.ref(match.tail_pages[g]);
    }
    set_last_use(at.tail_node);
  }
  return match;
}

// The tree's own reference to a page.
void RadixTree::own(int32_t page, int group) {
  pool_.ref(page);
  if (groups_[group].windowed()) pool_.mark_spare(page, true);
}

bool RadixTree::disown(int32_t page, int group) {
  if (page == kNoPage) return false;
  if (groups_[group].windowed()) pool_.mark_spare(page, false);
  return pool_.unref(page);
}

// A request and `child` have the same tokens in a page: both go on with one page in each group.
void RadixTree::share_page(Node* child, int index, std::span<int32_t> pages, std::vector<int32_t>& displaced) {
  for (int g = 0; g < num_groups_; ++g) {
    int32_t& mine = pages[g];
    int32_t& theirs = child->page(index, g);
    if (mine == theirs || mine == kNoPage) continue;
    if (theirs == kNoPage) {
      theirs = mine;
      own(mine, g);
      track_windows(child);
      ++version_;
      continue;
    }
    if (groups_[g].windowed()) pool_.mark_spare(mine, false);
    displaced.push_back(mine);
    mine = theirs;
    pool_.ref(theirs);
  }
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
      node = add_leaf(node, rest, pages.subspan(begin / page_size_ * num_groups_));
      break;
    }
    const int full_pages = common_prefix(child->tokens, rest) / page_size_;
    if (full_pages < child->num_pages()) child = split(child, full_pages);
    for (int i = 0; i < full_pages; ++i) {
      share_page(child, i, pages.subspan((begin / page_size_ + i) * num_groups_, num_groups_), displaced);
    }
    begin += full_pages * page_size_;
    node = child;
  }
  lock_up_to(node, stood_on);
  for (const Checkpoint& loose : std::exchange(loose_checkpoints_, {})) {
    add_checkpoint(node, tokens.first(loose.position), loose.slot, loose.worth);
  }
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
  drop_checkpoints(node, node->end() - tail_tokens, /*keep_slots=*/true);
  const bool whole = node->num_pages() == 1;
  if (whole) node->parent->children.erase(node);
  const int tail_index = node->num_pages() - 1;
  for (int g = 0; g < num_groups_; ++g) {
    [[maybe_unused]] const bool freed = disown(node->page(tail_index, g), g);
    assert(!freed || groups_[g].windowed());  // the request still holds it, or it left the window
  }
  node->pages.resize(tail_index * num_groups_);
  node->tokens.resize(node->tokens.size() - tail_tokens);
  if (!whole) {
    count(*node, +1);
    return node;
  }
  Node* parent = node->parent;
  untrack_windows(node);
  drop_node(node);
  return parent;
}

// Drops an unlocked leaf of less than a page that the new sequence repeats and goes beyond.
void RadixTree::drop_shadowed_leaf(Node* parent, std::span<const int32_t> tokens,
                                   int common_tokens) {
  if (common_tokens == 0) return;
  const auto it = parent->children.find(tokens.first(common_tokens));
  if (it == parent->children.end() || (*it)->locks > 0) return;
  drop_checkpoints(*it, (*it)->begin, /*keep_slots=*/true);
  remove_leaf(*it);
}

RadixTree::Node* RadixTree::add_leaf(Node* parent, std::span<const int32_t> tokens,
                                     std::span<const int32_t> pages) {
  Node* leaf = make_node(parent);
  leaf->begin = parent->end();
  leaf->tokens.assign(tokens.begin(), tokens.end());
  leaf->pages.assign(pages.begin(), pages.begin() + pool_.pages_for(tokens.size()) * num_groups_);
  leaf->serial = ++next_serial_;
  leaf->last_use = ++tick_;
  for (size_t i = 0; i < leaf->pages.size(); ++i) {
    if (leaf->pages[i] != kNoPage) own(leaf->pages[i], static_cast<int>(i) % num_groups_);
  }
  parent->children.insert(leaf);
  track(leaf);
  track_windows(leaf);
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
  Node* upper = make_node(parent);
  parent->children.erase(node);
  upper->begin = node->begin;
  upper->tokens.assign(node->tokens.begin(), node->tokens.begin() + num_tokens);
  const auto cut = node->pages.begin() + num_pages * num_groups_;
  upper->pages.assign(node->pages.begin(), cut);
  upper->locks = node->locks;
  upper->last_use = node->last_use;
  upper->serial = ++next_serial_;
  node->tokens.erase(node->tokens.begin(), node->tokens.begin() + num_tokens);
  node->pages.erase(node->pages.begin(), cut);
  node->begin += num_tokens;
  while (!node->checkpoints.empty() && node->checkpoints.begin()->first <= node->begin) {
    const auto moved = upper->checkpoints.insert(node->checkpoints.extract(node->checkpoints.begin())).position;
    moved->second->node = upper;
  }
  node->parent = upper;
  upper->children.insert(node);
  parent->children.insert(upper);
  track_windows(upper);
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
  for (;;) {
    assert(node->locks > 0);
    Node* parent = node->parent;
    set_last_use(node);
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

}  // namespace warpweave
