#!/usr/bin/env python3
"""make_family_goldens.py for GGUF files, written as llama.cpp's converter writes them.

Writes tests/golden/families/gguf*/: model.gguf and golden.json. Needs gguf beside what that needs.

    python3 tools/make_gguf_goldens.py [name ...]
"""
import math
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_latent import joined_heads, kimi_linear_tensors, latent_tensor, write_latent_metadata
from make_family_goldens import (BASE, FAMILIES, MLA, MSCALES, OUT, PHIMOE, TWO_HEADS, YARN, golden, longrope, model_with_clear_path,
                                 rope, show_sizes, write_golden, yarn_mscale)


# Formats that the gguf package reads and does not write.
RANDOM_BLOCKS = (Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.IQ4_NL, Quant.IQ4_XS)


def random_blocks(shape, quant, rng):
    """Valid blocks with random quants and small scales: the gguf package packs none itself."""
    block, size = gguf.GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    scale = (rng.uniform(0.5, 1.5, len(blocks)) / math.sqrt(shape[1])).astype(np.float32)
    if quant in (Quant.Q4_K, Quant.Q5_K):  # d, dmin, 12 bytes of 6-bit scales and mins, quants
        blocks[:, 0:2] = (scale / (150 if quant == Quant.Q4_K else 300)).astype(np.float16).view(np.uint8).reshape(-1, 2)
        blocks[:, 2:4] = (scale / 20).astype(np.float16).view(np.uint8).reshape(-1, 2)
    elif quant in (Quant.IQ4_NL, Quant.IQ4_XS):  # d, for XS scales from -32 to 31, places in a table of values up to 127
        blocks[:, 0:2] = (scale / (70 if quant == Quant.IQ4_NL else 1300)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    else:  # Q6_K: 128 low bits, 64 high bits, 16 int8 scales, d
        blocks[:, 208:210] = (scale / 1400).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(shape[0], -1)


def made_up(shape, quant, rng):
    """(data in `quant`, the values that it holds) of a tensor of random values; those of vectors are about 1."""
    rows = (math.prod(shape[:-1]), shape[-1])
    if quant in RANDOM_BLOCKS:
        data = random_blocks(rows, quant, rng)
    else:
        values = rng.standard_normal(rows).astype(np.float32)
        values = 1 + 0.2 * values if len(shape) == 1 else values * 1.6 / math.sqrt(rows[1])
        data = gguf.quantize(values, quant)
    return data.reshape(*shape[:-1], -1), gguf.dequantize(data, quant).reshape(shape)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_permuted(rows, heads):
    """The row order that llama.cpp's converter gives q and k of Llama models."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def make_gguf(name, formats):
    """A Llama of one layer; `formats`: of its products, q, k, v, gate, up and down."""
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
    folder = OUT / name
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
        ("blk.0.attn_q.weight", layer + "self_attn.q_proj.weight", formats[0], heads),
        ("blk.0.attn_k.weight", layer + "self_attn.k_proj.weight", formats[1], kv_heads),
        ("blk.0.attn_v.weight", layer + "self_attn.v_proj.weight", formats[2], 0),
        ("blk.0.attn_output.weight", layer + "self_attn.o_proj.weight", Quant.BF16, 0),
        ("blk.0.ffn_norm.weight", layer + "post_attention_layernorm.weight", Quant.F32, 0),
        ("blk.0.ffn_gate.weight", layer + "mlp.gate_proj.weight", formats[3], 0),
        ("blk.0.ffn_up.weight", layer + "mlp.up_proj.weight", formats[4], 0),
        ("blk.0.ffn_down.weight", layer + "mlp.down_proj.weight", formats[5], 0),
    ]
    # llama.cpp's converter writes Llama 3 scaling as one divisor per frequency.
    plain = 10000.0 ** -(np.arange(0, head_dim, 2) / head_dim)
    scaled = model.model.rotary_emb.inv_freq.double().numpy()
    writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32), raw_dtype=Quant.F32)
    for gguf_name, name, quant, permuted_heads in tensors:
        shape = tuple(state[name].shape)
        data, values = made_up(shape, quant, rng)
        assert values.std() > 1e-3 and np.isfinite(values).all(), name
        if permuted_heads:  # `data` is in llama.cpp's order: undo it for transformers
            order = llama_cpp_permuted(np.arange(shape[0]), permuted_heads)
            original = np.empty_like(values)
            original[order] = values
            values = original
        state[name].copy_(torch.from_numpy(values))
        writer.add_tensor(gguf_name, data, raw_dtype=quant)
    finish(writer)
    value = golden(model, 11)
    # A few values of every tensor, so that a wrong dequantisation is named as such.
    value["tensors"] = {name: {"sum": round(float(state[name].double().sum()), 5),
                               "first": [round(float(x), 6) for x in state[name].flatten()[:8]]}
                        for _, name, _, _ in tensors}
    write_golden(folder, value)


# Together every tensor type that is read.
GGUF_FORMATS = {
    "gguf": (Quant.Q4_1, Quant.Q5_K, Quant.Q6_K, Quant.Q4_K, Quant.Q4_K, Quant.Q4_0),
    "gguf-iq4": (Quant.IQ4_NL, Quant.IQ4_XS, Quant.IQ4_XS, Quant.IQ4_XS, Quant.IQ4_XS, Quant.IQ4_NL),
}

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
    "gguf-gemma": ("gemma", dict(rope("default"), tie_word_embeddings=True), "gemma"),
    "gguf-phi3": ("phi3", dict(longrope(original=16), original_max_position_embeddings=16, **TWO_HEADS), "phi3"),
    "gguf-olmo2": ("olmo2", dict(rope("default", theta=5e5)), "olmo2"),
    "gguf-olmo3": ("olmo3", dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"],
                                 rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                                                  "full_attention": {**YARN["rope_parameters"], "rope_theta": 5e5}}), "olmo2"),
    "gguf-granite": ("granite", dict(rope("default"), embedding_multiplier=6.0, residual_multiplier=0.3,
                                     logits_scaling=0.5, attention_multiplier=0.125), "granite"),
    "gguf-cohere2": ("cohere2", dict(rope("default"), hidden_size=64, sliding_window=8, logit_scale=0.75,
                                     layer_norm_eps=1e-5, num_hidden_layers=4, tie_word_embeddings=True), "cohere2"),
    "gguf-glm4": ("glm4", dict(rope("default", partial_rotary_factor=0.5)), "glm4"),
    "gguf-smollm3": ("smollm3", dict(rope("default"), num_hidden_layers=4, tie_word_embeddings=True), "smollm3"),
    "gguf-stablelm": ("stablelm", dict(rope("default", partial_rotary_factor=0.25), hidden_size=64, use_qkv_bias=True),
                      "stablelm"),
    "gguf-starcoder2": ("starcoder2", dict(rope("default"), hidden_size=64, tie_word_embeddings=True), "starcoder2"),
    "gguf-exaone4": ("exaone4", dict(rope("default", theta=1e6), sliding_window=8,
                                     layer_types=["sliding_attention", "full_attention"]), "exaone4"),
    "gguf-ernie4_5": ("ernie4_5", dict(rope("default"), use_bias=True, tie_word_embeddings=True), "ernie4_5"),
    "gguf-hunyuan": ("hunyuan_v1_dense", dict(rope("dynamic", alpha=50.0, factor=1.0)), "hunyuan-dense"),
    "gguf-lfm2": FAMILIES["lfm2"][:2] + ("lfm2",),
    "gguf-lfm2-moe": ("lfm2_moe", {**FAMILIES["lfm2-moe"][1], "tie_word_embeddings": True,
                                    "routed_scaling_factor": 1.0}, "lfm2moe"),
    "gguf-deepseek-v2-moe": FAMILIES["deepseek-v2-moe"][:2] + ("deepseek2",),
    "gguf-deepseek-v2-joined-moe": FAMILIES["deepseek-v2-groups-moe"][:2] + ("deepseek2",),
    "gguf-deepseek-v3-moe": ("deepseek_v3", dict(MLA, **yarn_mscale(1.0, 1.0), q_lora_rank=24, num_experts_per_tok=3,
                                                 n_group=4, topk_group=2, routed_scaling_factor=2.5), "deepseek2"),
    "gguf-kimi-linear-moe": ("kimi_linear", {**FAMILIES["kimi-linear-moe"][1], "linear_num_heads": 4}, "kimi-linear"),
    "gguf-seed_oss": ("seed_oss", dict(rope("default"), attention_bias=True, attention_out_bias=False), "seed_oss"),
}


def num_experts(config):
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((getattr(config, name) for name in names if getattr(config, name, None)), None)


def is_latent(config):
    return getattr(config, "kv_lora_rank", None) is not None


def is_joined(name):
    return "-joined" in name


def write_gguf_experts(writer, config):
    """What llama.cpp's converter writes for each of these families, and no more."""
    writer.add_expert_count(num_experts(config))
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
    if config.model_type == "lfm2_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type == "phimoe":
        values = config.rope_parameters
        writer.add_rope_scaling_orig_ctx_len(values["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(values["short_mscale"])
        write_longrope_factors(writer, values)


def write_gguf_rope(writer, config):
    values = config.rope_parameters
    values = values.get("full_attention", values)
    base = values["rope_theta"]
    if values.get("alpha"):  # HunYuan's fixed scaling goes into the base
        base *= values["alpha"] ** (config.head_dim / (config.head_dim - 2))
    writer.add_rope_freq_base(base)
    if "partial_rotary_factor" in values:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head_dim * values["partial_rotary_factor"]))
    if values["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(values["factor"])
        writer.add_rope_scaling_orig_ctx_len(values["original_max_position_embeddings"])
    if values["rope_type"] == "longrope" and config.model_type == "phi3":
        original = values["original_max_position_embeddings"]
        stretched = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretched) / math.log(original)))
        write_longrope_factors(writer, values)


