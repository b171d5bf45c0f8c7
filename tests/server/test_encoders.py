"""Encoders (BERT, ModernBERT) at the endpoints of embeddings, scores and labels, against what transformers makes of the same
texts (tests/golden/pooling, tools/make_pooling_goldens.py)."""

import json
import math
import os
import subprocess

import openai
import pytest
import requests

from running_server import ROOT, Server

FOLDER = "tests/golden/pooling/"
NAMES = ["bert-mean", "bert-score", "modernbert-cls", "modernbert-score", "modernbert-labels"]


class Encoder:
    def __init__(self, name):
        self.name = name
        self.server = Server("--device", "cpu", "--dtype", "float32", "--max-total-tokens", "256", "--served-model-name", "tiny",
                             model=FOLDER + name)
        self.texts = json.loads((ROOT / FOLDER / name / "golden.json").read_text())["texts"]

    def post(self, path, body, status=200):
        reply = requests.post(self.server.url + path, json=body, timeout=30)
        assert reply.status_code == status, reply.text
        return reply.json()

    def singles(self):
        return [case for case in self.texts if len(case["texts"]) == 1]

    def pairs(self):
        return [case for case in self.texts if len(case["texts"]) == 2]


@pytest.fixture(scope="module")
def encoders():
    running = {name: Encoder(name) for name in NAMES}
    yield running
    for encoder in running.values():
        assert encoder.server.stop() == 0, "".join(encoder.server.lines)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("name", ["bert-mean", "modernbert-cls"])
def test_embeddings(encoders, name):
    encoder = encoders[name]
    client = openai.OpenAI(base_url=encoder.server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    cases = encoder.singles()
    reply = client.embeddings.create(model="tiny", input=[case["texts"][0] for case in cases])
    for case, got in zip(cases, reply.data, strict=True):
        assert got.embedding == pytest.approx(case["pooled"], abs=1e-4)
    scores = encoder.post("/v1/score", {"text_1": cases[0]["texts"], "text_2": [case["texts"][0] for case in cases]})["data"]
    assert scores[0]["score"] == pytest.approx(1, abs=1e-5) and scores[1]["score"] < 0.999


@pytest.mark.parametrize("name", ["bert-score", "modernbert-score"])
def test_pairs(encoders, name):
    encoder = encoders[name]
    for case in encoder.pairs():
        first, second = case["texts"]
        wanted = sigmoid(case["pooled"][0])
        score = encoder.post("/v1/score", {"text_1": first, "text_2": second})["data"][0]["score"]
        assert score == pytest.approx(wanted, abs=1e-4)
        other = "dry rain"
        ranked = encoder.post("/v1/rerank", {"query": first, "documents": [other, second]})
        assert {item["index"]: item["score"] for item in ranked}[1] == pytest.approx(wanted, abs=1e-4)
        assert ranked[0]["score"] >= ranked[1]["score"]
    for case in encoder.singles():
        got = encoder.post("/classify", {"input": case["texts"][0]})["data"][0]["probs"]
        assert got == pytest.approx([sigmoid(case["pooled"][0])], abs=1e-4)


def test_labels(encoders):
    encoder = encoders["modernbert-labels"]
    for case in encoder.singles():
        powers = [math.exp(logit) for logit in case["pooled"]]
        got = encoder.post("/v1/classify", {"input": case["texts"]})["data"][0]
        assert got["probs"] == pytest.approx([power / sum(powers) for power in powers], abs=1e-4)
        assert got["label"] == f"class {powers.index(max(powers))}"
        assert encoder.post("/classify", {"text": case["texts"][0]})["embedding"] == pytest.approx(case["pooled"], abs=1e-4)


def test_cutting_keeps_what_stands_around_the_texts(encoders):
    """The first and last token of a prompt are the tokenizer's own, however short it is cut."""
    encoder = encoders["bert-mean"]
    ids = encoder.post("/tokenize", {"prompt": "the cat sat", "add_special_tokens": True})["tokens"]
    cut = encoder.post("/encode", {"text": "the cat sat", "truncate_prompt_tokens": 4})
    assert cut["meta_info"]["prompt_tokens"] == 4
    whole = encoder.post("/encode", {"input_ids": [*ids[:3], ids[-1]]})
    assert cut["embedding"] == pytest.approx(whole["embedding"], abs=1e-5)
    refused = encoder.post("/encode", {"text": "the cat", "truncate_prompt_tokens": 2}, status=400)
    assert refused["error"]["param"] == "truncate_prompt_tokens"
    scorer = encoders["bert-score"]
    long_text = "rain is wet " * 40
    scorer.post("/v1/score", {"text_1": "rain", "text_2": long_text, "truncate_prompt_tokens": -1})
    assert scorer.post("/v1/score", {"text_1": "rain", "text_2": long_text}, status=400)["error"]["param"] == "text_2"


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/generate", {"text": "a"}), ("/v1/responses", {"input": "a"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4})])
@pytest.mark.parametrize("name, endpoint", [("bert-mean", "/v1/embeddings"), ("modernbert-labels", "/classify")])
def test_generation_names_the_endpoint_to_use(encoders, name, endpoint, path, body):
    reply = requests.post(encoders[name].server.url + path, json=body, timeout=30)
    assert reply.status_code == 400 and endpoint in reply.json()["error"]["message"], reply.text


@pytest.mark.parametrize("flags, words", [
    ([], ["intel_amx"]), (["--attention-backend", "torch_native"], ["torch_native"]),
    (["--attention-backend", "flex_attention"], ["flex_attention"]),
    (["--attention-backend", "dual_chunk_flash_attn"], ["dual_chunk_flash_attn", "has no sliding window"]),
    (["--chunked-prefill-size", "16"], ["--chunked-prefill-size", "encoder"])])
def test_explain_says_what_serve_does(flags, words):
    program = os.environ.get("WARPWEAVE_PROGRAM", "build/warpweave")
    model = ["--model-path", FOLDER + "modernbert-cls", "--device", "cpu", *flags]
    explained = subprocess.run([program, "explain", *model], cwd=ROOT, capture_output=True, text=True, timeout=60)
    text = explained.stdout + explained.stderr
    assert all(word in text for word in words), text
    if explained.returncode == 0:
        assert Server(*model[2:], "--max-total-tokens", "256", model=model[1]).stop() == 0
    else:
        with pytest.raises(RuntimeError) as refused:
            Server(*model[2:], model=model[1])
        assert words[-1] in str(refused.value)
