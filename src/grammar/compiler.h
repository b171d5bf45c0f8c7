// What a request asks for, compiled: on the caller's thread, once however many ask, kept by use.
//
// A few grammars are compiled at a time, each under GrammarLimits; others wait. Compiled ones stay,
// with the states and masks they have met, until their bytes pass the cache's bound; then those
// unused longest go. Thread-safe. Errors: invalid_argument and unsupported, naming what is wrong.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "grammar/matcher.h"
#include "grammar/schema.h"
#include "grammar/structural_tag.h"

namespace warpweave::grammar {

struct GrammarSpec {
  enum class Kind { json_object, json_schema, regex, ebnf, choice, structural_tag };
  Kind kind = Kind::json_object;
  std::string source;  // of choice: a JSON list of strings; of json_object: empty
  JsonStyle style = {};
};

// Without a vocabulary: what tests of languages need.
Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSpec& spec, const GrammarLimits& limits);

struct GrammarCompilerOptions {
  std::function<std::shared_ptr<const Vocabulary>()> make_vocabulary;  // called once, when first needed
  GrammarLimits limits = {};
  size_t max_cache_bytes = size_t{512} << 20;
  int max_parallel = 2;
};

class GrammarCompiler {
 public:
  explicit GrammarCompiler(GrammarCompilerOptions options) : options_(std::move(options)) {}

  Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec);
  // `grammar`: one that was compiled here.
  Result<std::shared_ptr<const CompiledGrammar>> behind_reasoning(const std::shared_ptr<const CompiledGrammar>& grammar,
                                                                  const ReasoningMarks& marks);

  struct Stats {
    size_t entries, bytes;
    uint64_t hits, misses;
  };
  Stats stats() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
    std::shared_ptr<const CompiledGrammar> part;  // what its key names by address
  };
  std::shared_ptr<const Vocabulary> vocabulary();
  Result<std::shared_ptr<const CompiledGrammar>> find_or_make(
      Entry entry, const std::function<Result<std::shared_ptr<const Grammar>>()>& make);
  void keep(Entry entry);
  void make_room();

  const GrammarCompilerOptions options_;
  std::once_flag vocabulary_once_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> entries_;  // the one used last in front
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  std::unordered_map<std::string, int> compiling_;
  int running_ = 0;
  uint64_t hits_ = 0, misses_ = 0;
};

}  // namespace warpweave::grammar
