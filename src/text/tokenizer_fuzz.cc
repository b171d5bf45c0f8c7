// Any bytes as a tokenizer.json; what loads must encode, decode and stream without a fault.
// After a NUL byte the input goes on with a text to encode, after another one with a tokenizer_config.json.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

using warpweave::IncrementalDetokenizer;
using warpweave::Tokenizer;

namespace {

void check(bool holds) {
  if (!holds) __builtin_trap();
}

void exercise(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.encode(text, true);
  if (!ids.ok()) return;
  for (int32_t id : *ids) check(id >= 0 && id < tokenizer.vocab_size());
  for (int32_t id = -1; id < 40; ++id) ids->push_back(id * 7);
  for (bool skip : {false, true}) {
    IncrementalDetokenizer detokenizer(tokenizer, skip);
    std::string streamed;
    for (int32_t id : *ids) streamed += detokenizer.push(id);
    streamed += detokenizer.flush();
    // Long runs of byte tokens may be let out early: those are not compared.
    if (ids->size() < 200) check(streamed == tokenizer.decode(*ids, skip));
    check(streamed.empty() || tokenizer.encode(streamed, false).ok() || streamed.size() > 1000);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  const std::string_view json = input.substr(0, cut);
  const size_t config = cut == std::string_view::npos ? cut : input.find('\0', cut + 1);
  auto tokenizer = warpweave::load_hf_tokenizer(json, config == input.npos ? "" : input.substr(config + 1));
  if (!tokenizer.ok()) return 0;
  exercise(**tokenizer, "Hello  wörld 123 <|x|> \xE2\x96\x81 \xF0\x9F\x98\x80\n\n'll");
  if (cut != std::string_view::npos) exercise(**tokenizer, input.substr(cut + 1, config - cut - 1));
  return 0;
}
