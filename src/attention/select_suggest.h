// What an error of selection proposes: flags near the given ones, and how a user would write them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/select.h"

namespace warpweave {

// How users write AttentionFlags; --enable-deterministic-inference, which has no value, apart.
struct AttentionTextFlag {
  std::string_view flag;
  std::string AttentionFlags::*member;
  std::string_view default_value = {};
};
inline constexpr AttentionTextFlag kAttentionTextFlags[] = {
    {"--attention-backend", &AttentionFlags::attention_backend},
    {"--prefill-attention-backend", &AttentionFlags::prefill_attention_backend},
    {"--decode-attention-backend", &AttentionFlags::decode_attention_backend},
    {"--nsa-prefill-backend", &AttentionFlags::nsa_prefill_backend},
    {"--nsa-decode-backend", &AttentionFlags::nsa_decode_backend},
    {"--linear-attn-backend", &AttentionFlags::linear_attn_backend},
    {"--linear-attn-prefill-backend", &AttentionFlags::linear_attn_prefill_backend},
    {"--linear-attn-decode-backend", &AttentionFlags::linear_attn_decode_backend},
    {"--mm-attention-backend", &AttentionFlags::mm_attention_backend},
    {"--kv-cache-dtype", &AttentionFlags::kv_cache_dtype, "auto"},
    {"--speculative-algorithm", &AttentionFlags::speculative_algorithm},
    {"--speculative-attention-mode", &AttentionFlags::speculative_attention_mode, "prefill"},
};

struct AttentionIntFlag {
  std::string_view flag;
  std::optional<int> AttentionFlags::*member;
};
inline constexpr AttentionIntFlag kAttentionIntFlags[] = {
    {"--page-size", &AttentionFlags::page_size},
    {"--speculative-num-steps", &AttentionFlags::speculative_num_steps},
    {"--speculative-eagle-topk", &AttentionFlags::speculative_eagle_topk},
    {"--speculative-num-draft-tokens", &AttentionFlags::speculative_num_draft_tokens},
};

// "--attention-backend fa3 --page-size 1", or "no attention flags".
std::string flags_text(const AttentionFlags& flags);

// Nearest first: one flag at its default, then another backend (`preferred` ones first), then more
// changes, then everything at its default.
std::vector<AttentionFlags> nearby_flags(const AttentionFlags& flags,
                                         std::span<const std::string_view> preferred,
                                         std::span<const KnownBackend> backends);

}  // namespace warpweave
