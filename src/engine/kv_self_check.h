// The start-up check of an fp8 or fp4 KV cache whose checkpoint brought no scales: whether K and V
// fit the format when they are stored with scale 1.
#pragma once

#include <string>
#include <vector>

#include "base/threads.h"
#include "kv/kv_cache.h"
#include "kv/kv_format.h"
#include "model/decoder.h"

namespace warpweave {

// What storing K or V in a format does to them, over all layers.
struct KvRounding {
  float largest = 0;         // magnitude before rounding
  double relative_error = 0; // root mean square of the changes over that of the values, worst layer
};

struct KvSelfCheck {
  int tokens = 0;
  KvRounding k;
  KvRounding v;
  bool fits = true;          // nothing saturates, and no layer loses more than the format must
};

// Runs `model` once over a fixed prompt of at most 48 and at most `max_tokens` tokens, with K and V in
// f32, and rounds them to `format`.
Result<KvSelfCheck> check_kv_format(DecoderModel& model, KvFormat format, int max_tokens,
                                    ThreadTeam& team);

// The parts that the GPU's check (gpu_kv_self_check.h) has in common with it: how many tokens, which, a
// pool of pages of one token, and what rounding does to a pool that holds them.
int kv_check_tokens(int max_tokens);
std::vector<int32_t> kv_check_prompt(const ModelConfig& config, int tokens);
KvCacheShape kv_check_shape(const ModelConfig& config, int tokens, KvFormat format);
Result<KvSelfCheck> round_kv(const KvCache& exact, KvFormat format);

// The warning for the log: names --kv-cache-dtype, the figures, and what to do where it does not fit.
std::string kv_self_check_text(const KvSelfCheck& check, KvFormat format);

}  // namespace warpweave
