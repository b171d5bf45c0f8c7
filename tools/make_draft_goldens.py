#!/usr/bin/env python3
"""Tiny random models with draft heads, and what a reference drafts with them.

Writes tests/golden/drafts/<name>/: a model whose checkpoint has a layer that predicts a token more (nextn-*), or an EAGLE3
head and, beside it, its target. golden.json has prompts, what the head reads of the target behind the last token, its own
state there, and the tokens that it then drafts one after the other.

The reference is the definition in the papers, row by row over whole sequences: section 2.2 of DeepSeek-V3 (2412.19437)
around a decoder layer of transformers, and EAGLE3 (2503.01840) written out. Needs: torch, transformers, safetensors, numpy.

    python3 tools/make_draft_goldens.py [name ...]
"""
import copy
import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from make_family_goldens import BASE, FAMILIES, MLA, randomize, rope

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "drafts"
STEPS = 4
PROMPTS = (9, 23, 40)  # tokens
LEAST_MARGIN = 0.02

DEEPSEEK = dict(MLA, **rope("default"), q_lora_rank=24, num_experts_per_tok=3, n_group=4, topk_group=2,
                routed_scaling_factor=2.5)
LLAMA = dict(rope("default"), num_hidden_layers=6)
DRAFT_VOCAB = 40


def norm(rows, weight, eps, offset=0.0):
    return rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps) * (weight + offset)


def exact(shape, scale, generator, centre=0.0):
    """Random numbers that bfloat16 holds."""
    return (torch.randn(shape, generator=generator) * scale + centre).bfloat16().float()


def make_model(model_type, changes, seed):
    torch.manual_seed(7)
    config = AutoConfig.for_model(model_type, **{**BASE, **changes})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    randomize(model, torch.bfloat16, torch.Generator().manual_seed(seed))
    return model


def golden(target, drafts_of, seed):
    """drafts_of(ids, next) -> what is read, the head's state, its tokens, the smallest distance to a second-best token."""
    rng = np.random.default_rng(seed)
    prompts, margin = [], math.inf
    for length in PROMPTS:
        ids = [int(i) for i in rng.integers(2, target.config.vocab_size, length)]
        following = int(target(torch.tensor([ids])).logits[0, -1].argmax())
        read, state, tokens, gap = drafts_of(ids, following)
        margin = min(margin, gap)
        prompts.append({"input_ids": ids, "target_next": following, "feature_in": [round(float(x), 5) for x in read],
                        "feature_out": [round(float(x), 5) for x in state], "drafts": tokens})
    return prompts, margin


def chain(rows, embed, step):
    """Goes on from `rows` (what the layer reads at each position): step(rows) -> state and logits of the last."""
    tokens, gap, first_state = [], math.inf, None
    for _ in range(STEPS):
        state, logits, next_row = step(rows)
        first_state = state if first_state is None else first_state
        best = torch.topk(logits, 2).values
        gap = min(gap, float(best[0] - best[1]))
        tokens.append(int(logits.argmax()))
        rows = next_row(rows, state, embed(tokens[-1]))
    return first_state, tokens, gap


