"""A mixture of experts behind HTTP: token ids in, the goldens' ids out, and the load of its experts in /metrics."""

import json
import os
import pathlib
import re
import subprocess
import urllib.request

import pytest
from running_server import ROOT, Server

GOLDENS = pathlib.Path(ROOT) / "tests" / "golden" / "families"


@pytest.mark.parametrize("family", ["qwen3-moe", "glm4-moe", "gguf-mixtral-moe"])
def test_answers_and_metrics(family):
    golden = json.loads((GOLDENS / family / "golden.json").read_text())
    model = f"tests/golden/families/{family}" + ("/model.gguf" if family.startswith("gguf") else "")
    running = Server("--skip-tokenizer-init", "--enable-metrics", "--dtype", "float32", "--device", "cpu",
                     "--kv-cache-dtype", "f32", "--moe-runner-backend", "warpweave", model=model)
    try:
        body = {"input_ids": golden["input_ids"], "sampling_params": {
            "temperature": 0, "max_new_tokens": len(golden["greedy_ids"]), "ignore_eos": True}}
        request = urllib.request.Request(running.url + "/generate", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["output_ids"] == golden["greedy_ids"]
        with urllib.request.urlopen(running.url + "/metrics", timeout=60) as answer:
            page = answer.read().decode()
        choices = re.findall(r'warpweave:expert_choices_total\{.*layer="(\d+)"\} (\d+)', page)
        assert choices and all(int(count) > 0 for _, count in choices), page
        imbalance = re.findall(r"warpweave:expert_load_imbalance\{.*\} ([0-9.]+)", page)
        assert len(imbalance) == len(choices) and all(float(x) >= 1 for x in imbalance)
    finally:
        assert running.stop() == 0, "".join(running.lines)


def test_other_runners_are_refused_by_rule():
    refused = subprocess.run([os.environ.get("WARPWEAVE_PROGRAM", "build/warpweave"), "serve", "--moe-runner-backend", "triton"], cwd=ROOT, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert refused.returncode == 2 and "Triton compiler" in refused.stdout and "--moe-runner-backend auto" in refused.stdout
