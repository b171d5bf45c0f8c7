#include "grammar/automaton.h"

#include <algorithm>
#include <functional>

namespace warpweave::grammar {
namespace {

constexpr uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

template <typename Items>
uint64_t hash_items(const Items& items, uint64_t seed) {
  uint64_t h = seed;
  for (const auto& item : items) h = mix(h, uint64_t{item.state} << 32 | item.frame);
  return h;
}

}  // namespace

void Automaton::SeenItems::clear() {
  count_ = 0;
  if (++stamp_ == 0) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    stamp_ = 1;
  }
}

bool Automaton::SeenItems::insert(const Item& item) {
  if (count_ * 2 >= slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  for (size_t at = mix(item.state, item.frame) & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.stamp == stamp_ && slot.item == item) return false;
    if (slot.stamp != stamp_) {
      slot = {item, stamp_};
      ++count_;
      return true;
    }
  }
}

void Automaton::SeenItems::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  std::swap(old, slots_);
  const uint32_t stamp = stamp_;
  count_ = 0;
  for (const Slot& slot : old) {
    if (slot.stamp == stamp) insert(slot.item);
  }
}

Automaton::Automaton(std::shared_ptr<const Grammar> grammar, const GrammarLimits& limits)
    : grammar_(std::move(grammar)),
      limits_(limits),
      classes_(grammar_->byte_classes()),
      num_classes_(grammar_->num_byte_classes()),
      callers_(grammar_->num_rules()) {
  frames_.push_back({0, 0, 0, 0});
  kernel_ = {{grammar_->rule(grammar_->root()).start, kRootFrame}};
  start_ = intern_kernel();
}

// As deep as the deepest of those it returns to; the returns themselves are yet to be stored.
Automaton::Frame Automaton::open_frame(std::span<const Item> returns) const {
  Frame frame{0, 0, 0, 0};
  for (const Item& item : returns) {
    const Frame& outer = frames_[item.frame];
    frame.depth = std::max(frame.depth, outer.depth + 1);
    frame.level = std::max(frame.level, outer.level + (grammar_->state(item.state).inside ? 1 : 0));
  }
  return frame;
}

Automaton::FrameId Automaton::store_frame(std::span<const Item> returns) {
  Frame frame = open_frame(returns);
  frame.returns_begin = static_cast<uint32_t>(returns_.size());
  frame.returns_count = static_cast<uint32_t>(returns.size());
  frames_.push_back(frame);
  returns_.insert(returns_.end(), returns.begin(), returns.end());
  return static_cast<FrameId>(frames_.size() - 1);
}

Automaton::FrameId Automaton::intern_frame(std::vector<Item>* returns) {
  std::sort(returns->begin(), returns->end());
  returns->erase(std::unique(returns->begin(), returns->end()), returns->end());
  const uint64_t hash = hash_items(*returns, 7);
  const int32_t known = frames_by_hash_.find(hash, [&](int32_t frame) {
    return std::ranges::equal(returns_of(static_cast<FrameId>(frame)), *returns);
  });
  if (known != IdTable::kNone) return static_cast<FrameId>(known);
  const FrameId frame = store_frame(*returns);
  frames_by_hash_.insert(hash, static_cast<int32_t>(frame));
  return frame;
}

// The config of the sorted contents of kernel_.
ConfigId Automaton::intern_kernel() {
  const uint64_t hash = hash_items(kernel_, 3);
  const ConfigId known = configs_by_hash_.find(hash, [&](ConfigId id) {
    const Config& config = configs_[id];
    return std::ranges::equal(std::span(kernels_).subspan(config.kernel_begin, config.kernel_count), kernel_);
  });
  if (known != IdTable::kNone) return known;
  const auto id = static_cast<ConfigId>(configs_.size());
  Config config;
  config.kernel_begin = static_cast<uint32_t>(kernels_.size());
  config.kernel_count = static_cast<uint32_t>(kernel_.size());
  kernels_.insert(kernels_.end(), kernel_.begin(), kernel_.end());
  configs_.push_back(config);
  configs_by_hash_.insert(hash, id);
  if (id % kRowsPerBlock == 0) {
    rows_.push_back(std::make_unique_for_overwrite<int32_t[]>(kRowsPerBlock * num_classes_));
  }
  std::fill_n(row(id), num_classes_, kUnknown);
  return id;
}

