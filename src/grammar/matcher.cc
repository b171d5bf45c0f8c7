#include "grammar/matcher.h"

#include <algorithm>
#include <exception>

namespace warpweave::grammar {
namespace {

std::vector<int32_t> find_tokens_over_commas(const Grammar& grammar, const Vocabulary& vocabulary) {
  std::vector<int32_t> ids;
  if (grammar.uniques().empty()) return ids;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& text = vocabulary.token(static_cast<int32_t>(id));
    if (const size_t comma = text.find(','); comma != std::string::npos && comma + 1 < text.size()) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return ids;
}

// Clears the bits of every token of `trie` that begins with `prefix`.
void clear_beginning_with(std::string_view prefix, const TokenTrie& trie, std::span<uint32_t> mask) {
  const TrieNode* nodes = trie.nodes();
  uint32_t begin = 0, end = trie.size();
  uint32_t found = 0;
  for (const char c : prefix) {
    for (found = begin; found < end && nodes[found].byte != static_cast<uint8_t>(c);) found = nodes[found].subtree_end;
    if (found >= end) return;
    begin = found + 1;
    end = nodes[found].subtree_end;
  }
  for (const int32_t id : trie.tokens(found, end)) mask[id >> 5] &= ~(1u << (id & 31));
}

}  // namespace

CompiledGrammar::CompiledGrammar(std::shared_ptr<const Grammar> grammar,
                                 std::shared_ptr<const Vocabulary> vocabulary, const GrammarLimits& limits)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      limits_(limits),
      tokens_over_commas_(find_tokens_over_commas(*grammar_, *vocabulary_)),
      automaton_(std::make_shared<Automaton>(grammar_, limits_)) {}

// The shared automaton while it is worked on, at this text's expense. Where memory or the text's work ends, what the
// automaton knows may be half written: the next request begins a fresh one.
class GrammarMatcher::Working {
 public:
  explicit Working(GrammarMatcher& matcher, bool stays = false) : matcher_(matcher), lock_(matcher.grammar_->mutex_) {
    try {
      if (!stays) matcher.refresh();
    } catch (...) {
      matcher.grammar_->automaton_->give_up();
      throw;
    }
    matcher.automaton_->begin_work(matcher.work_left_);
  }
  ~Working() {
    if (std::uncaught_exceptions() > exceptions_) matcher_.automaton_->give_up();
    matcher_.work_left_ = matcher_.automaton_->work_left();
    matcher_.failed_ = matcher_.failed_ || matcher_.work_left_ == 0;
  }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  GrammarMatcher& matcher_;
  const std::lock_guard<std::mutex> lock_;
  const int exceptions_ = std::uncaught_exceptions();
};

size_t CompiledGrammar::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return sizeof(*this) + grammar_->memory_bytes() + automaton_->memory_bytes();
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), work_left_(grammar_->limits_.first_match_work), watch_(grammar_->grammar_.get()) {
  std::lock_guard lock(grammar_->mutex_);
  automaton_ = grammar_->automaton_;
  config_ = automaton_->start();
}

// Moves to a fresh automaton when the shared one is full or given up. Called under the lock.
void GrammarMatcher::refresh() {
  std::shared_ptr<Automaton>& shared = grammar_->automaton_;
  if (shared->given_up() || shared->memory_bytes() > grammar_->limits_.max_automaton_bytes) {
    shared = std::make_shared<Automaton>(grammar_->grammar_, grammar_->limits_);
  }
  if (shared == automaton_) return;
  constexpr size_t kKept = 64;
  if (steps_.size() > kKept) steps_.erase(steps_.begin(), steps_.end() - kKept);
  Automaton::FrameMemo memo;
  for (Step& step : steps_) step.config = shared->adopt(*automaton_, step.config, &memo);
  config_ = shared->adopt(*automaton_, config_, &memo);
  automaton_ = shared;
}

void GrammarMatcher::remember_step() {
  steps_.push_back({config_, static_cast<uint32_t>(text_.size())});
  if (steps_.size() > kMaxRollbackTokens) steps_.erase(steps_.begin(), steps_.begin() + kMaxRollbackTokens / 2);
  ++num_tokens_;
}

bool GrammarMatcher::advance(std::string_view bytes) {
  const bool watching = !grammar_->grammar_->uniques().empty();
  UniqueWatch watch = watching ? watch_ : UniqueWatch(nullptr);
  ConfigId config = config_;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    config = automaton_->step(config, byte);
    if (config == kDead) return false;
    if (watching && !watch.read(byte, automaton_->opened_unique(config))) return false;
  }
  remember_step();
  config_ = config;
  if (watching) {
    watch_ = std::move(watch);
    text_ += bytes;
  }
  return true;
}

