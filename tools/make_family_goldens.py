#!/usr/bin/env python3
"""Tiny random models of every family, with what transformers computes from them.

Writes tests/golden/families/<name>/: config.json, model.safetensors and golden.json (token ids, float32 logits of every
position, a greedy continuation); make_gguf_goldens.py those in GGUF files. The same seed gives the same files. Needs:
torch, transformers, safetensors, numpy.

    python3 tools/make_family_goldens.py [name ...]
"""
import functools
import json
import math
import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "families"
VOCAB = 96
PROMPT_TOKENS = 30
GREEDY_TOKENS = 12

BASE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
    rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=0,
)


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def longrope(original, **more):
    frequencies = int(8 * more.get("partial_rotary_factor", 1))
    short, long = [1 + 0.1 * i for i in range(frequencies)], [1 + 0.8 * i for i in range(frequencies)]
    return rope("longrope", short_factor=short, long_factor=long, original_max_position_embeddings=original, **more)


MSCALES = dict(short_mscale=1.1, long_mscale=1.25)
PHIMOE = dict(num_local_experts=5, num_experts_per_tok=2, intermediate_size=24, attention_bias=True,
              lm_head_bias=True, router_jitter_noise=0.1)

YARN = rope("yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)

MLA = dict(num_hidden_layers=3, num_key_value_heads=4, head_dim=8, kv_lora_rank=32, qk_nope_head_dim=16,
           qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8, n_shared_experts=2, first_k_dense_replace=1, moe_intermediate_size=24)


def yarn_mscale(mscale, mscale_all_dim):
    return {"rope_parameters": {**YARN["rope_parameters"], "mscale": mscale, "mscale_all_dim": mscale_all_dim}}


# name -> (model_type, config keys beside BASE, dtype of the saved weights)
FAMILIES = {
    "llama": ("llama", rope("llama3", theta=500000.0, factor=8.0, low_freq_factor=1.0,
                            high_freq_factor=4.0, original_max_position_embeddings=32), "float32"),
    "llama-bias": ("llama", dict(rope("linear", factor=2.0), attention_bias=True, mlp_bias=True,
                                 tie_word_embeddings=True), "bfloat16"),
    "mistral": ("mistral", dict(rope("default"), sliding_window=8), "bfloat16"),
    "qwen2": ("qwen2", dict(rope("default", theta=1e6), use_sliding_window=True, sliding_window=8,
                            max_window_layers=1, tie_word_embeddings=True), "float16"),
    "qwen3": ("qwen3", dict(YARN), "bfloat16"),
    "qwen3-moe": ("qwen3_moe", dict(rope("default"), num_hidden_layers=3, num_experts=6,
                                    num_experts_per_tok=2, moe_intermediate_size=24,
                                    norm_topk_prob=True, mlp_only_layers=[1]), "bfloat16"),
    "gemma2": ("gemma2", dict(rope("default"), sliding_window=8, query_pre_attn_scalar=24,
                              attn_logit_softcapping=3.0, final_logit_softcapping=5.0,
                              tie_word_embeddings=True), "bfloat16"),
    "gemma3": ("gemma3_text", dict(num_hidden_layers=3, sliding_window=8, query_pre_attn_scalar=24,
                                   layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                   rope_parameters={
                                       "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                       "full_attention": {"rope_type": "linear", "factor": 8.0,
                                                          "rope_theta": 1e6}},
                                   tie_word_embeddings=True), "bfloat16"),
    "gpt-oss": ("gpt_oss", dict(rope("yarn", theta=150000.0, factor=32.0, truncate=False,
                                     original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0),
                                sliding_window=8, num_local_experts=4, num_experts_per_tok=2,
                                intermediate_size=24), "bfloat16"),
    "mixtral-moe": ("mixtral", dict(rope("default", theta=1e6), sliding_window=8, num_local_experts=5,
                                    num_experts_per_tok=2, intermediate_size=24), "bfloat16"),
    "qwen2-moe": ("qwen2_moe", dict(rope("default", theta=1e6), num_hidden_layers=4, decoder_sparse_step=2,
                                    num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                                    shared_expert_intermediate_size=40, norm_topk_prob=False), "bfloat16"),
    "glm4-moe": ("glm4_moe", dict(rope("default", partial_rotary_factor=0.5), num_hidden_layers=3,
                                  n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                                  n_shared_experts=2, first_k_dense_replace=1, moe_intermediate_size=24,
                                  routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True), "bfloat16"),
    "olmoe-moe": ("olmoe", dict(rope("default"), hidden_size=64, num_experts=6, num_experts_per_tok=3,
                                intermediate_size=24, norm_topk_prob=False), "bfloat16"),
    "phimoe-moe": ("phimoe", dict(longrope(original=128, **MSCALES), **PHIMOE), "bfloat16"),
    "deepseek-v2-moe": ("deepseek_v2", dict(MLA, **yarn_mscale(0.707, 0.707), q_lora_rank=None, topk_method="greedy",
                                            num_experts_per_tok=3, routed_scaling_factor=1.3), "bfloat16"),
    "deepseek-v2-groups-moe": ("deepseek_v2", dict(MLA, **rope("default"), q_lora_rank=24, num_experts_per_tok=3,
                                                   topk_method="group_limited_greedy", n_group=4, topk_group=2,
                                                   routed_scaling_factor=1.7), "bfloat16"),
    "deepseek-v3-moe": ("deepseek_v3", dict(MLA, **yarn_mscale(1.0, 0.8), q_lora_rank=24, num_experts_per_tok=3,
                                            n_group=4, topk_group=2, routed_scaling_factor=2.5, attention_bias=True),
                        "bfloat16"),
    "deepseek-v3-halves-moe": ("deepseek_v3", dict(MLA, **rope("default"), q_lora_rank=None, rope_interleave=False,
                                                   num_experts_per_tok=2, n_group=1, topk_group=1), "bfloat16"),
    "phimoe-moe-long": ("phimoe", dict(longrope(original=16, **MSCALES), **PHIMOE), "bfloat16"),
    "qwen3-next": ("qwen3_next", dict(rope("default", partial_rotary_factor=0.25), num_hidden_layers=5,
                                      layer_types=["linear_attention", "full_attention"] * 2 + ["linear_attention"],
                                      linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
                                      linear_value_head_dim=16, linear_conv_kernel_dim=4, num_experts=6,
                                      num_experts_per_tok=2, moe_intermediate_size=24,
                                      shared_expert_intermediate_size=40, mlp_only_layers=[3]), "bfloat16"),
}


