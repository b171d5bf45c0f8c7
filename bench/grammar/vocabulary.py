"""128k tokens to compare on: Llama 3's where a package brings them, else tiktoken's, else made up."""
import base64
import itertools
import random
import struct
import subprocess
import json
import tempfile


def llama3_tokens():
    """The ranks file of the package llama-models, without importing its dependencies."""
    import importlib.util
    import os
    spec = importlib.util.find_spec("llama_models")
    path = os.path.join(spec.submodule_search_locations[0], "llama3", "tokenizer.model")
    tokens = []
    with open(path, "rb") as f:
        for line in f:
            if line.strip():
                tokens.append(base64.b64decode(line.split()[0]))
    return tokens + [b""] * 256


def made_up_tokens(count=128_000):
    draw = random.Random(1)
    tokens = {bytes([b]): None for b in range(256)}
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    for n in (1, 2, 3):
        tokens.update((str(i).zfill(n).encode(), None) for i in range(10 ** n))
    for a, b in itertools.product('{}[]",:\\\n ', repeat=2):
        tokens[(a + b).encode()] = None
    while len(tokens) < count:
        word = "".join(draw.choice(letters[: draw.randint(5, 26)]) for _ in range(draw.randint(2, 11)))
        form = draw.choice([" {}", "{}", " {}", "{}(", '"{}', '{}"', "_{}", "{}é", "\n{}"])
        tokens[form.format(draw.choice([word, word.capitalize(), word.upper()])).encode()] = None
    return list(tokens) + [b""] * 256


def load():
    """(name, tokens, end id)"""
    try:
        tokens, name = llama3_tokens(), "Llama 3 (llama-models)"
    except Exception:
        tokens, name = made_up_tokens(), "made up"
    return name, tokens, len(tokens) - 255


class Probe:
    """The program grammar_probe as an object."""

    def __init__(self, path, tokens, end):
        self.file = tempfile.NamedTemporaryFile()
        for token in tokens:
            self.file.write(struct.pack("<I", len(token)) + token)
        self.file.flush()
        self.process = subprocess.Popen([path, self.file.name, str(end)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("grammar_probe ended: " + json.dumps(what)[:500])
        return json.loads(line)

    def mask(self):
        answer = self.ask(mask=True)
        if "bytes" in answer:
            answer["mask"] = self.process.stdout.read(answer["bytes"])
        return answer


class LlTokenizer:
    """The tokens as llguidance wants them."""

    def __init__(self, tokens, end):
        self.eos_token_id = end
        self.bos_token_id = None
        self.special_token_ids = [i for i, t in enumerate(tokens) if not t]
        self.tokens = [t or b"<|special_%d|>" % i for i, t in enumerate(tokens)]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


def llguidance_tokenizer(tokens, end):
    import llguidance
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(LlTokenizer(tokens, end)))

