"""Stands in for the modules of sglang that its server tests import."""

import ast
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import unittest

import requests

from stand_ins import TALE, model_folder, tale_tensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
URL = "http://127.0.0.1:21000"
HELPERS = ("run_logprob_check", "send_generate_requests", "send_concurrent_generate_requests", "get_similarities")
START_SECONDS = 60
DROPPED = {}  # flag -> the server's reason
RUNNING = {}  # port -> its server


class CustomTestCase(unittest.TestCase):
    pass


class Tokenizer:
    """The few methods of transformers' tokenizers that the tests call."""

    def __init__(self, folder=TALE):
        import tokenizers

        self.inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        special = json.loads((TALE / "special_tokens_map.json").read_text())
        end = special["eos_token"]
        self.eos_token = end["content"] if isinstance(end, dict) else end
        self.bos_token_id = None  # none is put before a prompt
        self.eos_token_id = self.inner.token_to_id(self.eos_token)

    def encode(self, text, add_special_tokens=True):
        return self.inner.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids, skip_special_tokens=False):
        return self.inner.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def __call__(self, text, return_tensors=None):
        import numpy

        return {"input_ids": numpy.array([self.encode(text)]) if return_tensors else self.encode(text)}


class ReferenceModel:
    """The one thing that the tests ask of transformers' models: the embeddings of tokens."""

    def get_input_embeddings(self):
        import numpy

        _, shape, data = tale_tensors()["model.embed_tokens.weight"]
        bits = numpy.frombuffer(data, dtype="<u2").astype("<u4") << 16  # bfloat16 to float
        rows = bits.view("<f4").reshape(shape)
        return lambda ids: rows[ids]


def tokenizer_for_caller(model, *_, **__):
    """Of the model that stands for `model` in the test file that asks."""
    test = sys._getframe(1).f_globals["__name__"]
    return Tokenizer(model_folder(model, test) if test.endswith("test_fim_completion") else TALE)


def is_flag(word):
    return isinstance(word, str) and word.startswith("--")


def without_flag(flags, name):
    """`flags` without the flag `name` and its values."""
    out, skipping = [], False
    for word in flags:
        skipping = word == name if is_flag(word) else skipping
        if not skipping:
            out.append(word)
    return out


def refused_flag(text, flags):
    """The flag of `flags` that the server's first error is about."""
    for line in text.splitlines():
        if not line.startswith("error"):
            continue
        for word in flags:
            if is_flag(word) and word in line:
                return word, line
    return None, text[-500:]


def try_start(model, folder, port, flags, api_key):
    program = os.environ.get("WARPWEAVE_PROGRAM", str(ROOT / "build" / "warpweave"))
    command = [program, "serve", "--model-path", str(folder), "--served-model-name", model, "--any-model-name",
               "--port", port, "--device", "cpu", "--threads", "1", "--constrained-json-disable-any-whitespace", *flags]
    if api_key:
        command += ["--api-key", api_key]
    if port in RUNNING:  # a class that failed in its start left it
        kill_process_tree(RUNNING.pop(port).pid)
    with socket.socket() as taken:
        if taken.connect_ex(("127.0.0.1", int(port))) == 0:
            raise RuntimeError(f"another server answers on port {port}; stop it first")
    log = tempfile.TemporaryFile(mode="w+")
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
            if requests.get(f"http://127.0.0.1:{port}/health_generate", headers=headers, timeout=5).status_code == 200:
                RUNNING[port] = process
                return process, ""
        except requests.RequestException:
            pass
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
    log.seek(0)
    return None, log.read()


def popen_launch_server(model, base_url, timeout=0, api_key=None, other_args=(), env=None, **_):
    flags = [str(word) for word in other_args]
    test = sys._getframe(1).f_globals["__name__"]  # the test file that starts the server
    folder = model_folder(model, test)
    if test.endswith("test_start_profile"):  # run as a program it says so by an environment variable
        flags += ["--profile-dir", str(pathlib.Path.cwd() / "profiler_dir")]
    while True:
        process, text = try_start(model, folder, base_url.rsplit(":", 1)[1].split("/")[0], flags, api_key)
        if process is not None:
            return process
        name, reason = refused_flag(text, flags)
        if name is None:
            raise RuntimeError("the server did not start: " + reason)
        DROPPED[name] = reason
        flags = without_flag(flags, name)


