// tokenizer.json and tokenizer_config.json to a TokenizerSpec.
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/json_file.h"
#include "text/charsmap.h"
#include "text/tokenizer.h"
#include "text/tokenizer_core.h"
#include "text/tokenizer_json_parts.h"
#include "text/tokenizer_patterns.h"
#include "text/tokenizer_spec.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

using namespace tokenizer_json;

constexpr size_t kMaxFileBytes = size_t{512} << 20;
constexpr int kMaxStripChars = 64;  // a decoder holds that many characters back

bool get_bool(const object& node, std::string_view key, bool fallback) {
  bool value = fallback;
  if (node[key].get(value) != simdjson::SUCCESS) return fallback;
  return value;
}

bool is_null_or_missing(const object& root, std::string_view key, element* value) {
  return root[key].get(*value) != simdjson::SUCCESS || value->is_null();
}

Status get_pattern(const object& node, PatternSpec* pattern) {
  object spelled;
  std::string_view text;
  if (node["pattern"].get(spelled) == simdjson::SUCCESS) {
    if (spelled["Regex"].get(text) == simdjson::SUCCESS) {
      *pattern = {true, std::string(text)};
      return {};
    }
    if (spelled["String"].get(text) == simdjson::SUCCESS) {
      *pattern = {false, std::string(text)};
      return {};
    }
  }
  return broken("needs a \"pattern\" with \"Regex\" or \"String\"", "pattern");
}

Status get_one_char(const object& node, std::string_view key, std::string* out) {
  const std::optional<std::string> text = get_string(node, key);
  if (!text || text->empty() ||
      utf8_length(static_cast<unsigned char>((*text)[0])) != text->size()) {
    return broken("\"" + std::string(key) + "\" must be one character", std::string(key));
  }
  *out = *text;
  return {};
}

Status get_behavior(const object& node, SplitBehavior fallback, SplitBehavior* behavior) {
  static constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous},
  };
  *behavior = fallback;
  const std::optional<std::string> given = get_string(node, "behavior");
  if (!given) return {};
  for (const auto& [name, value] : kNames) {
    if (*given == name) {
      *behavior = value;
      return {};
    }
  }
  return broken("unknown behavior \"" + given->substr(0, 40) + "\"", "behavior");
}

Status get_prepend_scheme(const object& node, PrependScheme* scheme) {
  *scheme = get_bool(node, "add_prefix_space", true) ? PrependScheme::always : PrependScheme::never;
  const std::optional<std::string> given = get_string(node, "prepend_scheme");
  if (!given) return {};
  if (*given == "first") *scheme = PrependScheme::first;
  else if (*given == "never") *scheme = PrependScheme::never;
  else if (*given == "always") *scheme = PrependScheme::always;
  else return broken("unknown prepend_scheme \"" + given->substr(0, 40) + "\"", "prepend_scheme");
  return {};
}

// The steps of one normalizer: unless strip_accents says otherwise, it goes with lowercase.
void read_bert_normalizer(const object& node, std::vector<NormalizerStep>* steps) {
  using Kind = NormalizerStep::Kind;
  const auto add = [&](Kind kind) { steps->emplace_back().kind = kind; };
  const bool lowercase = get_bool(node, "lowercase", true);
  if (get_bool(node, "clean_text", true)) add(Kind::clean_text);
  if (get_bool(node, "handle_chinese_chars", true)) add(Kind::space_ideographs);
  if (get_bool(node, "strip_accents", lowercase)) {
    add(Kind::nfd);
    add(Kind::strip_marks);
  }
  if (lowercase) add(Kind::lowercase);
}

