#!/usr/bin/env python3
"""GGUF files of Qwen3-Next and Qwen3.5, as llama.cpp's converter writes them, of the models that make_family_goldens.py made.

Writes tests/golden/families/gguf-qwen3-next-moe, gguf-qwen3_5 and gguf-qwen3_5-moe: model.gguf, and the same golden.json, for
the weights are the same. Needs gguf and numpy.

    python3 tools/make_gguf_hybrids.py
"""
import json
import pathlib
import shutil
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quant

FAMILIES = pathlib.Path(__file__).parent.parent / "tests/golden/families"
ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
NAMES = {"in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_ba": "ssm_ba", "in_proj_b": "ssm_beta",
         "in_proj_a": "ssm_alpha", "conv1d": "ssm_conv1d", "norm": "ssm_norm", "out_proj": "ssm_out"}


def read_tensors(path):
    """{name: values in float32} of a safetensors file in bfloat16 and float32."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, np.float32)
        out[name] = values.reshape(entry["shape"])
    return out


def write_metadata(writer, config, predicting):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + predicting)
    if predicting:
        writer.add_nextn_predict_layers(predicting)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    if predicting:  # newer converters say it of each layer, and the interval of the published models
        writer.add_full_attention_interval(4)
        kinds = config["layer_types"] + ["full_attention"] * predicting
        writer.add_array(f"{ARCHITECTURES[config['model_type']]}.attention.recurrent_layers", [kind == "linear_attention" for kind in kinds])
    else:
        writer.add_full_attention_interval(2)
    writer.add_vocab_size(config["vocab_size"])
    if config.get("num_experts"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def tiled(values, config, first, rows):
    """v heads, of so many rows each behind row `first`, by their number among a k head's."""
    k_heads, v_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    heads = values[first:].reshape(k_heads, v_heads // k_heads, rows, *values.shape[1:])
    return np.concatenate([values[:first], heads.swapaxes(0, 1).reshape(-1, *values.shape[1:])])


def with_tiled_heads(name, values, config):
    keys, v_dim = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"], config["linear_value_head_dim"]
    if name == "norm":
        return values
    if name == "out_proj":
        return tiled(values.T, config, 0, v_dim).T
    if name in ("in_proj_qkv", "conv1d"):
        return tiled(values, config, keys, v_dim)
    return tiled(values, config, 0, v_dim if name == "in_proj_z" else 1)


def split_qkvz(values, config):
    """The rows of each k head's q, k, v and z as those of q, k and v of all heads, and of z."""
    k_heads, k_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    v_rows = config["linear_num_value_heads"] // k_heads * config["linear_value_head_dim"]
    parts = np.split(values.reshape(k_heads, -1, values.shape[1]), np.cumsum([k_dim, k_dim, v_rows]), axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    return np.concatenate([q, k, v]), z


def delta_net_tensors(name, values, config):
    """[(name behind "blk.N.", values)]; `name` without "linear_attn." and ".weight"."""
    if name == "in_proj_qkvz":
        return list(zip(("attn_qkv.weight", "attn_gate.weight"), split_qkvz(values, config)))
    if name == "conv1d":
        values = values.squeeze(1)
    if config["model_type"] != "qwen3_next":
        values = with_tiled_heads(name, values, config)
    if name == "A_log":
        return [("ssm_a", -np.exp(values))]
    return [("ssm_dt.bias" if name == "dt_bias" else NAMES[name] + ".weight", values)]


def gguf_tensors(tensors, config, names):
    experts = {}
    for name, values in tensors.items():
        stem, *_ = name.rsplit(".weight", 1)
        parts = stem.split(".")
        if "linear_attn" in parts:
            for new, part in delta_net_tensors(parts[-1], values, config):
                yield f"blk.{parts[2]}.{new}", part
            continue
        if "experts" in parts and parts[-2].isdigit():
            experts.setdefault((parts[2], parts[-1]), {})[int(parts[-2])] = values
            continue
        if stem.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1)):
                yield f"blk.{parts[2]}.ffn_{part}_exps.weight", half
            continue
        if stem.endswith("experts.down_proj"):
            yield f"blk.{parts[2]}.ffn_down_exps.weight", values
            continue
        if "norm" in parts[-1]:
            values = values + 1
        if stem.endswith("shared_expert_gate"):
            values = values.squeeze()
        dense = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}.get(".".join(parts[-2:]))
        yield (f"blk.{parts[2]}.{dense}" if dense else names.get_name(stem) or stem) + ".weight", values
    for (layer, matrix), of_experts in experts.items():
        stacked = np.stack([of_experts[e] for e in range(len(of_experts))])
        yield f"blk.{layer}.ffn_{matrix.removesuffix('_proj')}_exps.weight", stacked


def write_model(source, folder, tensors=None, predicting=0):
    """model.gguf in `folder` of the model in `source`, and its golden. `tensors`: with so many layers that predict further
    tokens, whose own parts have their names."""
    config = json.loads((source / "config.json").read_text())
    arch_name = ARCHITECTURES[config["model_type"]]
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", arch_name)
    write_metadata(writer, config, predicting)
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == arch_name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"] + predicting)
    for tensor, values in gguf_tensors(tensors or read_tensors(source / "model.safetensors"), config, names):
        in_f32 = values.ndim == 1 or tensor.endswith("ssm_conv1d.weight")
        quant = Quant.F32 if in_f32 else Quant.BF16
        writer.add_tensor(tensor, values.astype(np.float32) if in_f32 else gguf.quantize(values, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.copy(source / "golden.json", folder)


if __name__ == "__main__":
    for source, name in (("qwen3-next", "gguf-qwen3-next-moe"), ("qwen3_5", "gguf-qwen3_5"), ("qwen3_5-moe", "gguf-qwen3_5-moe")):
        write_model(FAMILIES / source, FAMILIES / name)
