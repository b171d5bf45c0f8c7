"""Writes one random Qwen3-Next twice over: a Hugging Face folder (config.json, safetensors; no tokenizer) and a GGUF file,
with the same weights.

  python bench/random_qwen3_next.py OUT_DIR --dtype bf16

About 130 M parameters, of which a token uses 57 M: hidden 512, 8 layers, every fourth of full attention (4 query and 2 KV heads of
128, gated), the others gated delta rules (4 k and 8 v heads of 128, a convolution of 4), 16 experts of width 384 of which 4
are chosen and one shared, vocabulary 32000, untied embeddings.
"""
import random_model

CONFIG = dict(
    architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=512, intermediate_size=1536,
    moe_intermediate_size=384, shared_expert_intermediate_size=384, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True,
    decoder_sparse_step=1, mlp_only_layers=[], num_hidden_layers=8, full_attention_interval=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=128, partial_rotary_factor=0.25, linear_num_key_heads=4, linear_num_value_heads=8,
    linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, vocab_size=32000,
    max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False,
    bos_token_id=1, eos_token_id=2, attention_bias=False)
EXPERTS = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
NORMS = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm"}  # Hugging Face keeps their weights less 1
ATTENTION = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj"}
LINEAR = {"ssm_ba": "linear_attn.in_proj_ba", "ssm_dt.bias": "linear_attn.dt_bias", "ssm_norm": "linear_attn.norm",
          "ssm_out": "linear_attn.out_proj"}


def is_full(index):
    return (index + 1) % CONFIG["full_attention_interval"] == 0


def layer_shapes(index):
    c = CONFIG
    hidden, head, heads = c["hidden_size"], c["head_dim"], c["num_attention_heads"]
    shapes = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "mlp.gate": (c["num_experts"], hidden),
              "mlp.shared_expert_gate": (1, hidden)}
    if is_full(index):
        kv = c["num_key_value_heads"] * head
        shapes |= {"self_attn.q_proj": (2 * heads * head, hidden), "self_attn.k_proj": (kv, hidden),
                   "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, heads * head), "self_attn.q_norm": (head,),
                   "self_attn.k_norm": (head,)}
    else:
        v_heads = c["linear_num_value_heads"]
        k, v = c["linear_num_key_heads"] * c["linear_key_head_dim"], v_heads * c["linear_value_head_dim"]
        shapes |= {"linear_attn.in_proj_qkvz": (2 * k + 2 * v, hidden), "linear_attn.in_proj_ba": (2 * v_heads, hidden),
                   "linear_attn.conv1d": (2 * k + v, 1, c["linear_conv_kernel_dim"]), "linear_attn.A_log": (v_heads,),
                   "linear_attn.dt_bias": (v_heads,), "linear_attn.norm": (c["linear_value_head_dim"],),
                   "linear_attn.out_proj": (hidden, v)}
    blocks = {f"mlp.experts.{e}.": c["moe_intermediate_size"] for e in range(c["num_experts"])}
    blocks["mlp.shared_expert."] = c["shared_expert_intermediate_size"]
    for block, ffn in blocks.items():
        shapes |= {block + "gate_proj": (ffn, hidden), block + "up_proj": (ffn, hidden), block + "down_proj": (hidden, ffn)}
    return shapes


def add_metadata(writer):
    c = CONFIG
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_rope_dimension_count(int(c["head_dim"] * c["partial_rotary_factor"]))
    writer.add_expert_count(c["num_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    writer.add_full_attention_interval(c["full_attention_interval"])
    writer.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(c["linear_key_head_dim"])
    writer.add_ssm_group_count(c["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(c["linear_num_value_heads"])
    writer.add_ssm_inner_size(c["linear_num_value_heads"] * c["linear_value_head_dim"])


def split_qkvz(weight):
    """q, k and v of all heads, then z: Hugging Face has a k head's q, k, v and z together."""
    import torch
    c = CONFIG
    k_heads = c["linear_num_key_heads"]
    v_dim = c["linear_num_value_heads"] // k_heads * c["linear_value_head_dim"]
    parts = weight.view(k_heads, -1, weight.shape[1]).split([c["linear_key_head_dim"]] * 2 + [v_dim] * 2, dim=1)
    q, k, v, z = (part.flatten(0, 1) for part in parts)
    return torch.cat([q, k, v]), z


def gguf_layer(of, index):
    import torch
    for ours, theirs in NORMS.items():
        if is_full(index) or "self_attn" not in theirs:
            yield ours, of(theirs) + 1
    for ours, theirs in (ATTENTION if is_full(index) else LINEAR).items():
        yield ours, of(theirs)
    if not is_full(index):
        qkv, z = split_qkvz(of("linear_attn.in_proj_qkvz"))
        yield "attn_qkv", qkv
        yield "attn_gate", z
        yield "ssm_conv1d", of("linear_attn.conv1d").squeeze(1)
        yield "ssm_a", -of("linear_attn.A_log").float().exp()
    yield "ffn_gate_inp", of("mlp.gate")
    yield "ffn_gate_inp_shexp", of("mlp.shared_expert_gate").squeeze(0)
    for theirs, ours in EXPERTS.items():
        yield f"{ours}_exps", torch.stack([of(f"mlp.experts.{e}.{theirs}") for e in range(CONFIG["num_experts"])])
        yield f"{ours}_shexp", of(f"mlp.shared_expert.{theirs}")


MODEL = random_model.RandomModel(CONFIG, "qwen3next", add_metadata, layer_shapes, gguf_layer, output_norm=lambda weight: weight + 1,
                                 bare=("linear_attn.A_log", "linear_attn.dt_bias", "ssm_a", "ssm_dt.bias"))
write_all = MODEL.write_all

if __name__ == "__main__":
    random_model.main(__doc__, write_all, list(random_model.PLAIN_DTYPES))
