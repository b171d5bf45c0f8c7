#!/usr/bin/env python3
"""A tiny random Jet-Nemotron with what an independent float64 reference computes from it.

transformers has no such model; the reference below follows the paper (Gu et al. 2025, arXiv 2508.15884) and the published
configuration, token by token, and shares nothing with the engine. Writes tests/golden/families/jet-nemotron/ as
make_family_goldens.py does. Needs: torch, safetensors, numpy.

    python3 tools/make_jet_golden.py
"""
import json
import math

import numpy as np
import torch
from safetensors.torch import save_file

from make_family_goldens import GREEDY_TOKENS, OUT, PROMPT_TOKENS, VOCAB, show_sizes, write_golden

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 32, 48, 2, 1, 16
JET_HEADS, JET_K, JET_V, WIDTH, REDUCTION, WINDOW = 2, 16, 32, 4, 8, 8
LAYERS = ["jet", "attn", "jet", "swa", "jet"]
EPS, JET_EPS, THETA = 1e-6, 1e-5, 1e6

CONFIG = {
    "architectures": ["JetNemotronForCausalLM"], "model_type": "jet_nemotron", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": FFN, "num_hidden_layers": len(LAYERS), "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": EPS,
    "rope_theta": THETA, "rope_scaling": None, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1,
    "torch_dtype": "bfloat16", "layer_types": LAYERS,
    "efficient_attention_config": {
        "jet": {"mode": "chunk", "num_heads": JET_HEADS, "head_dim": JET_K, "expand_v": JET_V / JET_K, "conv_size": WIDTH,
                "norm_eps": str(JET_EPS), "dconv_generator_reduction": REDUCTION},
        "swa": {"window_size": WINDOW}},
}


