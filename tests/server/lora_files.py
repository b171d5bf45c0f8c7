"""Adapters as PEFT saves them, of random numbers, for tests and for soak.py."""

import json
import pathlib
import random
import struct

from running_server import ROOT


def write_adapter(folder, seed, rank=4):
    """q_proj and down_proj of every layer of tale-llama, with random matrices."""
    config = json.loads((pathlib.Path(ROOT) / "models/tale-llama/config.json").read_text())
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    q = heads * config.get("head_dim", hidden // heads)
    rng = random.Random(seed)
    header, data = {}, b""
    for layer in range(config["num_hidden_layers"]):
        for module, rows, cols in (("self_attn.q_proj", q, hidden), ("mlp.down_proj", hidden, ffn)):
            for name, shape in (("lora_A", [rank, cols]), ("lora_B", [rows, rank])):
                values = [rng.gauss(0, 0.2) for _ in range(shape[0] * shape[1])]
                packed = struct.pack(f"<{len(values)}f", *values)
                header[f"base_model.model.model.layers.{layer}.{module}.{name}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
                data += packed
    text = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 8}))
