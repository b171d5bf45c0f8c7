#!/usr/bin/env python3
"""Tiny random models of every family, with what transformers computes from them.

Writes tests/golden/families/<name>/: config.json, model.safetensors (or model.gguf) and golden.json
(token ids, float32 logits of every position, a greedy continuation). The same seed gives the same
files. Needs: torch, transformers, safetensors, gguf, numpy.

    python3 tools/make_family_goldens.py [name ...]
"""
import functools
import json
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Quant
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


def randomize(model, dtype, generator):
    """Weights under which every part of the model shows in the logits, exact in `dtype`."""
    offset_norms = any(family in type(model).__name__ for family in ("Gemma", "Qwen3Next"))
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
        if name.endswith("e_score_correction_bias"):
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


def make_family(name):
    model_type, changes, dtype = FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**BASE, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    if name == "phimoe-moe-long":
        with_long_factors(model)
    if name == "dynamic":
        with_served_length(model)
    for seed in range(1, 50):  # a seed whose greedy path has no near tie
        randomize(model, getattr(torch, dtype), torch.Generator().manual_seed(seed))
        value = golden(model, seed)
        if value["smallest_greedy_margin"] > 0.02:
            break
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    saved = model.to(getattr(torch, dtype))
    saved.config.dtype = getattr(torch, dtype)
    saved.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    write_golden(folder, value)


def random_k_blocks(shape, quant, rng):
    """Valid super-blocks with random quants and small scales: the gguf package packs none itself."""
    block, size = gguf.GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    scale = (rng.uniform(0.5, 1.5, len(blocks)) / math.sqrt(shape[1])).astype(np.float32)
    if quant == Quant.Q4_K:  # d, dmin, 12 bytes of 6-bit scales and mins, 128 of quants
        blocks[:, 0:2] = (scale / 150).astype(np.float16).view(np.uint8).reshape(-1, 2)
        blocks[:, 2:4] = (scale / 20).astype(np.float16).view(np.uint8).reshape(-1, 2)
    else:  # Q6_K: 128 low bits, 64 high bits, 16 int8 scales, d
        blocks[:, 208:210] = (scale / 1400).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(shape[0], -1)


