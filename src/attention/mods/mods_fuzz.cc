// Any text: parsing ends in an expression or an error; block decisions agree with single cells.
#include <cstdlib>
#include <string_view>

#include "attention/mods/bounds.h"
#include "attention/mods/evaluate.h"
#include "attention/mods/parse.h"

namespace mods = warpweave::mods;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)mods::parse_parameters(text);
  if (const auto score = mods::parse_score_modifier(text); score.ok()) {
    (void)mods::evaluate(*score, {.q_idx = 5, .kv_idx = 3, .head = 1, .num_heads = 4, .score = 0.5});
  }
  const auto mask = mods::parse_mask_modifier(text);
  if (!mask.ok()) return 0;
  (void)mods::never_sees_future(*mask);
  mods::MaskBounds bounds(*mask);
  mods::Box box;
  box.q_idx = {7, 9};
  box.kv_idx = {6, 9};
  box.kv_len = {10, 10};
  const mods::Coverage coverage = bounds.classify(box);
  for (int q = 7; q <= 9 && coverage != mods::Coverage::partial; ++q) {
    for (int kv = 6; kv <= 9; ++kv) {
      const bool visible = mods::evaluate(*mask, {.q_idx = q, .kv_idx = kv, .kv_len = 10}).integer != 0;
      if (visible != (coverage == mods::Coverage::full)) abort();
    }
  }
  return 0;
}
