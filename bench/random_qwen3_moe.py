"""Writes one random Qwen3-MoE twice over: a Hugging Face folder (config.json, safetensors; no tokenizer) and a
GGUF file, with the same weights.

  python bench/random_qwen3_moe.py OUT_DIR --dtype bf16

About 240 M parameters, of which a token uses 64 M: hidden 512, 8 layers, 32 experts of width 512 of which 4 are
chosen, 8 query and 4 KV heads, vocabulary 32000, untied embeddings.
"""
import random_model

CONFIG = dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=512, intermediate_size=1536,
    moe_intermediate_size=512, num_experts=32, num_experts_per_tok=4, norm_topk_prob=True, decoder_sparse_step=1,
    mlp_only_layers=[], num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
    vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
    tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, attention_bias=False)
PROJECTIONS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
LAYER_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
               "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
               "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"}


def layer_shapes(_):
    c = CONFIG
    hidden, ffn, head = c["hidden_size"], c["moe_intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    shapes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
              "self_attn.o_proj": (hidden, q), "mlp.gate": (c["num_experts"], hidden), "input_layernorm": (hidden,),
              "post_attention_layernorm": (hidden,), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    for e in range(c["num_experts"]):
        for name in PROJECTIONS:
            shapes[f"mlp.experts.{e}.{name}"] = (hidden, ffn) if name == "down_proj" else (ffn, hidden)
    return shapes


def add_metadata(writer):
    c = CONFIG
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_expert_count(c["num_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])


def gguf_layer(of, _):
    import torch
    for ours, theirs in LAYER_NAMES.items():
        yield ours, of(theirs)
    for theirs, ours in PROJECTIONS.items():
        yield ours, torch.stack([of(f"mlp.experts.{e}.{theirs}") for e in range(CONFIG["num_experts"])])


MODEL = random_model.RandomModel(CONFIG, "qwen3moe", add_metadata, layer_shapes, gguf_layer)
write_all = MODEL.write_all

if __name__ == "__main__":
    random_model.main(__doc__, write_all, list(random_model.PLAIN_DTYPES))