Status read_normalizer(const object& node, int depth, std::vector<NormalizerStep>* steps) {
  using Kind = NormalizerStep::Kind;
  const std::string type = type_of(node);
  if (type == "BertNormalizer") {
    read_bert_normalizer(node, steps);
    return {};
  }
  if (type == "Sequence" && depth < kMaxDepth) {
    return for_each(node, "normalizers",
                    [&](const object& child) { return read_normalizer(child, depth + 1, steps); });
  }
  NormalizerStep step{};
  if (type == "NFC") step.kind = Kind::nfc;
  else if (type == "NFD") step.kind = Kind::nfd;
  else if (type == "NFKC") step.kind = Kind::nfkc;
  else if (type == "NFKD") step.kind = Kind::nfkd;
  else if (type == "Lowercase") step.kind = Kind::lowercase;
  else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.content = get_string(node, "prepend").value_or("");
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    WW_RETURN_IF_ERROR(get_pattern(node, &step.pattern));
    step.content = get_string(node, "content").value_or("");
  } else if (type == "Precompiled") {
    step.kind = Kind::charsmap;
    const std::optional<std::string> bytes = decode_base64(get_string(node, "precompiled_charsmap").value_or(""));
    if (!bytes) return broken("must be Base64", "precompiled_charsmap");
    step.content = *bytes;
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.strip_left = get_bool(node, "strip_left", false);
    step.strip_right = get_bool(node, "strip_right", false);
  } else {
    return unknown_type("normalizer", type);
  }
  steps->push_back(std::move(step));
  return {};
}

Status read_pre_tokenizer(const object& node, int depth, std::vector<PreTokenizerStep>* steps) {
  using Kind = PreTokenizerStep::Kind;
  const std::string type = type_of(node);
  if (type == "Sequence" && depth < kMaxDepth) {
    return for_each(node, "pretokenizers", [&](const object& child) {
      return read_pre_tokenizer(child, depth + 1, steps);
    });
  }
  PreTokenizerStep step{};
  if (type == "BertPreTokenizer") {
    step.kind = Kind::whitespace_split;
    step.behavior = SplitBehavior::removed;
    steps->push_back(step);
    step.kind = Kind::punctuation;
    step.behavior = SplitBehavior::isolated;
  } else if (type == "Split") {
    step.kind = Kind::split;
    step.invert = get_bool(node, "invert", false);
    WW_RETURN_IF_ERROR(get_pattern(node, &step.pattern));
    WW_RETURN_IF_ERROR(get_behavior(node, SplitBehavior::isolated, &step.behavior));
  } else if (type == "Digits") {
    step.kind = Kind::digits;
    step.behavior = get_bool(node, "individual_digits", false) ? SplitBehavior::isolated
                                                               : SplitBehavior::contiguous;
  } else if (type == "Punctuation") {
    step.kind = Kind::punctuation;
    WW_RETURN_IF_ERROR(get_behavior(node, SplitBehavior::isolated, &step.behavior));
  } else if (type == "Whitespace") {
    step.kind = Kind::whitespace;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::whitespace_split;
    step.behavior = SplitBehavior::removed;
  } else if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    step.add_prefix_space = get_bool(node, "add_prefix_space", true);
    step.use_regex = get_bool(node, "use_regex", true);
    step.pattern = {true, std::string(kGpt2Pattern)};
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    WW_RETURN_IF_ERROR(get_one_char(node, "replacement", &step.replacement));
    WW_RETURN_IF_ERROR(get_prepend_scheme(node, &step.prepend_scheme));
    step.split = get_bool(node, "split", true);
  } else {
    return unknown_type("pre_tokenizer", type);
  }
  steps->push_back(std::move(step));
  return {};
}

Status get_strip_count(const object& node, std::string_view key, int* count) {
  uint64_t value = 0;
  if (node[key].get(value) != simdjson::SUCCESS || value > kMaxStripChars) {
    return broken("\"" + std::string(key) + "\" must be in 0.." + std::to_string(kMaxStripChars),
                  std::string(key));
  }
  *count = static_cast<int>(value);
  return {};
}