def write_longrope_factors(writer, values):
    for kind in ("short", "long"):
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(values[kind + "_factor"], dtype=np.float32),
                          raw_dtype=Quant.F32)


def write_gguf_windows(writer, config):
    if "gemma" in config.model_type and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type in ("olmo3", "cohere2", "exaone4"):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type in ("olmo3", "exaone4"):  # Command R7B's is one layer in four, and not written
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def adjusted_width(config):
    """Of the feed-forward: LFM2 makes two thirds of what its configuration says, rounded up."""
    if config.model_type != "lfm2" or not config.block_auto_adjust_ff_dim:
        return config.intermediate_size
    multiple = config.block_multiple_of
    return -(-int(config.block_ffn_dim_multiplier * int(2 * config.intermediate_size / 3)) // multiple) * multiple


def write_gguf_heads(writer, config, arch_name):
    """But those of latent attention (gguf_latent.py)."""
    if arch_name.startswith("lfm2"):
        writer.add_head_count_kv([config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types])
        writer.add_shortconv_l_cache(config.conv_L_cache)
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    if getattr(config, "head_dim", None) and config.model_type not in ("phi3", "stablelm", "starcoder2"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def write_gguf_metadata(writer, config, arch_name, drafts=False):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    drafts = drafts or config.model_type == "glm4_moe"  # DeepSeek's are left out
    writer.add_block_count(config.num_hidden_layers + (config.num_nextn_predict_layers if drafts else 0))
    writer.add_feed_forward_length(adjusted_width(config))
    writer.add_head_count(config.num_attention_heads)
    if not is_latent(config):
        write_gguf_heads(writer, config, arch_name)
    if arch_name in ("cohere2", "stablelm", "starcoder2"):
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", getattr(config, "norm_epsilon", None)))
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)  # LFM2's norm_eps here, too
    if num_experts(config):
        write_gguf_experts(writer, config)
    if getattr(config, "rope_parameters", None):  # of Kimi Linear nothing is rotated
        write_gguf_rope(writer, config)
    write_gguf_windows(writer, config)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch_name == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch_name == "cohere2":
        writer.add_logit_scale(config.logit_scale)
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
        if model.config.model_type in ("mixtral", "granite", "smollm3") and stem.endswith(("q_proj", "k_proj")):
            heads = model.config.num_attention_heads if stem.endswith("q_proj") else model.config.num_key_value_heads
            values = llama_cpp_permuted(values, heads)
        if kind == "e_score_correction_bias":
            yield names.get_name(stem.removesuffix("gate") + "gate.e_score_correction") + ".bias", values
            continue
        if stem.endswith("conv.conv"):
            values = values.squeeze(1)
        if name.endswith("feed_forward.expert_bias"):
            yield names.get_name(name) + ".bias", values
            continue
        if stem.endswith("mlp.router"):  # phimoe's router, which its files call gate
            stem = stem.removesuffix("router") + "gate"
        if stem.endswith("shared_expert_gate"):
            values = values.squeeze()
        assert names.get_name(stem), stem
        yield names.get_name(stem) + "." + kind, values


# A DeepSeek V2 whose products are in blocks, as llama.cpp's quantizer mixes them: what stands in rows that are no multiple of
# 256 has formats of 32.
BLOCKS = dict(MLA, **yarn_mscale(0.707, 0.707), vocab_size=64, hidden_size=256, intermediate_size=64, num_hidden_layers=2,
              num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=256, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
              head_dim=16, q_lora_rank=None, topk_method="greedy", n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
              moe_intermediate_size=32)
BLOCK_FORMATS = {
    "token_embd": Quant.Q5_0, "output": Quant.Q6_K, "attn_q": Quant.Q4_K, "attn_kv_a_mqa": Quant.Q4_K, "attn_k_b": Quant.Q5_0,
    "attn_v_b": Quant.Q4_K, "attn_output": Quant.Q8_0, "ffn_gate": Quant.Q5_K, "ffn_up": Quant.Q5_K, "ffn_down": Quant.Q5_1,
    "ffn_gate_exps": Quant.Q4_K, "ffn_up_exps": Quant.Q4_K, "ffn_down_exps": Quant.Q5_0, "ffn_gate_shexp": Quant.Q6_K,
    "ffn_up_shexp": Quant.Q6_K, "ffn_down_shexp": Quant.Q8_0,
}


def make_gguf_blocks(name):
    """Every tensor in blocks first; the model gets what they hold."""
    rng = np.random.default_rng(5)
    config = AutoConfig.for_model("deepseek_v2", **{**BASE, **BLOCKS})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "deepseek2")
    write_gguf_metadata(writer, config, "deepseek2")
    write_latent_metadata(writer, config, False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config.num_hidden_layers)
    held = {}
    for tensor, values in gguf_tensors(model, names):
        for part, shaped in latent_tensor(tensor, values, config, False):
            quant = BLOCK_FORMATS.get(part.split(".")[-2], Quant.F32)
            data, held[part] = made_up(shaped.shape, quant, rng)
            writer.add_tensor(part, data, raw_dtype=quant)
    load_blocks(model, names, held)
    finish(writer)
    write_golden(folder, golden(model, 11))


