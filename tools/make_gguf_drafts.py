#!/usr/bin/env python3
"""GGUF files of the models of make_draft_goldens.py, with the layer that predicts a token more as llama.cpp's converter writes
it: behind the model's own, with its parts beneath "nextn".

Writes tests/golden/drafts/gguf-nextn-*/: model.gguf, and the same golden.json, for the weights are the same; and
gguf-mtp-glm4-moe, that layer in a file of its own. Needs what make_gguf_goldens.py needs.

    python3 tools/make_gguf_drafts.py
"""
import shutil

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_latent import latent_tensor, write_latent_metadata
from make_draft_goldens import OUT
from make_gguf_goldens import finish, gguf_tensors, is_latent, write_gguf_metadata, write_tensors
from make_gguf_hybrids import read_tensors, write_model

ARCHITECTURES = {"nextn-deepseek-v3": gguf.MODEL_ARCH.DEEPSEEK2, "nextn-glm4-moe": gguf.MODEL_ARCH.GLM4_MOE}
PARTS = {"eh_proj": gguf.MODEL_TENSOR.NEXTN_EH_PROJ, "enorm": gguf.MODEL_TENSOR.NEXTN_ENORM,
         "hnorm": gguf.MODEL_TENSOR.NEXTN_HNORM, "shared_head.norm": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM}
QWEN_PARTS = {"mtp.fc": "eh_proj", "mtp.pre_fc_norm_embedding": "enorm", "mtp.pre_fc_norm_hidden": "hnorm",
              "mtp.norm": "shared_head.norm"}


def part_name(part, layer):
    return gguf.TENSOR_NAMES[PARTS[part]].format(bid=layer) + ".weight"


def write(folder, config, arch_name, pairs):
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", arch_name)
    write_gguf_metadata(writer, config, arch_name, drafts=True)
    if is_latent(config):
        write_latent_metadata(writer, config, False)
        writer.add_nextn_predict_layers(config.num_nextn_predict_layers)
        pairs = [new for pair in pairs for new in latent_tensor(*pair, config, False)]
    else:  # published ones have one group
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    write_tensors(writer, pairs)
    finish(writer)


def make(name):
    source = OUT / name
    config = AutoConfig.from_pretrained(source)
    layers = config.num_hidden_layers
    config.num_hidden_layers = layers + 1  # to transformers it is one of the model's own
    model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=torch.float32)
    pairs = list(gguf_tensors(model, gguf.get_tensor_name_map(ARCHITECTURES[name], layers + 1)))
    tensors = read_tensors(source / "model.safetensors")
    pairs += [(part_name(part, layers), tensors[f"model.layers.{layers}.{part}.weight"]) for part in PARTS]
    config.num_hidden_layers = layers
    arch_name = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[name]]
    write(OUT / f"gguf-{name}", config, arch_name, pairs)
    shutil.copy(source / "golden.json", OUT / f"gguf-{name}")
    if name == "nextn-glm4-moe":  # as --mtp does: without the model's own layers
        alone = [pair for pair in pairs if not pair[0].startswith("blk.") or pair[0].startswith(f"blk.{layers}.")]
        write(OUT / "gguf-mtp-glm4-moe", config, arch_name, alone)
        shutil.copy(source / "golden.json", OUT / "gguf-mtp-glm4-moe")


def make_qwen(name):
    source = OUT / name
    tensors = read_tensors(source / "model.safetensors")
    layers = 1 + max(int(tensor.split(".")[2]) for tensor in tensors if tensor.startswith("model.layers."))

    def renamed(tensor):
        stem = tensor.removesuffix(".weight")
        if stem in QWEN_PARTS:
            return part_name(QWEN_PARTS[stem], layers)
        return tensor.replace("mtp.layers.0.", f"model.layers.{layers}.")
    write_model(source, OUT / f"gguf-{name}", {renamed(tensor): values for tensor, values in tensors.items()}, 1)


if __name__ == "__main__":
    for name in ARCHITECTURES:
        make(name)
    for name in ("nextn-qwen3-next", "nextn-qwen3_5"):
        make_qwen(name)