Status read_decoder(const object& node, int depth, std::vector<DecoderStep>* steps) {
  using Kind = DecoderStep::Kind;
  const std::string type = type_of(node);
  if (type == "Sequence" && depth < kMaxDepth) {
    return for_each(node, "decoders",
                    [&](const object& child) { return read_decoder(child, depth + 1, steps); });
  }
  DecoderStep step{};
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    WW_RETURN_IF_ERROR(get_one_char(node, "replacement", &step.replacement));
    WW_RETURN_IF_ERROR(get_prepend_scheme(node, &step.prepend_scheme));
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    WW_RETURN_IF_ERROR(get_pattern(node, &step.pattern));
    step.content = get_string(node, "content").value_or("");
    if (step.pattern.text.empty()) return broken("an empty pattern", "decoder");
  } else if (type == "WordPiece") {
    step.kind = Kind::word_piece;
    step.content = get_string(node, "prefix").value_or("##");
    step.cleanup = get_bool(node, "cleanup", true);
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    WW_RETURN_IF_ERROR(get_one_char(node, "content", &step.content));
    WW_RETURN_IF_ERROR(get_strip_count(node, "start", &step.strip_start));
    WW_RETURN_IF_ERROR(get_strip_count(node, "stop", &step.strip_stop));
  } else {
    return unknown_type("decoder", type);
  }
  steps->push_back(std::move(step));
  return {};
}

Status read_merges(const element& merges, BpeSpec* bpe) {
  array listed;
  if (merges.get(listed) != simdjson::SUCCESS) return broken("merges must be an array", "merges");
  bpe->merges.reserve(listed.size());
  for (element item : listed) {
    std::string_view line, left, right;
    if (item.get(line) == simdjson::SUCCESS) {
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        return broken("merge " + std::to_string(bpe->merges.size()) + " is not two tokens",
                      "merges");
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else {
      array pair;
      if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
          pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) {
        return broken("merge " + std::to_string(bpe->merges.size()) + " is not two tokens",
                      "merges");
      }
    }
    bpe->merges.emplace_back(left, right);
  }
  return {};
}

Status read_vocab(const object& node, BpeSpec* bpe) {
  object vocab;
  if (node["vocab"].get(vocab) != simdjson::SUCCESS) return broken("the model needs a vocab", "model");
  bpe->vocab.reserve(vocab.size());
  for (const auto& [token, value] : vocab) {
    int32_t id = 0;
    WW_RETURN_IF_ERROR(get_id(value, &id));
    bpe->vocab.push_back({token, id});
  }
  return {};
}

Status read_word_piece(const object& node, BpeSpec* bpe) {
  WordPieceSpec& pieces = bpe->word_piece.emplace();
  pieces.prefix = get_string(node, "continuing_subword_prefix").value_or("##");
  uint64_t most = pieces.max_word_chars;
  if (node["max_input_chars_per_word"].get(most) == simdjson::SUCCESS && (most < 1 || most > kMaxWordPieceChars)) {
    return broken("must be in 1.." + std::to_string(kMaxWordPieceChars), "max_input_chars_per_word");
  }
  pieces.max_word_chars = static_cast<int>(most);
  bpe->unk_token = get_string(node, "unk_token").value_or("[UNK]");
  return read_vocab(node, bpe);
}

// [[token, score], ...], the ids being their places.
Status read_unigram(const object& node, BpeSpec* bpe) {
  UnigramSpec& unigram = bpe->unigram.emplace();
  array vocab;
  if (node["vocab"].get(vocab) != simdjson::SUCCESS) return broken("the model needs a vocab", "model");
  bpe->vocab.reserve(vocab.size());
  for (element item : vocab) {
    const auto id = static_cast<int32_t>(bpe->vocab.size());
    std::string_view token;
    double score = 0;
    if (item.at(0).get(token) != simdjson::SUCCESS || item.at(1).get(score) != simdjson::SUCCESS) {
      return broken("entry " + std::to_string(id) + " is not a token and its score", "vocab");
    }
    bpe->vocab.push_back({token, id});
    unigram.scores.push_back(score);
  }
  element unk;
  if (!is_null_or_missing(node, "unk_id", &unk)) WW_RETURN_IF_ERROR(get_id(unk, &unigram.unk_id));
  if (unigram.unk_id >= static_cast<int32_t>(bpe->vocab.size())) return broken("is behind the vocabulary", "unk_id");
  if (unigram.unk_id >= 0) bpe->unk_token = std::string(bpe->vocab[unigram.unk_id].token);
  bpe->byte_fallback = get_bool(node, "byte_fallback", false);
  return {};
}

