"""200 requests at concurrency 64 from bench_serving, through each API: none may fail."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "backend, dataset",
    [("sglang", "random-ids"), ("sglang-oai", "random-ids"), ("sglang-oai-chat", "sharegpt")],
)
def test_no_request_fails(server, tmp_path, backend, dataset):
    output = tmp_path / "result.jsonl"
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench/bench_serving.py"), "--base-url", server.url,
         "--backend", backend, "--dataset-name", dataset, "--num-prompts", "200",
         "--max-concurrency", "64", "--random-input-len", "128", "--random-output-len", "16",
         "--output-file", str(output)],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(output.read_text())
    assert summary["completed"] == 200 and summary["failed"] == 0
    assert summary["total_output_tokens"] >= 200
    assert summary["mean_ttft_ms"] > 0 and summary["mean_itl_ms"] > 0
