"""Command-line tools that load a server: lm_eval's completions, guidellm's benchmark. Each is skipped where it lacks."""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

import pytest


def needs(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def test_lm_eval_reads_logprobs(server):
    """The model class behind lm_eval's `local-completions`, on requests of its own kind."""
    needs("lm_eval")
    pytest.importorskip("tenacity")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(base_url=server.url + "/v1/completions", model="tale", tokenizer_backend="huggingface",
                                tokenizer="models/tale-llama", tokenized_requests=True, num_concurrent=1, max_retries=1)
    pairs = [("Once upon a", " time"), ("Once upon a", " stone")]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    likely, unlikely = model.loglikelihood(requests)
    assert likely[0] > unlikely[0]
    generated = model.generate_until([Instance("generate_until", {}, ("Once upon a", {"max_gen_toks": 8, "until": ["."]}), 0)])
    assert generated[0]


def test_guidellm(server, tmp_path):
    needs("guidellm")
    program = shutil.which("guidellm", path=str(pathlib.Path(sys.executable).parent))
    if program is None:
        pytest.skip("guidellm has no program beside this Python")
    out = tmp_path / "report.json"
    done = subprocess.run([program, "run", "--backend", f"kind=openai_http,target={server.url},model=tale",
                           "--tokenizer", "kind=hf_auto,model=models/tale-llama", "--profile", "kind=concurrent,streams=2",
                           "--constraint", "kind=max_requests,count=4", "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
                           "--output", f"kind=json,path={out}", "--disable-console"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    totals = json.loads(out.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert totals["successful"] == 4 and totals["errored"] == 0