TWO_HEADS = dict(num_attention_heads=2, num_key_value_heads=1)  # as wide as the rows, where a family wants that

# What each adds to the layers above, in one model as small as theirs.
FAMILIES |= {
    "phi3": ("phi3", dict(longrope(original=128, partial_rotary_factor=0.5), sliding_window=8, **TWO_HEADS), "bfloat16"),
    "phi3-long": ("phi3", dict(longrope(original=16), original_max_position_embeddings=16, **TWO_HEADS), "bfloat16"),
    "olmo2": ("olmo2", dict(rope("default", theta=5e5)), "bfloat16"),
    "olmo3": ("olmo3", dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"],
                            rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                             "full_attention": YARN["rope_parameters"]}), "bfloat16"),
    "granite": ("granite", dict(rope("default"), embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=0.5,
                                attention_multiplier=0.125, attention_bias=True), "bfloat16"),
    "cohere2": ("cohere2", dict(rope("default"), hidden_size=64, sliding_window=8, logit_scale=0.75, layer_norm_eps=1e-5,
                                layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=True), "bfloat16"),
    "gemma": ("gemma", dict(rope("default"), tie_word_embeddings=True), "bfloat16"),
    "glm4": ("glm4", dict(rope("default", partial_rotary_factor=0.5)), "bfloat16"),
    "smollm3": ("smollm3", dict(rope("default"), no_rope_layers=[1, 0]), "bfloat16"),
    "stablelm": ("stablelm", dict(rope("default", partial_rotary_factor=0.25), hidden_size=64, use_qkv_bias=True), "bfloat16"),
    "stablelm-parallel": ("stablelm", dict(rope("default", partial_rotary_factor=0.25), hidden_size=64,
                                           use_parallel_residual=True), "bfloat16"),
    "starcoder2": ("starcoder2", dict(rope("default"), hidden_size=64, sliding_window=8, tie_word_embeddings=True), "bfloat16"),
    "falcon3": ("llama", dict(rope("default", theta=1000042.0), **TWO_HEADS), "bfloat16"),
    "exaone4": ("exaone4", dict(rope("llama3", theta=1e6, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=32), sliding_window=8,
                                layer_types=["sliding_attention", "full_attention"]), "bfloat16"),
    "ernie4_5": ("ernie4_5", dict(rope("default"), use_bias=True, tie_word_embeddings=True), "bfloat16"),
    "hunyuan": ("hunyuan_v1_dense", dict(rope("dynamic", alpha=50.0, factor=1.0)), "bfloat16"),
    "seed_oss": ("seed_oss", dict(rope("default"), attention_bias=True, attention_out_bias=False), "bfloat16"),
    "dynamic": ("llama", dict(rope("dynamic", factor=8.0), max_position_embeddings=16), "bfloat16"),
}

