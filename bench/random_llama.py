"""Writes one random Llama three times over: a Hugging Face folder (config.json, safetensors; no
tokenizer), a GGUF file and a CTranslate2 folder, all with the same weights.

  python bench/random_llama.py OUT_DIR --dtype bf16

With a GGUF format (q8_0, q4_0, q4_1, q4_k, q6_k) for its dtype only the GGUF file, all matrices in that format.

About 125 M parameters: hidden 768, ffn 2048, 12 layers, 12 query and 4 KV heads, vocabulary 32000,
untied embeddings.
"""
import pathlib

import random_model

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


def layer_shapes(_):
    c = CONFIG
    hidden, ffn, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    return {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}


def interleave_heads(weight, heads):
    """llama.cpp rotates neighbours (2i, 2i+1) where Hugging Face rotates (i, i + d/2)."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def add_metadata(writer):
    c = CONFIG
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_rope_dimension_count(c["head_dim"])


def gguf_layer(of, _):
    heads = {"attn_q": CONFIG["num_attention_heads"], "attn_k": CONFIG["num_key_value_heads"]}
    for ours, theirs in HF_NAMES.items():
        yield ours, interleave_heads(of(theirs), heads[ours]).contiguous() if ours in heads else of(theirs)


MODEL = random_model.RandomModel(CONFIG, "llama", add_metadata, layer_shapes, gguf_layer)


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
    """Returns the paths; keeps what is already there. CTranslate2 has float32 alone."""
    if dtype_name != "float32":
        return MODEL.write_all(out, dtype_name)
    ct2 = pathlib.Path(out) / "ct2"
    return MODEL.write_all(out, dtype_name, also=lambda tensors: write_ctranslate2(tensors, ct2)) | {"ct2": ct2}


if __name__ == "__main__":
    random_model.main(__doc__, write_all, ["f32", "bf16", *random_model.GGUF_FORMATS])
