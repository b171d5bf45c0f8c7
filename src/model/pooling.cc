#include "model/pooling.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/json_file.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

using nlohmann::json;

Result<json> read_object(const std::string& path) {
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  return read_json<json>(text, {path, StatusCode::data_loss});
}

// "sentence_transformers.models.Pooling" -> "Pooling"
std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

struct MethodKey {
  const char* key;   // of older files, a boolean
  const char* name;  // the value of pooling_mode in newer ones
  PoolingMethod method;
};
constexpr MethodKey kMethods[] = {{"pooling_mode_lasttoken", "lasttoken", PoolingMethod::last},
                                  {"pooling_mode_mean_tokens", "mean", PoolingMethod::mean},
                                  {"pooling_mode_cls_token", "cls", PoolingMethod::first}};

Status read_method(const std::string& path, PoolingConfig& out) {
  WW_ASSIGN_OR_RETURN(const json config, read_object(path));
  if (!config.is_object()) return Status(StatusCode::data_loss, path + ": must hold an object");
  int found = 0;
  for (const auto& [key, value] : config.items()) {
    const bool on = (key.starts_with("pooling_mode_") && value == true) || (key == "pooling_mode" && value.is_string());
    if (!on) continue;
    ++found;
    bool known = false;
    for (const MethodKey& method : kMethods) {
      if (key != method.key && !(key == "pooling_mode" && value == method.name)) continue;
      out.method = method.method;
      known = true;
    }
    if (!known) found = 2;
  }
  if (found != 1) {
    return Status::unsupported(path + ": one way of pooling out of the last token, the mean of all tokens and the first "
                               "token is supported; give --pooling to choose one", "pooling_mode");
  }
  if (out.method == PoolingMethod::mean && config.value("include_prompt", json(true)) == false) {
    LOG_WARN("{}: include_prompt is false, but which tokens are an instruction is not known here: all count", path);
  }
  return {};
}

}  // namespace

std::string_view pooling_method_name(PoolingMethod method) {
  switch (method) {
    case PoolingMethod::last: return "last";
    case PoolingMethod::mean: return "mean";
    case PoolingMethod::first: return "cls";
  }
  return "";
}

Result<PoolingConfig> read_pooling_config(const std::string& folder) {
  PoolingConfig out;
  const std::string list = folder + "/modules.json";
  if (!path_exists(list)) return out;
  WW_ASSIGN_OR_RETURN(const json modules, read_object(list));
  const Status broken(StatusCode::data_loss, list + ": must be a list of modules with \"type\" and \"path\"");
  if (!modules.is_array()) return broken;
  out.stored = true;
  out.normalize = false;
  for (const json& module : modules) {
    if (!module.is_object() || !module.contains("type") || !module["type"].is_string()) return broken;
    const std::string type(last_part(module["type"].get_ref<const std::string&>()));
    const json path = module.value("path", json(""));
    if (!path.is_string()) return broken;
    if (type == "Transformer") continue;
    if (type == "Normalize") {
      out.normalize = true;
    } else if (type == "Pooling") {
      WW_RETURN_IF_ERROR(read_method(folder + "/" + path.get<std::string>() + "/config.json", out));
    } else {
      return Status::unsupported(list + ": modules of type '" + type.substr(0, 60) +
                                 "' are not supported; supported are Transformer, Pooling and Normalize", "modules.json");
    }
  }
  return out;
}

Result<Pooler> Pooler::create(const ModelConfig& config, const PoolingConfig& pooling, const WeightSource& source) {
  Pooler out;
  out.pooling_ = pooling;
  out.hidden_size_ = config.hidden_size;
  if (config.head != ModelHead::labels) return out;
  out.pooling_ = {.method = PoolingMethod::last, .normalize = false, .stored = pooling.stored};
  out.labels_ = static_cast<int>(config.labels.size());
  const int64_t shape[] = {out.labels_, config.hidden_size}, bias_shape[] = {out.labels_};
  WW_ASSIGN_OR_RETURN(const TensorView weight, source.find("score.weight", shape));
  out.classifier_.resize(weight.elements());
  dequantize_row(weight.dtype, weight.data, weight.elements(), out.classifier_.data());
  if (source.has("score.bias")) {
    WW_ASSIGN_OR_RETURN(const TensorView bias, source.find("score.bias", bias_shape));
    out.bias_.resize(bias.elements());
    dequantize_row(bias.dtype, bias.data, bias.elements(), out.bias_.data());
  }
  return out;
}

std::vector<float> Pooler::finish(std::vector<float> sum, int count) const {
  for (float& value : sum) value /= static_cast<float>(count);
  if (labels_ > 0) {
    std::vector<float> out(bias_.empty() ? std::vector<float>(labels_) : bias_);
    for (int label = 0; label < labels_; ++label) {
      const float* const row = classifier_.data() + static_cast<size_t>(label) * hidden_size_;
      out[label] += static_cast<float>(std::inner_product(sum.begin(), sum.end(), row, 0.0));
    }
    return out;
  }
  if (!pooling_.normalize) return sum;
  const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
  if (length == 0) return sum;
  for (float& value : sum) value = static_cast<float>(value / length);
  return sum;
}

}  // namespace warpweave
