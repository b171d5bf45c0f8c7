"""Adapters with the openai client and plain requests: named, loaded from a folder, unloaded while a stream runs."""

import json

import openai
import pytest
import requests

from lora_files import write_adapter
from running_server import Server

ADMIN = {"Authorization": "Bearer admin"}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(["first", "second", "third"]):
        write_adapter(folder / name, seed)
    write_adapter(folder.parent / "elsewhere", 9)
    running = Server("--served-model-name", "tale", "--device", "cpu", "--dtype", "float32", "--enable-metrics",
                     "--admin-api-key", "admin", "--lora-paths", f"first={folder}/first", f"second={folder}/second",
                     "--lora-root", str(folder))
    running.folder = folder
    yield running
    assert running.stop() == 0, "".join(running.lines)


@pytest.fixture(scope="module")
def openai_client(adapted):
    return openai.OpenAI(base_url=adapted.url + "/v1", api_key="none", max_retries=0, timeout=60)


def complete(client, model):
    reply = client.completions.create(model=model, prompt="Once upon a time", max_tokens=12, temperature=0)
    return reply.model, reply.choices[0].text


def test_adapters_are_listed_and_chosen(openai_client):
    cards = {model.id: model for model in openai_client.models.list()}
    assert {"tale", "first", "second"} <= set(cards)
    assert cards["first"].parent == "tale"
    texts = {name: complete(openai_client, name) for name in ("tale", "first", "second")}
    assert [model for model, _ in texts.values()] == ["tale", "first", "second"]
    assert len({text for _, text in texts.values()}) == 3
    assert complete(openai_client, "tale:first") == texts["first"]
    with pytest.raises(openai.NotFoundError):
        complete(openai_client, "tale:fourth")


def test_a_batch_of_several(adapted):
    def generate(paths):
        reply = requests.post(adapted.url + "/generate", json={"text": ["Once upon a time"] * len(paths), "lora_path": paths,
                                                               "sampling_params": {"max_new_tokens": 12, "temperature": 0}}, timeout=60)
        assert reply.status_code == 200, reply.text
        return [one["text"] for one in reply.json()]

    paths = ["first", None, "second", "first", "second", None]
    together = generate(paths)
    assert together == [generate([path])[0] for path in paths]


def load(server, spelling, name, path):
    return requests.post(server.url + spelling + "load_lora_adapter", json={"lora_name": name, "lora_path": path}, headers=ADMIN, timeout=60)


def unload(server, spelling, name):
    return requests.post(server.url + spelling + "unload_lora_adapter", json={"lora_name": name}, headers=ADMIN, timeout=60)


@pytest.mark.parametrize("spelling", ["/", "/v1/"])
def test_load_and_unload(adapted, openai_client, spelling):
    refused = requests.post(adapted.url + spelling + "load_lora_adapter", json={"lora_name": "third", "lora_path": "third"}, timeout=60)
    assert refused.status_code in (401, 403)
    assert load(adapted, spelling, "third", "third").status_code == 200
    stream = openai_client.completions.create(model="third", prompt="Once upon a time", max_tokens=120, temperature=0, stream=True)
    pieces = [next(stream).choices[0].text]
    assert unload(adapted, spelling, "third").status_code == 200
    with pytest.raises(openai.NotFoundError):
        complete(openai_client, "third")
    pieces += [chunk.choices[0].text for chunk in stream]  # it goes on with the adapter
    assert len("".join(pieces)) > 20
    assert unload(adapted, spelling, "third").status_code == 404


def test_folders_outside_the_root_are_not_found(adapted):
    (adapted.folder / "link").symlink_to(adapted.folder.parent / "elsewhere")
    for path in ("../elsewhere", str(adapted.folder.parent / "elsewhere"), "link", "missing", "."):
        reply = load(adapted, "/", "x", path)
        assert reply.status_code == 404, (path, reply.text)


def test_requests_are_counted(adapted, openai_client):
    complete(openai_client, "first")
    page = requests.get(adapted.url + "/metrics", timeout=60).text
    assert 'warpweave:lora_requests_total{model_name="tale",lora_name="first"}' in page