def load_blocks(model, names, held):
    """What gguf_tensors and latent_tensor took apart, put together again."""
    state = model.state_dict()
    for name, weight in state.items():
        if name.endswith("experts.gate_up_proj"):
            layer = name.removesuffix("gate_up_proj")
            values = np.concatenate([held[names.get_name(layer + part) + ".weight"] for part in ("gate_proj", "up_proj")], axis=1)
        elif name.endswith("experts.down_proj"):
            values = held[names.get_name(name) + ".weight"]
        elif name.endswith("kv_b_proj.weight"):
            stem = names.get_name(name.removesuffix(".weight"))
            values = joined_heads(held[stem.replace("kv_b", "k_b") + ".weight"], held[stem.replace("kv_b", "v_b") + ".weight"])
        else:
            stem, kind = name.rsplit(".", 1)
            values = held[names.get_name(stem) + "." + kind]
        weight.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def in_f32(gguf_name):
    """What converters keep in F32 beside vectors, of latent and recurrent layers."""
    return not gguf_name.endswith((".weight", ".bias")) or "ssm_conv1d" in gguf_name


def make_gguf_family(name):
    model_type, changes, arch_name = GGUF_FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**BASE, **changes})
    model, value = model_with_clear_path(name, config, torch.bfloat16)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", arch_name)
    write_gguf_metadata(writer, model.config, arch_name)
    if is_latent(config):
        write_latent_metadata(writer, model.config, is_joined(name))
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == arch_name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    pairs = (kimi_linear_tensors if model_type == "kimi_linear" else gguf_tensors)(model, names)
    if is_latent(config):
        pairs = (new for pair in pairs for new in latent_tensor(*pair, model.config, is_joined(name)))
    write_tensors(writer, pairs)
    finish(writer)
    write_golden(folder, value)


def write_tensors(writer, pairs):
    for gguf_name, values in pairs:
        if values.ndim == 1 or in_f32(gguf_name):
            writer.add_tensor(gguf_name, values.astype(np.float32), raw_dtype=Quant.F32)
        else:
            writer.add_tensor(gguf_name, gguf.quantize(values, Quant.BF16), raw_dtype=Quant.BF16)


def main():
    makers = {**dict.fromkeys(GGUF_FAMILIES, make_gguf_family), "gguf-deepseek-blocks-moe": make_gguf_blocks,
              **dict.fromkeys(GGUF_FORMATS, lambda name: make_gguf(name, GGUF_FORMATS[name]))}
    for name in sys.argv[1:] or [*makers]:
        makers[name](name)
        show_sizes(name)


if __name__ == "__main__":
    main()
