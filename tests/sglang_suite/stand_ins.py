"""The small models that stand for those of SGLang's tests. None is told what a test asks."""

import functools
import json
import pathlib
import shutil
import struct
import tempfile

TALE = pathlib.Path(__file__).resolve().parents[2] / "models" / "tale-llama"
NARROW = {"max_position_embeddings": 8192}  # an answer that never ends is cut early
LONG = {"max_position_embeddings": 32768}
LONG_TESTS = ("test_abort",)  # files whose requests name the length of answers that they abort
BRIEF = {"max_position_embeddings": 4096}
BRIEF_TESTS = ("test_openai_function_calling",)  # files whose requests name no length, to a model that never ends
# Test files whose token ids and prompts need Llama 3.2's vocabulary and context, or a model that closes what JSON
# opens (tale-llama goes on with its story within the first string), or one that is still at 100 tokens after 0.1 s.
WIDE_TESTS = ("test_srt_endpoint", "test_openai_embedding", "test_cache_report", "test_json_constrained",
              "test_json_mode", "test_regex_constrained", "test_ebnf_constrained", "test_openai_server_ebnf",
              "test_skip_tokenizer_init", "test_abort_request")
CLOSERS = {'"': 6, ":": 5, "}": 4, "]": 4, ",": 1}  # what the wide model likes to say, and how much
NEW_WORD = 2  # how much it likes tokens that begin with a space
# Test files that need a model which thinks before it answers: whatever it is asked, it says THOUGHT and then ends.
THINKING_TESTS = ("test_enable_thinking", "test_reasoning_content")
THOUGHT = ("<think>", "\u0120so", "</think>", "\u0120yes")
NO_THOUGHT = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
SMALL = {"hidden_size": 64, "head_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
         "intermediate_size": 64, "tie_word_embeddings": False}
WIDE = {**SMALL, "vocab_size": 128256, "max_position_embeddings": 131072}
LAYER = "model.layers.0."
FIM_MARKERS = ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>")  # DeepSeek-Coder's


def tale_config():
    return json.loads((TALE / "config.json").read_text())


def tale_vocabulary():
    return json.loads((TALE / "tokenizer.json").read_text())["model"]["vocab"]


def tale_tensors():
    """tale-llama's weights: name -> (type, shape, bytes)."""
    data = (TALE / "model.safetensors").read_bytes()
    body = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:body])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[body + begin:body + end])
    return tensors


def made_folder(name, changes, weights):
    """A temporary folder: tale-llama's tokenizer, its configuration with changes, and weights like tale_tensors()."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"warpweave-sglang-suite-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(TALE, folder)
    config = {**tale_config(), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    header, body = {}, bytearray()
    for tensor, (dtype, shape, packed) in weights.items():
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(packed)]}
        body += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return folder


def small_weights(random, scale):
    """The layer and the norms of a SMALL model."""
    import numpy

    hidden = SMALL["hidden_size"]
    names = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    arrays = {LAYER + f"{name}_proj.weight": random.normal(0, 1, (hidden, hidden)) * scale for name in names}
    for name in ("model.norm", LAYER + "input_layernorm", LAYER + "post_attention_layernorm"):
        arrays[name + ".weight"] = numpy.ones(hidden)
    return arrays


def packed(arrays):
    return {name: ("F32", list(array.shape), array.astype("<f4").tobytes()) for name, array in arrays.items()}


def wide_folder(name, changes):
    """Random weights; ids that the tokenizer lacks are never drawn."""
    import numpy

    random = numpy.random.default_rng(1)
    rows, hidden = WIDE["vocab_size"], WIDE["hidden_size"]
    arrays = small_weights(random, 0.1)
    embedding, head = random.normal(0, 1, (rows, hidden)), random.normal(0, 0.3, (rows, hidden))
    embedding[:, 0] = 4  # stays positive through the layer: a bias for the head
    head[tale_config()["vocab_size"]:, 0] = -20
    for text, token in tale_vocabulary().items():
        head[token, 0] = CLOSERS.get(text, NEW_WORD if text.startswith("\u0120") and len(text) > 1 else 0)
    arrays.update({"model.embed_tokens.weight": embedding, "lm_head.weight": head})
    return made_folder(name, {**WIDE, **changes}, packed(arrays))


def thinking_folder():
    """What comes next depends on the last token alone: after any but those of THOUGHT, THOUGHT begins."""
    import numpy

    config, vocabulary, hidden = tale_config(), tale_vocabulary(), SMALL["hidden_size"]
    added = [text for text in THOUGHT if text not in vocabulary]
    ids = {**vocabulary, **{text: config["vocab_size"] + i for i, text in enumerate(added)}}
    rows = config["vocab_size"] + len(added)
    embedding, head = numpy.zeros((rows, hidden)), numpy.zeros((rows, hidden))
    embedding[:, 0] = 1
    for i, text in enumerate(THOUGHT):
        embedding[ids[text]] = numpy.eye(hidden)[i + 1]
    following = [ids[text] for text in THOUGHT] + [config["eos_token_id"]]
    for i, token in enumerate(following):
        head[token, i] = 10
    weights = small_weights(numpy.random.default_rng(1), 0)
    weights.update({"model.embed_tokens.weight": embedding, "lm_head.weight": head})
    folder = made_folder("thinking", {**SMALL, **NARROW, "vocab_size": rows}, packed(weights))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] += [
        {**tokenizer["added_tokens"][-1], "id": ids[text], "content": text, "special": False} for text in added]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] += NO_THOUGHT
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def fim_folder():
    """tale-llama with the markers of DeepSeek-Coder, which mean nothing to it, and as there a token before each text."""
    config, tensors = tale_config(), tale_tensors()
    first = config["vocab_size"]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            dtype, (rows, hidden), data = tensors[name]
            tensors[name] = (dtype, [rows + len(FIM_MARKERS), hidden], data + bytes(len(FIM_MARKERS) * hidden * 2))
    folder = made_folder("fim", {**NARROW, "vocab_size": first + len(FIM_MARKERS)}, tensors)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    begin = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [
        {**begin, "id": first + i, "content": text, "special": True} for i, text in enumerate(FIM_MARKERS)]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "special_tokens": {
            begin["content"]: {"id": begin["content"], "ids": [begin["id"]], "tokens": [begin["content"]]}},
        "single": [{"SpecialToken": {"id": begin["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": begin["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"Sequence": {"id": "B", "type_id": 1}}]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    return folder


def cross_encoder_folder():
    hidden = tale_config()["hidden_size"]
    label = struct.pack(f"<{hidden}f", *(0.01 * (i % 7 - 3) for i in range(hidden)))
    changes = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "relevant"}}
    return made_folder("cross-encoder", changes, {**tale_tensors(), "score.weight": ("F32", [1, hidden], label)})


@functools.cache
def model_folder(name, test):
    """What stands for the model `name` in the test file `test`."""
    if test.endswith(BRIEF_TESTS):
        return wide_folder("brief", BRIEF)
    if test.endswith(WIDE_TESTS):
        return wide_folder("wide", {})
    if test.endswith("test_fim_completion"):
        return fim_folder()
    if test.endswith(THINKING_TESTS):
        return thinking_folder()
    if "cross-encoder" in name or "reranker" in name.lower():
        return cross_encoder_folder()
    if test.endswith(LONG_TESTS):
        return made_folder("long", LONG, tale_tensors())
    return made_folder("llama", NARROW, tale_tensors())
