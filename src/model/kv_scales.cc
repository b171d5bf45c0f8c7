#include "model/kv_scales.h"

#include <cmath>
#include <string>
#include <vector>

#include "ops/elementwise.h"

namespace warpweave {
namespace {

Result<std::vector<float>> read_scales(const WeightSource& source, const std::string& name,
                                       int num_kv_heads) {
  const int64_t one[] = {1}, per_head[] = {num_kv_heads};
  Result<TensorView> view = source.find(name, {});
  if (!view.ok()) view = source.find(name, one);
  if (!view.ok()) view = source.find(name, per_head);
  if (!view.ok()) return view.status();
  if (view->dtype != DType::f32 && view->dtype != DType::bf16 && view->dtype != DType::f16) {
    return Status::data_loss("tensor " + name + " is " + std::string(dtype_info(view->dtype).name) +
                                 "; KV scales are read as f32, bf16 or f16", name);
  }
  std::vector<float> scales(view->elements());
  dequantize_row(view->dtype, view->data, view->elements(), scales.data());
  for (const float scale : scales) {
    if (!(scale > 0 && std::isfinite(scale))) {
      return Status::data_loss("tensor " + name + " holds the KV scale " + std::to_string(scale) +
                                   "; it must be a positive number", name);
    }
  }
  if (scales.size() == 1) scales.resize(num_kv_heads, scales[0]);
  return scales;
}

// Empty when the layer has none.
Result<std::vector<float>> layer_scales(const WeightSource& source, int layer, const std::string& side,
                                        int num_kv_heads) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
  for (const std::string& suffix : {side + "_scale", "attn." + side + "_scale",
                                    side + "_proj." + side + "_scale", side + "_proj.output_scale",
                                    std::string("kv_scale")}) {
    if (source.has(prefix + suffix)) return read_scales(source, prefix + suffix, num_kv_heads);
  }
  return std::vector<float>();
}

}  // namespace

Result<KvHeadScales> load_kv_scales(const WeightSource& source, const ModelConfig& config) {
  KvHeadScales scales;
  bool found = false;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (auto [side, all] : {std::pair("k", &scales.k), std::pair("v", &scales.v)}) {
      WW_ASSIGN_OR_RETURN(std::vector<float> of_layer,
                          layer_scales(source, layer, side, config.num_kv_heads));
      found |= !of_layer.empty();
      of_layer.resize(config.num_kv_heads, 1.0f);
      all->insert(all->end(), of_layer.begin(), of_layer.end());
    }
  }
  if (!found) return KvHeadScales();
  return scales;
}

}  // namespace warpweave
