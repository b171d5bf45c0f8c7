#!/usr/bin/env python3
"""Small random adapters, and what PEFT computes with them.

Writes tests/golden/lora/<name>/: adapter_config.json and adapter_model.safetensors as PEFT saves them, and golden.json:
the model (a folder of tests/golden/families), token ids and the float32 logits of every position. Each adapter is also
merged into the model's weights and must give the same logits there. The same seed gives the same files. Needs: torch,
transformers, peft, safetensors.

    python3 tools/make_lora_goldens.py [name ...]
"""
import json
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
OUT = GOLDEN / "lora"

GATED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name -> (model, LoraConfig's arguments)
ADAPTERS = {
    "llama-all-r8": ("llama", dict(r=8, lora_alpha=16, target_modules=GATED)),
    "llama-qv-r4-rslora": ("llama", dict(r=4, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "v_proj"])),
    "llama-patterns-r16": ("llama", dict(r=16, lora_alpha=8, target_modules=["k_proj", "gate_proj", "down_proj"],
                                         rank_pattern={"layers.1.mlp.gate_proj": 4, "k_proj": 8},
                                         alpha_pattern={"down_proj": 24, "model.layers.0.self_attn.k_proj": 2})),
    "llama-bias-all-r4": ("llama-bias", dict(r=4, lora_alpha=8, target_modules=GATED)),
    "phi3-all-r8": ("phi3", dict(r=8, lora_alpha=8, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "gemma2-all-r4": ("gemma2", dict(r=4, lora_alpha=8, target_modules=GATED)),
    "cohere2-all-r4": ("cohere2", dict(r=4, lora_alpha=4, target_modules=GATED)),
    "starcoder2-all-r4": ("starcoder2", dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj",
                                                                               "c_fc", "c_proj"])),
    "qwen3-moe-attention-r4": ("qwen3-moe", dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
}


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def make(name, base, arguments, seed):
    torch.manual_seed(seed)
    folder = GOLDEN / "families" / base
    ids = json.loads((folder / "golden.json").read_text())["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    plain = logits_of(model, ids)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.1, **arguments)).eval()
    with torch.no_grad():
        for parameter_name, parameter in adapted.named_parameters():
            if ".lora_" in parameter_name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    logits = logits_of(adapted, ids)
    out = OUT / name
    out.mkdir(parents=True, exist_ok=True)
    adapted.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    config["target_modules"] = sorted(config["target_modules"])
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    rows = [[round(float(value), 5) for value in row] for row in logits]
    (out / "golden.json").write_text(json.dumps({"model": base, "input_ids": ids, "logits": rows}) + "\n")
    merged = logits_of(adapted.merge_and_unload(), ids)
    difference, effect = (merged - logits).abs().max().item(), (plain - logits).abs().max().item()
    assert difference < 2e-4 < 0.1 < effect, (name, difference, effect)
    print(f"{name}: changes logits by {effect:.2f}, merged differs by {difference:.1e}")


if __name__ == "__main__":
    for number, (name, (base, arguments)) in enumerate(ADAPTERS.items()):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make(name, base, arguments, 100 + number)