Status read_model(const object& node, BpeSpec* bpe) {
  const std::string type = type_of(node);
  if (type == "Unigram") return read_unigram(node, bpe);
  if (type == "WordPiece") return read_word_piece(node, bpe);
  if (!type.empty() && type != "BPE") return unknown_type("model", type);
  for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!get_string(node, key).value_or("").empty()) {
      return Status::unsupported("a BPE model with " + std::string(key), std::string(key));
    }
  }
  double dropout = 0;
  if (node["dropout"].get(dropout) == simdjson::SUCCESS && dropout != 0) {
    return Status::unsupported("a BPE model with dropout: its ids would be random", "dropout");
  }
  bpe->unk_token = get_string(node, "unk_token");
  bpe->fuse_unk = get_bool(node, "fuse_unk", false);
  bpe->byte_fallback = get_bool(node, "byte_fallback", false);
  bpe->ignore_merges = get_bool(node, "ignore_merges", false);
  element merges;
  if (node["merges"].get(merges) != simdjson::SUCCESS) return broken("the model needs merges", "model");
  WW_RETURN_IF_ERROR(read_vocab(node, bpe));
  return read_merges(merges, bpe);
}

Result<AddedTokenSpec> read_added_token(const object& node) {
  AddedTokenSpec token;
  const std::optional<std::string> content = get_string(node, "content");
  if (!content) return broken("an added token without content", "added_tokens");
  token.content = *content;
  token.single_word = get_bool(node, "single_word", false);
  token.lstrip = get_bool(node, "lstrip", false);
  token.rstrip = get_bool(node, "rstrip", false);
  token.special = get_bool(node, "special", false);
  token.normalized = get_bool(node, "normalized", !token.special);
  return token;
}

Status read_tokenizer(const object& root, TokenizerSpec* spec) {
  element part;
  object node;
  const auto each_part = [&](std::string_view key, auto&& read) -> Status {
    if (is_null_or_missing(root, key, &part)) return {};
    if (part.get(node) != simdjson::SUCCESS) return broken("must be an object", std::string(key));
    return read();
  };
  WW_RETURN_IF_ERROR(each_part("normalizer", [&] {
    return read_normalizer(node, 0, &spec->normalizer);
  }));
  WW_RETURN_IF_ERROR(each_part("pre_tokenizer", [&] {
    return read_pre_tokenizer(node, 0, &spec->pre_tokenizer);
  }));
  WW_RETURN_IF_ERROR(each_part("post_processor", [&] {
    return read_post_processor(node, 0, spec);
  }));
  WW_RETURN_IF_ERROR(each_part("decoder", [&] {
    spec->has_decoder = true;
    return read_decoder(node, 0, &spec->decoder);
  }));
  if (root["model"].get(node) != simdjson::SUCCESS) return broken("there is no model", "model");
  WW_RETURN_IF_ERROR(read_model(node, &spec->model));
  if (is_null_or_missing(root, "added_tokens", &part)) return {};
  return for_each(root, "added_tokens", [&](const object& item) -> Status {
    WW_ASSIGN_OR_RETURN(AddedTokenSpec token, read_added_token(item));
    spec->added_tokens.push_back(std::move(token));
    return {};
  });
}

