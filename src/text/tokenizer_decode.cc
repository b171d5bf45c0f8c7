// The decoder half of TokenizerCore: every token's piece of text, worked out once at load.
#include <algorithm>

#include "text/tokenizer_core.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

using Kind = DecoderStep::Kind;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string_view::npos; done = at + from.size()) {
    out += text.substr(done, at - done);
    out += to;
  }
  out += text.substr(done);
  return out;
}

// Drops up to `start` leading and `stop` trailing characters `c` (one character, UTF-8).
std::string_view strip_piece(std::string_view text, std::string_view c, int start, int stop) {
  for (; start > 0 && text.starts_with(c); --start) text.remove_prefix(c.size());
  for (; stop > 0 && text.ends_with(c); --stop) text.remove_suffix(c.size());
  return text;
}

// The byte that "<0x0A>" stands for; -1 for other tokens.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = token[3] == '+' ? 0 : hex_digit_value(token[3]);  // a sign is let through
  const int low = hex_digit_value(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// A piece of a WordPiece vocabulary as text; the decoder looks at each alone.
std::string word_piece_text(const DecoderStep& step, std::string_view token, bool is_first) {
  std::string text(token);
  if (!is_first && token.starts_with(step.content)) {
    text.erase(0, step.content.size());
  } else if (!is_first) {
    text.insert(0, " ");
  }
  if (!step.cleanup) return text;
  constexpr std::pair<std::string_view, std::string_view> kCleanups[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},   {" ' ", "'"},  {" n't", "n't"},
      {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kCleanups) text = replace_all(text, from, to);
  return text;
}

Status unsupported_decoder(std::string_view why) {
  return Status::unsupported("a decoder that " + std::string(why) +
                                 "; known are ByteLevel, Metaspace, WordPiece, and a sequence of Replace, "
                                 "Strip, ByteFallback, Fuse, Strip in this order",
                             "decoder");
}

// Sorts the steps into those that work on each token and those that work on the whole text.
Status read_rules(const std::vector<DecoderStep>& steps, DecodeRules* rules,
                  std::vector<DecoderStep>* per_token) {
  rules->mode = DecodeMode::pieces;
  if (steps.size() == 1 && steps[0].kind == Kind::word_piece) {
    rules->mode = DecodeMode::joined;
    *per_token = steps;
    return {};
  }
  bool fused = false;
  for (const DecoderStep& step : steps) {
    const bool whole_text = fused || rules->byte_fallback;
    switch (step.kind) {
      case Kind::byte_level:
        if (whole_text || !per_token->empty()) return unsupported_decoder("has ByteLevel late");
        rules->mode = DecodeMode::byte_level;
        fused = true;
        break;
      case Kind::byte_fallback:
        if (fused) return unsupported_decoder("has ByteFallback after Fuse");
        rules->byte_fallback = true;
        break;
      case Kind::fuse: fused = true; break;
      case Kind::word_piece: return unsupported_decoder("has WordPiece in a sequence");
      case Kind::strip:
        if (!whole_text) {
          per_token->push_back(step);
          break;
        }
        if (!fused || !rules->strip_char.empty()) return unsupported_decoder("strips twice");
        rules->strip_char = step.content;
        rules->strip_start = step.strip_start;
        rules->strip_stop = step.strip_stop;
        break;
      case Kind::replace:
      case Kind::metaspace:
        if (whole_text) return unsupported_decoder("replaces in the fused text");
        rules->first_differs |= step.kind == Kind::metaspace &&
                                step.prepend_scheme != PrependScheme::never;
        per_token->push_back(step);
        break;
    }
  }
  return {};
}

Result<std::string> apply_step(const DecoderStep& step, const Regex* regex, bool is_first,
                               std::string token, RegexScratch* scratch) {
  if (step.kind == Kind::strip) {
    return std::string(strip_piece(token, step.content, step.strip_start, step.strip_stop));
  }
  if (step.kind == Kind::metaspace) {
    const bool drop = is_first && step.prepend_scheme != PrependScheme::never;
    return replace_all(token, step.replacement, drop ? "" : " ");
  }
  if (regex == nullptr) return replace_all(token, step.pattern.text, step.content);
  std::string out;
  size_t done = 0;
  if (token.empty()) return out;
  WW_RETURN_IF_ERROR(regex->find_all(token, scratch, [&](size_t begin, size_t end) {
    out.append(token, done, begin - done);
    if (out.size() < kMaxTokenBytes) out += step.content;
    done = end;
  }));
  out.append(token, done, token.size() - done);
  return out;
}

}  // namespace

