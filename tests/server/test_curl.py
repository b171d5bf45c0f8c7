"""curl against the server: the native endpoints, bad bodies, disconnects."""

import json
import shutil
import subprocess
import time

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(server, path, body=None, *flags):
    command = ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *flags, server.url + path]
    if body is not None:
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    else:
        data = b""
    data = data.encode() if isinstance(data, str) else data
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    text, status = done.stdout.rsplit(b"\n", 1)
    return int(status), text.decode()


def generate(server, **body):
    status, text = curl(server, "/generate", body)
    assert status == 200, text
    return json.loads(text)


def events(text):
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]


def test_health_and_info(server):
    for path in ("/health", "/ready", "/ping", "/health_generate"):
        assert curl(server, path)[0] == 200, path
    status, text = curl(server, "/get_model_info")
    assert status == 200 and json.loads(text)["is_generation"]
    status, text = curl(server, "/get_server_info")
    info = json.loads(text)
    assert info["attention"]["decode"] and info["internal_states"][0]["num_running_reqs"] >= 0
    assert "warpweave:" in curl(server, "/metrics")[1]
    assert "<html" in curl(server, "/")[1]


def test_generate(server):
    reply = generate(server, text="Once upon a time",
                     sampling_params={"max_new_tokens": 8, "temperature": 0, "ignore_eos": True})
    assert len(reply["output_ids"]) == 8
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["completion_tokens"] == 8 and meta["e2e_latency"] > 0


def test_generate_ids_and_text_agree(server):
    tokens = json.loads(curl(server, "/tokenize", {"prompt": "Once upon a time"})[1])["tokens"]
    params = {"max_new_tokens": 12, "temperature": 0}
    by_ids = generate(server, input_ids=tokens, sampling_params=params)
    by_text = generate(server, text="Once upon a time", sampling_params=params)
    assert by_ids["output_ids"] == by_text["output_ids"]
    text = json.loads(curl(server, "/detokenize", {"tokens": by_ids["output_ids"]})[1])["text"]
    assert text == by_ids["text"]


def test_generate_stream_is_cumulative(server):
    body = {"text": "Once upon a time", "stream": True,
            "sampling_params": {"max_new_tokens": 16, "temperature": 0}}
    status, text = curl(server, "/generate", body, "-N")
    assert status == 200
    texts = [event["text"] for event in events(text)]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))
    body.pop("stream")
    assert generate(server, **body)["text"] == texts[-1]


def test_generate_logprobs(server):
    tokens = json.loads(curl(server, "/tokenize", {"prompt": "Once upon a time"})[1])["tokens"]
    reply = generate(server, input_ids=tokens, return_logprob=True, logprob_start_len=0,
                     top_logprobs_num=2, token_ids_logprob=[5], return_text_in_logprobs=True,
                     sampling_params={"max_new_tokens": 3, "temperature": 0, "ignore_eos": True})
    meta = reply["meta_info"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == tokens
    assert meta["input_token_logprobs"][0][0] is None
    assert "".join(e[2] for e in meta["input_token_logprobs"]) == "Once upon a time"
    assert [e[1] for e in meta["output_token_logprobs"]] == reply["output_ids"]
    for chosen, top, asked in zip(meta["output_token_logprobs"], meta["output_top_logprobs"],
                                  meta["output_token_ids_logprobs"]):
        assert len(top) == 2 and top[0][:2] == chosen[:2]
        assert asked[0][1] == 5


def test_generate_batch(server):
    replies = generate(server, text=["Once", "The dog"],
                       sampling_params={"max_new_tokens": 4, "n": 2, "ignore_eos": True})
    assert [reply["index"] for reply in replies] == [0, 1, 2, 3]
    assert all(reply["meta_info"]["completion_tokens"] == 4 for reply in replies)


def test_flush_cache(server):
    assert curl(server, "/flush_cache", "")[0] == 200
    status, text = curl(server, "/flush_cache")  # a GET changes nothing
    assert status == 405 and json.loads(text)["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("body", ["", "{", "[]", "{\"text\": NaN}", b"{\"text\": \"\xff\"}",
                                  "[" * 100000, "{\"text\": 1e999}", "{\"input_ids\": [-1]}",
                                  "{\"input_ids\": [2147483648]}", "{}"])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_bad_bodies(server, path, body):
    status, text = curl(server, path, body)
    assert status == 400
    assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}


def wait_until_idle(server):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = json.loads(curl(server, "/get_server_info")[1])["internal_states"][0]
        if state["num_running_reqs"] == 0 and state["num_queue_reqs"] == 0:
            return state
        time.sleep(0.05)
    raise AssertionError(state)


LONG = {"text": "Once", "stream": True,
        "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}


def test_a_client_that_leaves_frees_its_tokens(server):
    before = wait_until_idle(server)["num_aborted_requests_total"]
    process = subprocess.Popen(
        ["curl", "-sN", server.url + "/generate", "-d", json.dumps(LONG)], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    process.kill()
    process.wait()
    state = wait_until_idle(server)
    assert state["num_used_tokens"] == 0
    assert state["num_aborted_requests_total"] == before + 1


def test_abort_request(server):
    process = subprocess.Popen(
        ["curl", "-sN", server.url + "/generate", "-d", json.dumps({**LONG, "rid": "to-abort"})],
        stdout=subprocess.PIPE, text=True,
    )
    process.stdout.readline()
    assert curl(server, "/abort_request", {"rid": "to-abort"})[0] == 200
    text = process.stdout.read()  # communicate() would lose what readline() has buffered
    assert events("\n\n".join(text.lstrip("\n").split("\n\n")))[-1]["meta_info"]["finish_reason"][
        "type"] == "abort"


def test_a_stream_of_events_larger_than_the_write_buffer_is_whole(server):
    """Cumulative events with 128 logprobs a token pass 1 MiB; a reader gets as many as it takes, and the last is whole."""
    body = {"text": "Once", "stream": True, "return_logprob": True, "top_logprobs_num": 128,
            "sampling_params": {"max_new_tokens": 450, "temperature": 0, "ignore_eos": True}}
    process = subprocess.Popen(["curl", "-sN", server.url + "/generate", "-d", json.dumps(body)],
                               stdout=subprocess.PIPE)
    last, largest = None, 0
    for line in process.stdout:
        if line.startswith(b"data: {"):
            last, largest = line, max(largest, len(line))
    assert process.wait() == 0
    assert b"error" not in last[:100], last[:300]
    assert largest > 1 << 20
    assert json.loads(last[6:])["meta_info"]["finish_reason"] == {"type": "length", "length": 450}
