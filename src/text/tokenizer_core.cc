#include "text/tokenizer_core.h"

#include <simdjson.h>

#include <algorithm>

#include "base/trim_memory.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 20;
constexpr size_t kIdleScratches = 16;                     // about 1.5 MB each
constexpr size_t kIdleScratchTextBytes = size_t{256} << 10;  // what has seen a longer text is freed
constexpr size_t kKeptTextBytes = size_t{16} << 10;  // of a longer text only its words are kept
constexpr size_t kTrimTextBytes = size_t{4} << 20;

// Those of the ascending `offsets` in (begin, end), counted from `begin`.
std::vector<size_t> offsets_within(std::span<const size_t> offsets, size_t begin, size_t end) {
  std::vector<size_t> within;
  for (auto it = std::upper_bound(offsets.begin(), offsets.end(), begin);
       it != offsets.end() && *it < end; ++it) {
    within.push_back(*it - begin);
  }
  return within;
}

}  // namespace

struct TokenizerCore::Scratch {
  RegexScratch regex;
  PreTokenizerScratch words;
  BpeScratch bpe;
  UnigramScratch unigram;
  std::string normalized;
  std::vector<TextSection> raw_sections;
  std::vector<TextSection> sections;

  void free_text() noexcept {
    words = PreTokenizerScratch();
    unigram = UnigramScratch();
    bpe.free_text();
    std::string().swap(normalized);
    std::vector<TextSection>().swap(raw_sections);
    std::vector<TextSection>().swap(sections);
  }
};

class TokenizerCore::ScratchLease {
 public:
  ScratchLease(const TokenizerCore& core, size_t text_bytes)
      : core_(core), text_bytes_(text_bytes) {
    {
      std::lock_guard lock(core_.pool_mutex_);
      if (!core_.pool_.empty()) {
        scratch_ = std::move(core_.pool_.back());
        core_.pool_.pop_back();
      }
    }
    if (scratch_ == nullptr) scratch_ = std::make_unique<Scratch>();
  }
  ~ScratchLease() {
    if (text_bytes_ > kIdleScratchTextBytes) {
      scratch_.reset();
      if (text_bytes_ > kTrimTextBytes) trim_memory();
      return;
    }
    if (text_bytes_ > kKeptTextBytes) scratch_->free_text();
    std::lock_guard lock(core_.pool_mutex_);
    if (core_.pool_.size() < kIdleScratches) core_.pool_.push_back(std::move(scratch_));
  }
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  Scratch* get() { return scratch_.get(); }

 private:
  const TokenizerCore& core_;
  const size_t text_bytes_;
  std::unique_ptr<Scratch> scratch_;
};

TokenizerCore::TokenizerCore() = default;
TokenizerCore::~TokenizerCore() = default;

Result<std::unique_ptr<TokenizerCore>> TokenizerCore::build(const TokenizerSpec& spec) {
  auto core = std::make_unique<TokenizerCore>();
  WW_ASSIGN_OR_RETURN(core->normalizer_, Normalizer::build(spec.normalizer));
  WW_ASSIGN_OR_RETURN(core->pre_tokenizer_, PreTokenizer::build(spec.pre_tokenizer));
  WW_ASSIGN_OR_RETURN(core->model_,
                      BpeModel::build(spec.model, core->pre_tokenizer_.byte_level_words()));
  if (spec.model.word_piece) {
    WW_ASSIGN_OR_RETURN(core->word_piece_, WordPiece::build(spec.model, core->model_.vocab()));
  }
  if (spec.model.unigram) {
    WW_ASSIGN_OR_RETURN(core->unigram_, Unigram::build(spec.model, core->model_.vocab()));
  }
  WW_RETURN_IF_ERROR(core->add_tokens(spec.added_tokens));
  WW_RETURN_IF_ERROR(core->build_pieces(spec));
  WW_RETURN_IF_ERROR(core->set_special_ids(spec));
  return core;
}

