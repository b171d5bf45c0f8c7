"""input_embeds of /generate, against the same prompts as ids; and streams that hold only what is new."""

import json
import struct

import pytest
import requests

from running_server import ROOT, Server

SAMPLING = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
PROMPTS = ["Once upon a time there was a king who", "The old fox said to the hare that"]


@pytest.fixture(scope="module")
def served():
    # Chunks of 4 tokens, so that a prompt's rows come in parts.
    running = Server("--served-model-name", "tale", "--device", "cpu", "--chunked-prefill-size", "4", "--stream-output")
    yield running
    assert running.stop() == 0, "".join(running.lines)


@pytest.fixture(scope="module")
def embedding():
    """id -> its row of the model's embedding (bfloat16) as floats."""
    data = (ROOT / "models/tale-llama/model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:begin])["model.embed_tokens.weight"]
    assert entry["dtype"] == "BF16"
    first, hidden = begin + entry["data_offsets"][0], entry["shape"][1]

    def row(token):
        bits = struct.unpack_from(f"<{hidden}H", data, first + token * hidden * 2)
        return struct.unpack(f"<{hidden}f", struct.pack(f"<{hidden}I", *(value << 16 for value in bits)))

    return row


def post(served, path, body):
    return requests.post(served.url + path, json=body, timeout=60)


def ids_of(served, text):
    return post(served, "/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]


def test_embeds_of_a_prompt_give_what_its_ids_give(served, embedding):
    ids = [ids_of(served, text) for text in PROMPTS]
    by_ids = post(served, "/generate", {"input_ids": ids, "sampling_params": SAMPLING}).json()
    rows = [[embedding(token) for token in prompt] for prompt in ids]
    by_rows = post(served, "/generate", {"input_embeds": rows, "sampling_params": SAMPLING}).json()
    assert [reply["output_ids"] for reply in by_rows] == [reply["output_ids"] for reply in by_ids]
    assert [reply["meta_info"]["prompt_tokens"] for reply in by_rows] == [len(prompt) for prompt in ids]
    # Alone, and in the place of another prompt of the same length: nothing of theirs is shared.
    other = [embedding(token) for token in reversed(ids[0])]
    assert post(served, "/generate", {"input_embeds": other, "sampling_params": SAMPLING}).json()["output_ids"] != \
        by_ids[0]["output_ids"]
    alone = post(served, "/generate", {"input_embeds": rows[0], "sampling_params": {**SAMPLING, "n": 2}}).json()
    assert [reply["output_ids"] for reply in alone] == [by_ids[0]["output_ids"]] * 2


@pytest.mark.parametrize("body, field", [
    ({"input_embeds": [[0.0] * 3]}, "input_embeds[0]"), ({"input_embeds": "x"}, "input_embeds"),
    ({"input_embeds": []}, "input_embeds"), ({"input_embeds": [5]}, "input_embeds[0]"),
    ({"input_embeds": [[1e30] * 384]}, "input_embeds[0]"), ({"input_embeds": [["a"] * 384]}, "input_embeds[0]"),
    ({"input_embeds": [[0.0] * 384], "text": "a"}, "text"),
    ({"input_embeds": [[0.0] * 384], "position_ids": [[0], [0]]}, "position_ids"),
    ({"input_embeds": [[0.0] * 384], "position_ids": [[0], [0], [-1]]}, "position_ids"),
    ({"input_embeds": [[0.0] * 384], "position_ids": [[0], [0], [0]]}, "position_ids"),  # this model has no sections
    ({"input_embeds": [[0.0] * 384], "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len")])
def test_refusals_name_the_field(served, body, field):
    reply = post(served, "/generate", body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field


def test_streams_hold_only_what_is_new(served):
    body = {"text": PROMPTS[0], "return_logprob": True, "sampling_params": SAMPLING}
    whole = post(served, "/generate", body).json()
    events = [json.loads(line[6:]) for line in post(served, "/generate", {**body, "stream": True}).text.splitlines()
              if line.startswith("data: {")]
    assert len(events) > 1
    assert "".join(event["text"] for event in events) == whole["text"]
    assert sum((event["output_ids"] for event in events), []) == whole["output_ids"]
    assert sum((event["meta_info"]["output_token_logprobs"] for event in events), []) == \
        whole["meta_info"]["output_token_logprobs"]
    assert events[-1]["meta_info"]["completion_tokens"] == 12
