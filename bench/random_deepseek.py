"""Writes one random DeepSeek V2 twice over: a Hugging Face folder (config.json, safetensors; no tokenizer) and a GGUF file,
with the same weights.

  python bench/random_deepseek.py OUT_DIR --dtype bf16

About 120 M parameters, of which a token uses 48 M: hidden 512, 8 layers, the first dense, 16 experts of width 384 of which 4
are chosen and one shared, 8 heads of 64 + 32 dims over a latent of 256 + 32, queries through 384, vocabulary 32000, untied
embeddings. With a block format (q8_0) there is the GGUF file alone.
"""
import argparse
import json
import pathlib

import random_llama

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


def random_tensors(dtype):
    import torch
    generator = torch.Generator().manual_seed(0)

    def tensor(shape):
        return torch.ones(shape, dtype=dtype) if len(shape) == 1 else (torch.randn(shape, generator=generator) * 0.02).to(dtype)

    table = (CONFIG["vocab_size"], CONFIG["hidden_size"])
    tensors = {"model.embed_tokens.weight": tensor(table), "lm_head.weight": tensor(table),
               "model.norm.weight": tensor(table[1:])}
    for i in range(CONFIG["num_hidden_layers"]):
        for name, shape in layer_shapes(i).items():
            tensors[f"model.layers.{i}.{name}.weight"] = tensor(shape)
    return tensors


def write_metadata(writer):
    c = CONFIG
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_kv_lora_rank(c["kv_lora_rank"])
    writer.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    writer.add_value_length(c["kv_lora_rank"])
    writer.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    writer.add_value_length_mla(c["v_head_dim"])
    writer.add_rope_dimension_count(c["qk_rope_head_dim"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])


def write_layer(tensors, index, add):
    import torch
    c = CONFIG
    of = lambda name: tensors[f"model.layers.{index}.{name}.weight"]
    at = f"blk.{index}."
    for ours, theirs in LAYER_NAMES.items():
        add(f"{at}{ours}.weight", of(theirs))
    heads = of("self_attn.kv_b_proj").view(c["num_attention_heads"], -1, c["kv_lora_rank"])
    k, v = heads.split([c["qk_nope_head_dim"], c["v_head_dim"]], dim=1)
    add(f"{at}attn_k_b.weight", k.transpose(1, 2).contiguous())
    add(f"{at}attn_v_b.weight", v.contiguous())
    for theirs, ours in EXPERTS.items():
        if index < c["first_k_dense_replace"]:
            add(f"{at}{ours}.weight", of(f"mlp.{theirs}"))
            continue
        add(f"{at}{ours}_exps.weight", torch.stack([of(f"mlp.experts.{e}.{theirs}") for e in range(c["n_routed_experts"])]))
        add(f"{at}{ours}_shexp.weight", of(f"mlp.shared_experts.{theirs}"))


def write_gguf(tensors, path, dtype_name):
    import gguf
    writer = gguf.GGUFWriter(path, "deepseek2")
    write_metadata(writer)
    random_llama.add_vocabulary(writer, CONFIG["vocab_size"])
    add = lambda name, tensor: random_llama.add_tensor(writer, name, tensor, dtype_name)
    add("token_embd.weight", tensors["model.embed_tokens.weight"])
    add("output.weight", tensors["lm_head.weight"])
    add("output_norm.weight", tensors["model.norm.weight"])
    for i in range(CONFIG["num_hidden_layers"]):
        write_layer(tensors, i, add)
        if i >= CONFIG["first_k_dense_replace"]:  # converters keep the router in f32
            random_llama.add_tensor(writer, f"blk.{i}.ffn_gate_inp.weight", tensors[f"model.layers.{i}.mlp.gate.weight"], "float32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_all(out, dtype_name):
    """Returns the paths; keeps what is already there."""
    import torch
    from safetensors.torch import save_file
    out = pathlib.Path(out)
    plain = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(dtype_name)
    paths = {"gguf": out / "model.gguf"} | ({"hf": out / "hf"} if plain else {})
    done = out / "complete"
    if not done.exists():
        tensors = random_tensors(plain or torch.float32)
        out.mkdir(parents=True, exist_ok=True)
        if plain:
            paths["hf"].mkdir(exist_ok=True)
            (paths["hf"] / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": dtype_name}, indent=1))
            save_file(tensors, paths["hf"] / "model.safetensors", metadata={"format": "pt"})
        write_gguf(tensors, str(paths["gguf"]), dtype_name)
        done.touch()
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--dtype", choices=["f32", "bf16", "q8_0"], default="bf16")
    args = parser.parse_args()
    print(write_all(args.out, {"f32": "float32", "bf16": "bfloat16"}.get(args.dtype, args.dtype)))
