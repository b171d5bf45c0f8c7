"""What llama.cpp's converter writes for DeepSeek V2 and V3 (deepseek2) and Kimi Linear (kimi-linear): their metadata, and
their tensors from those of transformers. For make_gguf_goldens.py."""
import pathlib
import tempfile

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from make_family_goldens import publish_kimi_linear


def write_latent_metadata(writer, config, joined):
    """joined: as files were before k_b and v_b were two tensors, which had the dims of the heads in other keys."""
    qk_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if joined:
        writer.add_key_length(qk_dim)
        writer.add_value_length(config.v_head_dim)
    else:
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(qk_dim)
        writer.add_value_length_mla(config.v_head_dim)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type == "kimi_linear":
        writer.add_head_count_kv([1 if kind == "full_attention" else 0 for kind in config.layer_types])
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_kda_head_dim(config.linear_head_dim)
        writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        return
    writer.add_head_count_kv(config.num_attention_heads if joined else 1)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.n_group and config.n_group > 1:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if config.model_type == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    elif not joined:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    mscale = config.rope_parameters.get("mscale_all_dim")
    if mscale is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * mscale)


def split_heads(values, config):
    """kv_b to k_b, turned over, and v_b: a matrix for each head."""
    nope, v_dim = config.qk_nope_head_dim, config.v_head_dim
    heads = values.reshape(config.num_attention_heads, nope + v_dim, config.kv_lora_rank)
    return np.ascontiguousarray(heads[:, :nope].transpose(0, 2, 1)), np.ascontiguousarray(heads[:, nope:])


def joined_heads(k, v):
    """split_heads turned back."""
    heads = np.concatenate([k.transpose(0, 2, 1), v], axis=1)
    return heads.reshape(-1, heads.shape[-1])


def kimi_linear_tensors(model, names):
    """(GGUF name, values) of a Kimi Linear, of the tensors that it is published with."""
    with tempfile.TemporaryDirectory() as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        publish_kimi_linear(pathlib.Path(folder))
        state = {name: tensor.float().numpy() for name, tensor in load_file(pathlib.Path(folder) / "model.safetensors").items()}
    matrices = {"w1": gguf.MODEL_TENSOR.FFN_GATE_EXP, "w2": gguf.MODEL_TENSOR.FFN_DOWN_EXP, "w3": gguf.MODEL_TENSOR.FFN_UP_EXP}
    experts = {}
    for name, values in state.items():
        stem, kind = name.rsplit(".", 1)
        parts = name.split(".")
        if "experts" in parts:
            experts.setdefault((int(parts[2]), parts[-2]), {})[int(parts[-3])] = values
        elif kind == "A_log":
            yield names.get_name(name), values
        elif kind == "dt_bias":
            yield names.get_name(stem + ".dt_proj") + ".bias", values
        elif kind == "e_score_correction_bias":
            yield names.get_name(stem + ".e_score_correction") + ".bias", values
        else:
            yield names.get_name(stem) + "." + kind, values
    for (layer, matrix), of_experts in experts.items():
        stacked = np.stack([of_experts[e] for e in range(len(of_experts))])
        yield gguf.TENSOR_NAMES[matrices[matrix]].format(bid=layer) + ".weight", stacked


def latent_tensor(name, values, config, joined):
    """[(name, values)] of a tensor that is another one in the file."""
    if name.endswith("attn_kv_b.weight") and not joined:
        k, v = split_heads(values, config)
        return [(name.replace("attn_kv_b", "attn_k_b"), k), (name.replace("attn_kv_b", "attn_v_b"), v)]
    if "ssm_conv1d" in name:
        return [(name, values.reshape(1, values.shape[0], 1, values.shape[-1]))]
    if name.endswith("ssm_a"):
        return [(name, -np.exp(values))]
    return [(name, values)]
