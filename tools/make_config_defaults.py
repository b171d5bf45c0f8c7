#!/usr/bin/env python3
"""What transformers takes where a config.json leaves a key out: src/model/config_defaults.cc's table, on stdout.

Only keys that src/model reads, and of those that say how large a model is only the number of K and V heads: the others
must stand in the file. Needs transformers.

    python3 tools/make_config_defaults.py
"""
import json
import pathlib
import textwrap

from transformers import AutoConfig

FAMILIES = """cohere2 deepseek_v2 deepseek_v3 ernie4_5 exaone4 gemma gemma2 gemma3_text glm4 glm4_moe gpt_oss granite
    hunyuan_v1_dense lfm2 lfm2_moe llama mistral mixtral olmo2 olmo3 olmoe phi3 phimoe qwen2 qwen2_moe qwen3
    qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 stablelm starcoder2""".split()
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size",
         "shared_expert_intermediate_size", "original_max_position_embeddings"}
OTHERS = {"architectures", "model_type", "dtype", "torch_dtype", "id2label", "num_labels", "is_decoder", "pad_token_id",
          "bos_token_id", "eos_token_id", "num_nextn_predict_layers", "rope_parameters"}


def keys_read(folder):
    return "".join(file.read_text() for file in folder.glob("config*.cc") if file.name != "config_defaults.cc")


def main():
    source = keys_read(pathlib.Path(__file__).resolve().parent.parent / "src" / "model")
    for family in FAMILIES:
        kind = type(AutoConfig.for_model(family))
        defaults = {key: getattr(kind, key, None) for key in kind.__dataclass_fields__ if key not in SIZES | OTHERS}
        values = {key: value for key, value in sorted(defaults.items())
                  if f'"{key}"' in source and isinstance(value, (bool, int, float, str))}
        if "kv_lora_rank" in values:
            values.pop("num_key_value_heads", None)  # latent attention has as many as it has query heads
        theta = getattr(kind, "default_theta", 10000.0)
        if isinstance(theta, dict):  # of full attention, and of windows
            values["rope_local_base_freq"], theta = theta["local"], theta["global"]
        values["default_rope_theta"] = float(theta)  # a file may have the base in another place
        lines = textwrap.wrap(json.dumps(values, separators=(",", ":")).replace(',"', ', "'), 104,
                              break_long_words=False, break_on_hyphens=False)
        print(f'    {{"{family}",')
        print("\n".join(f'     R"({line} )"' for line in lines) + "},")


if __name__ == "__main__":
    main()
