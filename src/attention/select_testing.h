// What the tests of selection share: described models, and reading an error's proposals back.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "attention/select.h"
#include "attention/select_suggest.h"

namespace warpweave::testing_selection {

inline ModelFacts llama() {
  ModelFacts model;
  model.architecture = "LlamaForCausalLM";
  model.num_q_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  return model;
}

inline ModelFacts deepseek() {
  ModelFacts model = llama();
  model.architecture = "DeepseekV3ForCausalLM";
  model.kind = AttentionKind::mla;
  model.num_q_heads = 128;
  model.num_kv_heads = 1;
  model.head_dim = 576;
  model.v_head_dim = 512;
  return model;
}

inline ModelFacts sparse_deepseek() {
  ModelFacts model = deepseek();
  model.architecture = "DeepseekV32ForCausalLM";
  model.kind = AttentionKind::sparse;
  return model;
}

inline ModelFacts dual_chunk_qwen() {
  ModelFacts model = llama();
  model.architecture = "Qwen2ForCausalLM";
  model.dual_chunk = true;
  return model;
}

// A hybrid of full attention (head dim 256) and GDN layers.
inline ModelFacts qwen_next() {
  ModelFacts model = llama();
  model.architecture = "Qwen3NextForCausalLM";
  model.num_q_heads = 16;
  model.num_kv_heads = 2;
  model.head_dim = 256;
  model.linear = LinearAttention::gdn;
  return model;
}

inline ModelFacts gpt_oss() {
  ModelFacts model = llama();
  model.architecture = "GptOssForCausalLM";
  model.num_q_heads = 64;
  model.head_dim = 64;
  model.sliding_window = model.sinks = true;
  return model;
}

inline ModelFacts gemma2() {
  ModelFacts model = llama();
  model.architecture = "Gemma2ForCausalLM";
  model.num_q_heads = 16;
  model.head_dim = 256;
  model.sliding_window = model.softcap = true;
  return model;
}

// The rules on what is declared, as if all were built: the same in every build of the program.
inline Result<Resolved> select(std::string_view hardware, const ModelFacts& model,
                               const AttentionFlags& flags = {}) {
  static const std::vector<KnownBackend> all = [] {
    std::vector<KnownBackend> list;
    for (const Caps& caps : declared_backends()) list.push_back({&caps, true});
    return list;
  }();
  return select_attention(named_hardware(hardware).value(), model, flags, all);
}

inline AttentionFlags backend_flag(const std::string& name) {
  AttentionFlags flags;
  flags.attention_backend = name;
  return flags;
}

// Reads "--flag value ..." back, to check that what an error proposes works.
inline AttentionFlags parse_proposal(const std::string& text) {
  AttentionFlags flags;
  if (text == "no attention flags") return flags;
  std::stringstream words(text);
  for (std::string flag, value; words >> flag;) {
    if (flag == "--enable-deterministic-inference") {
      flags.enable_deterministic_inference = true;
      continue;
    }
    words >> value;
    bool known = false;
    for (const AttentionTextFlag& t : kAttentionTextFlags) {
      if (t.flag == flag) known = true, flags.*t.member = value;
    }
    for (const AttentionIntFlag& n : kAttentionIntFlags) {
      if (n.flag == flag) known = true, flags.*n.member = std::stoi(value);
    }
    EXPECT_TRUE(known) << "unknown flag in a proposal: " << flag;
  }
  return flags;
}

// The configurations after "; works: ".
inline std::vector<std::string> proposals(const Status& status) {
  std::vector<std::string> list;
  const size_t start = status.message().find("; works: ");
  if (start == std::string::npos) return list;
  std::string rest = status.message().substr(start + 9);
  for (size_t bar; (bar = rest.find(" | ")) != std::string::npos; rest = rest.substr(bar + 3)) {
    list.push_back(rest.substr(0, bar));
  }
  list.push_back(rest);
  return list;
}

// A refusal by this flag, with these words, and with proposals that all work.
inline void expect_refused(std::string_view hardware, const ModelFacts& model,
                           const AttentionFlags& flags, std::string_view field,
                           std::string_view says) {
  const auto result = select(hardware, model, flags);
  ASSERT_FALSE(result.ok()) << hardware << ", " << model.architecture << ", " << says;
  SCOPED_TRACE(result.status().message());
  EXPECT_EQ(result.status().field(), field);
  EXPECT_NE(result.status().message().find(says), std::string::npos) << says;
  EXPECT_FALSE(proposals(result.status()).empty());
  for (const std::string& text : proposals(result.status())) {
    EXPECT_TRUE(select(hardware, model, parse_proposal(text)).ok()) << text;
  }
}

inline bool mentions(const std::vector<std::string>& lines, std::string_view part) {
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace warpweave::testing_selection
