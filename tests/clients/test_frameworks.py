"""Frameworks above the endpoints: LangChain, LlamaIndex, LiteLLM, Instructor, Outlines, Guidance. Each is skipped where it lacks."""

import enum
import json

import pytest

pydantic = pytest.importorskip("pydantic")


class City(str, enum.Enum):
    paris = "Paris"
    rome = "Rome"


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    model_config = pydantic.ConfigDict(extra="forbid")  # a tiny model would invent members without end
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


def test_llama_index_tools_and_structured_output(base):
    like = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool

    llm = like.OpenAILike(model="tale", api_base=base, api_key="none", is_chat_model=True, is_function_calling_model=True,
                          max_tokens=100, context_window=1024)
    tool = FunctionTool.from_defaults(fn=lambda city: city, name="weather", description="Weather", fn_schema=Weather)
    calls = llm.get_tool_calls_from_response(llm.chat_with_tools([tool], user_msg="Weather?", tool_required=True))
    assert calls[0].tool_name == "weather" and calls[0].tool_kwargs["city"] in ("Paris", "Rome")
    assert isinstance(llm.structured_predict(Weather, PromptTemplate("Weather?"), llm_kwargs={"tool_required": True}), Weather)


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


def test_langchain_embeddings(embedding_server):
    embeddings = pytest.importorskip("langchain_openai").OpenAIEmbeddings(
        model="tale", base_url=embedding_server.url + "/v1", api_key="none", check_embedding_ctx_length=False)
    first, second = embeddings.embed_documents(["Once upon a time", "The cat"])
    assert len(first) == len(second) and first != second
    assert embeddings.embed_query("The cat") == pytest.approx(second, abs=1e-6)


def test_llama_index_embeddings(embedding_server):
    like = pytest.importorskip("llama_index.embeddings.openai_like")
    model = like.OpenAILikeEmbedding(model_name="tale", api_base=embedding_server.url + "/v1", api_key="none")
    first, second = model.get_text_embedding_batch(["Once upon a time", "The cat"])
    assert len(first) == len(second) and first != second


def test_litellm_embeddings_and_rerank(embedding_server):
    litellm = pytest.importorskip("litellm")
    base = embedding_server.url + "/v1"
    reply = litellm.embedding(model="openai/tale", api_base=base, api_key="none", input=["Once", "The cat"], encoding_format="float")
    assert len(reply.data) == 2
    ranked = litellm.rerank(model="hosted_vllm/tale", api_base=embedding_server.url + "/rerank", api_key="none", query="The cat",
                            documents=["A stone", "The cat"], top_n=1)
    assert ranked.results[0]["index"] == 1


def test_litellm_streams(base):
    litellm = pytest.importorskip("litellm")
    stream = litellm.completion(model="openai/tale", api_base=base, api_key="none", max_tokens=8, stream=True,
                                messages=[{"role": "user", "content": "Once"}])
    assert "".join(piece.choices[0].delta.content or "" for piece in stream)


@pytest.mark.parametrize("asked", [{"content": "word " * 20000}, {"content": "Once", "max_tokens": 20000}], ids=["prompt", "answer"])
def test_litellm_knows_a_full_context(base, asked):
    litellm = pytest.importorskip("litellm")
    limits = {name: asked[name] for name in asked if name != "content"}
    with pytest.raises(litellm.ContextWindowExceededError):  # its fallbacks to a longer context hang on this class
        litellm.completion(model="openai/tale", api_base=base, api_key="none", messages=[{"role": "user", "content": asked["content"]}],
                           **limits)


@pytest.mark.parametrize("kind", ["regex", "choice"])
def test_outlines_kinds(base, kind):
    outlines = pytest.importorskip("outlines")
    openai = pytest.importorskip("openai")
    from outlines.types import Regex
    from typing import Literal

    vllm = outlines.from_vllm(openai.OpenAI(base_url=base, api_key="none"), "tale")
    if kind == "regex":
        assert vllm("Number?", Regex("[0-9]{3}"), max_tokens=20).isdigit()
    else:
        assert vllm("City?", Literal["Paris", "Rome"], max_tokens=20) in ("Paris", "Rome")


def test_guidance(base):
    guidance = pytest.importorskip("guidance")
    model = guidance.models.OpenAI("tale", base_url=base, api_key="none", echo=False)
    with guidance.user():
        model += "Weather?"
    with guidance.assistant():
        model += guidance.gen("answer", max_tokens=8)
    assert model["answer"]


def test_guidance_json(base):
    guidance = pytest.importorskip("guidance")
    model = guidance.models.OpenAI("tale", base_url=base, api_key="none", echo=False)
    with guidance.user():
        model += "Weather?"
    with guidance.assistant():
        model += guidance.json(name="answer", schema=Weather)
    assert Weather.model_validate_json(model["answer"]).city in City
