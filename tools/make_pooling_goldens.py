#!/usr/bin/env python3
"""Tiny random models of states, with what transformers computes from them.

Writes tests/golden/pooling/<name>/: config.json, model.safetensors, the files by which sentence-transformers
knows how to pool (of embedding models), and golden.json: prompts as token ids and, for each, every token's
state and the embedding or the logits of the labels. The same seed gives the same files.
Needs: torch, transformers, safetensors.

    python3 tools/make_pooling_goldens.py [name ...]
"""
import copy
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "pooling"
VOCAB = 96
PROMPT_LENGTHS = [1, 7, 30]

BASE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rms_norm_eps=1e-5,
    tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)

# name -> (model_type, labels or 0, pooling, normalize, dtype of the saved weights)
MODELS = {
    "qwen3-last": ("qwen3", 0, "lasttoken", True, "bfloat16"),
    "llama-mean": ("llama", 0, "mean", False, "float32"),
    "llama-cls": ("llama", 0, "cls", True, "float32"),
    "qwen3-labels": ("qwen3", 3, None, False, "bfloat16"),
    "llama-score": ("llama", 1, None, False, "float32"),
}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.2 * noise)


def pool(states, how):
    return {"lasttoken": states[-1], "cls": states[0], "mean": states.mean(0)}[how]


def write_pooling(folder, how, normalize):
    modules = ["Transformer", "Pooling"] + (["Normalize"] if normalize else [])
    listed = [{"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{name}",
               "type": f"sentence_transformers.models.{name}"} for i, name in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n")
    keys = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    on = {"lasttoken": "lasttoken", "cls": "cls_token", "mean": "mean_tokens"}[how]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": BASE["hidden_size"], **{f"pooling_mode_{key}": key == on for key in keys},
              "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, seed):
    model_type, labels, how, normalize, dtype = MODELS[name]
    more = dict(id2label={i: f"class {i}" for i in range(labels)}) if labels else {}
    config = AutoConfig.for_model(model_type, **BASE, **more)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    build = AutoModelForSequenceClassification if labels else AutoModel
    model = build.from_config(config).eval()
    randomize(model, seed)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    saved = copy.deepcopy(model).to(getattr(torch, dtype))
    saved.save_pretrained(folder)
    # Only what is saved is rounded, not the rotary frequencies.
    with torch.no_grad():
        for parameter, stored in zip(model.parameters(), saved.parameters()):
            parameter.copy_(stored.float())
    if how:
        write_pooling(folder, how, normalize)
    generator = torch.Generator().manual_seed(seed + 1)
    cases = []
    for length in PROMPT_LENGTHS:
        ids = torch.randint(3, VOCAB, (1, length), generator=generator)
        with torch.no_grad():
            states = (model.model if labels else model)(ids).last_hidden_state[0]
            result = model(ids).logits[0] if labels else pool(states, how)
        if normalize:
            result = result / result.norm()
        cases.append({"input_ids": ids[0].tolist(), "states": rounded(states), "pooled": rounded(result)})
    (folder / "golden.json").write_text(json.dumps({"transformers": transformers.__version__, "cases": cases}) + "\n")


def rounded(values):
    return [[round(v, 6) for v in row] if isinstance(row, list) else round(row, 6) for row in values.tolist()]


def main():
    for seed, name in enumerate(MODELS):
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name, 100 + seed)
            print(name)


main()