// Adds a parse that has just read a byte; one at the end of its rule goes on where it returns to.
void Automaton::add_kernel(const Item& item) {
  if (!grammar_->state(item.state).only_accepting || item.frame == kRootFrame) {
    kernel_.push_back(item);
    return;
  }
  if (!seen_.insert(item) || !spend(1 + returns_of(item.frame).size())) return;
  for (const Item& to : returns_of(item.frame)) add_kernel(to);
}

ConfigId Automaton::expand(ConfigId config, uint8_t byte) {
  const Config from = closed(config);
  kernel_.clear();
  seen_.clear();
  for (uint32_t i = 0; i < from.scans_count; ++i) {
    const Scan& scan = scans_[from.scans_begin + i];
    if (byte < scan.first || byte > scan.last) continue;
    if (frames_[scan.frame].level < grammar_->state(scan.to).min_level) continue;
    add_kernel({scan.to, scan.frame});
  }
  std::sort(kernel_.begin(), kernel_.end());
  kernel_.erase(std::unique(kernel_.begin(), kernel_.end()), kernel_.end());
  // A text with more parses at once, or a mask with more states, than the limits allow goes no further.
  const bool within = spend(1 + from.scans_count + 2 * kernel_.size()) && kernel_.size() <= limits_.max_ambiguity &&
                      memory_bytes() <= 3 * limits_.max_automaton_bytes;
  const ConfigId next = within && !kernel_.empty() ? intern_kernel() : kDead;
  row(config)[classes_[byte]] = next;
  return next;
}

void Automaton::close(ConfigId id) {
  seen_.clear();
  pending_.clear();
  closing_can_end_ = in_group_ = false;
  closing_plain_ = {0, 0, true};
  const size_t first_scan = scans_.size();
  const Config config = configs_[id];
  for (uint32_t i = 0; i < config.kernel_count; ++i) visit(kernels_[config.kernel_begin + i]);
  run_items();
  while (!pending_.empty()) {
    std::pop_heap(pending_.begin(), pending_.end(), std::greater<>());
    const uint32_t order = pending_.back();
    pending_.pop_back();
    if (callers_[order].empty()) continue;  // entered with its group
    if (grammar_->rule(grammar_->rule_at(order)).left_recursive) {
      enter_group(order);
    } else {
      enter_rule(order);
    }
  }
  Config& done = configs_[id];
  done.scans_begin = static_cast<uint32_t>(first_scan);
  done.scans_count = static_cast<uint32_t>(scans_.size() - first_scan);
  done.can_end = closing_can_end_;
  done.plain = closing_plain_;
  done.closed = true;
}

void Automaton::enter_rule(uint32_t order) {
  std::vector<Item>& returns = callers_[order];
  spend(returns.size());
  const FrameId frame = intern_frame(&returns);
  returns.clear();
  if (frames_[frame].depth > limits_.max_depth) return;
  visit({grammar_->rule(grammar_->rule_at(order)).start, frame});
  run_items();
}

// Rules that call each other before reading a byte wait for each other in a circle of frames.
void Automaton::enter_group(uint32_t order) {
  group_.end = grammar_->group_end(order);
  group_.begin = group_.end;
  while (group_.begin > 0 && grammar_->group_end(group_.begin - 1) == group_.end) --group_.begin;
  group_.first_frame = static_cast<FrameId>(frames_.size());
  group_.members.clear();
  group_.returns.clear();
  const size_t first_scan = scans_.size();
  in_group_ = true;
  for (uint32_t member = group_.begin; member < group_.end; ++member) {
    std::vector<Item> returns = std::move(callers_[member]);
    callers_[member].clear();
    for (const Item& item : returns) call_in_group(member, item);
  }
  run_items();
  in_group_ = false;
  share_group(first_scan);
}