def llama_cpp_permuted(rows, heads):
    """The row order that llama.cpp's converter gives q and k of Llama models."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def make_gguf():
    """A Llama of one layer in which every supported tensor type occurs."""
    rng = np.random.default_rng(3)
    hidden, ffn, heads, kv_heads, head_dim, vocab = 256, 128, 2, 1, 32, 64
    config = AutoConfig.for_model(
        "llama", vocab_size=vocab, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=1,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=1,
        **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    folder = OUT / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_name("tiny random llama")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    letters = [chr(c) for c in range(ord("!"), ord("!") + vocab - 4)]
    writer.add_token_list(["<s>", "</s>"] + letters + ["!\"", "#$"])
    writer.add_token_types([3, 3] + [1] * (vocab - 2))
    writer.add_token_merges(["! \"", "# $"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0]['content'] }}")

    state = model.state_dict()
    layer = "model.layers.0."
    tensors = [
        ("token_embd.weight", "model.embed_tokens.weight", Quant.F16, 0),
        ("output_norm.weight", "model.norm.weight", Quant.F32, 0),
        ("output.weight", "lm_head.weight", Quant.Q8_0, 0),
        ("blk.0.attn_norm.weight", layer + "input_layernorm.weight", Quant.F32, 0),
        ("blk.0.attn_q.weight", layer + "self_attn.q_proj.weight", Quant.Q4_1, heads),
        ("blk.0.attn_k.weight", layer + "self_attn.k_proj.weight", Quant.Q4_1, kv_heads),
        ("blk.0.attn_v.weight", layer + "self_attn.v_proj.weight", Quant.Q6_K, 0),
        ("blk.0.attn_output.weight", layer + "self_attn.o_proj.weight", Quant.BF16, 0),
        ("blk.0.ffn_norm.weight", layer + "post_attention_layernorm.weight", Quant.F32, 0),
        ("blk.0.ffn_gate.weight", layer + "mlp.gate_proj.weight", Quant.Q4_K, 0),
        ("blk.0.ffn_up.weight", layer + "mlp.up_proj.weight", Quant.Q4_K, 0),
        ("blk.0.ffn_down.weight", layer + "mlp.down_proj.weight", Quant.Q4_0, 0),
    ]
    # llama.cpp's converter writes Llama 3 scaling as one divisor per frequency.
    plain = 10000.0 ** -(np.arange(0, head_dim, 2) / head_dim)
    scaled = model.model.rotary_emb.inv_freq.double().numpy()
    writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32), raw_dtype=Quant.F32)
    for gguf_name, name, quant, permuted_heads in tensors:
        shape = tuple(state[name].shape)
        if quant in (Quant.Q4_K, Quant.Q6_K):
            data = random_k_blocks(shape, quant, rng)
        else:
            values = rng.standard_normal(shape).astype(np.float32)
            values = 1 + 0.2 * values if len(shape) == 1 else values * 1.6 / math.sqrt(shape[1])
            data = gguf.quantize(values, quant)
        values = gguf.dequantize(data, quant).reshape(shape)
        assert values.std() > 1e-3 and np.isfinite(values).all(), name
        if permuted_heads:  # `data` is in llama.cpp's order: undo it for transformers
            order = llama_cpp_permuted(np.arange(shape[0]), permuted_heads)
            original = np.empty_like(values)
            original[order] = values
            values = original
        state[name].copy_(torch.from_numpy(values))
        writer.add_tensor(gguf_name, data, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    value = golden(model, 11)
    # A few values of every tensor, so that a wrong dequantisation is named as such.
    value["tensors"] = {name: {"sum": round(float(state[name].double().sum()), 5),
                               "first": [round(float(x), 6) for x in state[name].flatten()[:8]]}
                        for _, name, _, _ in tensors}
    write_golden(folder, value)


# name -> (model_type, config keys beside BASE, architecture of the GGUF file). GGUF has no field for
# Gemma's query scale (it is the head dim) nor for which layers slide (a fixed pattern).
GGUF_FAMILIES = {
    "gguf-qwen2": ("qwen2", dict(rope("default", theta=1e6), tie_word_embeddings=True), "qwen2"),
    "gguf-qwen3": ("qwen3", dict(rope("default")), "qwen3"),
    "gguf-qwen3moe": ("qwen3_moe", dict(rope("default"), num_experts=6, num_experts_per_tok=2,
                                        moe_intermediate_size=24, norm_topk_prob=True), "qwen3moe"),
    "gguf-mixtral-moe": ("mixtral", dict(rope("default"), num_local_experts=4, num_experts_per_tok=2,
                                         intermediate_size=24), "llama"),
    "gguf-qwen2-moe": ("qwen2_moe", dict(rope("default"), num_experts=6, num_experts_per_tok=2,
                                         moe_intermediate_size=24, shared_expert_intermediate_size=40), "qwen2moe"),
    "gguf-olmoe-moe": ("olmoe", dict(rope("default"), head_dim=8, num_experts=6, num_experts_per_tok=3,
                                     intermediate_size=24), "olmoe"),
    "gguf-glm4-moe": ("glm4_moe", dict(rope("default", partial_rotary_factor=0.5), n_routed_experts=8,
                                       num_experts_per_tok=3, n_group=1, topk_group=1, n_shared_experts=1,
                                       first_k_dense_replace=1, moe_intermediate_size=24, num_nextn_predict_layers=1,
                                       routed_scaling_factor=2.5), "glm4moe"),
    "gguf-phimoe-moe": ("phimoe", dict(longrope(original=128, **MSCALES), **{**PHIMOE, "router_jitter_noise": 0.01}), "phimoe"),
    "gguf-gemma2": ("gemma2", dict(rope("default"), sliding_window=8, query_pre_attn_scalar=16,
                                   attn_logit_softcapping=3.0, final_logit_softcapping=5.0,
                                   tie_word_embeddings=True), "gemma2"),
    "gguf-gemma3": ("gemma3_text", dict(num_hidden_layers=6, sliding_window=8, query_pre_attn_scalar=16,
                                        layer_types=["sliding_attention"] * 5 + ["full_attention"],
                                        rope_parameters={
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                            "full_attention": {"rope_type": "default", "rope_theta": 1e6}},
                                        tie_word_embeddings=True), "gemma3"),
}


def write_gguf_experts(writer, config):
    """What llama.cpp's converter writes for each of these families, and no more."""
    writer.add_expert_count(getattr(config, "num_local_experts", getattr(config, "num_experts", None)))
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in ("qwen2_moe", "qwen3_moe", "glm4_moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == "glm4_moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_nextn_predict_layers(config.num_nextn_predict_layers)
    if config.model_type == "phimoe":
        values = config.rope_parameters
        writer.add_rope_scaling_orig_ctx_len(values["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(values["short_mscale"])
        for kind in ("short", "long"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(values[kind + "_factor"], dtype=np.float32),
                              raw_dtype=Quant.F32)


def write_gguf_metadata(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers + (getattr(config, "num_nextn_predict_layers", None) or 0))
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    rope_values = config.rope_parameters
    writer.add_rope_freq_base(rope_values.get("full_attention", rope_values)["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "num_local_experts", getattr(config, "num_experts", None)):
        write_gguf_experts(writer, config)
    if "partial_rotary_factor" in rope_values:
        writer.add_rope_dimension_count(int(config.head_dim * rope_values["partial_rotary_factor"]))
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if "gemma" in config.model_type:
        writer.add_sliding_window(config.sliding_window)
    writer.add_vocab_size(config.vocab_size)


def gguf_tensors(model, names):
    """(GGUF name, values) of every weight, named by the gguf package's own map."""
    zero_is_one = "Gemma" in type(model).__name__
    tied = model.config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        values = weight.float().numpy()
        if name == "lm_head.weight" and tied:
            continue
        if name.endswith("experts.gate_up_proj"):
            layer = name.removesuffix("experts.gate_up_proj")
            for part, half in zip(("gate_proj", "up_proj"), np.split(values, 2, axis=1)):
                yield names.get_name(layer + "experts." + part) + ".weight", half
            continue
        if name.endswith("experts.down_proj"):
            yield names.get_name(name) + ".weight", values
            continue
        stem, kind = name.rsplit(".", 1)
        if zero_is_one and "norm" in stem:
            values = values + 1
        if model.config.model_type == "mixtral" and stem.endswith(("q_proj", "k_proj")):
            heads = model.config.num_attention_heads if stem.endswith("q_proj") else model.config.num_key_value_heads
            values = llama_cpp_permuted(values, heads)
        if kind == "e_score_correction_bias":
            yield names.get_name(stem.removesuffix("gate") + "gate.e_score_correction") + ".bias", values
            continue
        if stem.endswith("mlp.router"):  # phimoe's router, which its files call gate
            stem = stem.removesuffix("router") + "gate"
        if stem.endswith("shared_expert_gate"):
            values = values.squeeze()
        yield names.get_name(stem) + "." + kind, values


def make_gguf_family(name):
    model_type, changes, arch_name = GGUF_FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**BASE, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for seed in range(1, 50):
        randomize(model, torch.bfloat16, torch.Generator().manual_seed(seed))
        value = golden(model, seed)
        if value["smallest_greedy_margin"] > 0.02:
            break
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", arch_name)
    write_gguf_metadata(writer, model.config)
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == arch_name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for gguf_name, values in gguf_tensors(model, names):
        if values.ndim == 1:  # converters keep vectors in F32
            writer.add_tensor(gguf_name, values.astype(np.float32), raw_dtype=Quant.F32)
        else:
            writer.add_tensor(gguf_name, gguf.quantize(values, Quant.BF16), raw_dtype=Quant.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_golden(folder, value)


def main():
    makers = {**{name: make_family for name in FAMILIES},
              **{name: make_gguf_family for name in GGUF_FAMILIES}, "gguf": lambda _: make_gguf()}
    names = sys.argv[1:] or [*makers]
    for name in names:
        makers[name](name)
        folder = OUT / name
        sizes = {f.name: f.stat().st_size for f in sorted(folder.iterdir())}
        print(name, sizes)


if __name__ == "__main__":
    main()
