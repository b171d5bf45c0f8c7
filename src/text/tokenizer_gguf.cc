// The tokenizer of a GGUF file to a TokenizerSpec.
#include <cmath>
#include <limits>

#include "text/tokenizer.h"
#include "text/tokenizer_core.h"
#include "text/tokenizer_patterns.h"
#include "text/tokenizer_spec.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

enum TokenType : int32_t { kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

constexpr const char* kMeta = "\xE2\x96\x81";  // U+2581

Status check_fields(const GgufTokenizerFields& fields) {
  if (fields.tokens.empty() || fields.tokens.size() > static_cast<size_t>(kMaxTokenId) + 1) {
    return Status::data_loss("tokenizer.ggml.tokens has " + std::to_string(fields.tokens.size()) +
                                 " entries; allowed are 1.." + std::to_string(kMaxTokenId + 1),
                             "tokenizer.ggml.tokens");
  }
  const auto same_size = [&](size_t size, const char* field) -> Status {
    if (size == 0 || size == fields.tokens.size()) return {};
    return Status::data_loss(std::string(field) + " has " + std::to_string(size) +
                                 " entries for " + std::to_string(fields.tokens.size()) + " tokens",
                             field);
  };
  WW_RETURN_IF_ERROR(same_size(fields.scores.size(), "tokenizer.ggml.scores"));
  WW_RETURN_IF_ERROR(same_size(fields.token_types.size(), "tokenizer.ggml.token_type"));
  for (size_t id = 0; id < fields.tokens.size(); ++id) {
    if (find_invalid_utf8(fields.tokens[id]) == std::string_view::npos) continue;
    return Status::data_loss("token " + std::to_string(id) + " is not valid UTF-8",
                             "tokenizer.ggml.tokens");
  }
  return {};
}

void fill_common(const GgufTokenizerFields& fields, TokenizerSpec* spec) {
  for (size_t id = 0; id < fields.tokens.size(); ++id) {
    spec->model.vocab.push_back({fields.tokens[id], static_cast<int32_t>(id)});
    const int32_t type = fields.token_types.empty() ? 1 : fields.token_types[id];
    if (type != kControl && type != kUserDefined) continue;
    AddedTokenSpec added;
    added.content = fields.tokens[id];
    added.special = type == kControl;
    spec->added_tokens.push_back(std::move(added));
  }
  spec->bos_id = fields.bos_token_id;
  spec->eos_id = fields.eos_token_id;
  spec->pad_id = fields.padding_token_id;
  spec->unk_id = fields.unknown_token_id;
  spec->add_eos = fields.add_eos_token.value_or(false);
  spec->has_decoder = true;
}

Status fill_byte_level(const GgufTokenizerFields& fields, TokenizerSpec* spec) {
  const std::string name = fields.pre.empty() ? "default" : fields.pre;
  std::optional<PreTokenizerFamily> family = pre_tokenizer_family(name);
  if (!family) {
    return Status::unsupported("the pre-tokenizer \"" + name.substr(0, 60) +
                                   "\" is not known here; known are " +
                                   known_pre_tokenizer_families(),
                               "tokenizer.ggml.pre");
  }
  spec->pre_tokenizer = std::move(family->steps);
  if (family->nfc) {
    NormalizerStep nfc{};
    nfc.kind = NormalizerStep::Kind::nfc;
    spec->normalizer.push_back(nfc);
  }
  spec->model.ignore_merges = family->ignore_merges;
  spec->add_bos = fields.add_bos_token.value_or(family->add_bos);
  DecoderStep decoder{};
  decoder.kind = DecoderStep::Kind::byte_level;
  spec->decoder.push_back(decoder);
  for (const std::string& merge : fields.merges) {
    // A token may begin with a space only in broken files: the first one is the border.
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos) {
      return Status::data_loss("the merge \"" + merge.substr(0, 60) + "\" is not two tokens",
                               "tokenizer.ggml.merges");
    }
    const std::string_view text = merge;
    spec->model.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return {};
}

Status fill_sentencepiece(const GgufTokenizerFields& fields, TokenizerSpec* spec) {
  if (fields.scores.empty()) {
    return Status::data_loss("a \"llama\" tokenizer needs scores", "tokenizer.ggml.scores");
  }
  spec->model.scores = fields.scores;
  spec->model.byte_fallback = true;
  // Tokens that text never merges into.
  for (size_t id = 0; id < fields.token_types.size(); ++id) {
    const int32_t type = fields.token_types[id];
    if (type == kUnknown || type == kControl || type == kByte) {
      spec->model.scores[id] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  if (const auto unk = fields.unknown_token_id;
      unk && *unk >= 0 && static_cast<size_t>(*unk) < fields.tokens.size()) {
    spec->model.unk_token = fields.tokens[*unk];
  }
  const bool space_prefix = fields.add_space_prefix.value_or(true);
  NormalizerStep to_meta{};
  to_meta.kind = NormalizerStep::Kind::replace;
  to_meta.pattern = {false, " "};
  to_meta.content = kMeta;
  DecoderStep from_meta{};
  from_meta.kind = DecoderStep::Kind::replace;
  from_meta.pattern = {false, kMeta};
  from_meta.content = " ";
  DecoderStep byte_fallback{}, fuse{}, strip{};
  byte_fallback.kind = DecoderStep::Kind::byte_fallback;
  fuse.kind = DecoderStep::Kind::fuse;
  strip.kind = DecoderStep::Kind::strip;
  strip.content = " ";
  strip.strip_start = 1;
  if (space_prefix) {
    NormalizerStep prepend{};
    prepend.kind = NormalizerStep::Kind::prepend;
    prepend.content = kMeta;
    spec->normalizer.push_back(prepend);
  }
  spec->normalizer.push_back(to_meta);
  spec->decoder = {from_meta, byte_fallback, fuse};
  if (space_prefix) spec->decoder.push_back(strip);
  spec->add_bos = fields.add_bos_token.value_or(true);
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> build_gguf_tokenizer(const GgufTokenizerFields& fields) {
  WW_RETURN_IF_ERROR(check_fields(fields));
  TokenizerSpec spec;
  fill_common(fields, &spec);
  if (fields.model == "gpt2") {
    WW_RETURN_IF_ERROR(fill_byte_level(fields, &spec));
  } else if (fields.model == "llama") {
    WW_RETURN_IF_ERROR(fill_sentencepiece(fields, &spec));
  } else {
    return Status::unsupported("the tokenizer model \"" + fields.model.substr(0, 60) +
                                   "\" is not known here; known are gpt2, llama",
                               "tokenizer.ggml.model");
  }
  Result<std::unique_ptr<TokenizerCore>> core = TokenizerCore::build(spec);
  if (!core.ok()) return core.status().with_context("GGUF tokenizer");
  return std::make_unique<Tokenizer>(std::move(core).value());
}

}  // namespace warpweave
