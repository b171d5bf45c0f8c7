#include "grammar/compiler.h"

#include "grammar/regex_grammar.h"

namespace warpweave::grammar {
namespace {

std::string key_of(const GrammarSpec& spec) {
  return std::to_string(static_cast<int>(spec.kind)) + (spec.style.any_whitespace ? "w" : "c" + spec.style.separator) +
         ":" + spec.source;
}

Result<std::vector<std::string>> choices_of(const std::string& source) {
  const Result<Json> parsed = parse_json(source);
  std::vector<std::string> out;
  if (!parsed.ok() || !parsed->is_array()) return Status::invalid_argument("the choices must be a list of strings");
  for (const Json& item : *parsed) {
    if (!item.is_string()) return Status::invalid_argument("the choices must be a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSpec& spec, const GrammarLimits& limits) {
  switch (spec.kind) {
    case GrammarSpec::Kind::json_object: return compile_json_schema(Json{{"type", "object"}}, spec.style, limits);
    case GrammarSpec::Kind::regex: return compile_regex(spec.source, limits);
    case GrammarSpec::Kind::ebnf: return compile_ebnf(spec.source, limits);
    case GrammarSpec::Kind::choice: {
      WW_ASSIGN_OR_RETURN(const std::vector<std::string> choices, choices_of(spec.source));
      return compile_choice(choices, limits);
    }
    case GrammarSpec::Kind::json_schema:
    case GrammarSpec::Kind::structural_tag: break;
  }
  WW_ASSIGN_OR_RETURN(const Json json, parse_schema_text(spec.source, limits));
  return spec.kind == GrammarSpec::Kind::json_schema ? compile_json_schema(json, spec.style, limits)
                                                     : compile_structural_tag(json, spec.style, limits);
}

std::shared_ptr<const Vocabulary> GrammarCompiler::vocabulary() {
  std::call_once(vocabulary_once_, [&] { vocabulary_ = options_.make_vocabulary(); });
  return vocabulary_;
}

Result<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::compile(const GrammarSpec& spec) {
  return find_or_make({.key = key_of(spec), .grammar = nullptr, .part = nullptr},
                      [&] { return compile_grammar(spec, options_.limits); });
}

Result<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::behind_reasoning(
    const std::shared_ptr<const CompiledGrammar>& grammar, const ReasoningMarks& marks) {
  const auto address = reinterpret_cast<uintptr_t>(grammar.get());
  Entry entry{.key = "behind " + std::to_string(address) + ":" + marks.begin + '\n' + marks.end,
              .grammar = nullptr,
              .part = grammar};
  return find_or_make(std::move(entry),
                      [&] { return grammar::behind_reasoning(grammar->grammar(), marks, options_.limits); });
}

Result<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::find_or_make(
    Entry entry, const std::function<Result<std::shared_ptr<const Grammar>>()>& make) {
  const std::string key = entry.key;
  std::unique_lock lock(mutex_);
  // Whoever asks for what is being compiled waits for it; a failure is found again by each.
  changed_.wait(
      lock, [&] { return by_key_.contains(key) || (!compiling_.contains(key) && running_ < options_.max_parallel); });
  if (const auto at = by_key_.find(key); at != by_key_.end()) {
    ++hits_;
    entries_.splice(entries_.begin(), entries_, at->second);
    return at->second->grammar;
  }
  ++misses_;
  ++running_;
  compiling_.emplace(key, 1);
  lock.unlock();
  const auto compiled = [&]() -> Result<std::shared_ptr<const CompiledGrammar>> {
    WW_ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> grammar, make());
    return std::make_shared<const CompiledGrammar>(std::move(grammar), vocabulary(), options_.limits);
  };
  Result<std::shared_ptr<const CompiledGrammar>> result = compiled();
  lock.lock();
  --running_;
  compiling_.erase(key);
  if (result.ok()) {
    entry.grammar = *result;
    keep(std::move(entry));
  }
  changed_.notify_all();
  return result;
}

void GrammarCompiler::keep(Entry entry) {
  entries_.push_front(std::move(entry));
  by_key_[entries_.front().key] = entries_.begin();
  make_room();
}

// Grammars grow while they are used, so all are counted each time one comes.
void GrammarCompiler::make_room() {
  size_t bytes = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    bytes += at->key.size() + at->grammar->memory_bytes();
    if (bytes > options_.max_cache_bytes && at != entries_.begin()) {
      by_key_.erase(at->key);
      at = entries_.erase(at);
    } else {
      ++at;
    }
  }
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  std::lock_guard lock(mutex_);
  Stats stats{entries_.size(), 0, hits_, misses_};
  for (const Entry& entry : entries_) stats.bytes += entry.key.size() + entry.grammar->memory_bytes();
  return stats;
}

}  // namespace warpweave::grammar
