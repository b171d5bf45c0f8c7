// The states a text can be in, made as they are met: a lazily built deterministic automaton over
// the parses of a grammar.
//
// A parse is where it stands in its rule, and a frame: the set of places it may return to, each
// with a frame of its own. Frames and sets of parses are stored once per content, so that equal
// situations are one ConfigId wherever in the text they occur, and what is known about one (its
// next bytes, its mask) is computed once. Frames are merged like the items of an Earley set that
// wait for one rule (Earley 1970), so ambiguous and left-recursive grammars stay polynomial; a call
// at the very end of a rule returns to the caller's caller, so right recursion needs no depth.
// Not thread-safe: CompiledGrammar locks it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/id_table.h"
#include "grammar/vocabulary.h"

namespace warpweave::grammar {

using ConfigId = int32_t;
inline constexpr ConfigId kDead = -1;

// The tokens that may come next: a shared set of plain tokens and further ones.
struct CachedMask {
  int plain_chars = 0;           // 0: none; else Vocabulary::plain_tokens(plain_chars) too
  std::vector<int32_t> tokens;   // while they are few
  MaskWords dense;               // else
  size_t memory_bytes() const { return tokens.size() * 4 + dense.size() * 4; }
};

class Automaton {
 public:
  Automaton(std::shared_ptr<const Grammar> grammar, const GrammarLimits& limits);

  ConfigId start() const { return start_; }
  // kDead when no parse goes on with `byte`.
  ConfigId step(ConfigId config, uint8_t byte) {
    const ConfigId next = row(config)[classes_[byte]];
    return next == kUnknown ? expand(config, byte) : next;
  }
  bool can_end(ConfigId config) { return closed(config).can_end; }
  // Only the end can follow.
  bool is_over(ConfigId config) { return closed(config).scans_count == 0; }
  // The only byte that can follow, or -1 when there is a choice (the end is one).
  int forced_byte(ConfigId config);
  const CachedMask& mask(ConfigId config, const Vocabulary& vocabulary);
  // The unique array (an index into Grammar::uniques) that the last byte opened, or -1.
  int32_t opened_unique(ConfigId config) const;

  // The same situation in this automaton: how a matcher moves to a fresh one when the old is full.
  // `memo` maps frames and lasts for all configs of one move.
  using FrameMemo = std::unordered_map<uint32_t, uint32_t>;
  ConfigId adopt(const Automaton& other, ConfigId config, FrameMemo* memo);

  // What the next calls may spend together. Where it ends, all that was not met yet counts as dead, and the automaton,
  // whose tables are now half written, is given up.
  void begin_work(size_t steps) { work_left_ = WorkBudget(steps); }
  size_t work_left() const { return work_left_.left(); }
  // Its tables may be half written. Only adopt() reads on from one that was given up.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }
  size_t memory_bytes() const;
  size_t num_configs() const { return configs_.size(); }

 private:
  using FrameId = uint32_t;
  static constexpr ConfigId kUnknown = -2;
  static constexpr ConfigId kSeveral = -3;
  static constexpr int kEndless = 1 << 30;
  static constexpr FrameId kRootFrame = 0;
  static constexpr size_t kRowsPerBlock = 128;

  struct Item {
    StateId state;
    FrameId frame;
    auto operator<=>(const Item&) const = default;
  };
  struct Frame {
    uint32_t returns_begin, returns_count;
    int depth;  // of open rules
    int level;  // of open brackets
  };
  struct Scan {  // a byte edge of some parse
    uint8_t first, last;
    StateId to;
    FrameId frame;
  };
  struct Config {
    uint32_t kernel_begin, kernel_count;
    uint32_t scans_begin = 0, scans_count = 0;
    PlainRun plain;
    bool closed = false;
    bool can_end = false;
  };
  // All characters of these kinds lead to `next`; those of the dead kinds nowhere.
  struct Successor {
    KindSet kinds = 0, dead = 0;
    ConfigId next = kDead;
    bool known = false;
  };
  // Every text of up to `chars` characters of these kinds goes on; when it ends, none of more.
  struct Run {
    KindSet kinds;
    int chars;
    bool ends;
  };
  // Items already seen in one closure: open addressing, emptied by a stamp.
  class SeenItems {
   public:
    void clear();
    bool insert(const Item& item);  // false when it was there

