"""openai-python: tools and parsed answers of chats, and the Responses endpoint."""

import json

import pytest

openai = pytest.importorskip("openai")

from conftest import CITY  # noqa: E402

MESSAGES = [{"role": "user", "content": "Weather?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_must_be_made(client, choice):
    reply = client.chat.completions.create(model="tale", messages=MESSAGES, tools=TOOLS, tool_choice=choice,
                                           parallel_tool_calls=False, max_tokens=100)
    assert reply.choices[0].finish_reason == "tool_calls"
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert reply.choices[0].message.content is None


def test_a_streamed_call_and_its_result(client):
    name, arguments, call_id = "", "", ""
    stream = client.chat.completions.create(model="tale", messages=MESSAGES, tools=TOOLS, tool_choice="required",
                                            parallel_tool_calls=False, max_tokens=100, stream=True)
    for event in stream:
        for call in event.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            call_id = call.id or call_id
    assert name == "weather" and json.loads(arguments)["city"] in ("Paris", "Rome")
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    history = MESSAGES + [{"role": "assistant", "content": None, "tool_calls": [call]},
                          {"role": "tool", "tool_call_id": call_id, "content": "sunny"}]
    reply = client.chat.completions.create(model="tale", messages=history, tools=TOOLS, max_tokens=5)
    assert reply.choices[0].message.role == "assistant"


def test_responses(client):
    first = client.responses.create(model="tale", input="Hello", max_output_tokens=8, temperature=0)
    assert first.output_text and first.usage.output_tokens == 8
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model="tale", input="And?", previous_response_id=first.id, max_output_tokens=8)
    assert second.usage.input_tokens > first.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_streamed_responses_with_a_tool(client):
    tools = [{"type": "function", "name": "weather", "parameters": CITY, "strict": True}]
    types = []
    with client.responses.stream(model="tale", input="Weather?", tools=tools, tool_choice="required",
                                 parallel_tool_calls=False, max_output_tokens=100) as stream:
        for event in stream:
            types.append(event.type)
        final = stream.get_final_response()
    assert types[0] == "response.created" and types[-1] == "response.completed"
    assert "response.function_call_arguments.delta" in types
    (call,) = final.output
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_context_length_has_its_code(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="tale", messages=[{"role": "user", "content": "word " * 20000}])
    assert error.value.code == "context_length_exceeded"
