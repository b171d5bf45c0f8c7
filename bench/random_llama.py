"""Writes one random Llama three times over: a Hugging Face folder (config.json, safetensors; no
tokenizer), a GGUF file and a CTranslate2 folder, all with the same weights.

  python bench/random_llama.py OUT_DIR --dtype bf16

With a GGUF format (q8_0, q4_0, q4_1, q4_k, q6_k) for its dtype only the GGUF file, all matrices in that format.

About 125 M parameters: hidden 768, ffn 2048, 12 layers, 12 query and 4 KV heads, vocabulary 32000,
untied embeddings.
"""
import argparse
import json
import pathlib

CONFIG = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=768,
    intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
    head_dim=64, vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-5,
    rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, bos_token_id=1,
    eos_token_id=2, attention_bias=False, mlp_bias=False)
HF_NAMES = {  # per layer: GGUF name -> Hugging Face name
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj"}


def random_tensors(dtype):
    import torch
    generator = torch.Generator().manual_seed(0)
    c = CONFIG
    hidden, ffn, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * 64

    def matrix(rows, cols):
        return (torch.randn(rows, cols, generator=generator) * 0.02).to(dtype)

    tensors = {"model.embed_tokens.weight": matrix(c["vocab_size"], hidden),
               "lm_head.weight": matrix(c["vocab_size"], hidden),
               "model.norm.weight": torch.ones(hidden, dtype=dtype)}
    for i in range(c["num_hidden_layers"]):
        shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
                  "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
                  "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
                  "mlp.down_proj": (hidden, ffn)}
        for name, shape in shapes.items():
            tensors[f"model.layers.{i}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{name}.weight"] = torch.ones(hidden, dtype=dtype)
    return tensors


def write_hugging_face(tensors, out, dtype_name):
    from safetensors.torch import save_file
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": dtype_name}, indent=1))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def interleave_heads(weight, heads):
    """llama.cpp rotates neighbours (2i, 2i+1) where Hugging Face rotates (i, i + d/2)."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def add_vocabulary(writer, size):
    """Some words, so that the file can be opened; prompts are token ids."""
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("llama")
    specials = [b"<unk>", b"<s>", b"</s>"]
    pieces = [f"<0x{b:02X}>".encode() for b in range(256)]
    words = [f"w{i}".encode() for i in range(size - len(specials) - len(pieces))]
    writer.add_token_list(specials + pieces + words)
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


GGUF_FORMATS = ("q8_0", "q4_0", "q4_1", "q4_k", "q6_k")


def random_k_blocks(shape, quant):
    """Random codes with scales that give values about as large as random_tensors'."""
    import gguf
    import numpy as np
    rng = np.random.default_rng(sum(shape))
    block, size = gguf.GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    if quant == gguf.GGMLQuantizationType.Q4_K:  # d, dmin, then the rest
        blocks[:, 0:4] = np.array([1e-4, 7e-4], dtype=np.float16).view(np.uint8)
    else:  # Q6_K ends with its d
        blocks[:, 208:210] = np.array([1.5e-5], dtype=np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def add_tensor(writer, name, tensor, dtype_name):
    import gguf
    import torch
    if dtype_name in GGUF_FORMATS and tensor.dim() >= 2:
        quant = gguf.GGMLQuantizationType[dtype_name.upper()]
        k_blocks = dtype_name.endswith("_k")
        data = random_k_blocks(tensor.shape, quant) if k_blocks else gguf.quantize(tensor.float().numpy(), quant)
        writer.add_tensor(name, data, raw_dtype=quant)
        return
    if dtype_name == "bfloat16" and tensor.dim() >= 2:
        raw = tensor.to(torch.bfloat16).view(torch.int16).numpy().view("uint8")
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.float().numpy())


def write_gguf(tensors, path, dtype_name):
    import gguf
    c = CONFIG
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_dimension_count(c["head_dim"])
    writer.add_rope_freq_base(c["rope_theta"])
    add_vocabulary(writer, c["vocab_size"])

    def add(name, tensor):
        add_tensor(writer, name, tensor, dtype_name)

    add("token_embd.weight", tensors["model.embed_tokens.weight"])
    add("output.weight", tensors["lm_head.weight"])
    add("output_norm.weight", tensors["model.norm.weight"])
    for i in range(c["num_hidden_layers"]):
        for ours, theirs in HF_NAMES.items():
            tensor = tensors[f"model.layers.{i}.{theirs}.weight"]
            if ours == "attn_q":
                tensor = interleave_heads(tensor, c["num_attention_heads"])
            if ours == "attn_k":
                tensor = interleave_heads(tensor, c["num_key_value_heads"])
            add(f"blk.{i}.{ours}.weight", tensor.contiguous())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_ctranslate2(tensors, out):
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec
    c = CONFIG
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        c["num_hidden_layers"], c["num_attention_heads"],
        activation=common_spec.Activation.SWISH, pre_norm=True, ffn_glu=True, rms_norm=True,
        rotary_dim=0, rotary_interleave=False, rotary_base=c["rope_theta"],
        num_heads_kv=c["num_key_value_heads"], head_dim=c["head_dim"])

    def numpy(name):
        return tensors[name].float().numpy()

    import numpy as np
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = numpy("model.embed_tokens.weight")
    decoder.projection.weight = numpy("lm_head.weight")
    decoder.layer_norm.gamma = numpy("model.norm.weight")
    for i, layer in enumerate(decoder.layer):
        at = f"model.layers.{i}."
        layer.self_attention.layer_norm.gamma = numpy(at + "input_layernorm.weight")
        layer.ffn.layer_norm.gamma = numpy(at + "post_attention_layernorm.weight")
        layer.self_attention.linear[0].weight = np.concatenate(
            [numpy(at + f"self_attn.{p}_proj.weight") for p in "qkv"])
        layer.self_attention.linear[1].weight = numpy(at + "self_attn.o_proj.weight")
        layer.ffn.linear_0.weight = numpy(at + "mlp.gate_proj.weight")
        layer.ffn.linear_0_noact.weight = numpy(at + "mlp.up_proj.weight")
        layer.ffn.linear_1.weight = numpy(at + "mlp.down_proj.weight")
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "w1", "w2", "w0"
    spec.config.layer_norm_epsilon = c["rms_norm_eps"]
    spec.register_vocabulary([f"w{i}" for i in range(c["vocab_size"])])
    spec.validate()
    spec.optimize()
    out.mkdir(parents=True, exist_ok=True)
    spec.save(str(out))


def write_all(out, dtype_name):
    """Returns the three paths; keeps what is already there."""
    import torch
    out = pathlib.Path(out)
    if dtype_name in GGUF_FORMATS:
        path = out / "model.gguf"
        if not path.exists():
            out.mkdir(parents=True, exist_ok=True)
            write_gguf(random_tensors(torch.float32), str(path), dtype_name)
        return {"gguf": path}
    paths = {"hf": out / "hf", "gguf": out / "model.gguf", "ct2": out / "ct2"}
    done = out / "complete"
    if not done.exists():
        tensors = random_tensors({"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype_name])
        write_hugging_face(tensors, paths["hf"], dtype_name)
        write_gguf(tensors, str(paths["gguf"]), dtype_name)
        if dtype_name == "float32":
            write_ctranslate2(tensors, paths["ct2"])
        done.touch()
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--dtype", choices=["f32", "bf16", *GGUF_FORMATS], default="bf16")
    args = parser.parse_args()
    print(write_all(args.out, {"f32": "float32", "bf16": "bfloat16"}.get(args.dtype, args.dtype)))
