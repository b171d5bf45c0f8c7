"""What random_llama.py, random_qwen3_moe.py, random_qwen3_next.py and random_deepseek.py share: random weights, and the files they go to, a
Hugging Face folder (config.json, safetensors; no tokenizer) and a GGUF file."""
import argparse
import dataclasses
import json
import pathlib
from typing import Callable

F32_IN_GGUF = ("ffn_gate_inp", "ssm_conv1d")  # converters keep the router and convolutions in f32
GGUF_FORMATS = ("q8_0", "q4_0", "q4_1", "q4_k", "q6_k")
PLAIN_DTYPES = {"f32": "float32", "bf16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class RandomModel:
    """`layer_shapes(index)`: the shapes of a layer's matrices and vectors by Hugging Face name, between "model.layers.I."
    and ".weight". `gguf_layer(of, index)`: pairs of a GGUF name, between "blk.I." and ".weight", and its tensor, in the
    file's order; `of(name)` is the layer's tensor by Hugging Face name. `add_metadata(writer)`: GGUF keys beside
    add_common_metadata's. `bare`: those of either kind of names that ".weight" does not follow. `output_norm`: what the GGUF file
    has for the last norm."""
    config: dict
    gguf_arch: str
    add_metadata: Callable
    layer_shapes: Callable
    gguf_layer: Callable
    bare: tuple = ()
    output_norm: Callable = lambda weight: weight  # of the GGUF file

    def full_name(self, name):
        return name if name in self.bare else name + ".weight"

    def tensors(self, dtype):
        import torch
        generator = torch.Generator().manual_seed(0)

        def tensor(shape):
            if len(shape) == 1:
                return torch.ones(shape, dtype=dtype)
            return (torch.randn(shape, generator=generator) * 0.02).to(dtype)

        table = (self.config["vocab_size"], self.config["hidden_size"])
        tensors = {"model.embed_tokens.weight": tensor(table), "lm_head.weight": tensor(table),
                   "model.norm.weight": tensor(table[1:])}
        for i in range(self.config["num_hidden_layers"]):
            for name, shape in self.layer_shapes(i).items():
                tensors[f"model.layers.{i}.{self.full_name(name)}"] = tensor(shape)
        return tensors

    def write_hugging_face(self, tensors, out, dtype_name):
        from safetensors.torch import save_file
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.json").write_text(json.dumps(self.config | {"torch_dtype": dtype_name}, indent=1))
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})

    def write_gguf(self, tensors, path, dtype_name):
        import gguf
        writer = gguf.GGUFWriter(str(path), self.gguf_arch)
        add_common_metadata(writer, self.config)
        self.add_metadata(writer)
        add_vocabulary(writer, self.config["vocab_size"])
        add_tensor(writer, "token_embd.weight", tensors["model.embed_tokens.weight"], dtype_name)
        add_tensor(writer, "output.weight", tensors["lm_head.weight"], dtype_name)
        add_tensor(writer, "output_norm.weight", self.output_norm(tensors["model.norm.weight"]), dtype_name)
        for i in range(self.config["num_hidden_layers"]):
            for name, tensor in self.gguf_layer(lambda name: tensors[f"model.layers.{i}.{self.full_name(name)}"], i):
                add_tensor(writer, f"blk.{i}.{self.full_name(name)}", tensor, "float32" if name in F32_IN_GGUF else dtype_name)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def write_all(self, out, dtype_name, also=None):
        """Returns the paths; keeps what is already there. With a GGUF format for its dtype there is the GGUF file alone.
        `also(tensors)` writes more."""
        import torch
        out = pathlib.Path(out)
        plain = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(dtype_name)
        paths = {"gguf": out / "model.gguf"} | ({"hf": out / "hf"} if plain else {})
        done = out / "complete"
        if not done.exists():
            tensors = self.tensors(plain or torch.float32)
            out.mkdir(parents=True, exist_ok=True)
            if plain:
                self.write_hugging_face(tensors, paths["hf"], dtype_name)
            self.write_gguf(tensors, paths["gguf"], dtype_name)
            if also:
                also(tensors)
            done.touch()
        return paths


def add_common_metadata(writer, config):
    c = config
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])


def add_vocabulary(writer, size):
    """Some words, so that the file can be opened; prompts are token ids."""
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("llama")
    specials = [b"<unk>", b"<s>", b"</s>"]
    pieces = [f"<0x{b:02X}>".encode() for b in range(256)]
    words = [f"w{i}".encode() for i in range(size - len(specials) - len(pieces))]
    writer.add_token_list(specials + pieces + words)
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def random_k_blocks(shape, quant):
    """Random codes with scales that give values about as large as those of RandomModel.tensors."""
    import gguf
    import numpy as np
    rng = np.random.default_rng(sum(shape))
    packed_shape = gguf.quant_shape_to_byte_shape(shape, quant)  # refuses rows that are no whole blocks
    blocks = rng.integers(0, 256, packed_shape, dtype=np.uint8).reshape(-1, gguf.GGML_QUANT_SIZES[quant][1])
    if quant == gguf.GGMLQuantizationType.Q4_K:  # d, dmin, then the rest
        blocks[:, 0:4] = np.array([1e-4, 7e-4], dtype=np.float16).view(np.uint8)
    else:  # Q6_K ends with its d
        blocks[:, 208:210] = np.array([1.5e-5], dtype=np.float16).view(np.uint8)
    return blocks.reshape(packed_shape)


def add_tensor(writer, name, tensor, dtype_name):
    import gguf
    import torch
    if dtype_name in GGUF_FORMATS and tensor.dim() >= 2:
        quant = gguf.GGMLQuantizationType[dtype_name.upper()]
        k_blocks = dtype_name.endswith("_k")
        data = random_k_blocks(tensor.shape, quant) if k_blocks else gguf.quantize(tensor.float().numpy(), quant)
        writer.add_tensor(name, data, raw_dtype=quant)
        return
    if dtype_name == "bfloat16" and tensor.dim() >= 2:
        raw = tensor.to(torch.bfloat16).view(torch.int16).numpy().view("uint8")
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.float().numpy())


def main(description, write_all, dtypes):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--dtype", choices=dtypes, default="bf16")
    args = parser.parse_args()
    print(write_all(args.out, PLAIN_DTYPES.get(args.dtype, args.dtype)))
