"""anthropic-python: messages whole and streamed, tools, counted tokens, errors."""

import pytest

anthropic = pytest.importorskip("anthropic")

from conftest import CITY  # noqa: E402

MESSAGES = [{"role": "user", "content": "Weather?"}]
TOOLS = [{"name": "weather", "input_schema": CITY}]


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)


def test_text(client):
    reply = client.messages.create(model="tale", max_tokens=8, messages=MESSAGES, system="Be brief.")
    assert reply.content[0].type == "text" and reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 8


def test_stream(client):
    with client.messages.stream(model="tale", max_tokens=8, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().content[0].text == text


def test_a_call_and_its_result(client):
    with client.messages.stream(model="tale", max_tokens=100, messages=MESSAGES, tools=TOOLS,
                                tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        reply = stream.get_final_message()
    assert reply.stop_reason == "tool_use"
    (call,) = [block for block in reply.content if block.type == "tool_use"]
    assert call.name == "weather" and call.input["city"] in ("Paris", "Rome")
    history = MESSAGES + [{"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}]},
                          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
    assert client.messages.create(model="tale", max_tokens=5, messages=history, tools=TOOLS).role == "assistant"


def test_counted_tokens_and_errors(client):
    assert client.messages.count_tokens(model="tale", messages=MESSAGES).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(model="tale", max_tokens=5, messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}])