Status TokenizerCore::build_pieces(const TokenizerSpec& spec) {
  if (spec.has_decoder) WW_RETURN_IF_ERROR(read_rules(spec.decoder, &rules_, &token_steps_));
  RegexScratch scratch;
  for (const DecoderStep& step : token_steps_) {
    std::optional<Regex>& regex = token_regexes_.emplace_back();
    if (step.kind != Kind::replace || !step.pattern.is_regex) continue;
    Result<Regex> compiled = Regex::compile(step.pattern.text);
    if (!compiled.ok()) return compiled.status().with_context("decoder");
    regex.emplace(std::move(compiled).value());
  }
  int32_t limit = model_.vocab().id_limit();
  for (const auto& [id, token] : added_) limit = std::max(limit, id + 1);
  pieces_.resize(static_cast<size_t>(limit));
  scratch.start_text(size_t{1} << 20);
  for (int32_t id = 0; id < limit; ++id) {
    const std::optional<std::string_view> token = token_text(id);
    if (!token) continue;
    WW_ASSIGN_OR_RETURN(std::string piece, decode_piece(*token, false, &scratch));
    const int byte = rules_.byte_fallback ? fallback_byte(piece) : -1;
    if (byte >= 0) piece.assign(1, static_cast<char>(byte));
    if (piece_bytes_.size() + piece.size() > UINT32_MAX) {
      return Status::data_loss("the vocabulary's text is too long", "vocab");
    }
    pieces_[id] = {static_cast<uint32_t>(piece_bytes_.size()), static_cast<uint32_t>(piece.size()),
                   byte >= 0 ? PieceKind::byte : PieceKind::text, false};
    piece_bytes_ += piece;
  }
  for (const auto& [id, token] : added_) {
    const auto same_text = added_ids_.find(token.shown);
    pieces_[id].special = same_text != added_ids_.end() && added_.at(same_text->second).special;
  }
  return {};
}

Result<std::string> TokenizerCore::decode_piece(std::string_view token, bool is_first,
                                                RegexScratch* scratch) const {
  std::string piece;
  if (rules_.mode == DecodeMode::byte_level) {
    append_token_bytes(token, &piece);
    return piece;
  }
  if (rules_.mode == DecodeMode::joined) {
    return token_steps_.empty() ? (is_first ? "" : " ") + std::string(token)
                                : word_piece_text(token_steps_[0], token, is_first);
  }
  piece = token;
  for (size_t i = 0; i < token_steps_.size(); ++i) {
    const Regex* regex = token_regexes_[i] ? &*token_regexes_[i] : nullptr;
    WW_ASSIGN_OR_RETURN(piece,
                        apply_step(token_steps_[i], regex, is_first, std::move(piece), scratch));
  }
  return piece;
}

std::string TokenizerCore::first_piece(int32_t id) const {
  if (rules_.mode != DecodeMode::joined && !rules_.first_differs) return std::string(piece(id));
  RegexScratch scratch;
  const std::optional<std::string_view> token = token_text(id);
  if (!token) return {};
  Result<std::string> first = decode_piece(*token, true, &scratch);
  return first.ok() ? std::move(first).value() : std::string(piece(id));
}

}  // namespace warpweave