HYBRID = dict(rope("default", partial_rotary_factor=0.25), num_hidden_layers=3,
              layer_types=["linear_attention", "full_attention", "linear_attention"], linear_num_key_heads=2,
              linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4)

FAMILIES |= {
    "qwen3_5-bias": ("qwen3_5_text", dict(HYBRID, attention_bias=True, tie_word_embeddings=True), "bfloat16"),
    "qwen3_5": ("qwen3_5_text", dict(HYBRID, tie_word_embeddings=True), "bfloat16"),
    "qwen3_5-moe": ("qwen3_5_moe_text", dict(HYBRID, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                                             shared_expert_intermediate_size=40), "bfloat16"),
}
CONV_LAYERS = ["conv", "full_attention", "conv", "conv"]
FAMILIES |= {
    "lfm2": ("lfm2", dict(rope("default", theta=1e6), num_hidden_layers=4, layer_types=CONV_LAYERS, conv_L_cache=3,
                          hidden_size=64, intermediate_size=60, block_multiple_of=8, block_ffn_dim_multiplier=1.1,
                          norm_eps=1e-5, tie_word_embeddings=True), "bfloat16"),
    "lfm2-bias": ("lfm2", dict(rope("default"), num_hidden_layers=3, layer_types=CONV_LAYERS[:3], conv_L_cache=4, conv_bias=True,
                               hidden_size=64, block_auto_adjust_ff_dim=False, norm_eps=1e-5, tie_word_embeddings=False),
                  "bfloat16"),
    "lfm2-moe": ("lfm2_moe", dict(rope("default", theta=1e6), num_hidden_layers=4, layer_types=CONV_LAYERS, conv_L_cache=3,
                                  hidden_size=64, norm_eps=1e-5, num_dense_layers=1, num_experts=6, num_experts_per_tok=3,
                                  moe_intermediate_size=24, routed_scaling_factor=1.4), "bfloat16"),
}
KIMI_LAYERS = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
FAMILIES |= {
    "kimi-linear-moe": ("kimi_linear", dict(
        num_hidden_layers=4, layer_types=KIMI_LAYERS, mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
        linear_head_dim=16, linear_num_heads=2, linear_conv_kernel_dim=4, num_local_experts=8, n_shared_experts=1,
        num_experts_per_tok=3, moe_intermediate_size=24, routed_scaling_factor=1.7), "bfloat16"),
}
FAMILIES["qwen3_5-moe-wrapped"] = FAMILIES["qwen3_5-moe"]


def randomize(model, dtype, generator):
    """Weights under which every part of the model shows in the logits, exact in `dtype`."""
    offset_norms = any(family in type(model).__name__ for family in ("Gemma", "Qwen3Next", "Qwen3_5"))
    for name, weight in model.named_parameters():
        zero_is_one = offset_norms and "linear_attn" not in name
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight") or "layernorm" in name:
            value = noise * 0.2 + (0.0 if zero_is_one else 1.0)
        elif weight.dim() == 1 or name.endswith("_bias"):
            value = noise * 0.4
        elif "embed_tokens" in name:
            value = noise * (1.0 / math.sqrt(weight.shape[1]) if model.config.tie_word_embeddings else 1.0)
            if model.config.tie_word_embeddings and not zero_is_one:
                value = value * 3.0
        else:
            fan_in = weight.shape[1]
            value = noise * (1.6 / math.sqrt(fan_in))
        weight.data.copy_(value.to(dtype))
    for name, values in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            values.copy_((torch.randn(values.shape, generator=generator) * 0.3).to(dtype))


def with_long_factors(model):
    """The rotary embedding asks for its frequencies without a length, which would give those of short contexts."""
    rotary = model.model.rotary_emb
    original = model.config.rope_parameters["original_max_position_embeddings"]
    rotary.rope_init_fn = functools.partial(ROPE_INIT_FUNCTIONS["longrope"], seq_len=original + 1)


def with_served_length(model):
    """Frequencies follow the length of what was read so far; a server keeps those of the longest that it takes."""
    rotary, values = model.model.rotary_emb, model.config.rope_parameters
    served = int(model.config.max_position_embeddings * values["factor"])
    rotary.inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, seq_len=served)
    rotary.max_seq_len_cached, rotary.original_max_seq_len = served, 0


