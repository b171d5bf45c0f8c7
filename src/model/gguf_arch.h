// What llama.cpp's converter calls the supported model families and their tensors. Constant data, no errors but of
// find_gguf_arch().
#pragma once

#include <string>
#include <string_view>

#include "warpweave/status.h"

namespace warpweave {

// One supported architecture of GGUF files.
struct GgufArch {
  std::string_view name;           // general.architecture
  const char* model_type;
  const char* architecture;
  bool latent = false;             // multi-head latent attention
  bool permuted_qk = false;        // rows stored for interleaved rope pairs
  bool norms_plus_one = false;     // Gemma's and Qwen3-Next's (1 + w) already added
  bool delta_net = false;          // layers of gated delta nets beside gated attention
  bool tiled_v_heads = false;      // with delta_net: v heads stand by their number among a k head's, not by k head
  bool gelu = false;
  bool experts_renormalised = true;  // where the file does not say
  bool nextn = false;                // its files may hold layers that predict further tokens, which are read
  bool post_attention_norm = false;  // what transformers calls post_attention_layernorm is called so, not ffn_norm
  int window_pattern = 0;  // where windows are and the file does not say: one layer in so many has none; 0: all have
};

// `unsupported`, listing what is supported, for another name.
Result<GgufArch> find_gguf_arch(std::string_view name);

// The names of those whose layers for further tokens are read, "deepseek2, glm4moe, ...".
std::string gguf_nextn_archs();

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; empty when there is none.
std::string gguf_name(std::string_view name, const GgufArch& arch);

}  // namespace warpweave
