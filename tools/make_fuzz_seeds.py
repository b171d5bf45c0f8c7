#!/usr/bin/env python3
"""Inputs to start fuzzing from, too large or too many for the repository: real files, the same damaged,
very deep and very wide ones. The same bytes on every machine.

    make_fuzz_seeds.py FOLDER     writes FOLDER/TARGET/* for every fuzz target
"""

import ast
import base64
import copy
import json
import pathlib
import random
import re
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests/golden"
MAX_BYTES = 200_000  # of one seed: scripts/fuzz lets inputs grow to a little more
DEPTH, WIDTH = 60_000, 10_000
DAMAGED = 6  # of each real file, as long as there are not too many
MAX_DAMAGED = 1500


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


UNIGRAM_TEXTS = ["\ufb01ne \uff21\uff22 \u2460\u00bd e\u0301 \u1100\u1161\u11a8", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0e33\u0e33",
                 " \u3000\t a  b\n\u2581\u2581x", "e" + "\u0301" * 300, "\u0fac" * 200, "<s><mask> </s>", ""]


def change_unigram(tokenizer, rng):
    """One part of a tokenizer with a vocabulary of scores changed, inside of what a byte changed at random would only break."""
    model, normalizers = tokenizer["model"], tokenizer["normalizer"]["normalizers"]
    kind = rng.randrange(8)
    if kind < 3:  # the map behind its Base64: the size, the trie, the results
        data = bytearray(base64.b64decode(normalizers[0]["precompiled_charsmap"]))
        trie_bytes = min(struct.unpack_from("<I", data)[0], len(data) - 8)
        for _ in range(rng.choice([1, 4, 64])):
            at = rng.randrange(*[(0, 4), (4, 4 + trie_bytes), (4 + trie_bytes, len(data))][kind])
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        normalizers[0]["precompiled_charsmap"] = base64.b64encode(data).decode()
    elif kind == 3:
        scores = [0, -0.0, 1e308, -1e308, 5e-324, 17, -1]
        for entry in rng.sample(model["vocab"], 40):
            entry[1] = rng.choice(scores)
    elif kind == 4:
        for entry in rng.sample(model["vocab"], 8):
            entry[0] = rng.choice(["", "\u2581", "a" * 3000, "e\u0301", "\U0001f468\u200d", "<0x00>", model["vocab"][0][0]])
    elif kind == 5:
        model["unk_id"] = rng.choice([None, 0, len(model["vocab"]) - 1, len(model["vocab"]), -1, 1 << 40])
    elif kind == 6:
        model["byte_fallback"] = not model["byte_fallback"]
        normalizers += rng.sample([{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True},
                                   {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}, copy.deepcopy(normalizers[0])], 2)
    else:
        where = tokenizer["pre_tokenizer"].get("pretokenizers", [tokenizer["pre_tokenizer"]])[-1]
        where.update(replacement=rng.choice(["\u2581", "_", "\U0001f600", "ab", ""]), prepend_scheme=rng.choice(["always", "first", "never", "x"]))


def unigrams():
    rng = random.Random(11)
    out = []
    for data in files("tests/golden/tokenizer/xlm_roberta/tokenizer.json") + files("tests/golden/tokenizer/unigram_bytes/tokenizer.json"):
        for i in range(120):
            tokenizer = json.loads(data)
            for _ in range(i % 4):
                change_unigram(tokenizer, rng)
            text = rng.choice(UNIGRAM_TEXTS).encode() + rng.choice([b"", b"\xe2\x96", b"\xff", b"\xf0\x9f"])
            out.append(json.dumps(tokenizer, ensure_ascii=i % 2 == 0).encode() + b"\0" + text)
    return out


def files(pattern):
    return [path.read_bytes() for path in sorted(ROOT.glob(pattern)) if path.is_file()]


def strings_of(*sources):
    """The texts that a test's tables are made of: string literals of C++, plain and raw."""
    out = []
    for source in sources:
        text = (ROOT / source).read_text()
        for raw, plain in re.findall(r'R"\((.*?)\)"|"((?:[^"\\\n]|\\.)*)"', text, re.DOTALL):
            try:
                out.append((raw or ast.literal_eval(f'"{plain}"')).encode())
            except (SyntaxError, UnicodeEncodeError):
                pass
    return [data for data in dict.fromkeys(out) if len(data) > 4 and not data.endswith(b".h")]


def with_kinds(inputs, kinds, bytes_before=1):
    """Inputs behind the bytes that pick what they are read as."""
    rng = random.Random(7)
    return [bytes([kind, *(rng.randrange(256) for _ in range(bytes_before - 1))]) + data for data in inputs for kind in kinds]


