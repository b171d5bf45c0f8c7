"""Structured output against the real program: what comes back parses, and matches what was asked."""
import json
import re

import pytest
import requests

from running_server import Server
from test_openai_client import MESSAGES

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                   "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "maxItems": 3}},
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def ask(client, temperature=1.0, **fields):
    reply = client.chat.completions.create(model="tale", messages=MESSAGES, max_tokens=200, temperature=temperature, **fields)
    return reply.choices


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_json_schema(client, temperature):
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    finished = 0
    for choice in ask(client, temperature, n=4, response_format=format):
        if choice.finish_reason != "stop":
            continue
        finished += 1
        value = json.loads(choice.message.content)
        assert list(value) == ["name", "age", "tags"]
        assert len(value["name"]) <= 12 and 0 <= value["age"] <= 150
        assert len(set(value["tags"])) == len(value["tags"])
    assert finished > 0


def test_regex_choice_and_grammar(client):
    for choice in ask(client, n=4, extra_body={"guided_regex": "[a-f]{3}-[0-9]{2}"}):
        assert re.fullmatch("[a-f]{3}-[0-9]{2}", choice.message.content)
    for choice in ask(client, n=4, extra_body={"guided_choice": ["red", "green"]}):
        assert choice.message.content in ("red", "green")
    for choice in ask(client, n=4, extra_body={"structured_outputs": {"grammar": 'root ::= "(" root ")" | "x"'}}):
        if choice.finish_reason == "stop":
            assert re.fullmatch(r"\(*x\)*", choice.message.content)


def test_streamed_and_batched_with_free_requests(client):
    """Constrained and free requests share steps; a stream is the same text in pieces."""
    stream = client.chat.completions.create(model="tale", messages=MESSAGES, max_tokens=60, temperature=0, stream=True,
                                            extra_body={"guided_regex": "([a-z]+ ){5}end"})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    again = ask(client, 0, extra_body={"guided_regex": "([a-z]+ ){5}end"})[0].message.content
    assert again.startswith(text) or text == again


def test_a_seed_gives_the_same_text_alone_and_in_a_batch(client):
    fields = {"extra_body": {"guided_regex": "[a-z]{20}"}, "seed": 11}
    alone = ask(client, **fields)[0].message.content
    assert ask(client, n=8, **fields)[0].message.content == alone


def test_faults_are_bad_requests(client):
    import openai
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "contains": {}, "maxContains": 1}}})
    assert "maxContains" in str(raised.value)


LONG_NAMES = {
    "type": "object",
    "properties": {"identifier_of_the_customer": {"type": "integer", "maximum": 9, "minimum": 0},
                   "preferred_language": {"const": "Esperanto, spoken slowly"}, "is_subscribed": {"type": "boolean"}},
    "required": ["identifier_of_the_customer", "preferred_language", "is_subscribed"],
    "additionalProperties": False,
}


def test_forced_text_comes_in_few_steps():
    """What the grammar forces is proposed, with and without speculation, and the answer is the one token by token."""
    answers, steps = [], []
    for flags in (["--disable-jump-forward"], [], ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "12"]):
        running = Server("--served-model-name", "tale", "--enable-metrics", "--device", "cpu", "--dtype", "float32",
                         "--constrained-json-disable-any-whitespace", *flags)
        body = {"model": "tale", "messages": MESSAGES, "max_tokens": 200, "temperature": 0,
                "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": LONG_NAMES}}}
        answers.append(requests.post(running.url + "/v1/chat/completions", json=body, timeout=60).json())
        page = requests.get(running.url + "/metrics", timeout=60).text
        steps.append(float(re.search(r"^warpweave:iteration_tokens_count{[^}]*} (\S+)", page, re.MULTILINE)[1]))
        assert running.stop() == 0, "".join(running.lines)
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1] == texts[2]
    assert all("spec_verify_ct" not in json.dumps(answer) for answer in answers[:2])
    assert list(json.loads(texts[0])) == LONG_NAMES["required"]
    print("steps:", steps)
    assert steps[1] < 0.5 * steps[0] and steps[2] < 0.75 * steps[0], (steps, texts)
