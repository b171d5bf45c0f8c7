"""The Ray Serve application of examples/ray, run as its README says; skipped where Ray is not installed."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import pytest
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
URL = "http://127.0.0.1:8000"

pytestmark = pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in ("ray", "httpx", "fastapi")),
                                reason="this Python has no ray[serve] and httpx")


def server_processes():
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "serve --port 0 --drain-timeout 50" in line]


@pytest.fixture(scope="module")
def application():
    program = ROOT / os.environ.get("WARPWEAVE_PROGRAM", "build/warpweave")
    environment = {**os.environ, "WARPWEAVE": str(program), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT),
                   # Ray's own processes may take long to start on a busy machine.
                   "RAY_agent_register_timeout_ms": "300000", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "200",
                   "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "100"}
    command = [sys.executable, "-m", "ray.serve.scripts", "run", "examples.ray.app:build",
               f"model_path={ROOT / 'models/tale-llama'}", "replicas=2", "threads=1", "cpus=0.5",
               "flags=--max-total-tokens 8192 --enable-cache-report"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 400
    while True:
        try:
            if requests.get(URL + "/ready", timeout=5).status_code == 200:
                break
        except requests.RequestException:
            pass
        if process.poll() is not None or time.monotonic() > end:
            process.kill()  # else reading on would wait for its end
            pytest.fail("the application did not start:\n" + process.stdout.read())
        time.sleep(0.5)
    yield process
    process.terminate()
    process.wait(120)
    end = time.monotonic() + 60
    while server_processes() and time.monotonic() < end:
        time.sleep(0.5)
    assert server_processes() == []


def test_answers_and_streams(application):
    body = {"model": "default", "messages": [{"role": "user", "content": "A tale"}], "max_tokens": 12, "temperature": 0}
    reply = requests.post(URL + "/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"]
    streamed = requests.post(URL + "/v1/chat/completions", json={**body, "stream": True}, timeout=60)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.rstrip().endswith("data: [DONE]") and streamed.text.count("data: ") > 5
    refused = requests.post(URL + "/v1/chat/completions", json={**body, "temperature": -1}, timeout=60)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"


def test_both_replicas_serve_and_a_killed_one_comes_back(application):
    assert len(server_processes()) == 2
    os.kill(server_processes()[0], 9)
    body = {"prompt": "Once upon a time", "max_tokens": 4}
    end = time.monotonic() + 90
    while len(server_processes()) < 2:
        assert time.monotonic() < end, "the replica was not started again"
        time.sleep(0.5)
    done = 0
    while done < 20:  # Ray may still send one to the replica that is being replaced
        assert time.monotonic() < end
        done = done + 1 if requests.post(URL + "/v1/completions", json=body, timeout=60).status_code == 200 else 0