// Ids as the original gives them: the vocabulary's where the token is in it, else the next free
// one behind the vocabulary. The id in the file is not looked at.
Status TokenizerCore::add_tokens(const std::vector<AddedTokenSpec>& specs) {
  auto next_id = static_cast<int32_t>(model_.vocab().size());
  RegexScratch regex;
  std::vector<std::pair<AddedTokenPattern, bool>> patterns;  // with "normalized"
  for (const AddedTokenSpec& spec : specs) {
    if (spec.content.empty()) continue;
    int32_t id = token_to_id(spec.content).value_or(-1);
    if (id < 0) id = next_id++;
    if (id > kMaxTokenId) return Status::data_loss("too many added tokens", "added_tokens");
    AddedToken token{spec.content, spec.content, spec.special};
    if (spec.normalized && !normalizer_.empty()) {
      bool starts_text = true;
      WW_RETURN_IF_ERROR(normalizer_.run(spec.content, &regex, &token.shown, &starts_text));
    }
    added_ids_[spec.content] = id;
    std::erase_if(patterns, [&](const auto& pattern) { return pattern.first.id == id; });
    patterns.push_back({{token.shown, id, spec.single_word, spec.lstrip, spec.rstrip, spec.special},
                        spec.normalized});
    added_[id] = std::move(token);
  }
  std::vector<AddedTokenPattern> raw, normalized;
  for (auto& [pattern, is_normalized] : patterns) {
    (is_normalized ? normalized : raw).push_back(std::move(pattern));
  }
  WW_ASSIGN_OR_RETURN(raw_matcher_, AddedTokenMatcher::build(std::move(raw)));
  WW_ASSIGN_OR_RETURN(normalized_matcher_, AddedTokenMatcher::build(std::move(normalized)));
  return {};
}

Status TokenizerCore::set_special_ids(const TokenizerSpec& spec) {
  const auto resolve = [&](const std::optional<std::string>& text, std::optional<int32_t> id,
                           std::optional<int32_t>* out) {
    if (text) id = token_to_id(*text);
    if (id && has_id(*id)) *out = id;
  };
  resolve(spec.bos_token, spec.bos_id, &bos_id);
  resolve(spec.eos_token, spec.eos_id, &eos_id);
  resolve(spec.pad_token, spec.pad_id, &pad_id);
  resolve(spec.unk_token ? spec.unk_token : spec.model.unk_token, spec.unk_id, &unk_id);
  ids_before_ = spec.ids_before;
  ids_after_ = spec.ids_after;
  if (spec.add_bos) {
    ids_before_.clear();
    if (*spec.add_bos && bos_id) ids_before_.push_back(*bos_id);
  }
  if (spec.add_eos) {
    ids_after_.clear();
    if (*spec.add_eos && eos_id) ids_after_.push_back(*eos_id);
  }
  pair_ = spec.pair;
  std::vector<const std::vector<int32_t>*> lists = {&ids_before_, &ids_after_};
  for (const PairPart& part : pair_) lists.push_back(&part.ids);
  for (const std::vector<int32_t>* ids : lists) {
    for (int32_t id : *ids) {
      if (has_id(id)) continue;
      return Status::data_loss("the post_processor adds the id " + std::to_string(id) +
                                   ", which no token has",
                               "post_processor");
    }
  }
  return {};
}

std::optional<int32_t> TokenizerCore::token_to_id(std::string_view token) const {
  if (const auto it = added_ids_.find(std::string(token)); it != added_ids_.end()) {
    return it->second;
  }
  const int32_t id = model_.vocab().find(token);
  if (id < 0) return std::nullopt;
  return id;
}

std::optional<std::string_view> TokenizerCore::token_text(int32_t id) const {
  if (const auto it = added_.find(id); it != added_.end()) return it->second.shown;
  if (model_.vocab().has(id)) return model_.vocab().text(id);
  return std::nullopt;
}

std::vector<std::string_view> TokenizerCore::special_texts() const {
  std::vector<std::string_view> texts;
  for (const auto& [id, token] : added_) {
    if (token.special) texts.push_back(token.content);
  }
  return texts;
}

void TokenizerCore::prepare(int threads) const {
  std::lock_guard lock(pool_mutex_);
  while (pool_.size() < std::min(static_cast<size_t>(threads), kIdleScratches))
    pool_.push_back(std::make_unique<Scratch>());
}

