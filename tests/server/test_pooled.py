"""Embeddings, hidden states, stop_regex, profiles and other model names, with the openai client and plain requests."""

import json
import math

import openai
import pytest
import requests

from running_server import Server


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    running = Server("--served-model-name", "tale", "--is-embedding", "--any-model-name", "--profile-dir", str(folder),
                     "--device", "cpu")
    running.profiles = folder
    yield running
    assert running.stop() == 0, "".join(running.lines)


@pytest.fixture(scope="module")
def openai_client(pooled):
    return openai.OpenAI(base_url=pooled.url + "/v1", api_key="none", max_retries=0, timeout=60)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)


def test_embeddings(openai_client):
    texts = ["Once upon a time", "Once upon a time", "The cat"]
    reply = openai_client.embeddings.create(model="tale", input=texts)  # base64 by the client's default
    assert [item.index for item in reply.data] == [0, 1, 2]
    assert reply.data[0].embedding == reply.data[1].embedding
    assert math.isclose(math.hypot(*reply.data[0].embedding), 1, rel_tol=1e-5)
    floats = openai_client.embeddings.create(model="tale", input=texts, encoding_format="float")
    for ours, theirs in zip(floats.data, reply.data):
        assert ours.embedding == pytest.approx(theirs.embedding, abs=1e-7)
    assert reply.usage.total_tokens == floats.usage.total_tokens > 0
    cut = openai_client.embeddings.create(model="tale", input="The cat", dimensions=16).data[0].embedding
    assert len(cut) == 16 and math.isclose(math.hypot(*cut), 1, rel_tol=1e-5)


def test_token_ids_give_what_the_text_gives(pooled, openai_client):
    ids = requests.post(pooled.url + "/tokenize", json={"prompt": "The cat sat"}, timeout=30).json()["tokens"]
    text = openai_client.embeddings.create(model="tale", input="The cat sat").data[0].embedding
    assert openai_client.embeddings.create(model="tale", input=ids).data[0].embedding == pytest.approx(text, abs=1e-6)
    encoded = requests.post(pooled.url + "/encode", json={"text": "The cat sat"}, timeout=30).json()
    assert encoded["embedding"] == pytest.approx(text, abs=1e-6)


def test_a_text_too_long_has_its_code(openai_client):
    with pytest.raises(openai.BadRequestError) as error:
        openai_client.embeddings.create(model="tale", input="word " * 5000)
    assert error.value.code == "context_length_exceeded"


def test_rerank_and_score(pooled):
    body = {"query": "The cat sat", "documents": ["A stone", "The cat sat", "Rain"]}
    native = requests.post(pooled.url + "/v1/rerank", json=body, timeout=30).json()
    assert native[0]["index"] == 1 and native[0]["score"] == pytest.approx(1, abs=1e-5)
    ranked = requests.post(pooled.url + "/rerank", json={**body, "top_n": 1}, timeout=30).json()
    assert [item["index"] for item in ranked["results"]] == [1]
    score = requests.post(pooled.url + "/v1/score", json={"text_1": "The cat sat", "text_2": ["A stone", "The cat sat"]}, timeout=30).json()
    assert score["data"][1]["score"] > score["data"][0]["score"]
    tokens = requests.post(pooled.url + "/v1/score", timeout=30,
                           json={"query": "Once upon a", "items": [" time", " stone"], "label_token_ids": [5, 6, 7]}).json()
    assert len(tokens["scores"]) == 2 and all(0 <= p <= 1 for row in tokens["scores"] for p in row)


def test_hidden_states_are_those_embeddings_are_made_of(pooled):
    body = {"text": "The cat sat", "return_hidden_states": True, "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
    info = requests.post(pooled.url + "/generate", json=body, timeout=30).json()["meta_info"]
    prompt, *rest = info["hidden_states"]
    assert len(prompt) == info["prompt_tokens"] and len(rest) == 3
    embedding = requests.post(pooled.url + "/encode", json={"text": "The cat sat"}, timeout=30).json()["embedding"]
    assert cosine(prompt[-1], embedding) == pytest.approx(1, abs=1e-4)
    assert "hidden_states" not in requests.post(pooled.url + "/generate", json={**body, "return_hidden_states": False}, timeout=30).json()["meta_info"]


@pytest.mark.parametrize("stream", [False, True])
def test_hidden_states_of_chats(openai_client, stream):
    reply = openai_client.chat.completions.create(model="tale", messages=[{"role": "user", "content": "Hi"}], max_tokens=4, n=2,
                                                  stream=stream, extra_body={"return_hidden_states": True})
    choices = [choice.delta for event in reply for choice in event.choices] if stream else reply.choices
    states = [choice.hidden_states for choice in choices if hasattr(choice, "hidden_states")]
    assert len(states) == 2 and all(isinstance(value, float) for value in states[0])


def test_stop_regex(pooled):
    body = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 60, "temperature": 0, "ignore_eos": True}}
    whole = requests.post(pooled.url + "/generate", json=body, timeout=30).json()["text"]
    body["sampling_params"]["stop_regex"] = ["zzz+", r"[a-z]+\."]
    reply = requests.post(pooled.url + "/generate", json=body, timeout=30).json()
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": r"[a-z]+\."}
    assert whole.startswith(reply["text"]) and "." in reply["text"] and len(reply["text"]) < len(whole)
    body["sampling_params"]["stop_regex"] = "(?=a)"
    refused = requests.post(pooled.url + "/generate", json=body, timeout=30)
    assert refused.status_code == 400 and "stop_regex" in refused.json()["error"]["param"]


def test_profile(pooled):
    assert requests.post(pooled.url + "/stop_profile", timeout=30).status_code == 400
    assert requests.post(pooled.url + "/start_profile", json={"num_steps": 100000}, timeout=30).status_code == 200
    assert requests.post(pooled.url + "/start_profile", timeout=30).status_code == 400
    requests.post(pooled.url + "/generate", timeout=30, json={"text": "Seven stones fell in the rain", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}})
    path = requests.post(pooled.url + "/stop_profile", timeout=30).json()["path"]
    assert path.startswith(str(pooled.profiles))
    events = json.load(open(path))["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert {"prefill", "decode"} <= {event["name"] for event in steps}
    assert all(event["dur"] >= 0 for event in steps)
    assert requests.post(pooled.url + "/start_profile", json={"output_dir": "/x"}, timeout=30).json()["error"]["param"] == "output_dir"


def test_profiles_need_their_folder(server):
    reply = requests.post(server.url + "/start_profile", timeout=30)
    assert reply.status_code == 400 and "--profile-dir" in reply.json()["error"]["message"]


def test_any_model_name(openai_client, client):
    openai_client.completions.create(model="gpt-4o", prompt="Once", max_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4o", prompt="Once", max_tokens=1)


def test_embeddings_need_their_flag(client):
    with pytest.raises(openai.BadRequestError, match="--is-embedding"):
        client.embeddings.create(model="tale", input="Once")