void Automaton::call_in_group(uint32_t order, const Item& returned) {
  size_t at = std::find(group_.members.begin(), group_.members.end(), order) - group_.members.begin();
  if (at == group_.members.size()) {
    group_.members.push_back(order);
    group_.returns.emplace_back();
    frames_.push_back(open_frame({&returned, 1}));
    if (frames_.back().depth <= limits_.max_depth) {
      work_.push_back({grammar_->rule(grammar_->rule_at(order)).start, static_cast<FrameId>(frames_.size() - 1)});
    }
  }
  std::vector<Item>& returns = group_.returns[at];
  if (!spend(1 + at / 8 + returns.size() / 8)) return;
  if (std::find(returns.begin(), returns.end(), returned) == returns.end()) returns.push_back(returned);
}

// Stores the group's frames, or takes the equal ones of an earlier position in their place.
void Automaton::share_group(size_t first_scan) {
  const FrameId first = group_.first_frame;
  const auto count = static_cast<FrameId>(group_.members.size());
  constexpr FrameId kSelf = 0x80000000u;
  uint64_t hash = mix(11, count);
  std::vector<std::vector<Item>> form = group_.returns;  // frames of the group by their number in it
  for (FrameId i = 0; i < count; ++i) {
    for (Item& item : form[i]) {
      if (item.frame >= first) item.frame = kSelf | (item.frame - first);
    }
    std::sort(form[i].begin(), form[i].end());
    hash = hash_items(form[i], mix(hash, group_.members[i]));
  }
  const auto equal = [&](int32_t stored) {
    const auto other = static_cast<FrameId>(stored);
    for (FrameId i = 0; i < count; ++i) {
      const std::span<const Item> returns = returns_of(other + i);
      if (returns.size() != form[i].size()) return false;
      for (size_t k = 0; k < returns.size(); ++k) {
        const FrameId frame = returns[k].frame;
        const FrameId self = frame >= other && frame < other + count ? kSelf | (frame - other) : frame;
        if (Item{returns[k].state, self} != form[i][k]) return false;
      }
    }
    return true;
  };
  if (const int32_t known = groups_by_hash_.find(hash, equal); known != IdTable::kNone) {
    const auto move = [&](FrameId* frame) {
      if (*frame >= first) *frame = static_cast<FrameId>(known) + (*frame - first);
    };
    for (size_t i = first_scan; i < scans_.size(); ++i) move(&scans_[i].frame);
    for (const uint32_t order : pending_) {
      for (Item& item : callers_[order]) move(&item.frame);
    }
    frames_.resize(first);
    return;
  }
  for (FrameId i = 0; i < count; ++i) {
    for (Item& item : form[i]) {
      if (item.frame >= kSelf) item.frame = first + (item.frame & ~kSelf);
    }
    frames_[first + i].returns_begin = static_cast<uint32_t>(returns_.size());
    frames_[first + i].returns_count = static_cast<uint32_t>(form[i].size());
    returns_.insert(returns_.end(), form[i].begin(), form[i].end());
  }
  groups_by_hash_.insert(hash, static_cast<int32_t>(first));
}

void Automaton::run_items() {
  while (!work_.empty()) {
    const Item item = work_.back();
    work_.pop_back();
    if (!spend(1)) continue;
    visit(item);
  }
}

void Automaton::visit(const Item& item) {
  if (!seen_.insert(item)) return;
  const Grammar::State& state = grammar_->state(item.state);
  if (state.accepting) {
    // A rule entered in this closure ends without a byte: its callers went on already (nullable).
    if (item.frame == kRootFrame) closing_can_end_ = true;
    if (!spend(returns_of(item.frame).size())) return;
    for (const Item& to : returns_of(item.frame)) work_.push_back(to);
  }
  const ByteEdge* bytes_end = grammar_->bytes_end(item.state);
  for (auto e = grammar_->bytes_begin(item.state); e != bytes_end; ++e) {
    scans_.push_back({e->first, e->last, e->to, item.frame});
  }
  closing_plain_.least = std::max(closing_plain_.least, state.plain.least);
  closing_plain_.most = std::max(closing_plain_.most, state.plain.most);
  closing_plain_.alike = closing_plain_.alike && state.plain.alike;
  for (auto e = grammar_->empties_begin(item.state); e != grammar_->empties_end(item.state); ++e) {
    work_.push_back({*e, item.frame});
  }
  for (auto c = grammar_->calls_begin(item.state); c != grammar_->calls_end(item.state); ++c) call(*c, item);
}