size_t TokenizerCore::idle_text_bytes() const {
  std::lock_guard lock(pool_mutex_);
  size_t bytes = 0;
  for (const auto& scratch : pool_) {
    bytes += scratch->bpe.text_bytes() + scratch->normalized.capacity() +
             scratch->words.words.capacity() * sizeof(TextRange) +
             (scratch->raw_sections.capacity() + scratch->sections.capacity()) * sizeof(TextSection);
  }
  return bytes;
}

size_t TokenizerCore::idle_scratches() const {
  std::lock_guard lock(pool_mutex_);
  return pool_.size();
}

Result<std::vector<int32_t>> TokenizerCore::encode(std::string_view text,
                                                   const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Status::invalid_argument("the text has " + std::to_string(text.size()) +
                                    " bytes; the tokenizer takes at most " +
                                    std::to_string(kMaxTextBytes));
  }
  if (!options.literal_at.empty() && !can_take_literal_text()) {
    return Status::unsupported("this tokenizer finds special tokens only after it has rewritten the text");
  }
  if (!simdjson::validate_utf8(text)) {
    return Status::invalid_argument("the text is not valid UTF-8 at byte " +
                                    std::to_string(find_invalid_utf8(text)) +
                                    "; send UTF-8 text, or token ids");
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (options.add_special_tokens) ids = ids_before_;
  ScratchLease lease(*this, text.size());
  Scratch* scratch = lease.get();
  scratch->regex.start_text(text.size());
  scratch->raw_sections.clear();
  raw_matcher_.split(text, options.literal_at, &scratch->raw_sections);
  for (const TextSection& section : scratch->raw_sections) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    const size_t begin = static_cast<size_t>(section.text.data() - text.data());
    const std::vector<size_t> literal_at =
        offsets_within(options.literal_at, begin, begin + section.text.size());
    WW_RETURN_IF_ERROR(encode_text(section.text, literal_at, begin == 0, scratch, &ids));
  }
  if (options.add_special_tokens) ids.insert(ids.end(), ids_after_.begin(), ids_after_.end());
  return ids;
}

Status TokenizerCore::encode_text(std::string_view text, std::span<const size_t> literal_at,
                                  bool starts_text, Scratch* scratch,
                                  std::vector<int32_t>* ids) const {
  if (!normalizer_.empty()) {
    WW_RETURN_IF_ERROR(
        normalizer_.run(text, &scratch->regex, &scratch->normalized, &starts_text));
    text = scratch->normalized;
  }
  if (normalized_matcher_.empty()) return encode_words(text, starts_text, scratch, ids);
  scratch->sections.clear();
  normalized_matcher_.split(text, literal_at, &scratch->sections);
  for (const TextSection& section : scratch->sections) {
    if (section.id >= 0) {
      ids->push_back(section.id);
      continue;
    }
    const bool first = starts_text && section.text.data() == text.data();
    WW_RETURN_IF_ERROR(encode_words(section.text, first, scratch, ids));
  }
  return {};
}

Status TokenizerCore::encode_words(std::string_view text, bool starts_text, Scratch* scratch,
                                   std::vector<int32_t>* ids) const {
  PreTokenizerScratch& words = scratch->words;
  WW_RETURN_IF_ERROR(pre_tokenizer_.run(text, starts_text, &scratch->regex, &words));
  for (const TextRange word : words.words) {
    const std::string_view bytes = words.text.substr(word.begin, word.end - word.begin);
    if (word_piece_) {
      WW_RETURN_IF_ERROR(word_piece_->encode_word(model_.vocab(), bytes, ids));
    } else if (unigram_) {
      if (bytes.size() > Unigram::kMaxWordBytes) {
        return Status::resource_exhausted(
            "a word without a break is longer than 4 MiB, the most that is cut by scores");
      }
      WW_RETURN_IF_ERROR(unigram_->encode_word(model_.vocab(), bytes, &scratch->unigram, ids));
    } else {
      model_.encode_word(bytes, &scratch->bpe, ids);
    }
  }
  return {};
}

}  // namespace warpweave
