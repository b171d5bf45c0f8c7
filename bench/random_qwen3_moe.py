"""Writes one random Qwen3-MoE twice over: a Hugging Face folder (config.json, safetensors; no tokenizer) and a
GGUF file, with the same weights.

  python bench/random_qwen3_moe.py OUT_DIR --dtype bf16

About 240 M parameters, of which a token uses 64 M: hidden 512, 8 layers, 32 experts of width 512 of which 4 are
chosen, 8 query and 4 KV heads, vocabulary 32000, untied embeddings.
"""
import argparse
import json
import pathlib

import random_llama

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


def random_tensors(dtype):
    import torch
    generator = torch.Generator().manual_seed(0)
    c = CONFIG
    hidden, ffn, head = c["hidden_size"], c["moe_intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head

    def matrix(rows, cols):
        return (torch.randn(rows, cols, generator=generator) * 0.02).to(dtype)

    tensors = {"model.embed_tokens.weight": matrix(c["vocab_size"], hidden),
               "lm_head.weight": matrix(c["vocab_size"], hidden), "model.norm.weight": torch.ones(hidden, dtype=dtype)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
                            "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
                            "mlp.gate": (c["num_experts"], hidden)}.items():
            tensors[f"{at}{name}.weight"] = matrix(*shape)
        for e in range(c["num_experts"]):
            for name in PROJECTIONS:
                tensors[f"{at}mlp.experts.{e}.{name}.weight"] = matrix(*((hidden, ffn) if name == "down_proj" else (ffn, hidden)))
        for name, size in {"input_layernorm": hidden, "post_attention_layernorm": hidden, "self_attn.q_norm": head,
                           "self_attn.k_norm": head}.items():
            tensors[f"{at}{name}.weight"] = torch.ones(size, dtype=dtype)
    return tensors


def write_gguf(tensors, path, dtype_name):
    import gguf
    import torch
    c = CONFIG
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_expert_count(c["num_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    random_llama.add_vocabulary(writer, c["vocab_size"])

    def add(name, tensor):
        random_llama.add_tensor(writer, name, tensor, dtype_name)

    add("token_embd.weight", tensors["model.embed_tokens.weight"])
    add("output.weight", tensors["lm_head.weight"])
    add("output_norm.weight", tensors["model.norm.weight"])
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for ours, theirs in LAYER_NAMES.items():
            tensor = tensors[f"{at}{theirs}.weight"]
            # Converters keep the router in f32.
            random_llama.add_tensor(writer, f"blk.{i}.{ours}.weight", tensor,
                                    "float32" if ours == "ffn_gate_inp" else dtype_name)
        for theirs, ours in PROJECTIONS.items():
            add(f"blk.{i}.{ours}.weight", torch.stack([tensors[f"{at}mlp.experts.{e}.{theirs}.weight"]
                                                       for e in range(c["num_experts"])]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_all(out, dtype_name):
    """Returns the paths; keeps what is already there."""
    import torch
    from safetensors.torch import save_file
    out = pathlib.Path(out)
    paths = {"hf": out / "hf", "gguf": out / "model.gguf"}
    done = out / "complete"
    if not done.exists():
        tensors = random_tensors({"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype_name])
        paths["hf"].mkdir(parents=True, exist_ok=True)
        (paths["hf"] / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": dtype_name}, indent=1))
        save_file(tensors, paths["hf"] / "model.safetensors", metadata={"format": "pt"})
        write_gguf(tensors, str(paths["gguf"]), dtype_name)
        done.touch()
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    args = parser.parse_args()
    print(write_all(args.out, {"f32": "float32", "bf16": "bfloat16"}[args.dtype]))