void Automaton::call(const CallEdge& edge, const Item& item) {
  const Grammar::Rule& rule = grammar_->rule(edge.rule);
  const Item returned{edge.to, item.frame};
  if (rule.nullable) work_.push_back(returned);
  if (in_group_ && rule.order >= group_.begin && rule.order < group_.end) {
    call_in_group(rule.order, returned);
    return;
  }
  std::vector<Item>& callers = callers_[rule.order];
  if (callers.empty()) {
    pending_.push_back(rule.order);
    std::push_heap(pending_.begin(), pending_.end(), std::greater<>());
  }
  // A call at the end of a rule returns to that rule's callers at once.
  const bool frame_is_open = in_group_ && item.frame >= group_.first_frame;
  if (grammar_->state(edge.to).only_accepting && item.frame != kRootFrame && !frame_is_open) {
    const std::span<const Item> returns = returns_of(item.frame);
    if (!spend(returns.size())) return;
    callers.insert(callers.end(), returns.begin(), returns.end());
  } else {
    callers.push_back(returned);
  }
}

int Automaton::forced_byte(ConfigId id) {
  const Config& config = closed(id);
  if (config.can_end || config.scans_count == 0) return -1;
  const Scan* scans = &scans_[config.scans_begin];
  for (uint32_t i = 0; i < config.scans_count; ++i) {
    if (scans[i].first != scans[0].first || scans[i].last != scans[0].first) return -1;
  }
  return scans[0].first;
}

int32_t Automaton::opened_unique(ConfigId id) const {
  const Config& config = configs_[id];
  for (uint32_t i = 0; i < config.kernel_count; ++i) {
    const int32_t unique = grammar_->state(kernels_[config.kernel_begin + i].state).unique;
    if (unique >= 0) return unique;
  }
  return -1;
}

Automaton::FrameId Automaton::adopt_frame(const Automaton& other, FrameId frame, FrameMemo* memo) {
  if (frame == kRootFrame) return kRootFrame;
  if (const auto at = memo->find(frame); at != memo->end()) return at->second;
  // Frames of a left-recursive group refer to each other: their place is taken before they are read.
  const auto mine = static_cast<FrameId>(frames_.size());
  frames_.push_back({0, 0, other.frames_[frame].depth, other.frames_[frame].level});
  memo->emplace(frame, mine);
  std::vector<Item> returns;
  for (const Item& item : other.returns_of(frame)) {
    returns.push_back({item.state, adopt_frame(other, item.frame, memo)});
  }
  std::sort(returns.begin(), returns.end());
  frames_[mine].returns_begin = static_cast<uint32_t>(returns_.size());
  frames_[mine].returns_count = static_cast<uint32_t>(returns.size());
  returns_.insert(returns_.end(), returns.begin(), returns.end());
  frames_by_hash_.insert(hash_items(returns, 7), static_cast<int32_t>(mine));
  return mine;
}

ConfigId Automaton::adopt(const Automaton& other, ConfigId id, FrameMemo* memo) {
  if (id == kDead) return kDead;
  const Config& config = other.configs_[id];
  std::vector<Item> kernel;
  for (uint32_t i = 0; i < config.kernel_count; ++i) {
    const Item& item = other.kernels_[config.kernel_begin + i];
    kernel.push_back({item.state, adopt_frame(other, item.frame, memo)});
  }
  std::sort(kernel.begin(), kernel.end());
  kernel_ = std::move(kernel);
  return intern_kernel();
}

size_t Automaton::memory_bytes() const {
  return configs_.size() * sizeof(Config) + configs_by_hash_.memory_bytes() + frames_by_hash_.memory_bytes() +
         groups_by_hash_.memory_bytes() +
         rows_.size() * kRowsPerBlock * num_classes_ * sizeof(int32_t) + kernels_.size() * sizeof(Item) +
         scans_.size() * sizeof(Scan) + frames_.size() * sizeof(Frame) +
         returns_.size() * sizeof(Item) + successors_.size() * sizeof(Successor) + masks_bytes_;
}

}  // namespace warpweave::grammar
