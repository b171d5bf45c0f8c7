// /v1/embeddings (OpenAI), /encode (SGLang), /classify and /v1/classify (vLLM's shape for "input", else SGLang's).
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/openai_common.h"
#include "server/api/pooled.h"

namespace warpweave::server {
namespace {

struct EmbeddingFormat {
  bool base64 = false;
  int dimensions = 0;  // the first so many values; 0: all
};

void append_base64(std::string_view bytes, std::string* out) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) *out += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
}

// The first values of an embedding, at length 1 where the whole has it.
std::vector<float> cut(std::vector<float> values, int dimensions, bool normalized) {
  if (dimensions == 0 || dimensions >= static_cast<int>(values.size())) return values;
  values.resize(dimensions);
  const double length = std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  if (!normalized || length == 0) return values;
  for (float& value : values) value = static_cast<float>(value / length);
  return values;
}

class EmbeddingsBuilder final : public PooledBuilder {
 public:
  EmbeddingsBuilder(const Api& api, size_t sequences, EmbeddingFormat format)
      : PooledBuilder(sequences), model_(api.info().served_model_name),
        normalized_(api.info().normalizes_pooled), format_(format) {}

  std::string body() override {
    std::string out = "{\"object\":\"list\",\"data\":[";
    for (size_t i = 0; i < last().size(); ++i) {
      out += fmt::format("{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":", i > 0 ? "," : "", i);
      const std::vector<float> values = cut(last()[i].pooled, format_.dimensions, normalized_);
      if (format_.base64) {
        out += '"';
        append_base64({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}, &out);
        out += '"';
      } else {
        append_json_floats(values, &out);
      }
      out += '}';
    }
    out += "],\"model\":";
    append_json_string(model_, &out);
    return out + "," + usage() + "}";
  }

 private:
  static_assert(std::endian::native == std::endian::little, "clients read little-endian floats");
  const std::string model_;
  const bool normalized_;
  const EmbeddingFormat format_;
};

// SGLang's: {"embedding": [...], "meta_info": {...}}, or a list of such.
class NativeBuilder final : public PooledBuilder {
 public:
  NativeBuilder(const Api& api, const PooledInputs& inputs)
      : PooledBuilder(inputs.ids.size()), weight_version_(api.weight_version()), as_list_(inputs.is_batch) {}

  std::string body() override {
    std::string out = as_list_ ? "[" : "";
    for (size_t i = 0; i < last().size(); ++i) {
      out += i > 0 ? ",{\"embedding\":" : "{\"embedding\":";
      append_json_floats(last()[i].pooled, &out);
      out += ',';
      append_meta_info(last()[i], weight_version_, &out);
      out += '}';
    }
    return as_list_ ? out + "]" : out;
  }

 private:
  const std::string weight_version_;
  const bool as_list_;
};

class ClassifyBuilder final : public PooledBuilder {
 public:
  ClassifyBuilder(const Api& api, const PooledOptions& options, size_t sequences)
      : PooledBuilder(sequences),
        frame_(answer_frame(options.rid, "list", options.model)),
        labels_(api.info().labels) {}

  std::string body() override {
    std::string out = "{" + frame_ + ",\"data\":[";
    for (size_t i = 0; i < last().size(); ++i) {
      const std::vector<float> probs = label_probabilities(last()[i].pooled);
      const auto best = std::max_element(probs.begin(), probs.end()) - probs.begin();
      out += fmt::format("{}{{\"index\":{},\"label\":", i > 0 ? "," : "", i);
      append_json_string(labels_[best], &out);
      out += ",\"probs\":";
      append_json_floats(probs, &out);
      out += fmt::format(",\"num_classes\":{}}}", probs.size());
    }
    return out + "]," + usage() + "}";
  }

 private:
  const std::string frame_;
  const std::vector<std::string> labels_;
};

// text or input_ids
Result<PooledInputs> read_native_inputs(const Api& api, FieldReader* reader, const PooledOptions& options) {
  const bool text = reader->find("text") != nullptr, ids = reader->find("input_ids") != nullptr;
  refuse_unsupported(reader);
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, reader));
  if (text == ids) {
    return Status::invalid_argument(text ? "text and input_ids are both given; send one of them."
                                         : "The prompt is missing; send text or input_ids.", "text");
  }
  return read_pooled_inputs(api, *reader, text ? "text" : "input_ids", options);
}

}  // namespace

Result<GenerationJob> parse_embeddings(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  PooledOptions options;
  WW_RETURN_IF_ERROR(read_pooled_options(api, &reader, "embd-", &options));
  EmbeddingFormat format;
  std::string encoding = "float";
  reader.get("encoding_format", TextLimit{64}, &encoding);
  format.base64 = encoding == "base64";
  if (!format.base64 && encoding != "float") {
    reader.fail(Status::invalid_argument("encoding_format must be \"float\" or \"base64\".", "encoding_format"));
  }
  WW_RETURN_IF_ERROR(reader.status());
  WW_RETURN_IF_ERROR(require_embeddings(api));
  reader.get("dimensions", IntRange{1, api.info().pooled_size, "this model's embeddings have no more"},
             &format.dimensions);
  reader.find("input");
  refuse_unsupported(&reader);
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, &reader));
  WW_ASSIGN_OR_RETURN(PooledInputs inputs, read_pooled_inputs(api, reader, "input", options));
  auto builder = std::make_unique<EmbeddingsBuilder>(api, inputs.ids.size(), format);
  return make_pooled_job(options, std::move(inputs.ids), std::move(builder));
}

Result<GenerationJob> parse_encode(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  PooledOptions options;
  WW_RETURN_IF_ERROR(read_pooled_options(api, &reader, "", &options));
  WW_RETURN_IF_ERROR(require_embeddings(api));
  WW_ASSIGN_OR_RETURN(PooledInputs inputs, read_native_inputs(api, &reader, options));
  auto builder = std::make_unique<NativeBuilder>(api, inputs);
  return make_pooled_job(options, std::move(inputs.ids), std::move(builder));
}

Result<GenerationJob> parse_classify(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  PooledOptions options;
  WW_RETURN_IF_ERROR(read_pooled_options(api, &reader, "classify-", &options));
  if (api.info().labels.empty()) {
    return Status::unsupported("this model has no labels; /classify needs one saved for sequence classification.",
                               "model");
  }
  if (reader.find("input") == nullptr) {
    WW_ASSIGN_OR_RETURN(PooledInputs inputs, read_native_inputs(api, &reader, options));
    auto builder = std::make_unique<NativeBuilder>(api, inputs);
    return make_pooled_job(options, std::move(inputs.ids), std::move(builder));
  }
  refuse_unsupported(&reader);
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, &reader));
  WW_ASSIGN_OR_RETURN(PooledInputs inputs, read_pooled_inputs(api, reader, "input", options));
  auto builder = std::make_unique<ClassifyBuilder>(api, options, inputs.ids.size());
  return make_pooled_job(options, std::move(inputs.ids), std::move(builder));
}

}  // namespace warpweave::server
