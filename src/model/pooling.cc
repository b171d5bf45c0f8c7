#include "model/pooling.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/json_file.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "model/tensor_packer.h"

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
    return Status::unsupported(path +
                                   ": one way of pooling out of the last token, the mean of all tokens and the first "
                                   "token is supported; give --pooling to choose one",
                               "pooling_mode");
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
                                     "' are not supported; supported are Transformer, Pooling and Normalize",
                                 "modules.json");
    }
  }
  return out;
}

namespace {

Result<std::vector<float>> find_optional(const WeightSource& source, const std::string& name, int64_t size) {
  return source.has(name) ? find_widened(source, name, std::span(&size, 1))
                          : Result<std::vector<float>>(std::vector<float>());
}

// weight * x + bias, for weights [out, x.size()].
std::vector<float> product(const std::vector<float>& weight, const std::vector<float>& bias,
                           const std::vector<float>& x) {
  std::vector<float> out(bias.empty() ? std::vector<float>(weight.size() / x.size()) : bias);
  const float* row = weight.data();
  for (float& value : out) {
    value += static_cast<float>(std::inner_product(x.begin(), x.end(), row, 0.0));
    row += x.size();
  }
  return out;
}

}  // namespace

Status Pooler::read_head(const ModelConfig& config, const WeightSource& source) {
  const int64_t hidden = config.hidden_size, dense_shape[] = {hidden, hidden};
  WW_ASSIGN_OR_RETURN(head_.dense, find_widened(source, "head.dense.weight", dense_shape));
  WW_ASSIGN_OR_RETURN(head_.bias, find_optional(source, "head.dense.bias", hidden));
  head_.gelu = config.encoder->label_activation == "gelu";
  WW_ASSIGN_OR_RETURN(head_.norm, find_optional(source, "head.norm.weight", hidden));
  WW_ASSIGN_OR_RETURN(head_.norm_bias, find_optional(source, "head.norm.bias", hidden));
  head_.norm_eps = config.norm_eps;
  return {};
}

void Pooler::run_head(std::vector<float>& state) const {
  state = product(head_.dense, head_.bias, state);
  for (float& x : state) x = head_.gelu ? x * 0.5f * std::erfc(-x * std::sqrt(0.5f)) : std::tanh(x);
  if (head_.norm.empty()) return;
  const auto count = static_cast<double>(state.size());
  const double mean = std::accumulate(state.begin(), state.end(), 0.0) / count;
  double square = 0;
  for (const float x : state) square += (x - mean) * (x - mean);
  const double scale = 1 / std::sqrt(square / count + head_.norm_eps);
  for (size_t i = 0; i < state.size(); ++i) {
    const float bias = head_.norm_bias.empty() ? 0 : head_.norm_bias[i];
    state[i] = static_cast<float>((state[i] - mean) * scale) * head_.norm[i] + bias;
  }
}

Result<Pooler> Pooler::create(const ModelConfig& config, const PoolingConfig& pooling, const WeightSource& source) {
  Pooler out;
  out.pooling_ = pooling;
  out.hidden_size_ = config.hidden_size;
  if (config.head != ModelHead::labels) return out;
  out.pooling_ = {.method = PoolingMethod::last, .normalize = false, .stored = pooling.stored};
  if (config.encoder) {
    out.pooling_.method = config.encoder->labels_of_mean ? PoolingMethod::mean : PoolingMethod::first;
    WW_RETURN_IF_ERROR(out.read_head(config, source));
  }
  out.labels_ = static_cast<int>(config.labels.size());
  const int64_t shape[] = {out.labels_, config.hidden_size};
  WW_ASSIGN_OR_RETURN(out.classifier_, find_widened(source, "score.weight", shape));
  WW_ASSIGN_OR_RETURN(out.bias_, find_optional(source, "score.bias", out.labels_));
  return out;
}

std::vector<float> Pooler::finish(std::vector<float> sum, int count) const {
  for (float& value : sum) value /= static_cast<float>(count);
  if (!head_.dense.empty()) run_head(sum);
  if (labels_ > 0) return product(classifier_, bias_, sum);
  if (!pooling_.normalize) return sum;
  const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
  if (length == 0) return sum;
  for (float& value : sum) value = static_cast<float>(value / length);
  return sum;
}

}  // namespace warpweave
