// What all handlers share: the context, the live groups of sequences, ids and the model check.
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/api/api.h"
#include "server/api/grammar_fields.h"
#include "server/api/limits.h"
#include "server/api/response_store.h"
#include "server/api/sampling_fields.h"
#include "server/api/session_store.h"

namespace warpweave::server {

class Api {
 public:
  explicit Api(ApiContext context);

  Engine& engine() const { return context_.engine; }
  const EngineInfo& info() const { return context_.engine.info(); }
  const ApiContext& context() const { return context_; }
  const Tokenizer* tokenizer() const { return context_.tokenizer; }
  ServerMetrics* metrics() const { return context_.metrics; }
  bool is_ready() const { return !context_.is_ready || context_.is_ready(); }
  ModelLimits limits() const {
    return {info().vocab_size, info().context_len, context_.tokenizer};
  }

  // The formats of answers, by --reasoning-parser and --tool-call-parser; empty: none.
  std::string_view reasoning_format() const { return reasoning_format_; }
  std::string_view call_format() const { return call_format_; }

  ResponseStore& responses() { return responses_; }
  SessionStore& sessions() const { return *sessions_; }

  GrammarContext grammar_context() const { return {grammars_.get(), context_.args, context_.metrics}; }

  // `unsupported` for `field` when the server runs without a tokenizer.
  Status require_tokenizer(std::string_view field) const;
  // The `model` field: absent, "default", the served name or the model's path; else not_found.
  Status check_model(FieldReader* reader) const;

  // A group of more than one sequence is known by one rid while it lives. False: the rid is taken.
  bool add_group(const std::string& group_rid, std::vector<std::string> rids);
  void remove_group(const std::string& group_rid);
  // Aborts a group or a single sequence; an unknown rid is ignored.
  void abort(const std::string& rid);

  // What answers call the version of the weights: --weight-version until it is said otherwise.
  std::string weight_version() const;
  void set_weight_version(std::string version);

 private:
  const ApiContext context_;
  const std::unique_ptr<grammar::GrammarCompiler> grammars_;  // thread-safe
  const std::string_view reasoning_format_;
  const std::string_view call_format_;
  ResponseStore responses_{kMaxStoredResponses};
  const std::unique_ptr<SessionStore> sessions_ = std::make_unique<SessionStore>();  // thread-safe
  mutable std::mutex mutex_;  // guards what follows
  std::string weight_version_;
  std::unordered_map<std::string, std::vector<std::string>> groups_;
};

// As --allow-unknown-fields has it.
inline UnknownFields unknown_fields(const Api& api) {
  return api.context().args.allow_unknown_fields ? UnknownFields::ignored : UnknownFields::refused;
}

// `prefix` and 32 random hexadecimal digits.
std::string random_id(std::string_view prefix);

}  // namespace warpweave::server