class Nextn:
    """The model's last layer taken for predicting the token after the next."""

    def __init__(self, model, seed):
        generator, hidden = torch.Generator().manual_seed(seed + 1000), model.config.hidden_size
        self.offset = 1.0 if type(model).__name__.startswith(("Qwen3Next", "Qwen3_5")) else 0.0
        self.eps = model.config.rms_norm_eps
        centre = 1.0 - self.offset
        self.fc = exact((hidden, 2 * hidden), 0.2, generator)
        self.norms = {name: exact((hidden,), 0.2, generator, centre) for name in ("embedding", "hidden", "final")}
        self.model = model
        self.layer = copy.deepcopy(model)  # only the last layer is left of it
        self.layer.model.layers = self.layer.model.layers[-1:]
        self.layer.model.norm.weight.data.copy_(self.norms["final"])
        model.model.layers = model.model.layers[:-1]

    def row(self, embedding, state):
        both = torch.cat([norm(embedding, self.norms["embedding"], self.eps, self.offset),
                          norm(state, self.norms["hidden"], self.eps, self.offset)], -1)
        return both @ self.fc.T

    def drafts_of(self, ids, following):
        embed = self.model.model.embed_tokens.weight
        states = self.model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        rows = self.row(embed[ids[1:] + [following]], states)

        def step(rows):
            state = self.layer.model(inputs_embeds=rows[None], use_cache=False).last_hidden_state[0, -1]
            return state, self.model.lm_head(state), lambda rows, state, e: torch.cat([rows, self.row(e, state)[None]])

        state, tokens, gap = chain(rows, lambda token: embed[token], step)
        return states[-1], state, tokens, gap

    def save(self, folder):
        config = self.model.config
        self.model.model.layers.append(self.layer.model.layers[0])
        self.model.to(torch.bfloat16).save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        layers = config.num_hidden_layers - 1
        parts = {"fc": self.fc, **self.norms}
        if self.offset:
            tensors = {n.replace(f"model.layers.{layers}.", "mtp.layers.0."): t for n, t in tensors.items()}
            names = {"fc": "mtp.fc", "embedding": "mtp.pre_fc_norm_embedding", "hidden": "mtp.pre_fc_norm_hidden", "final": "mtp.norm"}
        else:
            prefix = f"model.layers.{layers}."
            names = {"fc": prefix + "eh_proj", "embedding": prefix + "enorm", "hidden": prefix + "hnorm", "final": prefix + "shared_head.norm"}
        tensors |= {names[part] + ".weight": tensor.bfloat16() for part, tensor in parts.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        saved = json.loads((folder / "config.json").read_text())
        saved |= {"num_hidden_layers": layers, "dtype": "bfloat16"}
        if self.offset:
            saved["layer_types"] = saved["layer_types"][:-1]
        else:
            saved["num_nextn_predict_layers"] = 1
        (folder / "config.json").write_text(json.dumps(saved, indent=2) + "\n")


class Eagle3:
    LAYERS = [0, 2, 4]  # whose rows are read, as they are behind them

    def __init__(self, target, seed):
        generator, config = torch.Generator().manual_seed(seed + 1000), target.config
        hidden, heads, kv = config.hidden_size, config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        matrices = {"fc": (hidden, 3 * hidden), "midlayer.self_attn.q_proj": (heads, 2 * hidden),
                    "midlayer.self_attn.k_proj": (kv, 2 * hidden), "midlayer.self_attn.v_proj": (kv, 2 * hidden),
                    "midlayer.self_attn.o_proj": (hidden, heads), "midlayer.mlp.gate_proj": (config.intermediate_size, hidden),
                    "midlayer.mlp.up_proj": (config.intermediate_size, hidden), "midlayer.mlp.down_proj": (hidden, config.intermediate_size),
                    "lm_head": (DRAFT_VOCAB, hidden)}
        self.w = {name: exact(shape, 1.6 / math.sqrt(shape[1]), generator) for name, shape in matrices.items()}
        for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
            self.w[name] = exact((hidden,), 0.2, generator, 1.0)
        chosen = torch.randperm(config.vocab_size, generator=generator)[:DRAFT_VOCAB].sort().values
        self.offsets = chosen - torch.arange(DRAFT_VOCAB)
        self.tokens = chosen.tolist()
        self.target = target

    def rotate(self, x):  # [rows, heads, dim], pairs (i, i + dim / 2)
        dim = x.shape[-1]
        angles = torch.arange(x.shape[0])[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first, second = x[..., : dim // 2], x[..., dim // 2 :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def layer(self, embeddings, rows):
        config, w, dim = self.target.config, self.w, self.target.config.head_dim
        read = torch.cat([norm(embeddings, w["midlayer.input_layernorm"], config.rms_norm_eps),
                          norm(rows, w["midlayer.hidden_norm"], config.rms_norm_eps)], -1)
        q, k, v = ((read @ w[f"midlayer.self_attn.{p}_proj"].T).unflatten(-1, (-1, dim)) for p in "qkv")
        q, k = self.rotate(q), self.rotate(k)
        group = config.num_attention_heads // config.num_key_value_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
        scores += torch.full(scores.shape[1:], -math.inf).triu(1)
        rows = rows + torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1) @ w["midlayer.self_attn.o_proj"].T
        normed = norm(rows, w["midlayer.post_attention_layernorm"], config.rms_norm_eps)
        gate, up = normed @ w["midlayer.mlp.gate_proj"].T, normed @ w["midlayer.mlp.up_proj"].T
        return rows + (F.silu(gate) * up) @ w["midlayer.mlp.down_proj"].T

    def drafts_of(self, ids, following):
        embed = self.target.model.embed_tokens.weight
        behind = self.target.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states[1:]
        read = torch.cat([behind[layer][0] for layer in self.LAYERS], -1)
        rows = (embed[ids[1:] + [following]], read @ self.w["fc"].T)

        def step(rows):
            state = self.layer(*rows)[-1]
            own = norm(state, self.w["norm"], self.target.config.rms_norm_eps) @ self.w["lm_head"].T
            logits = torch.full((self.target.config.vocab_size,), -math.inf)
            logits[self.tokens] = own
            return state, logits, lambda rows, state, e: (torch.cat([rows[0], e[None]]), torch.cat([rows[1], state[None]]))

        state, tokens, gap = chain(rows, lambda token: embed[token], step)
        return read[-1], state, tokens, gap

    def save(self, folder):
        self.target.to(torch.bfloat16).save_pretrained(folder / "target")
        tensors = {name + ".weight": tensor.bfloat16().contiguous() for name, tensor in self.w.items()}
        tensors["d2t"] = self.offsets
        tensors["t2d"] = torch.zeros(self.target.config.vocab_size, dtype=torch.bool)
        tensors["t2d"][self.tokens] = True
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
                "max_position_embeddings", "vocab_size")
        config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": 1,
                  "draft_vocab_size": DRAFT_VOCAB, "tie_word_embeddings": False, "rope_theta": 10000.0,
                  "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": self.LAYERS},
                  **{key: getattr(self.target.config, key) for key in keys}}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def one_layer_more(family):
    model_type, changes, _ = FAMILIES[family]
    changes = dict(changes, num_hidden_layers=changes["num_hidden_layers"] + 1)
    if "layer_types" in changes:
        changes["layer_types"] = changes["layer_types"] + ["full_attention"]
    return model_type, changes


HEADS = {
    "nextn-deepseek-v3": (("deepseek_v3", dict(DEEPSEEK, num_hidden_layers=4)), Nextn),
    "nextn-glm4-moe": (one_layer_more("glm4-moe"), Nextn),
    "nextn-qwen3-next": (one_layer_more("qwen3-next"), Nextn),
    "nextn-qwen3_5": (one_layer_more("qwen3_5"), Nextn),
    "eagle3": (("llama", LLAMA), Eagle3),
}


def main():
    for name in sys.argv[1:] or HEADS:
        (model_type, changes), kind = HEADS[name]
        with torch.no_grad():
            for seed in range(1, 80):
                head = kind(make_model(model_type, changes, seed), seed)
                model = head.model if kind is Nextn else head.target
                prompts, margin = golden(model, head.drafts_of, seed)
                if margin > LEAST_MARGIN:
                    break
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "golden.json").write_text(json.dumps({"smallest_margin": round(margin, 5), "prompts": prompts}) + "\n")
        head.save(folder)
        for file in folder.rglob("*.safetensors"):
            file.chmod(0o644)
        print(name, "seed", seed, "margin", margin, [p["drafts"] for p in prompts])


if __name__ == "__main__":
    main()
