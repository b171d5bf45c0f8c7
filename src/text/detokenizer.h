// Ids to text, a few at a time, for streams: the pieces put together are Tokenizer::decode().
//
// A delta ends at a character's end: bytes of an unfinished character wait for the next push.
// Bytes that can no longer become UTF-8 come out as U+FFFD, as the `tokenizers` library has it:
// one for each maximal broken part in byte-level tokenizers, one a byte for a whole run of byte
// tokens with a fault in it in SentencePiece ones. Such a run therefore waits for its end, but no
// longer than kMaxHeldBytes: beyond that its finished characters go out at once.
// Cost: O(1) a token, amortised. State: under 200 bytes plus what is held. Not thread-safe; the
// tokenizer must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace warpweave {

class IncrementalDetokenizer {
 public:
  static constexpr size_t kMaxHeldBytes = 256;

  // `context`: the ids before the first pushed one (the last 8 of the prompt are enough). Text
  // that continues other text keeps its leading space; with no context the SentencePiece rule
  // holds and the space at the very start is dropped.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::span<const int32_t> context = {});

  // The text that became certain with these ids.
  std::string push(std::span<const int32_t> ids);
  std::string push(int32_t id) { return push(std::span<const int32_t>(&id, 1)); }

  // The rest: what is unfinished becomes U+FFFD. Afterwards the text is closed.
  std::string flush();

 private:
  friend class Tokenizer;

  void append_token(int32_t id, std::string* out);
  void append_bytes(std::string_view bytes, std::string* out);
  void append_byte_token(char byte, std::string* out);
  void end_byte_run(std::string* out);
  void replace_pending(std::string* out);
  void emit(std::string_view text, std::string* out);

  const TokenizerCore* core_;
  bool skip_special_tokens_;
  bool at_first_token_ = true;
  bool hold_byte_runs_for_ever_ = false;  // decode(): exact, nobody waits
  int strip_start_left_;                  // leading characters that may still be dropped
  bool run_is_broken_ = false;            // the current run of byte tokens has a fault
  size_t whole_bytes_ = 0;                // of the run in pending_: whole characters up to here
  std::string pending_;                   // byte-level: an unfinished character; else a byte run
  std::string held_end_;                  // trailing characters that the end would drop
};

}  // namespace warpweave
