// RadixTree: the prefix cache. Maps token sequences to the pages that hold their K/V.
//
// Pages are the physical unit, so edges begin and end on page boundaries; only a leaf may end in a
// partly filled page. Sequences that part in the middle of a page are siblings whose first pages
// begin alike. Siblings are kept in byte order of their first page: the one that shares the most
// tokens with a query is then a neighbour of the query's place, found in O(log siblings).
//   full pages      are shared by reference: the request's page table points at the tree's page
//   a partial match of a page is reported as (source page, tokens): the request copies those
//                   tokens into a page of its own (copy-on-write); PrefixMatchMode::page turns
//                   this off, and then only full pages are matched and inserted
// Sequences share only under an equal salt.
//
// Groups (cache_layout.h): a token position has one page a group, side by side in every list of pages; an entry is
// kNoPage where a windowed group's page is gone. A match ends where each windowed group still has the pages that the
// next row sees. The tree's pages of windowed groups are marked spare in the pool, so those that nobody else holds
// count there; they go first when memory is wanted, but for the last window of each node, which a hit there needs.
//
// States (state_pool.h): for models with recurrent layers a position may carry a checkpoint, a slot with the state
// after the tokens up to there. A match then ends at one, since a state cannot be cut. They go with their tokens, or
// when a place is wanted: first those that a prompt only passed and nobody has used, then the one used longest ago.
//
// References: the tree owns one PagePool reference per page of a node; requests own theirs.
// Locks: a node is locked while a request stands on it or below it; unlocked leaves are evicted in
// order of last use, from their end, as many pages as asked for.
// Not thread-safe. The pool outlives the tree. After std::bad_alloc a tree can only be destroyed.
// Method: radix-tree prefix reuse after SGLang (arXiv:2312.07104), extended to token level at any page size.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/cache_layout.h"
#include "kv/page_pool.h"
#include "kv/state_pool.h"

namespace warpweave {

enum class PrefixMatchMode { token, page };
// Passed: within a sequence that went on. Kept: at its end, where others parted from it, or used since.
enum class CheckpointWorth : uint8_t { passed, kept };

class RadixTree {
 public:
  struct Node;

  // What a new request reuses. `node` is locked for the caller until unlock().
  struct Match {
    Node* node = nullptr;
    int full_tokens = 0;           // a multiple of page_size: shared by reference
    std::array<int32_t, kMaxCacheGroups> tail_pages{};  // copy the first tail_tokens slots of these, one a group
    int tail_tokens = 0;           // < page_size
    int32_t state_slot = kNoStateSlot;  // the checkpoint, with one reference for the caller
    int kv_tokens = 0;             // what would match if states did not matter
    int tokens() const { return full_tokens + tail_tokens; }
  };

  // `states` null: the model has none.
  RadixTree(PagePool& pool, PrefixMatchMode mode, std::vector<CacheGroupRule> groups = {CacheGroupRule{}},
            StatePool* states = nullptr);
  ~RadixTree();
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  // The longest cached prefix of `tokens`. Its full pages are appended to `pages`, with one
  // reference each for the caller; those that a windowed group has no more use for are kNoPage. Tail pages come with
  // one reference for the caller, too.
  Match match_and_lock(const std::string& salt, std::span<const int32_t> tokens,
                       std::vector<int32_t>& pages);

  // Only the length of that prefix; changes nothing.
  int match_length(const std::string& salt, std::span<const int32_t> tokens) const;

  // Caches tokens[0, n), whose K/V lie in `pages`, for a request that stands on `node` (from
  // match_and_lock or an earlier insert). Where the tree already has a full page with the same
  // tokens, the request's entry of `pages` is switched to the tree's page and the old page, with
  // the request's reference to it, goes to `displaced`. Where the tree lacks a windowed group's page, it takes the
  // request's. Returns the node the request stands on now.
  Node* insert(Node* node, std::span<const int32_t> tokens, std::span<int32_t> pages,
               std::vector<int32_t>& displaced);

  // Hangs a checkpoint up at a position of `tokens`, which are cached in the tree of `node` at least so far. The
  // caller's reference goes to the tree, or is dropped where there is one already or no place.
  void add_checkpoint(const Node* node, std::span<const int32_t> tokens, int32_t slot,
                      CheckpointWorth worth = CheckpointWorth::kept);
  // Gives up one checkpoint of at most this worth; false: there is none that nobody reads.
  bool evict_checkpoint(CheckpointWorth most = CheckpointWorth::kept);

  // The request leaves `node`.
  void unlock(Node* node);

