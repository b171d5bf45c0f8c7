#include "model/config_draft.h"

namespace warpweave {
namespace {

constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";
constexpr int kMaxLayers = 4096;

// Either beside the other keys or in a section of their own.
void read_eagle3(ConfigReader& reader, Eagle3Config& out) {
  out.draft_vocab_size = reader.integer("draft_vocab_size", 0, 1, 1 << 24);
  if (reader.boolean("norm_before_residual", false)) {
    reader.fail("norm_before_residual",
                "true is not supported: rows are normed for attention only; heads with false run");
  }
  const nlohmann::json* const section = reader.find("eagle_config");
  if (section == nullptr) return;
  if (!section->is_object()) return reader.fail("eagle_config", "must be an object");
  ConfigReader eagle(*section, "config.json: eagle_config");
  if (!eagle.boolean("use_aux_hidden_state", true)) {
    eagle.fail("use_aux_hidden_state", "false is not supported: heads read the rows of three of the model's layers");
  }
  for (const int32_t layer : eagle.token_ids(kLayerIds)) {
    if (layer >= kMaxLayers) eagle.fail(kLayerIds, "must be layers of the model");
    out.target_layers.push_back(layer);
  }
  if (eagle.has(kLayerIds) && out.target_layers.size() != 3) eagle.fail(kLayerIds, "must name three layers");
  if (!eagle.status().ok()) reader.fail(eagle.status());
}

}  // namespace

void read_drafts(ConfigReader& reader, ModelConfig& config) {
  config.num_nextn_layers =
      reader.integer("num_nextn_predict_layers", reader.integer("mtp_num_hidden_layers", 0, 0, 1024), 0, 1024);
  if (config.architecture == "LlamaForCausalLMEagle3") read_eagle3(reader, config.eagle3.emplace());
}

}  // namespace warpweave