   private:
    void grow();
    struct Slot {
      Item item;
      uint32_t stamp;
    };
    std::vector<Slot> slots_ = std::vector<Slot>(256);
    uint32_t stamp_ = 0;
    size_t count_ = 0;
  };
  // The rules of one left-recursive group while a closure enters them.
  struct Group {
    uint32_t begin = 0, end = 0;  // orders
    FrameId first_frame = 0;
    std::vector<uint32_t> members;               // orders, by frame
    std::vector<std::vector<Item>> returns;      // by frame
  };

  int32_t* row(ConfigId config) const {
    return &rows_[config / kRowsPerBlock][(config % kRowsPerBlock) * num_classes_];
  }
  bool spend(size_t steps) {
    if (work_left_.spend(steps)) return true;
    give_up();
    return false;
  }
  ConfigId expand(ConfigId config, uint8_t byte);
  const Config& closed(ConfigId config) {
    if (!configs_[config].closed) close(config);
    return configs_[config];
  }
  void close(ConfigId config);
  void enter_rule(uint32_t order);
  void enter_group(uint32_t order);
  void run_items();
  void visit(const Item& item);
  void call(const CallEdge& edge, const Item& item);
  void call_in_group(uint32_t order, const Item& returned);
  void share_group(size_t first_scan);
  void add_kernel(const Item& item);
  ConfigId intern_kernel();
  FrameId intern_frame(std::vector<Item>* returns);
  FrameId store_frame(std::span<const Item> returns);
  FrameId adopt_frame(const Automaton& other, FrameId frame, FrameMemo* memo);
  Frame open_frame(std::span<const Item> returns) const;
  std::span<const Item> returns_of(FrameId frame) const {
    return {returns_.data() + frames_[frame].returns_begin, frames_[frame].returns_count};
  }
  void walk(const TokenTrie& trie, ConfigId config);
  void walk_behind_plain(ConfigId config, int least, const Vocabulary& vocabulary);
  bool add_plain(ConfigId config, const Vocabulary& vocabulary, CachedMask* out);
  void add_slice(const TokenSlice& slice, ConfigId config);
  ConfigId step_all(ConfigId config, uint8_t first, uint8_t last);
  ConfigId step_beyond_ascii(ConfigId config);
  const Successor& successor(ConfigId config);
  Run run(ConfigId config, int enough);

  std::shared_ptr<const Grammar> grammar_;
  GrammarLimits limits_;
  const uint8_t* classes_;
  int num_classes_;
  ConfigId start_ = kDead;

  std::vector<Config> configs_;
  std::vector<std::unique_ptr<int32_t[]>> rows_;
  std::vector<Item> kernels_;
  std::vector<Scan> scans_;
  std::vector<Frame> frames_;
  std::vector<Item> returns_;
  IdTable configs_by_hash_, frames_by_hash_, groups_by_hash_;
  std::unordered_map<ConfigId, CachedMask> masks_;
  size_t masks_bytes_ = 0;
  std::vector<Successor> successors_;  // by config, as far as they were asked for
  bool given_up_ = false;
  WorkBudget work_left_{0};

  // Scratch.
  std::vector<Item> kernel_, work_;
  SeenItems seen_;
  std::vector<std::vector<Item>> callers_;  // by rule order
  std::vector<uint32_t> pending_;           // heap of orders with callers
  Group group_;
  bool in_group_ = false;
  bool closing_can_end_ = false;
  PlainRun closing_plain_;
  std::vector<std::pair<ConfigId, const int32_t*>> path_;
  std::vector<int32_t> found_;
  std::vector<const MaskWords*> whole_;  // slices all of whose tokens can follow
};

}  // namespace warpweave::grammar