def golden(model, seed):
    rng = np.random.default_rng(seed)
    ids = [int(i) for i in rng.integers(2, model.config.vocab_size, PROMPT_TOKENS)]
    greedy, smallest_gap = [], math.inf
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            logits = model(torch.tensor([ids + greedy])).logits[0]
            best = torch.topk(logits[-1], 2)
            smallest_gap = min(smallest_gap, float(best.values[0] - best.values[1]))
            greedy.append(int(best.indices[0]))
        logits = model(torch.tensor([ids + greedy])).logits[0]
    return {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
        "input_ids": ids,
        "greedy_ids": greedy,
        "smallest_greedy_margin": round(smallest_gap, 6),
        "logits": [[round(float(x), 5) for x in row] for row in logits],
    }


def write_golden(folder, value):
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value.pop("logits"))
    head = json.dumps(value)[:-1]
    (folder / "golden.json").write_text(head + ', "logits": [\n' + rows + "\n]}\n")


def wrap_language_model(folder):
    """Leaves the model as part of one with a vision tower, and its experts in tensors of all of them."""
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [config["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")]
    outer = {"architectures": config.pop("architectures"), "model_type": config["model_type"].removesuffix("_text"),
             "text_config": config}
    (folder / "config.json").write_text(json.dumps(outer, indent=2) + "\n")
    tensors, experts = {}, {}
    for tensor_name, tensor in load_file(folder / "model.safetensors").items():
        tensor_name = tensor_name.replace("model.", "model.language_model.", 1)
        block, found, rest = tensor_name.partition("experts.")
        if found and rest[0].isdigit():
            expert, matrix, _ = rest.split(".")
            experts.setdefault(block, {})[int(expert), matrix] = tensor
        else:
            tensors[tensor_name] = tensor
    for block, parts in experts.items():
        count = len(parts) // 3
        tensors[block + "experts.gate_up_proj"] = torch.stack(
            [torch.cat([parts[e, "gate_proj"], parts[e, "up_proj"]]) for e in range(count)])
        tensors[block + "experts.down_proj"] = torch.stack([parts[e, "down_proj"] for e in range(count)])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def publish_kimi_linear(folder):
    """Leaves configuration and tensors as the published models have them; transformers saves both otherwise."""
    config = json.loads((folder / "config.json").read_text())
    types, dense = config.pop("layer_types"), config.pop("mlp_layer_types").count("dense")
    numbered = {kind: [i + 1 for i, each in enumerate(types) if each == kind] for kind in set(types)}
    config["linear_attn_config"] = {
        "full_attn_layers": numbered["full_attention"], "kda_layers": numbered["linear_attention"],
        "head_dim": config.pop("linear_head_dim"), "num_heads": config.pop("linear_num_heads"),
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim")}
    config.update(first_k_dense_replace=dense, moe_layer_freq=1, moe_router_activation_func="sigmoid", mla_use_nope=True,
                  rope_theta=10000.0, rope_scaling=None, num_nextn_predict_layers=0)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        parts = name.split(".")
        if "block_sparse_moe" in parts and int(parts[2]) < dense:  # a dense layer's, which transformers renames, too
            name = name.replace("block_sparse_moe", "mlp")
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def show_sizes(name):
    print(name, {f.name: f.stat().st_size for f in sorted((OUT / name).iterdir())})


def model_with_clear_path(name, config, dtype):
    """A random model of `config`, exact in `dtype`, whose greedy path has no near tie, and its golden."""
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    if name == "phimoe-moe-long":
        with_long_factors(model)
    if name == "dynamic":
        with_served_length(model)
    for seed in range(1, 50):
        randomize(model, dtype, torch.Generator().manual_seed(seed))
        value = golden(model, seed)
        if value["smallest_greedy_margin"] > 0.02:
            break
    return model, value


def make_family(name):
    model_type, changes, dtype = FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**BASE, **changes})
    model, value = model_with_clear_path(name, config, getattr(torch, dtype))
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    saved = model.to(getattr(torch, dtype))
    saved.config.dtype = getattr(torch, dtype)
    saved.save_pretrained(folder)
    if name.endswith("-wrapped"):
        wrap_language_model(folder)
    if model_type == "kimi_linear":
        publish_kimi_linear(folder)
    (folder / "model.safetensors").chmod(0o644)
    write_golden(folder, value)


def main():
    names = sys.argv[1:] or [*FAMILIES]
    for name in names:
        make_family(name)
        show_sizes(name)


if __name__ == "__main__":
    main()