def formats_of_answers():
    """The bytes by which answer_fuzz picks formats: {name: byte} of reasoning and of calls."""
    tables = (ROOT / "src/output/formats.cc").read_text().split("call_formats() {")
    names = [re.findall(r'^ +\{"([\w-]+)", ', table, re.MULTILINE) for table in tables]
    return {name: i + 1 for i, name in enumerate(names[0])} | {"": 0}, {name: i for i, name in enumerate(names[1])}


def answers_in_their_formats():
    """Rows of the test's table: {what, reasoning, calls, text, ...}."""
    reasoning, calls = formats_of_answers()
    out = []
    for how, what, raw, plain in re.findall(r'\{"[^"\n]*", "([\w-]*)", "([\w-]*)", (?:R"\((.*?)\)"|"((?:[^"\\\n]|\\.)*)")',
                                           (ROOT / "src/output/answer_parser_test.cc").read_text(), re.DOTALL):
        if how in reasoning and what in calls:
            out.append(bytes([reasoning[how], calls[what], 3]) + (raw or ast.literal_eval(f'"{plain}"')).encode())
    return out


def answers():
    """Texts of the formats, in their own and in any; long, deep and wide ones of each."""
    own = answers_in_their_formats()
    texts = strings_of("src/output/answer_parser_test.cc")
    marks = ["<tool_call>", "<think>", "[TOOL_CALLS]", "<function=f>", "<parameter=a>", '{"name": "f", "arguments": ', "[f(a=", "<|channel|>"]
    shapes = [(mark * (20_000 // len(mark))).encode() for mark in marks]
    shapes += [('<tool_call>{"name": "f", "arguments": ' + text).encode() for text in ("[" * 20_000, '{"a":' * 4000, "1" * 20_000)]
    shapes += [("[" + "f(a=1)," * 3000 + "]").encode(), ("<tool_call>f\n" + "<arg_key>a</arg_key><arg_value>1</arg_value>" * 400).encode()]
    rng = random.Random(9)
    pick = lambda data: bytes(rng.randrange(256) for _ in range(3)) + data  # noqa: E731
    return [pick(data) for data in shapes for _ in range(6)], own + [pick(data) for data in texts if len(data) > 12]


def kinds_of(text):
    """What a text of the grammar tests may be meant as: the numbers of GrammarSpec::Kind."""
    if text.startswith(b"{"):
        return (1, 5) if b"structur" in text or b"tag" in text else (1,)
    return (4,) if text.startswith(b"[\"") else (3,) if b"::=" in text or b": " in text else (2,)


def grammars():
    """Schemas, expressions, grammars and tags of the tests; deep and wide ones as every kind."""
    texts = strings_of("src/grammar/grammar_test.cc", "src/grammar/schema_test.cc", "src/grammar/testing/grammar_texts.h")
    letters = "".join(chr(0x4E00 + i) for i in range(6000))
    schema = {"type": "object", "properties": {}}
    for _ in range(100):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    shapes = ["(" * 20_000 + ")" * 20_000, "(a+)+b" * 500, "a{1000}{1000}", letters, "[" + letters + "]", "(?:" + "a|" * 5000 + "b)",
              "root ::= " + "(" * 5000, "root ::= " + '"a" | ' * 5000 + '"b"', "root ::= root root | \"a\"", json.dumps(schema),
              json.dumps({"$ref": "#"}), json.dumps({"allOf": [{"$ref": "#"}]}), json.dumps({"enum": list(range(5000))}),
              json.dumps({"type": "object", "properties": {letters[i:i + 20]: True for i in range(0, 5000, 5)}}),
              json.dumps({"anyOf": [{"pattern": f"x{i}[ab]*a[ab]{{8}}"} for i in range(60)]}),
              json.dumps([f"choice {i}" for i in range(5000)]), json.dumps({"patternProperties": {f"^a{i}": {} for i in range(8)}})]
    return (with_kinds([text.encode() for text in shapes], range(6)) + with_kinds([text.encode() for text in deep_json()[:3]], (1, 5)),
            [bytes([kind]) + text for text in texts for kind in kinds_of(text)])


def http_requests():
    """Requests of the tests, several on one connection, with every kind of server; long, wide and deep ones."""
    texts = [data for data in files("tests/golden/http/*")]
    texts += [data for data in strings_of("src/server/http_parser_test.cc", "src/server/http_hostile_test.cc", "src/server/http_server_test.cc")
              if b"HTTP/1" in data]
    get, host = b"GET /%b HTTP/1.1\r\n", b"Host: a\r\n"
    key = b"Authorization: Bearer k\r\n"
    made = [get % path + host + more + b"\r\n" for path in (b"", b"open", b"stream/x", b"a%20b?c=d", b"%2e%00", b"admin")
            for more in (b"", key, b"Connection: close\r\n", b"Origin: http://a\r\n", b"x-api-key: k\r\n")]
    post = b"POST /%b HTTP/1.1\r\n" + host
    made += [post % path + more + b"Content-Length: 4\r\n\r\nbody" for path in (b"admin", b"x", b"open")
             for more in (b"", key, b"Content-Type: application/json\r\nOrigin: http://a\r\n", b"Expect: 100-continue\r\n")]
    made += [post % b"x" + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;a=\"b\"\r\nx\r\n" * 20 + b"0\r\nT: u\r\n\r\n",
             b"OPTIONS /admin HTTP/1.1\r\n" + host + b"Origin: http://a\r\nAccess-Control-Request-Headers: x-a, content-type\r\n\r\n",
             b"HEAD /open HTTP/1.1\r\n" + host + b"\r\n", b"GET http://a/open HTTP/1.1\r\n" + host + b"\r\n", b"DELETE /open HTTP/1.1\r\n" + host + b"\r\n",
             b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", (get % b"") + host + b"A: b\r\n" * 200 + b"\r\n",
             b"\r\n" * 5000 + (get % b"") + host + b"\r\n", (get % (b"a" * 5000)) + host + b"\r\n", (get % b"open" + host + b"\r\n") * 300]
    pipelined = [made[i] + made[(i * 7 + 3) % len(made)] + made[(i * 5 + 1) % len(made)] for i in range(len(made))]
    return with_kinds(made + pipelined, range(4)), with_kinds(texts, (0, 3))


def seeds():
    """target -> (inputs made up, real inputs, which are damaged too)"""
    deep, wide = deep_json(), wide_json()
    template_shapes, snippets = templates()
    configs = files("tests/golden/families/*/*config.json") + files("models/*/*config.json")
    headers = [safetensors(text) for text in deep + wide]
    headers.append(safetensors(json.dumps({f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
                                           for i in range(2000)}), bytes(2000)))
    index = [b'{"weight_map": {"a": "s", "b": "s"}}', b'{"weight_map": {"a": "../s"}}', b'{"weight_map": {"a": "none"}}']
    mods = strings_of(*sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src/attention/mods").glob("*_test.cc")))
    recordings = files("tests/golden/recording/*")
    head = recordings[0]
    requests = [bytes([i]) + text.encode() for i, text in enumerate(deep + wide)]
    bodies = [data for data in strings_of(*sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src/server/api").glob("*_test.cc")))
              if data.startswith(b"{") and data.endswith(b"}")]
    real_requests = files("tests/golden/request/*") + [bytes([i % 15 + 128 * (i % 2)]) + body for i, body in enumerate(bodies * 3)]
    return {
        "json_fuzz": (deep + wide, configs),
        "config_fuzz": (deep + wide, configs),
        "adapter_config_fuzz": (deep + wide, files("tests/golden/lora/*/adapter_config.json")),
        "tokenizer_fuzz": (deep + wide + tokenizers() + unigrams(), files("tests/golden/tokenizer/*/tokenizer.json")),
        "chat_template_fuzz": (template_shapes + snippets, files("tests/golden/chat_template/*.jinja")),
        "safetensors_fuzz": (headers + deep + wide, index + files("tests/golden/families/*/model.safetensors")),
        "gguf_fuzz": (ggufs(), files("tests/golden/families/*/model.gguf") + files("tests/golden/drafts/*/model.gguf")),
        "recording_fuzz": ([head[:12] + struct.pack("<I", len(text)) + text.encode() for text in deep + wide],
                           recordings),
        "program_cache_fuzz": ([b"WWPROG01" + b"\xff" * 24, b"WWPROG01" + bytes(24) + b"x" * 50_000], files("tests/fuzz/program_cache_fuzz/*")),
        "mods_fuzz": (["(" * 50_000, "score" + " + score" * 10_000, "-" * 50_000 + "1"], mods + files("tests/fuzz/mods_fuzz/*")),
        "request_fuzz": (requests, real_requests),
        "answer_fuzz": answers(),
        "grammar_fuzz": grammars(),
        "http_fuzz": http_requests(),
    }


def main():
    out = pathlib.Path(sys.argv[1])
    rng = random.Random(20)
    for target, (made, real) in seeds().items():
        folder = out / target
        folder.mkdir(parents=True, exist_ok=True)
        made = [text.encode() if isinstance(text, str) else text for text in made]
        real = [data for data in real if len(data) <= MAX_BYTES]
        copies = max(1, min(DAMAGED, MAX_DAMAGED // max(1, len(real))))
        bad = [damaged(data, rng) for data in real for _ in range(copies)]
        for kind, inputs in {"made": made, "real": real, "damaged": bad}.items():
            for i, data in enumerate(inputs):
                (folder / f"{kind}-{i:03}").write_bytes(data[:MAX_BYTES])


if __name__ == "__main__":
    main()
