#include "model/unread_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "base/log.h"

namespace warpweave {
namespace {

// Where the layers of a language model stand in checkpoints of all kinds; those of a tower beside it do not.
constexpr std::string_view kLayerPrefixes[] = {
    "model.language_model.layers.", "model.layers.", "layers.", "blk.", "encoder.layer.", "bert.encoder.layer.",
    "roberta.encoder.layer."};
// Buffers that are computed, and what readers of the configuration take from the file themselves.
constexpr std::string_view kComputed[] = {"rotary_emb.inv_freq", "masked_bias", "position_ids", "token_type_ids"};
constexpr std::string_view kRopeFactors[] = {"rope_freqs.", "rope_factors_"};
constexpr size_t kMostNamed = 3;

std::optional<int> layer_of(std::string_view name) {
  for (const std::string_view prefix : kLayerPrefixes) {
    if (!name.starts_with(prefix)) continue;
    int layer = 0;
    const char* const begin = name.data() + prefix.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
    if (error == std::errc() && end != begin) return layer;
  }
  return std::nullopt;
}

const char* tensors_are(size_t count) { return count == 1 ? "tensor is" : "tensors are"; }

bool ends_with_any(std::string_view name, std::span<const std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool starts_with_any(std::string_view name, std::span<const std::string_view> starts) {
  return std::any_of(starts.begin(), starts.end(), [&](std::string_view start) { return name.starts_with(start); });
}

// A layer that guesses further tokens (model/draft_head.h) stands behind the model's own.
std::set<int> guessing_layers(const std::vector<std::string>& names) {
  std::set<int> layers;
  for (const std::string& name : names) {
    const std::optional<int> layer = layer_of(name);
    if (layer && (name.find(".nextn.") != name.npos || name.find(".eh_proj.") != name.npos)) layers.insert(*layer);
  }
  return layers;
}

// Of pretraining: the encoder's states are what is asked for.
bool is_pretraining_head(std::string_view name, const ModelConfig& config) {
  constexpr std::string_view kHeads[] = {"pooler.", "bert.pooler.", "roberta.pooler.", "cls.", "lm_head.", "head.",
                                         "decoder."};
  return config.encoder && config.head == ModelHead::none && starts_with_any(name, kHeads);
}

bool is_expected(std::string_view name, const ModelConfig& config) {
  const bool tied_head = config.tie_word_embeddings || config.head != ModelHead::vocabulary;
  return ends_with_any(name, kComputed) || starts_with_any(name, kRopeFactors) || name.starts_with("mtp.") ||
         name.ends_with(".input_scale") ||
         (tied_head && (name.starts_with("lm_head.") || name == "output.weight")) ||
         is_pretraining_head(name, config);
}

struct Told {
  std::vector<std::string_view> beyond, others;
};

Told worth_telling(const std::vector<std::string>& names, const ModelConfig& config) {
  Told told;
  const std::set<int> guessing = guessing_layers(names);
  for (const std::string& name : names) {
    const std::optional<int> layer = layer_of(name);
    if (layer && *layer >= config.num_layers) {
      if (!guessing.contains(*layer)) told.beyond.push_back(name);
    } else if (!is_expected(name, config)) {
      told.others.push_back(name);
    }
  }
  return told;
}

std::string beyond_line(const std::vector<std::string_view>& names, int num_layers) {
  const auto lower = [](std::string_view a, std::string_view b) { return *layer_of(a) < *layer_of(b); };
  const auto [first, last] = std::minmax_element(names.begin(), names.end(), lower);
  return fmt::format(
      "the weights have layers up to {}, and the configuration counts {}: {} {} not used, from {} on; right only if "
      "these layers are left out on purpose",
      *layer_of(*last), num_layers, names.size(), tensors_are(names.size()), *first);
}

}  // namespace

std::string layers_beyond_line(const std::vector<std::string>& names, const ModelConfig& config) {
  const Told told = worth_telling(names, config);
  return told.beyond.empty() ? std::string() : beyond_line(told.beyond, config.num_layers);
}

std::vector<std::string> unread_weights_lines(const std::vector<std::string>& unread, const ModelConfig& config) {
  const Told told = worth_telling(unread, config);
  std::vector<std::string> lines;
  if (!told.beyond.empty()) lines.push_back(beyond_line(told.beyond, config.num_layers));
  if (told.others.empty()) return lines;
  const size_t count = told.others.size(), named = std::min(count, kMostNamed);
  const std::vector<std::string_view> first(told.others.begin(), told.others.begin() + named);
  lines.push_back(fmt::format("{} {} in the weights and not used by {}: {}{}", count, tensors_are(count),
                              config.architecture, fmt::join(first, ", "),
                              count > named ? fmt::format(" and {} more", count - named) : ""));
  return lines;
}

void warn_of_unread_weights(const WeightSource& source, const ModelConfig& config) {
  for (const std::string& line : unread_weights_lines(source.unread(), config)) LOG_WARN("{}", log_safe(line, 1000));
}

}  // namespace warpweave
