"""Writes one random DeepSeek V2 twice over: a Hugging Face folder (config.json, safetensors; no tokenizer) and a GGUF file,
with the same weights.

  python bench/random_deepseek.py OUT_DIR --dtype bf16

About 120 M parameters, of which a token uses 48 M: hidden 512, 8 layers, the first dense, 16 experts of width 384 of which 4
are chosen and one shared, 8 heads of 64 + 32 dims over a latent of 256 + 32, queries through 384, vocabulary 32000, untied
embeddings. With a block format (q8_0) there is the GGUF file alone.
"""
import random_model

CONFIG = dict(
    architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", hidden_size=512, intermediate_size=1536,
    moe_intermediate_size=384, n_routed_experts=16, num_experts_per_tok=4, n_shared_experts=1, norm_topk_prob=False,
    scoring_func="softmax", topk_method="greedy", n_group=1, topk_group=1, routed_scaling_factor=1.0, first_k_dense_replace=1,
    moe_layer_freq=1, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8, kv_lora_rank=256, q_lora_rank=384,
    qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-6,
    rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, attention_bias=False)
EXPERTS = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
LAYER_NAMES = {"attn_norm": "input_layernorm", "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
               "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
               "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_output": "self_attn.o_proj",
               "ffn_norm": "post_attention_layernorm"}


def layer_shapes(index):
    """Of a layer's matrices and vectors, by name."""
    c = CONFIG
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v_dim = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes = {"self_attn.q_a_proj": (c["q_lora_rank"], hidden), "self_attn.q_b_proj": (heads * (nope + rope), c["q_lora_rank"]),
              "self_attn.kv_a_proj_with_mqa": (rank + rope, hidden), "self_attn.kv_b_proj": (heads * (nope + v_dim), rank),
              "self_attn.o_proj": (hidden, heads * v_dim), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
              "self_attn.q_a_layernorm": (c["q_lora_rank"],), "self_attn.kv_a_layernorm": (rank,)}
    blocks = {"mlp.": c["intermediate_size"]}
    if index >= c["first_k_dense_replace"]:
        shapes["mlp.gate"] = (c["n_routed_experts"], hidden)
        blocks = {f"mlp.experts.{e}.": c["moe_intermediate_size"] for e in range(c["n_routed_experts"])}
        blocks["mlp.shared_experts."] = c["n_shared_experts"] * c["moe_intermediate_size"]
    for block, ffn in blocks.items():
        shapes |= {block + "gate_proj": (ffn, hidden), block + "up_proj": (ffn, hidden), block + "down_proj": (hidden, ffn)}
    return shapes


def add_metadata(writer):
    c = CONFIG
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_kv_lora_rank(c["kv_lora_rank"])
    writer.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    writer.add_value_length(c["kv_lora_rank"])
    writer.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    writer.add_value_length_mla(c["v_head_dim"])
    writer.add_rope_dimension_count(c["qk_rope_head_dim"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])


def gguf_layer(of, index):
    import torch
    c = CONFIG
    for ours, theirs in LAYER_NAMES.items():
        yield ours, of(theirs)
    heads = of("self_attn.kv_b_proj").view(c["num_attention_heads"], -1, c["kv_lora_rank"])
    k, v = heads.split([c["qk_nope_head_dim"], c["v_head_dim"]], dim=1)
    yield "attn_k_b", k.transpose(1, 2).contiguous()
    yield "attn_v_b", v.contiguous()
    if index < c["first_k_dense_replace"]:
        for theirs, ours in EXPERTS.items():
            yield ours, of(f"mlp.{theirs}")
        return
    for theirs, ours in EXPERTS.items():
        yield f"{ours}_exps", torch.stack([of(f"mlp.experts.{e}.{theirs}") for e in range(c["n_routed_experts"])])
        yield f"{ours}_shexp", of(f"mlp.shared_experts.{theirs}")
    yield "ffn_gate_inp", of("mlp.gate")


MODEL = random_model.RandomModel(CONFIG, "deepseek2", add_metadata, layer_shapes, gguf_layer)
write_all = MODEL.write_all

if __name__ == "__main__":
    random_model.main(__doc__, write_all, [*random_model.PLAIN_DTYPES, "q8_0"])
