// What PEFT computes with an adapter (tests/golden/lora, made by tools/make_lora_goldens.py).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace warpweave::lora_golden {

inline constexpr float kTolerance = 2e-4f;  // the goldens are rounded to 1e-5; logits reach about 20

struct Golden {
  std::string model;                // a folder
  std::vector<int32_t> ids;
  std::vector<float> logits;        // [ids, vocab]
};

inline std::string adapter_folder(const std::string& name) { return "tests/golden/lora/" + name; }

inline Golden read_golden(const std::string& name) {
  const auto json = nlohmann::json::parse(std::ifstream(adapter_folder(name) + "/golden.json"));
  Golden out;
  out.model = "tests/golden/families/" + json.at("model").get<std::string>();
  out.ids = json.at("input_ids").get<std::vector<int32_t>>();
  for (const auto& row : json.at("logits")) {
    for (const auto& value : row) out.logits.push_back(value.get<float>());
  }
  return out;
}

inline const auto kAdapters =
    testing::Values("llama-all-r8", "llama-qv-r4-rslora", "llama-patterns-r16", "llama-bias-all-r4", "phi3-all-r8",
                    "gemma2-all-r4", "cohere2-all-r4", "starcoder2-all-r4", "qwen3-moe-attention-r4");

}  // namespace warpweave::lora_golden
