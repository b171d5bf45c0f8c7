// A node of RadixTree and the place where a match ends. Private to this folder.
#pragma once

#include <algorithm>
#include <cstring>

#include "kv/radix_tree.h"

namespace warpweave {

// Any order does in which sequences that begin alike stand together; bytes compare fastest.
inline bool bytes_less(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t size = std::min(a.size(), b.size());
  const int order = size == 0 ? 0 : std::memcmp(a.data(), b.data(), size * sizeof(int32_t));
  return order != 0 ? order < 0 : a.size() < b.size();
}

inline std::span<const int32_t> first_page(std::span<const int32_t> tokens, int page_size) {
  return tokens.first(std::min<size_t>(tokens.size(), page_size));
}

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

  Node(Node* parent_node, int page_size, int num_groups)
      : parent(parent_node), groups(num_groups), children(ByFirstPage{page_size}) {}

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_pages() const { return static_cast<int>(pages.size()) / groups; }  // of each group
  int32_t& page(int index, int group) { return pages[index * groups + group]; }
  int32_t page(int index, int group) const { return pages[index * groups + group]; }
  int end() const { return begin + num_tokens(); }
  bool is_root() const { return parent == nullptr; }

  Node* parent;
  const int groups;
  std::set<Node*, ByFirstPage> children;
  int begin = 0;                 // position of the first token; a multiple of page_size
  std::vector<int32_t> tokens;   // not empty but in a root
  std::vector<int32_t> pages;    // of the tokens, group by group; the last may be partly filled in a leaf
  std::map<int, Checkpoints::iterator> checkpoints;  // by position, in (begin, end]
  int locks = 0;                 // requests that stand here or below
  uint64_t last_use = 0;
  uint64_t serial = 0;           // breaks ties, so that runs repeat exactly
  bool tracked = false;          // in evictable_leaves_
  bool windowed = false;         // in windowed_
  const std::string* salt = nullptr;  // of a root: the key in roots_
  Node* made_before = nullptr;   // see RadixTree::made_
  Node* made_after = nullptr;
};

// Where the longest match of a query ends.
struct RadixTree::Cursor {
  Node* node = nullptr;        // holds the last full page that matched; a root when none did
  int pages_in_node = 0;       // full pages that match in it
  int full_tokens = 0;
  Node* tail_node = nullptr;   // holds the page that matches partly
  int tail_index = 0;          // which of its pages
  int tail_tokens = 0;
  int kv_tokens = 0;           // matched before states were asked
  int32_t state_slot = kNoStateSlot;

  int tokens() const { return full_tokens + tail_tokens; }
  void drop_tail() { tail_node = nullptr, tail_tokens = 0; }
};

}  // namespace warpweave
