#!/usr/bin/env python3
"""What transformers computes in one gated delta net layer of Qwen3-Next, in float32 on the CPU.

Writes tests/golden/linear/gated_delta_net.json: a tiny layer with random weights, two sequences of hidden states, the
layer's outputs, and the recurrent state after each sequence. The same seed gives the same file. With --model FOLDER
--layer N --out FILE it takes that layer of a checkpoint, and its embeddings as hidden states. Needs: torch, transformers.
"""
import argparse
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as q3n

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "linear" / "gated_delta_net.json"
LENGTHS = [70, 5]


def tiny_layer():
    config = Qwen3NextConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, layer_types=["linear_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=32,
        linear_conv_kernel_dim=4, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
    torch.manual_seed(7)
    layer = q3n.Qwen3NextGatedDeltaNet(config, layer_idx=0).float().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.4 if parameter.dim() > 1 else 1.0))
    hidden = [torch.randn(1, n, config.hidden_size) for n in LENGTHS]
    return config, layer, hidden


def model_layer(folder, index):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    layer = model.model.layers[index].linear_attn
    ids = torch.arange(2 * sum(LENGTHS), 3 * sum(LENGTHS)).unsqueeze(0)
    rows = model.model.layers[index].input_layernorm(model.model.embed_tokens(ids)).detach()
    return model.config, layer, list(torch.split(rows, LENGTHS, dim=1))


def numbers(tensor):
    return [float(f"{x:.9g}") for x in tensor.detach().float().flatten().tolist()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    config, layer, hidden = model_layer(args.model, args.layer) if args.model else tiny_layer()
    states = []
    chunk = q3n.torch_chunk_gated_delta_rule

    def keep_state(*call, **options):
        out, state = chunk(*call, **{**options, "output_final_state": True})
        states.append(state[0].transpose(-1, -2).contiguous())  # [v_heads, v_dim, k_dim]
        return out, state

    q3n.torch_chunk_gated_delta_rule = keep_state
    with torch.no_grad():
        outputs = [layer(rows) for rows in hidden]
    assert len(states) == len(hidden), "this version of transformers calls another function"
    golden = {
        "source": "transformers' Qwen3NextGatedDeltaNet, float32",
        "hidden": config.hidden_size, "k_heads": config.linear_num_key_heads, "v_heads": config.linear_num_value_heads,
        "k_dim": config.linear_key_head_dim, "v_dim": config.linear_value_head_dim,
        "conv_width": config.linear_conv_kernel_dim, "norm_eps": config.rms_norm_eps,
        "in_proj_qkvz": numbers(layer.in_proj_qkvz.weight), "in_proj_ba": numbers(layer.in_proj_ba.weight),
        "conv1d": numbers(layer.conv1d.weight), "A_log": numbers(layer.A_log), "dt_bias": numbers(layer.dt_bias),
        "norm": numbers(layer.norm.weight), "out_proj": numbers(layer.out_proj.weight),
        "sequences": [{"x": numbers(x), "y": numbers(y), "state": numbers(s)}
                      for x, y, s in zip(hidden, outputs, states)],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(golden))


if __name__ == "__main__":
    main()
