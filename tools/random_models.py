"""Random tiny models, as legal as odd: what tools/check_random_models.py serves and compares.

FAMILIES[name](rng, gpu) gives (model_type, config keys). Sizes are rarely multiples of anything; with gpu they are what
GPU kernels take, and half of the widths multiples of 8. Only combinations that transformers itself runs are drawn.
"""


def pick(rng, *values):
    return rng.choice(values)


def width_step(rng, gpu):
    """What widths are multiples of: GPUs have kernels of their own for multiples of 8, and take others."""
    return rng.choice([1, 8]) if gpu else 1


def shape(rng, gpu, heads=True):
    """Sizes that every family has; head_dim does not follow from the others."""
    step = width_step(rng, gpu)
    kv = rng.choice([1, 1, 2, 3, 4])
    q = kv * rng.choice([1, 1, 2, 3, 4, 5, 7])
    out = dict(
        vocab_size=rng.choice([37, 61, 97, 131, 193, 255, 256]), num_hidden_layers=rng.randint(1, 4),
        hidden_size=step * rng.randint(16 // step, 96 // step), intermediate_size=step * rng.randint(1, 90 // step),
        num_attention_heads=q, num_key_value_heads=kv, max_position_embeddings=rng.choice([256, 300, 512]),
        tie_word_embeddings=rng.random() < 0.4, bos_token_id=0, eos_token_id=1, pad_token_id=0)
    out["rms_norm_eps"] = rng.choice([1e-5, 1e-6, 1e-3])
    if heads:
        out["head_dim"] = rng.choice([8, 16, 24, 32, 40, 64, 72, 80, 96, 128] if gpu else
                                     [2, 4, 6, 8, 10, 14, 16, 18, 20, 24, 32, 36, 48, 64, 72, 80, 96, 128])
    return out


def heads_of_rows(rng, gpu, out):
    """head_dim is hidden_size / heads, where a family computes it so."""
    kv = rng.choice([1, 2, 3])
    q = kv * rng.choice([1, 2, 3])
    head = rng.choice([8, 16, 24, 32] if gpu else [2, 4, 6, 8, 10, 12, 16, 20])
    out.pop("head_dim", None)
    out.update(num_attention_heads=q, num_key_value_heads=kv, hidden_size=q * head)
    if gpu and q * head % 8:
        out["hidden_size"] = q * 8
    return out


def layer_norms(out, key):
    """Layer norms, whose epsilon has a name of its own."""
    return {**{k: v for k, v in out.items() if k != "rms_norm_eps"}, key: out["rms_norm_eps"]}


def rope(rng, head_dim, positions, partial=None, kinds=None):
    kind = rng.choice(kinds or ["default", "default", "linear", "llama3", "yarn", "yarn", "dynamic", "longrope"])
    out = {"rope_type": kind, "rope_theta": rng.choice([1e4, 5e5, 1e6, 123.5])}
    if partial is not None:
        out["partial_rotary_factor"] = partial
    rotated = int(head_dim * (partial or 1))
    if kind == "dynamic" and rotated < 4:
        out["rope_type"] = kind = "default"
    if kind in ("linear", "llama3", "yarn", "dynamic"):
        out["factor"] = rng.choice([1.0, 1.5, 4.0, 8.0, 32.0])
    if kind == "llama3":
        out.update(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=rng.choice([16, 32, 77]))
    if kind == "yarn":
        out.update(original_max_position_embeddings=rng.choice([16, 32, 77, positions]))
        more = dict(beta_fast=rng.choice([32.0, 8.0]), beta_slow=rng.choice([1.0, 2.0]), truncate=False,
                    attention_factor=1.3, mscale=0.9, mscale_all_dim=0.6)
        for key, value in more.items():
            if rng.random() < 0.35:
                out[key] = value
    if kind == "longrope":
        count = rotated // 2
        out.update(short_factor=[1 + 0.1 * i for i in range(count)], long_factor=[1 + 0.7 * i for i in range(count)],
                   original_max_position_embeddings=rng.choice([24, 2 * positions]))
        if rng.random() < 0.3:
            out["attention_factor"] = 1.2
    return {"rope_parameters": out}


def any_rope(rng, out, **more):
    return rope(rng, out.get("head_dim", out["hidden_size"] // out["num_attention_heads"]),
                out["max_position_embeddings"], **more)


def layer_ropes(rng, out, kinds):
    """One for each kind of layer; transformers then reads no truncate."""
    full = any_rope(rng, out, kinds=kinds)["rope_parameters"]
    full.pop("truncate", None)
    return {"sliding_attention": rope(rng, 8, 0, kinds=["default"])["rope_parameters"], "full_attention": full}


def coin(rng, probability=0.5):
    return rng.random() < probability


def layer_kinds(rng, count, kinds):
    return [rng.choice(kinds) for _ in range(count)]


def window(rng):
    return rng.choice([1, 2, 5, 8, 17, 64, 1000])


SLIDING = ["sliding_attention", "full_attention"]


def experts(rng, gpu, key):
    count = rng.choice([2, 3, 5, 6, 8, 11, 16])
    step = width_step(rng, gpu)
    return {key: count, "num_experts_per_tok": rng.randint(1, min(count, 6)),
            "moe_intermediate_size": step * rng.randint(1, 40 // step)}


def shared_width(rng, gpu):
    return 8 * rng.randint(1, 6) if width_step(rng, gpu) == 8 else rng.randint(1, 50)


def llama(rng, gpu):
    out = shape(rng, gpu)
    return "llama", {**out, **any_rope(rng, out), "attention_bias": coin(rng), "mlp_bias": coin(rng)}


def mistral(rng, gpu):
    out = shape(rng, gpu)
    return "mistral", {**out, **any_rope(rng, out), "sliding_window": rng.choice([None, window(rng)])}


def qwen_window(rng, out):
    return dict(use_sliding_window=coin(rng), sliding_window=window(rng),
                max_window_layers=rng.randint(0, out["num_hidden_layers"]))


def qwen2(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    return "qwen2", {**out, **any_rope(rng, out), **qwen_window(rng, out)}


def qwen3(rng, gpu):
    out = shape(rng, gpu)
    return "qwen3", {**out, **any_rope(rng, out), **qwen_window(rng, out), "attention_bias": coin(rng, 0.3)}


def qwen3_moe(rng, gpu):
    out = shape(rng, gpu)
    out |= experts(rng, gpu, "num_experts")
    return "qwen3_moe", {**out, **any_rope(rng, out), "norm_topk_prob": coin(rng), "attention_bias": coin(rng, 0.3),
                         "use_sliding_window": coin(rng, 0.3), "sliding_window": window(rng),
                         "decoder_sparse_step": rng.choice([1, 1, 2]), "mlp_only_layers": rng.choice([[], [0]])}


def qwen2_moe(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    out |= experts(rng, gpu, "num_experts") | qwen_window(rng, out)
    return "qwen2_moe", {**out, **any_rope(rng, out), "norm_topk_prob": coin(rng), "qkv_bias": coin(rng, 0.8),
                         "shared_expert_intermediate_size": shared_width(rng, gpu),
                         "decoder_sparse_step": rng.choice([1, 1, 2])}


def gemma(rng, gpu):
    out = shape(rng, gpu)
    return "gemma", {**out, **any_rope(rng, out), "tie_word_embeddings": True, "attention_bias": coin(rng, 0.3)}


def gemma2(rng, gpu):
    out = shape(rng, gpu)
    return "gemma2", {**out, **any_rope(rng, out), "tie_word_embeddings": True, "sliding_window": window(rng),
                      "query_pre_attn_scalar": rng.choice([16, 24, 40]), "attention_bias": coin(rng, 0.3),
                      "attn_logit_softcapping": rng.choice([None, 3.0, 50.0]),
                      "final_logit_softcapping": rng.choice([None, 5.0, 30.0]),
                      "layer_types": layer_kinds(rng, out["num_hidden_layers"], SLIDING)}


def gemma3(rng, gpu):
    out = shape(rng, gpu)
    ropes = layer_ropes(rng, out, ["default", "linear", "yarn", "llama3"])
    return "gemma3_text", {**out, "tie_word_embeddings": True, "sliding_window": window(rng), "rope_parameters": ropes,
                           "query_pre_attn_scalar": rng.choice([16, 24, 40]), "attention_bias": coin(rng, 0.3),
                           "attn_logit_softcapping": rng.choice([None, 3.0]),
                           "final_logit_softcapping": rng.choice([None, 5.0]),
                           "layer_types": layer_kinds(rng, out["num_hidden_layers"], SLIDING)}


def gpt_oss(rng, gpu):
    out = shape(rng, gpu)
    out |= experts(rng, gpu, "num_local_experts")
    del out["moe_intermediate_size"]
    return "gpt_oss", {**out, **any_rope(rng, out), "sliding_window": window(rng), "attention_bias": coin(rng, 0.8),
                       "layer_types": layer_kinds(rng, out["num_hidden_layers"], SLIDING)}


def mixtral(rng, gpu):
    out = shape(rng, gpu)
    out |= experts(rng, gpu, "num_local_experts")
    del out["moe_intermediate_size"]
    return "mixtral", {**out, **any_rope(rng, out), "sliding_window": rng.choice([None, window(rng)])}


def groups(rng, out, key="n_routed_experts"):
    """Groups of at least two experts of which enough are left to choose from."""
    count = out[key]
    group = rng.choice([g for g in (1, 2, 3, 4) if count % g == 0 and count // g >= 2] or [1])
    kept = rng.choice([k for k in range(1, group + 1) if k * (count // group) >= out["num_experts_per_tok"]])
    return dict(n_group=group, topk_group=kept)


def glm4_moe(rng, gpu):
    out = shape(rng, gpu)
    out["head_dim"] = rng.choice([8, 16, 24, 32, 64])
    out |= experts(rng, gpu, "n_routed_experts")
    out |= groups(rng, out)
    return "glm4_moe", {**out, **any_rope(rng, out, partial=rng.choice([0.5, 0.25, 1.0])), "use_qk_norm": coin(rng),
                        "n_shared_experts": rng.choice([1, 1, 2, 3]), "norm_topk_prob": coin(rng),
                        "first_k_dense_replace": rng.randint(0, out["num_hidden_layers"]),
                        "routed_scaling_factor": rng.choice([1.0, 2.5]), "attention_bias": coin(rng)}


def olmoe(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    out |= experts(rng, gpu, "num_experts")
    del out["moe_intermediate_size"]
    return "olmoe", {**out, **any_rope(rng, out), "norm_topk_prob": coin(rng), "attention_bias": coin(rng, 0.3)}


def phimoe(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    out |= experts(rng, gpu, "num_local_experts")
    del out["moe_intermediate_size"]
    out["num_experts_per_tok"] = 2
    out |= any_rope(rng, out, kinds=["default", "longrope", "longrope"])
    if out["rope_parameters"]["rope_type"] == "longrope":
        out["rope_parameters"] |= dict(short_mscale=1.1, long_mscale=1.3)
    return "phimoe", {**out, "attention_bias": coin(rng), "lm_head_bias": coin(rng), "tie_word_embeddings": False,
                      "router_jitter_noise": rng.choice([0.01, 0.1]), "sliding_window": rng.choice([None, window(rng)])}


def deepseek(rng, gpu):
    out = shape(rng, gpu, heads=False)
    step = 8 if gpu else 1
    out |= experts(rng, gpu, "n_routed_experts")
    rotated = rng.choice([8, 16, 64] if gpu else [2, 4, 6, 8, 16, 64])
    out |= dict(kv_lora_rank=step * rng.randint(1, 64 // step), qk_nope_head_dim=rng.choice([4, 8, 15, 16, 24, 64]),
                qk_rope_head_dim=rotated, v_head_dim=rng.choice([4, 7, 12, 16, 32]), head_dim=rotated,
                n_shared_experts=rng.choice([1, 2]), first_k_dense_replace=rng.randint(0, out["num_hidden_layers"]),
                q_lora_rank=rng.choice([None, step * rng.randint(1, 48 // step)]), attention_bias=coin(rng, 0.3),
                num_key_value_heads=out["num_attention_heads"], routed_scaling_factor=rng.choice([1.0, 1.7]))
    return {**out, **groups(rng, out)}


def deepseek_v2(rng, gpu):
    out = deepseek(rng, gpu)
    out["qk_nope_head_dim"] += out["qk_nope_head_dim"] % 2  # where complex numbers begin
    out["kv_lora_rank"] += out["kv_lora_rank"] % 2
    return "deepseek_v2", {**out, **any_rope(rng, out, kinds=["default", "yarn"]),
                           "topk_method": rng.choice(["greedy", "group_limited_greedy"])}


def deepseek_v3(rng, gpu):
    out = deepseek(rng, gpu)
    return "deepseek_v3", {**out, **any_rope(rng, out, kinds=["default", "yarn", "yarn", "linear"]),
                           "rope_interleave": coin(rng, 0.7), "norm_topk_prob": coin(rng, 0.7)}


def gated_hybrid(rng, gpu):
    out = shape(rng, gpu)
    out["num_hidden_layers"] = rng.randint(2, 5)
    out["head_dim"] = rng.choice([8, 16, 32, 64])
    types = layer_kinds(rng, out["num_hidden_layers"], ["linear_attention", "linear_attention", "full_attention"])
    types[rng.randrange(len(types))] = "full_attention"
    heads = rng.choice([1, 2, 3, 4])
    out |= dict(layer_types=types, linear_num_key_heads=heads, linear_num_value_heads=heads * rng.choice([1, 2, 3]),
                linear_key_head_dim=rng.choice([16, 32, 48, 64, 128]), attention_bias=coin(rng, 0.3),
                linear_value_head_dim=rng.choice([16, 32, 48, 64, 128]),
                linear_conv_kernel_dim=rng.choice([2, 3, 4, 6]))
    return {**out, **any_rope(rng, out, partial=rng.choice([0.25, 0.5, 1.0]), kinds=["default", "yarn", "linear"])}


def shared_moe(rng, gpu):
    return experts(rng, gpu, "num_experts") | dict(
        shared_expert_intermediate_size=shared_width(rng, gpu))


def qwen3_next(rng, gpu):
    out = gated_hybrid(rng, gpu) | shared_moe(rng, gpu)
    return "qwen3_next", {**out, "norm_topk_prob": coin(rng), "decoder_sparse_step": rng.choice([1, 1, 2]),
                          "mlp_only_layers": rng.choice([[], [0]])}


def qwen3_5(rng, gpu):
    return "qwen3_5_text", gated_hybrid(rng, gpu)


def qwen3_5_moe(rng, gpu):
    return "qwen3_5_moe_text", gated_hybrid(rng, gpu) | shared_moe(rng, gpu)


def lfm2_base(rng, gpu):
    out = shape(rng, gpu)
    out = heads_of_rows(rng, gpu, out)
    out["num_attention_heads"], out["num_key_value_heads"] = rng.choice([(2, 1), (2, 2), (4, 2)])
    out["hidden_size"] = 16 * rng.randint(1, 5) * (2 if gpu else 1)
    out["num_hidden_layers"] = rng.randint(2, 5)
    types = layer_kinds(rng, out["num_hidden_layers"], ["conv", "conv", "full_attention"])
    types[rng.randrange(len(types))] = "full_attention"
    return {**layer_norms(out, "norm_eps"), **any_rope(rng, out), "layer_types": types, "conv_bias": coin(rng, 0.4),
            "conv_L_cache": rng.choice([2, 3, 4, 5])}


def lfm2(rng, gpu):
    out = lfm2_base(rng, gpu)
    return "lfm2", {**out, "block_auto_adjust_ff_dim": coin(rng), "block_multiple_of": 8,
                    "block_ffn_dim_multiplier": rng.choice([1.0, 1.3])}


def lfm2_moe(rng, gpu):
    out = lfm2_base(rng, gpu) | experts(rng, gpu, "num_experts")
    return "lfm2_moe", {**out, "num_dense_layers": rng.randint(0, out["num_hidden_layers"]),
                        "norm_topk_prob": coin(rng), "use_expert_bias": coin(rng, 0.7),
                        "routed_scaling_factor": rng.choice([1.0, 1.4])}


def kimi_linear(rng, gpu):
    out = deepseek(rng, gpu)
    del out["head_dim"], out["attention_bias"], out["first_k_dense_replace"], out["n_group"], out["topk_group"]
    out["num_local_experts"] = out.pop("n_routed_experts")
    count = out["num_hidden_layers"] = rng.randint(2, 4)
    types = layer_kinds(rng, count, ["linear_attention", "full_attention"])
    types[rng.randrange(count)] = "full_attention"
    dense = rng.randint(0, 1)
    return "kimi_linear", {**out, "layer_types": types, "q_lora_rank": None, "tie_word_embeddings": False,
                           "mlp_layer_types": ["dense"] * dense + ["sparse"] * (count - dense),
                           "linear_head_dim": rng.choice([16, 32, 64]), "linear_num_heads": rng.choice([1, 2, 3]),
                           "linear_conv_kernel_dim": rng.choice([2, 4])}


def phi3(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    head = out["hidden_size"] // out["num_attention_heads"]
    partial = rng.choice([1.0, 0.5]) if head % 4 == 0 else 1.0
    out |= any_rope(rng, out, kinds=["default", "longrope"], partial=partial)
    if out["rope_parameters"]["rope_type"] == "longrope":
        out["original_max_position_embeddings"] = out["rope_parameters"]["original_max_position_embeddings"]
        out["rope_parameters"].pop("attention_factor", None)
    return "phi3", {**out, "sliding_window": rng.choice([None, window(rng)])}


def olmo2(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    return "olmo2", {**out, **any_rope(rng, out), "attention_bias": coin(rng, 0.3)}


def olmo3(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    ropes = layer_ropes(rng, out, ["default", "yarn"])
    return "olmo3", {**out, "rope_parameters": ropes, "attention_bias": coin(rng, 0.3), "sliding_window": window(rng),
                     "layer_types": layer_kinds(rng, out["num_hidden_layers"], SLIDING)}


def granite(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    return "granite", {**out, **any_rope(rng, out), "attention_bias": coin(rng), "mlp_bias": coin(rng),
                       "embedding_multiplier": rng.choice([1.0, 6.0]), "residual_multiplier": rng.choice([1.0, 0.3]),
                       "logits_scaling": rng.choice([1.0, 0.5, 4.0]), "attention_multiplier": rng.choice([0.125, 0.3])}


def cohere2(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    return "cohere2", {**layer_norms(out, "layer_norm_eps"), **any_rope(rng, out), "sliding_window": window(rng),
                       "logit_scale": rng.choice([0.0625, 0.75]), "tie_word_embeddings": True,
                       "attention_bias": coin(rng, 0.3),
                       "layer_types": layer_kinds(rng, out["num_hidden_layers"], SLIDING)}


def glm4(rng, gpu):
    out = shape(rng, gpu)
    out["head_dim"] = rng.choice([8, 16, 24, 32, 64])
    return "glm4", {**out, **any_rope(rng, out, partial=rng.choice([0.5, 0.25, 1.0])), "attention_bias": coin(rng)}


def smollm3(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    count = out["num_hidden_layers"]
    return "smollm3", {**out, **any_rope(rng, out), "no_rope_layers": [rng.randint(0, 1) for _ in range(count)],
                       "attention_bias": coin(rng, 0.3), "mlp_bias": coin(rng, 0.3), "use_sliding_window": coin(rng),
                       "sliding_window": window(rng), "layer_types": layer_kinds(rng, count, SLIDING)}


def stablelm(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    head = out["hidden_size"] // out["num_attention_heads"]
    partial = rng.choice([0.25, 0.5, 1.0]) if head % 8 == 0 else 1.0
    return "stablelm", {**layer_norms(out, "layer_norm_eps"), **any_rope(rng, out, partial=partial),
                        "use_qkv_bias": coin(rng), "use_parallel_residual": coin(rng)}


def starcoder2(rng, gpu):
    out = heads_of_rows(rng, gpu, shape(rng, gpu))
    return "starcoder2", {**layer_norms(out, "norm_epsilon"), **any_rope(rng, out), "use_bias": coin(rng, 0.7),
                          "sliding_window": rng.choice([None, window(rng)])}


def exaone4(rng, gpu):
    out = shape(rng, gpu)
    width = rng.choice([None, window(rng)])
    return "exaone4", {**out, **any_rope(rng, out), "sliding_window": width,
                       "layer_types": layer_kinds(rng, out["num_hidden_layers"], SLIDING if width else SLIDING[1:])}


def ernie4_5(rng, gpu):
    out = shape(rng, gpu)
    return "ernie4_5", {**out, **any_rope(rng, out), "use_bias": coin(rng)}


def hunyuan(rng, gpu):
    out = shape(rng, gpu)
    out |= any_rope(rng, out, kinds=["default", "dynamic"])
    if out["rope_parameters"]["rope_type"] == "dynamic":
        out["rope_parameters"].update(alpha=50.0, factor=1.0)
    return "hunyuan_v1_dense", {**out, "attention_bias": coin(rng, 0.3)}


def seed_oss(rng, gpu):
    out = shape(rng, gpu)
    return "seed_oss", {**out, **any_rope(rng, out), "attention_bias": coin(rng), "attention_out_bias": coin(rng),
                        "mlp_bias": coin(rng)}


FAMILIES = {f.__name__: f for f in (
    llama, mistral, qwen2, qwen3, qwen3_moe, qwen2_moe, gemma, gemma2, gemma3, gpt_oss, mixtral, glm4_moe, olmoe,
    phimoe, deepseek_v2, deepseek_v3, qwen3_next, qwen3_5, qwen3_5_moe, lfm2, lfm2_moe, kimi_linear, phi3, olmo2, olmo3,
    granite, cohere2, glm4, smollm3, stablelm, starcoder2, exaone4, ernie4_5, hunyuan, seed_oss)}