def shapes():
    keys, values = JET_HEADS * JET_K, JET_HEADS * JET_V
    out = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i, kind in enumerate(LAYERS):
        layer = f"model.layers.{i}."
        mixer = layer + "self_attn."
        out |= {layer + "input_layernorm.weight": (HIDDEN,), layer + "post_attention_layernorm.weight": (HIDDEN,),
                layer + "mlp.gate_proj.weight": (FFN, HIDDEN), layer + "mlp.up_proj.weight": (FFN, HIDDEN),
                layer + "mlp.down_proj.weight": (HIDDEN, FFN)}
        if kind == "jet":
            generator, rank = mixer + "dynamic_conv1d.kernel_generator.", values // REDUCTION
            out |= {mixer + name + ".weight": (rows, HIDDEN) for name, rows in (
                ("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("g_proj", values), ("b_proj", JET_HEADS),
                ("a_proj", JET_HEADS))}
            out |= {mixer + "A_log": (JET_HEADS,), mixer + "dt_bias": (JET_HEADS,), mixer + "o_norm.weight": (JET_V,),
                    mixer + "o_proj.weight": (HIDDEN, values), generator + "w1.weight": (rank, HIDDEN),
                    generator + "w2.weight": (values * WIDTH, rank), generator + "w2.bias": (values * WIDTH,)}
        else:
            for name, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
                out |= {mixer + name + ".weight": (heads * HEAD_DIM, HIDDEN), mixer + name + ".bias": (heads * HEAD_DIM,)}
            out[mixer + "o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
    return out


def random_weights(seed):
    """Exact in bfloat16, so that every part shows in the logits."""
    generator, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes().items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif len(shape) == 1:
            value = 0.4 * noise
        else:
            value = noise * (3.0 if "embed" in name else 0.8 if "generator" in name else 1.6) / math.sqrt(shape[1])
        out[name] = value.to(torch.bfloat16)
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


class Reference:
    def __init__(self, weights):
        self.w = {name: value.double().numpy() for name, value in weights.items()}

    def times(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def logits(self, ids):
        x = self.w["model.embed_tokens.weight"][ids]
        for i, kind in enumerate(LAYERS):
            layer = f"model.layers.{i}."
            h = rms_norm(x, self.w[layer + "input_layernorm.weight"], EPS)
            mixer = layer + "self_attn."
            x = x + (self.jet(h, mixer) if kind == "jet" else self.attention(h, mixer, WINDOW if kind == "swa" else len(ids)))
            h = rms_norm(x, self.w[layer + "post_attention_layernorm.weight"], EPS)
            x = x + self.times(silu(self.times(h, layer + "mlp.gate_proj")) * self.times(h, layer + "mlp.up_proj"), layer + "mlp.down_proj")
        return rms_norm(x, self.w["model.norm.weight"], EPS) @ self.w["model.embed_tokens.weight"].T

    def convolved(self, v, h, mixer):
        """Each channel's last WIDTH values, weighted as the token itself says."""
        generator = mixer + "dynamic_conv1d.kernel_generator."
        kernels = self.times(silu(self.times(h, generator + "w1")), generator + "w2").reshape(len(h), v.shape[1], WIDTH)
        out = np.zeros_like(v)
        for t in range(len(v)):
            for back in range(min(WIDTH, t + 1)):
                out[t] += kernels[t, :, WIDTH - 1 - back] * v[t - back]
        return silu(out)

    def jet(self, h, mixer):
        tokens = len(h)
        q = silu(self.times(h, mixer + "q_proj")).reshape(tokens, JET_HEADS, JET_K)
        k = silu(self.times(h, mixer + "k_proj")).reshape(tokens, JET_HEADS, JET_K)
        v = self.convolved(self.times(h, mixer + "v_proj"), h, mixer).reshape(tokens, JET_HEADS, JET_V)
        q, k = (x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6) for x in (q, k))
        beta = sigmoid(self.times(h, mixer + "b_proj"))
        raw = self.times(h, mixer + "a_proj") + self.w[mixer + "dt_bias"]
        decay = np.exp(-np.exp(self.w[mixer + "A_log"]) * np.log1p(np.exp(raw)))
        out = np.zeros((tokens, JET_HEADS, JET_V))
        for head in range(JET_HEADS):
            state = np.zeros((JET_V, JET_K))
            for t in range(tokens):
                state *= decay[t, head]
                state += beta[t, head] * np.outer(v[t, head] - state @ k[t, head], k[t, head])
                out[t, head] = state @ q[t, head] / math.sqrt(JET_K)
        gate = silu(self.times(h, mixer + "g_proj")).reshape(out.shape)
        out = rms_norm(out, self.w[mixer + "o_norm.weight"], JET_EPS) * gate
        return self.times(out.reshape(tokens, -1), mixer + "o_proj")

    def attention(self, h, mixer, window):
        tokens = len(h)
        half = HEAD_DIM // 2
        angles = np.arange(tokens)[:, None] * THETA ** -(np.arange(half) / half)

        def heads(name, count, turned):
            x = self.times(h, mixer + name).reshape(tokens, count, HEAD_DIM)
            if not turned:
                return x
            a, b, c, s = x[..., :half], x[..., half:], np.cos(angles)[:, None], np.sin(angles)[:, None]
            return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

        q, k, v = heads("q_proj", HEADS, True), heads("k_proj", KV_HEADS, True), heads("v_proj", KV_HEADS, False)
        out = np.zeros((tokens, HEADS, HEAD_DIM))
        for t in range(tokens):
            first = max(0, t + 1 - window)
            for head in range(HEADS):
                of = head * KV_HEADS // HEADS
                scores = k[first:t + 1, of] @ q[t, head] / math.sqrt(HEAD_DIM)
                weights = np.exp(scores - scores.max())
                out[t, head] = weights / weights.sum() @ v[first:t + 1, of]
        return self.times(out.reshape(tokens, -1), mixer + "o_proj")


def golden(reference, seed):
    ids = [int(i) for i in np.random.default_rng(seed).integers(2, VOCAB, PROMPT_TOKENS)]
    greedy, margin = [], math.inf
    for _ in range(GREEDY_TOKENS):
        last = reference.logits(ids + greedy)[-1]
        second, best = np.argsort(last)[-2:]
        margin = min(margin, float(last[best] - last[second]))
        greedy.append(int(best))
    return {"made_with": f"tools/make_jet_golden.py, numpy {np.__version__}, float64", "input_ids": ids, "greedy_ids": greedy,
            "smallest_greedy_margin": round(margin, 6),
            "logits": [[round(float(x), 5) for x in row] for row in reference.logits(ids + greedy)]}


def main():
    for seed in range(1, 50):
        weights = random_weights(seed)
        value = golden(Reference(weights), seed)
        if value["smallest_greedy_margin"] > 0.02:
            break
    folder = OUT / "jet-nemotron"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_golden(folder, value)
    show_sizes("jet-nemotron")


if __name__ == "__main__":
    main()
