"""Frameworks above the endpoints: LangChain, LlamaIndex, LiteLLM, Instructor, Outlines. Each is skipped where it lacks."""

import enum
import json

import pytest

pydantic = pytest.importorskip("pydantic")


class City(str, enum.Enum):
    paris = "Paris"
    rome = "Rome"


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: City


@pytest.fixture(scope="module")
def base(server):
    return server.url + "/v1"


@pytest.fixture(scope="module")
def langchain(base):
    chat = pytest.importorskip("langchain_openai").ChatOpenAI
    return chat(model="tale", base_url=base, api_key="none", max_tokens=100, max_retries=0)


def test_langchain_tools(langchain):
    reply = langchain.bind_tools([Weather], tool_choice="required", parallel_tool_calls=False).invoke("Weather?")
    assert reply.tool_calls[0]["name"] == "Weather"
    assert reply.tool_calls[0]["args"]["city"] in ("Paris", "Rome")


def test_langchain_streamed_tools(langchain):
    whole = None
    for piece in langchain.bind_tools([Weather], tool_choice="required", parallel_tool_calls=False).stream("Weather?"):
        whole = piece if whole is None else whole + piece
    assert whole.tool_calls[0]["args"]["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_langchain_structured_output(langchain, method):
    assert isinstance(langchain.with_structured_output(Weather, method=method).invoke("Weather?"), Weather)


def test_llama_index(base):
    like = pytest.importorskip("llama_index.llms.openai_like")
    llm = like.OpenAILike(model="tale", api_base=base, api_key="none", is_chat_model=True, is_function_calling_model=True,
                          max_tokens=100, context_window=1024)
    assert llm.complete("Once").text
    assert "".join(piece.delta or "" for piece in llm.stream_complete("Once"))


def test_litellm(base):
    litellm = pytest.importorskip("litellm")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": Weather.model_json_schema()}}]
    reply = litellm.completion(model="openai/tale", api_base=base, api_key="none", max_tokens=100, tools=tools, tool_choice="required",
                               messages=[{"role": "user", "content": "Weather?"}])
    assert json.loads(reply.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(base, mode):
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    client = instructor.from_openai(openai.OpenAI(base_url=base, api_key="none"), mode=getattr(instructor.Mode, mode))
    answer = client.chat.completions.create(model="tale", response_model=Weather, max_tokens=100, max_retries=0,
                                            messages=[{"role": "user", "content": "Weather?"}])
    assert answer.city in City


def test_outlines(base):
    outlines = pytest.importorskip("outlines")
    openai = pytest.importorskip("openai")
    model = outlines.from_openai(openai.OpenAI(base_url=base, api_key="none"), "tale")
    assert Weather.model_validate_json(model("Weather?", Weather, max_tokens=100)).city in City