// "bos_token": "<s>" or {"content": "<s>", ...}.
std::optional<std::string> get_token_text(const object& root, std::string_view key) {
  element value;
  std::string_view text;
  if (root[key].get(value) != simdjson::SUCCESS) return std::nullopt;
  if (value.get(text) == simdjson::SUCCESS) return std::string(text);
  if (value["content"].get(text) == simdjson::SUCCESS) return std::string(text);
  return std::nullopt;
}

// Added tokens that only the config knows, in the order of their ids.
Status read_added_tokens_decoder(const object& root, TokenizerSpec* spec) {
  object listed;
  if (root["added_tokens_decoder"].get(listed) != simdjson::SUCCESS) return {};
  std::set<std::string> known;
  for (const AddedTokenSpec& token : spec->added_tokens) known.insert(token.content);
  std::vector<std::pair<uint32_t, AddedTokenSpec>> tokens;
  for (const auto& [key, value] : listed) {
    object node;
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() ||
        value.get(node) != simdjson::SUCCESS) {
      return broken("added_tokens_decoder must map ids to tokens", "added_tokens_decoder");
    }
    WW_ASSIGN_OR_RETURN(AddedTokenSpec token, read_added_token(node));
    if (!known.contains(token.content)) tokens.emplace_back(id, std::move(token));
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [id, token] : tokens) spec->added_tokens.push_back(std::move(token));
  return {};
}

Status read_config(const object& root, TokenizerSpec* spec) {
  spec->bos_token = get_token_text(root, "bos_token");
  spec->eos_token = get_token_text(root, "eos_token");
  spec->pad_token = get_token_text(root, "pad_token");
  spec->unk_token = get_token_text(root, "unk_token");
  // These classes build their post-processor from the two flags, whatever tokenizer.json says.
  const std::string tokenizer_class = get_string(root, "tokenizer_class").value_or("");
  for (std::string_view name : {"Llama", "CodeLlama", "Gemma", "Cohere"}) {
    if (tokenizer_class != std::string(name) + "Tokenizer" &&
        tokenizer_class != std::string(name) + "TokenizerFast") {
      continue;
    }
    bool flag = false;
    if (root["add_bos_token"].get(flag) == simdjson::SUCCESS) spec->add_bos = flag;
    if (root["add_eos_token"].get(flag) == simdjson::SUCCESS) spec->add_eos = flag;
  }
  return read_added_tokens_decoder(root, spec);
}

Status parse_object(simdjson::dom::parser* parser, std::string_view text, object* root) {
  if (text.size() > kMaxFileBytes) {
    return broken("the file has " + std::to_string(text.size()) + " bytes; the limit is " +
                      std::to_string(kMaxFileBytes),
                  "");
  }
  element parsed;
  WW_RETURN_IF_ERROR(read_json_tape(*parser, text, {"the file", StatusCode::data_loss}, parsed));
  return parsed.get(*root) == simdjson::SUCCESS ? Status() : broken("not a JSON object", "");
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_hf_tokenizer(std::string_view tokenizer_json,
                                                     std::string_view tokenizer_config_json) {
  TokenizerSpec spec;
  simdjson::dom::parser parser;  // its memory holds the vocabulary's strings until build()
  object root;
  Status status = parse_object(&parser, tokenizer_json, &root);
  if (status.ok()) status = read_tokenizer(root, &spec);
  if (!status.ok()) return status.with_context("tokenizer.json");
  simdjson::dom::parser config_parser;
  if (!tokenizer_config_json.empty()) {
    status = parse_object(&config_parser, tokenizer_config_json, &root);
    if (status.ok()) status = read_config(root, &spec);
    if (!status.ok()) return status.with_context("tokenizer_config.json");
  }
  Result<std::unique_ptr<TokenizerCore>> core = TokenizerCore::build(spec);
  if (!core.ok()) return core.status().with_context("tokenizer.json");
  return std::make_unique<Tokenizer>(std::move(core).value());
}

}  // namespace warpweave