  // Evicts windowed groups' pages and unlocked leaves until `num_pages` pages that groups of this part may take came
  // free or none is left; returns how many did.
  int evict(int num_pages, PagePart part = PagePart::full);
  // Evicts everything unlocked.
  void clear();

  // The slots of all checkpoints, for audits.
  std::vector<int32_t> checkpoints() const;
  int64_t evictable_tokens() const { return evictable_tokens_; }
  int64_t locked_tokens() const { return locked_tokens_; }
  // Of the groups without a window; the others' are PagePool::num_spare().
  int evictable_pages() const { return evictable_pages_; }
  int locked_pages() const { return locked_pages_; }
  uint64_t evicted_tokens_total() const { return evicted_tokens_total_; }
  // Changes whenever match_length() may give another answer.
  uint64_t version() const { return version_; }

  // For audits: calls visit(page) for every page reference the tree owns, and returns a
  // description of the first broken rule of the structure or counters, empty when sound.
  std::string audit(const std::function<void(int32_t page)>& visit) const;

 private:
  struct Cursor;
  struct Checkpoint {
    Node* node;
    int position;
    int32_t slot;
    CheckpointWorth worth;
  };
  using Checkpoints = std::list<Checkpoint>;

  Node* root_for(const std::string& salt);
  Node* make_node(Node* parent);
  void drop_node(Node* node);
  Node* find_full_page(const Node& node, std::span<const int32_t> tokens) const;
  Cursor walk(Node* root, std::span<const int32_t> tokens) const;
  Cursor walk_tokens(Node* root, std::span<const int32_t> tokens) const;
  void limit_to_windows(Cursor& at) const;
  void limit_to_states(Cursor& at) const;
  bool end_at_checkpoint(const Node* node, Node* last, int limit, Cursor& at) const;
  void end_at_sibling(Node* node, int limit, Cursor& at, int& found) const;
  Cursor cut_at(Node* node, int position) const;
  void drop_checkpoints(Node* node, int after, bool keep_slots);
  Checkpoints& list_of(CheckpointWorth worth) { return worth == CheckpointWorth::passed ? passed_ : kept_; }
  void use_checkpoint(Checkpoints::iterator used);
  int missing_page(const Node* node, int num_pages, int position) const;
  Cursor best_tail(const Node& node, std::span<const int32_t> tokens) const;
  Node* split(Node* node, int num_pages);
  Node* drop_own_tail(Node* node);
  Node* add_leaf(Node* parent, std::span<const int32_t> tokens, std::span<const int32_t> pages);
  void drop_shadowed_leaf(Node* parent, std::span<const int32_t> tokens, int common_tokens);
  void own(int32_t page, int group);
  bool disown(int32_t page, int group);
  void share_page(Node* child, int index, std::span<int32_t> pages, std::vector<int32_t>& displaced);
  int drop_window_pages(Node* node, int num_pages, bool keep_end);
  int drop_any_window_pages(int num_pages);
  void remove_leaf(Node* leaf);
  void remove_root_if_unused(Node* root);
  void trim(Node* leaf, int num_pages);
  void lock_up_to(Node* node, const Node* stop);
  void count(const Node& node, int sign);
  void set_last_use(Node* node);
  void track(Node* node);
  void untrack(Node* node);
  void track_windows(Node* node);
  void untrack_windows(Node* node);

  struct OlderFirst {
    bool operator()(const Node* a, const Node* b) const;
  };

  PagePool& pool_;
  const PrefixMatchMode mode_;
  const int page_size_;
  const std::vector<CacheGroupRule> groups_;
  const int num_groups_;
  int full_groups_ = 0;          // those without a window
  StatePool* const states_;
  Checkpoints passed_, kept_;    // by worth, the one used longest ago first
  Checkpoints loose_checkpoints_;  // while a tail is put in anew
  std::unordered_map<std::string, std::unique_ptr<Node>> roots_;  // by salt
  // All nodes but the roots, each pointing to the next: found however a failed allocation left the rest.
  Node* made_ = nullptr;
  std::set<Node*, OlderFirst> evictable_leaves_;
  std::set<Node*, OlderFirst> windowed_;  // may have windowed groups' pages before their end's window
  int64_t evictable_tokens_ = 0;
  int64_t locked_tokens_ = 0;
  int evictable_pages_ = 0;
  int locked_pages_ = 0;
  uint64_t evicted_tokens_total_ = 0;
  uint64_t version_ = 0;
  uint64_t tick_ = 0;
  uint64_t next_serial_ = 0;
};

}  // namespace warpweave
