"""What a request may ask for and what an answer may cost, against the real program."""

import json
import pathlib
import resource
import urllib.error
import urllib.request

import pytest

from conftest import Server

KEY, ADMIN = "key-of-users", "key-of-admins"


def call(url, body=None, key=None):
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + key
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def peak_bytes(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) << 10


@pytest.fixture(scope="module")
def guarded():
    running = Server("--api-key", KEY, "--admin-api-key", ADMIN, "--enable-metrics",
                     "--max-queued-requests", "16", "--no-special-tokens-in-content", "--enable-kv-canary")
    yield running
    assert running.stop() == 0, "".join(running.lines)


def test_metrics_are_open_and_the_audit_is_the_admins(guarded):
    assert call(guarded.url + "/metrics")[0] == 200
    assert call(guarded.url + "/debug/audit")[0] == 401
    assert call(guarded.url + "/debug/audit", key=KEY)[0] in (401, 403)
    assert call(guarded.url + "/debug/audit", key=ADMIN) == (200, '{"status":"ok"}')


def test_unknown_fields_and_requests_that_never_fit(guarded):
    status, text = call(guarded.url + "/v1/completions", {"prompt": "a", "temprature": 1}, KEY)
    assert status == 400 and "temperature" in text
    status, text = call(guarded.url + "/v1/completions", {"prompt": "a", "n": 17}, KEY)
    assert status == 400 and "--max-queued-requests" in text
    assert call(guarded.url + "/v1/completions", {"prompt": "a", "n": 16, "max_tokens": 2}, KEY)[0] == 200


def test_texts_and_arguments_of_megabytes_cost_little(guarded):
    before = peak_bytes(guarded)
    status, text = call(guarded.url + "/generate", {"text": "once upon a time " * (1 << 20)}, KEY)
    assert status == 400 and "context holds" in text
    for arguments in ("[" * (16 << 20), "{" + ",".join(f'"{i}":1' for i in range(65536)) + "}"):
        message = {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": arguments}}]}
        status, text = call(guarded.url + "/v1/chat/completions", {"messages": [message]}, KEY)
        assert status == 400, text
    assert peak_bytes(guarded) - before < 256 << 20


def test_logprobs_of_many_prompts_are_bounded(guarded):
    body = {"prompt": [[5] * 1000] * 16, "echo": True, "logprobs": 128, "max_tokens": 1}
    status, text = call(guarded.url + "/v1/completions", body, KEY)
    assert status == 400 and "--max-logprob-values" in text


def test_masks_and_token_ids(guarded):
    body = {"prompt": "Once upon", "max_tokens": 8, "allowed_token_ids": [300, 301], "return_token_ids": True}
    status, text = call(guarded.url + "/v1/completions", body, KEY)
    assert status == 200, text
    assert set(json.loads(text)["choices"][0]["token_ids"]) <= {300, 301}
    body = {"prompt": "Once upon", "max_tokens": 8, "allowed_token_ids": [300],
            "logit_bias": {}, "bad_words": [], "min_tokens": 1}
    assert call(guarded.url + "/v1/completions", body, KEY)[0] == 200


def test_the_audit_holds_after_all_this(guarded):
    assert call(guarded.url + "/debug/audit", key=ADMIN)[0] == 200


def test_a_tight_memory_limit_fails_requests_not_the_process():
    server = Server("--max-total-tokens", "4096")
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    room = (int(status.split("VmSize:")[1].split()[0]) << 10) + (48 << 20)
    # Only the soft limit: the hard one could not be raised again.
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    answers = set()
    for _ in range(3):
        answers.add(answer(server, {"prompt": [[5] * 400] * 1000, "n": 4, "max_tokens": 1}))
        answers.add(answer(server, {"prompt": "x " * (8 << 20)}))
    assert answers <= {200, 400, 413, 429, 500, 503, "cut"}, answers
    forever = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, forever)
    assert answer(server, {"prompt": "a", "max_tokens": 2}) == 200
    assert server.stop() == 0, "".join(server.lines)


def answer(server, body):
    try:
        return call(server.url + "/v1/completions", body)[0]
    except OSError:
        return "cut"
