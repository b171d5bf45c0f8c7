#include "attention/select_json.h"

#include <nlohmann/json.hpp>

namespace warpweave {

namespace {

// Null where there is nothing to name.
nlohmann::json name_or_null(const std::string& name) {
  return name.empty() ? nlohmann::json() : nlohmann::json(name);
}

nlohmann::json speculation_json(const Resolved& resolved) {
  const Speculation& s = resolved.speculation;
  if (s.algorithm.empty()) return nullptr;
  return {{"algorithm", s.algorithm},
          {"num_steps", s.num_steps},
          {"eagle_topk", s.topk},
          {"num_draft_tokens", s.num_draft_tokens},
          {"target_verify_attention_backend", name_or_null(resolved.target_verify)},
          {"linear_attn_verify_backend", name_or_null(resolved.linear_verify)}};
}

}  // namespace

nlohmann::json to_json(const Resolved& resolved) {
  nlohmann::json refused = nlohmann::json::array();
  for (const RefusedCandidate& candidate : resolved.refused) {
    refused.push_back({{"backend", candidate.name}, {"rule", candidate.rule}});
  }
  return {
      {"prefill_attention_backend", resolved.prefill},
      {"decode_attention_backend", resolved.decode},
      {"nsa_prefill_backend", name_or_null(resolved.nsa.prefill)},
      {"nsa_decode_backend", name_or_null(resolved.nsa.decode)},
      {"linear_attn_prefill_backend", name_or_null(resolved.linear.prefill)},
      {"linear_attn_decode_backend", name_or_null(resolved.linear.decode)},
      {"mm_attention_backend", name_or_null(resolved.mm)},
      {"speculation", speculation_json(resolved)},
      {"page_size", resolved.page_size},
      {"page_table_expanded", resolved.page_table_expanded},
      {"kv_cache_dtype", std::string(kv_format_name(resolved.kv_format))},
      {"decode_graphs", resolved.decode_graphs},
      {"prefill_graphs", resolved.prefill_graphs},
      {"reasons", resolved.reasons},
      {"refused", refused},
  };
}

nlohmann::json selection_error_json(const Status& status) {
  return {{"error",
           {{"flag", status.field()},
            {"message", status.message()},
            {"code", std::string(status_code_name(status.code()))}}}};
}

}  // namespace warpweave
