"""The official openai client against the server."""

import concurrent.futures
import math

import openai
import pytest

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def test_models(client):
    models = client.models.list().data
    assert [model.id for model in models] == ["tale"]
    assert client.models.retrieve("tale").id == "tale"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_completion(client):
    reply = client.completions.create(model="tale", prompt=PROMPT, max_tokens=12, temperature=0)
    assert reply.object == "text_completion"
    assert reply.choices[0].text
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12


def test_greedy_is_the_same_streamed_and_whole(client):
    options = dict(model="tale", prompt=PROMPT, max_tokens=40, temperature=0)
    whole = client.completions.create(**options).choices[0].text
    parts = [event.choices[0].text for event in client.completions.create(**options, stream=True)]
    assert "".join(parts) == whole
    assert len(parts) > 5


def test_completion_batch_echo_and_logprobs(client):
    reply = client.completions.create(
        model="tale", prompt=[PROMPT, "The dog"], echo=True, logprobs=3, max_tokens=4, temperature=0
    )
    for choice, prompt in zip(reply.choices, [PROMPT, "The dog"]):
        assert choice.text.startswith(prompt)
        assert "".join(choice.logprobs.tokens) == choice.text
        assert choice.logprobs.token_logprobs[0] is None
        assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
        assert all(len(top) == 3 for top in choice.logprobs.top_logprobs[1:])
        for offset, token in zip(choice.logprobs.text_offset, choice.logprobs.tokens):
            assert choice.text[offset:].startswith(token)


def test_prompt_scores_without_new_tokens(client):
    reply = client.completions.create(
        model="tale", prompt=PROMPT, echo=True, logprobs=1, max_tokens=0, temperature=0
    )
    assert reply.choices[0].text == PROMPT
    assert len(reply.choices[0].logprobs.tokens) == reply.usage.prompt_tokens
    assert reply.usage.completion_tokens == 0


def test_second_request_hits_the_prefix_cache(client):
    prompt = "A shared beginning that is long enough to be worth keeping. " * 4
    options = dict(model="tale", prompt=prompt, max_tokens=2, temperature=0)
    client.completions.create(**options)
    reply = client.completions.create(**options)
    details = reply.usage.prompt_tokens_details
    assert reply.usage.prompt_tokens // 2 < details.cached_tokens < reply.usage.prompt_tokens


def test_chat(client):
    reply = client.chat.completions.create(model="tale", messages=MESSAGES, max_tokens=16)
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.usage.completion_tokens <= 16
    assert reply.id.startswith("chatcmpl-")


def test_chat_stream_with_usage(client):
    stream = client.chat.completions.create(
        model="tale", messages=MESSAGES, max_tokens=16, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    assert events[0].choices[0].delta.role == "assistant"
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens > 0
    reasons = [e.choices[0].finish_reason for e in events if e.choices]
    assert reasons[-1] in ("stop", "length") and all(reason is None for reason in reasons[:-1])
    whole = client.chat.completions.create(
        model="tale", messages=MESSAGES, max_tokens=16, temperature=0
    )
    assert whole.choices[0].message.content == text


def test_chat_logprobs(client):
    reply = client.chat.completions.create(
        model="tale", messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=4
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 4
        assert math.isclose(entry.logprob, entry.top_logprobs[0].logprob)  # greedy: the best one
        assert entry.token == bytes(entry.bytes).decode("utf-8", "replace")
        total = sum(math.exp(top.logprob) for top in entry.top_logprobs)
        assert 0 < total <= 1.001


def test_n_choices_and_seed(client):
    options = dict(model="tale", messages=MESSAGES, max_tokens=12, temperature=1.0, n=4, seed=11)
    first = client.chat.completions.create(**options)
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) > 1
    again = client.chat.completions.create(**options)
    assert [choice.message.content for choice in again.choices] == texts


def test_n_choices_streamed(client):
    stream = client.chat.completions.create(
        model="tale", messages=MESSAGES, max_tokens=8, n=3, stream=True
    )
    finished = set()
    for event in stream:
        for choice in event.choices:
            assert choice.index not in finished
            if choice.finish_reason:
                finished.add(choice.index)
    assert finished == {0, 1, 2}


def test_stop_string(client):
    options = dict(model="tale", prompt=PROMPT, max_tokens=60, temperature=0)
    text = client.completions.create(**options).choices[0].text
    stop = text.split()[4]
    reply = client.completions.create(**options, stop=[stop])
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].matched_stop == stop
    assert reply.choices[0].text == text[: text.index(stop)]
    streamed = client.completions.create(**options, stop=stop, stream=True)
    assert "".join(e.choices[0].text for e in streamed) == text[: text.index(stop)]


def test_logit_bias_forces_a_token(client, server):
    import json
    import urllib.request

    request = urllib.request.Request(
        server.url + "/tokenize", json.dumps({"prompt": " dog"}).encode(),
        {"Content-Type": "application/json"},
    )
    token = json.load(urllib.request.urlopen(request))["tokens"][0]
    reply = client.completions.create(
        model="tale", prompt=PROMPT, max_tokens=3, temperature=0, logit_bias={str(token): 100}
    )
    assert reply.choices[0].text == " dog dog dog"


def test_sglang_extras(client):
    reply = client.chat.completions.create(
        model="tale", messages=MESSAGES, max_tokens=8,
        extra_body={"top_k": 1, "min_p": 0.1, "min_tokens": 8, "ignore_eos": True,
                    "repetition_penalty": 1.1, "skip_special_tokens": False, "rid": "mine-1"},
    )
    assert reply.id == "mine-1"
    assert reply.usage.completion_tokens == 8


@pytest.mark.parametrize(
    "change, words",
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"n": 0}, "n is 0"),
        ({"max_tokens": 10**6}, "context"),
        ({"response_format": {"type": "xml"}}, "response_format"),
    ],
)
def test_errors_are_bad_requests(client, change, words):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**{"model": "tale", "messages": MESSAGES, **change})
    assert words in str(raised.value)
    assert raised.value.type == "invalid_request_error"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert raised.value.code == "model_not_found"


def test_too_long_prompt_says_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="tale", prompt=[5] * 3000)
    assert "3000" in str(raised.value) and "2048" in str(raised.value)


def test_many_at_once(client):
    def ask(i):
        reply = client.completions.create(
            model="tale", prompt=f"{PROMPT} number {i}", max_tokens=8, temperature=0,
            extra_body={"ignore_eos": True},
        )
        return reply.usage.completion_tokens

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(48))) == [8] * 48