def kill_process_tree(pid, *_, **__):
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def constants_and_helpers(checkout):
    """From the checkout's test_utils: names of models, and the helpers that only talk HTTP."""
    source = (checkout / "python/sglang/test/test_utils.py").read_text()
    kept = []
    for node in ast.parse(source).body:
        names_text = isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.Name))
        text_constant = names_text and node.targets[0].id.isupper()
        if text_constant or (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in HELPERS):
            kept.append(node)
    return ast.Module(body=kept, type_ignores=[])


def rerank_documents(checkout):
    """The queries and documents of the checkout's runners."""
    for node in ast.parse((checkout / "python/sglang/test/runners.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "TEST_RERANK_QUERY_DOCS":
            return ast.literal_eval(node.value)
    raise RuntimeError("no TEST_RERANK_QUERY_DOCS in the checkout's runners.py")


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    made.__path__ = []
    sys.modules[name] = made
    return made


def run_and_check_memory_leak(workload_func, *_, **__):
    """The workload on a server of its own; then every page of the KV pool is accounted for."""
    process = popen_launch_server("leak-check", URL)
    try:
        workload_func(URL, "leak-check")
        time.sleep(1)
        assert requests.get(URL + "/debug/audit", timeout=30).status_code == 200
        assert process.poll() is None
    finally:
        kill_process_tree(process.pid)


class Anything(types.ModuleType):
    """A module of which every name is something that skips the test that uses it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        class Missing:
            def __init__(self, *_, **__):
                raise unittest.SkipTest(f"{name} is a part of SGLang itself")

            @classmethod
            def to_str(cls):
                raise unittest.SkipTest(f"{name} is a part of SGLang itself")

        return Missing


def install(checkout):
    import asyncio
    import aiohttp
    from typing import Tuple, List, Optional
    import numpy

    utils = module("sglang.test.test_utils", unittest=unittest, requests=requests, asyncio=asyncio, aiohttp=aiohttp,
                   np=numpy, Tuple=Tuple, List=List, Optional=Optional, os=os, time=time)
    exec(compile(constants_and_helpers(checkout), "test_utils.py", "exec"), utils.__dict__)
    utils.__dict__.update(
        DEFAULT_URL_FOR_TEST=URL, DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH=START_SECONDS, CustomTestCase=CustomTestCase,
        popen_launch_server=popen_launch_server, run_and_check_memory_leak=run_and_check_memory_leak,
        is_in_ci=lambda: True, is_in_amd_ci=lambda: False)
    module("sglang")
    module("sglang.test")
    module("sglang.test.runners", TEST_RERANK_QUERY_DOCS=rerank_documents(checkout))
    module("sglang.test.ci")
    module("sglang.test.ci.ci_register", register_cuda_ci=lambda *a, **k: None, register_amd_ci=lambda *a, **k: None,
           register_cpu_ci=lambda *a, **k: None)
    module("sglang.srt")
    module("sglang.srt.utils", kill_process_tree=kill_process_tree)
    for name in ("sglang.srt.hf_transformers_utils", "sglang.srt.utils.hf_transformers_utils"):
        module(name, get_tokenizer=tokenizer_for_caller)
    module("sglang.srt.sampling")
    sys.modules["sglang.srt.sampling.custom_logit_processor"] = Anything("sglang.srt.sampling.custom_logit_processor")
    module("sglang.lang")
    sys.modules["sglang.lang.chat_template"] = Anything("sglang.lang.chat_template")
    for name in ("PIL", "torch"):
        sys.modules.setdefault(name, Anything(name))
    tokenizers = types.SimpleNamespace(from_pretrained=lambda *_, **__: Tokenizer())
    models = types.SimpleNamespace(from_pretrained=lambda *_, **__: ReferenceModel())
    module("transformers", AutoTokenizer=tokenizers, AutoProcessor=None, AutoModelForCausalLM=models)
