#!/usr/bin/env python3
"""Inputs to start fuzzing from, too large or too many for the repository: real files, the same damaged,
very deep and very wide ones. The same bytes on every machine.

    make_fuzz_seeds.py FOLDER     writes FOLDER/TARGET/* for every fuzz target
"""

import json
import pathlib
import random
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests/golden"
MAX_BYTES = 200_000  # of one seed: scripts/fuzz lets inputs grow to a little more
DEPTH, WIDTH = 60_000, 10_000
DAMAGED = 6  # of each real file


def damaged(data, rng):
    """A real file with a few bytes changed, a part cut out, or a part there twice."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not data:
            break
        at, size = rng.randrange(len(data)), rng.randint(1, 64)
        kind = rng.randrange(5)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:at + size]
        elif kind == 2:
            data[at:at] = data[at:at + size]
        elif kind == 3:
            data[at:at + 8] = rng.choice([b"\xff" * 8, bytes(8), struct.pack("<q", -1), struct.pack("<d", float("nan"))])
        else:
            del data[rng.randrange(len(data)):]
    return bytes(data)


def deep_json():
    lists = "[" * DEPTH + "]" * DEPTH
    objects = '{"a":' * (DEPTH // 2) + "1" + "}" * (DEPTH // 2)
    keys = ["rope_scaling", "eos_token_id", "text_config", "normalizer", "added_tokens", "model", "weight_map",
            "messages", "sampling_params", "layers"]
    return [lists, "[" * DEPTH, objects] + [f'{{"{key}": {"[" * 20_000 + "]" * 20_000}}}' for key in keys]


def wide_json():
    return [json.dumps(list(range(WIDTH))), json.dumps({f"k{i}": i for i in range(WIDTH)}),
            "[" + ",".join(["[]"] * WIDTH) + "]", "[" + ",".join(["{}"] * WIDTH) + "]",
            json.dumps({"eos_token_id": list(range(5000))}), '{' + ",".join(['"a":1'] * WIDTH) + "}"]


def templates():
    deep = [f"{{{{ {'(' * 30_000}1{')' * 30_000} }}}}", "{% if 1 %}" * 10_000, "{{ " + "not " * 20_000 + "1 }}",
            "{{ 1" + "|abs" * 20_000 + " }}", "{{ " + "[" * 30_000]
    wide = ["".join(f"{{% set v{i}={i} %}}" for i in range(3000)), "{{ [" + "1," * 20_000 + "] }}",
            "{% macro m(" + ",".join(f"p{i}" for i in range(3000)) + ") %}{% endmacro %}", "{{ x }}" * 15_000,
            "{{ {" + ",".join(f"'k{i}':{i}" for i in range(5000)) + "}|tojson }}"]
    goldens = json.loads((GOLDEN / "chat_template/goldens.json").read_text())
    return deep + wide, [snippet["source"] for snippet in goldens["snippets"]]


def safetensors(header, data=b""):
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + data


def gguf(entries, tensors=0):
    """A header with `entries`: (key, type, bytes of the value)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries))
    for key, kind, value in entries:
        out += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value
    return out


def ggufs():
    string = lambda text: struct.pack("<Q", len(text)) + text.encode()  # noqa: E731
    many = [(f"k{i}", 4, struct.pack("<I", i)) for i in range(5000)]
    array = struct.pack("<IQ", 8, 10_000) + string("ab") * 10_000
    nested = struct.pack("<IQ", 9, 1) * 5000
    return [gguf(many), gguf([("tokenizer.ggml.tokens", 9, array)]), gguf([("a", 9, nested)]),
            gguf([("general.architecture", 8, string("llama"))] + many)]


def tokenizers():
    vocabulary = {f"t{i}": i for i in range(3000)}
    merges = [f"t{i} t{i + 1}" for i in range(3000)]
    text = '{"type":"Sequence","normalizers":[' * 3000 + '{"type":"NFC"}' + "]}" * 3000
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    added = [{"id": i, "content": f"<{i}>", "special": True} for i in range(1000)]
    return [json.dumps({"model": model}), json.dumps({"model": model, "added_tokens": added}) + "\0<1><2>x" * 100,
            '{"normalizer":' + text + ',"model":{"type":"BPE","vocab":{},"merges":[]}}']


def files(pattern):
    return [path.read_bytes() for path in sorted(ROOT.glob(pattern)) if path.is_file()]


def seeds():
    """target -> (inputs made up, real inputs, which are damaged too)"""
    deep, wide = deep_json(), wide_json()
    template_shapes, snippets = templates()
    configs = files("tests/golden/families/*/*config.json") + files("models/*/*config.json")
    headers = [safetensors(text) for text in deep + wide]
    headers.append(safetensors(json.dumps({f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
                                           for i in range(2000)}), bytes(2000)))
    index = [b'{"weight_map": {"a": "s", "b": "s"}}', b'{"weight_map": {"a": "../s"}}', b'{"weight_map": {"a": "none"}}']
    recordings = files("tests/golden/recording/*")
    head = recordings[0]
    requests = [bytes([i]) + text.encode() for i, text in enumerate(deep + wide)]
    return {
        "json_fuzz": (deep + wide, configs),
        "config_fuzz": (deep + wide, configs),
        "tokenizer_fuzz": (deep + wide + tokenizers(), files("tests/golden/tokenizer/*/tokenizer.json")),
        "chat_template_fuzz": (template_shapes + snippets, files("tests/golden/chat_template/*.jinja")),
        "safetensors_fuzz": (headers + deep + wide, index + files("tests/golden/families/*/model.safetensors")),
        "gguf_fuzz": (ggufs(), files("tests/golden/families/*/model.gguf")),
        "recording_fuzz": ([head[:12] + struct.pack("<I", len(text)) + text.encode() for text in deep + wide],
                           recordings),
        "program_cache_fuzz": ([b"WWPROG01" + b"\xff" * 24, b"WWPROG01" + bytes(24) + b"x" * 50_000], []),
        "mods_fuzz": (["(" * 50_000, "score" + " + score" * 10_000, "-" * 50_000 + "1"], []),
        "request_fuzz": (requests, files("tests/golden/request/*")),
    }


def main():
    out = pathlib.Path(sys.argv[1])
    rng = random.Random(20)
    for target, (made, real) in seeds().items():
        folder = out / target
        folder.mkdir(parents=True, exist_ok=True)
        made = [text.encode() if isinstance(text, str) else text for text in made]
        real = [data for data in real if len(data) <= MAX_BYTES]
        bad = [damaged(data, rng) for data in real for _ in range(DAMAGED)]
        for kind, inputs in {"made": made, "real": real, "damaged": bad}.items():
            for i, data in enumerate(inputs):
                (folder / f"{kind}-{i:03}").write_bytes(data[:MAX_BYTES])


if __name__ == "__main__":
    main()
