#include "attention/select_json.h"

#include <nlohmann/json.hpp>

namespace warpweave {

nlohmann::json to_json(const Resolved& resolved) {
  nlohmann::json refused = nlohmann::json::array();
  for (const RefusedCandidate& candidate : resolved.refused) {
    refused.push_back({{"backend", candidate.name}, {"rule", candidate.rule}});
  }
  return {
      {"prefill_attention_backend", resolved.prefill},
      {"decode_attention_backend", resolved.decode},
      {"target_verify_attention_backend",
       resolved.target_verify.empty() ? nlohmann::json() : nlohmann::json(resolved.target_verify)},
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