bool GrammarMatcher::accept_token(int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= grammar_->vocabulary().size()) return false;
  const bool is_end = grammar_->vocabulary().is_end(id);
  if (ended() && !is_end) return false;
  earn_work();
  const Working working(*this);
  if (is_end) {
    if (!ended() && !automaton_->can_end(config_)) return false;
    remember_step();
    ++end_tokens_;
    return true;
  }
  const std::string& bytes = grammar_->vocabulary().token(id);
  return !bytes.empty() && advance(bytes);
}

bool GrammarMatcher::accept_bytes(std::string_view bytes) {
  if (ended()) return false;
  earn_work();
  const Working working(*this);
  return advance(bytes);
}

void GrammarMatcher::earn_work() {
  const GrammarLimits& limits = grammar_->limits_;
  work_left_ = std::min(limits.first_match_work, work_left_ + limits.match_work_per_token);
}

bool GrammarMatcher::rollback(size_t tokens) {
  if (tokens == 0) return true;
  if (tokens > steps_.size()) return false;
  const Step& to = steps_[steps_.size() - tokens];
  config_ = to.config;
  if (!text_.empty()) replay(to.bytes);
  steps_.resize(steps_.size() - tokens);
  num_tokens_ -= tokens;
  end_tokens_ -= std::min(tokens, end_tokens_);
  failed_ = false;
  return true;
}

// Reads the first `bytes` of the text again, for what the watch remembers.
void GrammarMatcher::replay(size_t bytes) {
  const Working working(*this, /*stays=*/true);
  text_.resize(bytes);
  watch_ = UniqueWatch(grammar_->grammar_.get());
  ConfigId config = automaton_->start();
  for (const char c : text_) {
    config = automaton_->step(config, static_cast<uint8_t>(c));
    watch_.read(static_cast<uint8_t>(c), automaton_->opened_unique(config));
  }
}

bool GrammarMatcher::can_end() {
  const Working working(*this);
  return ended() || automaton_->can_end(config_);
}

std::string GrammarMatcher::jump_forward(size_t max_bytes) {
  std::string forced;
  if (ended()) return forced;
  const Working working(*this);
  if (watch_.active()) return forced;
  for (ConfigId config = config_; forced.size() < max_bytes;) {
    const int byte = automaton_->forced_byte(config);
    if (byte < 0) break;
    config = automaton_->step(config, static_cast<uint8_t>(byte));
    if (config == kDead || automaton_->opened_unique(config) >= 0) break;
    forced += static_cast<char>(byte);
  }
  return forced;
}

void GrammarMatcher::forbid_repeats(std::span<uint32_t> mask) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  for (const std::string& text : watch_.forbidden()) {
    for (const TokenSlice& slice : vocabulary.slices()) clear_beginning_with(text, slice.trie, mask);
  }
  for (const int32_t id : grammar_->tokens_over_commas_) {
    if ((mask[id >> 5] >> (id & 31) & 1) == 0) continue;
    UniqueWatch watch = watch_;
    ConfigId config = config_;
    for (const char c : vocabulary.token(id)) {
      config = automaton_->step(config, static_cast<uint8_t>(c));
      if (config != kDead && watch.read(static_cast<uint8_t>(c), automaton_->opened_unique(config))) continue;
      mask[id >> 5] &= ~(1u << (id & 31));
      break;
    }
  }
}

bool GrammarMatcher::fill_mask(std::span<uint32_t> mask) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  const Working working(*this);
  bool can_end = ended();
  if (can_end) {
    std::fill(mask.begin(), mask.end(), 0);
  } else {
    const CachedMask& cached = automaton_->mask(config_, vocabulary);
    if (!cached.dense.empty()) {
      std::copy(cached.dense.begin(), cached.dense.end(), mask.begin());
    } else {
      std::fill(mask.begin(), mask.end(), 0);
      for (const int32_t id : cached.tokens) mask[id >> 5] |= 1u << (id & 31);
    }
    if (cached.plain_chars > 0) {
      const MaskWords& plain = vocabulary.plain_tokens(cached.plain_chars);
      for (size_t i = 0; i < plain.size(); ++i) mask[i] |= plain[i];
    }
    if (watch_.active()) forbid_repeats(mask);
    can_end = automaton_->can_end(config_);
    if (automaton_->work_left() == 0) {  // only a part was found
      std::fill(mask.begin(), mask.end(), 0);
      return false;
    }
  }
  if (can_end) {
    for (const int32_t id : vocabulary.end_ids()) mask[id >> 5] |= 1u << (id & 31);
    if (!vocabulary.end_ids().empty()) return true;
  }
  const bool any = std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
  failed_ = !any;
  return any;
}

}  // namespace warpweave::grammar
