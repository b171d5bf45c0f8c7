"""Three workers behind the routers that people run: sglang-router and vllm-router (PyPI).

docs/scale.md says what each is for; this shows that health, draining, a killed worker and a rolling restart work.
"""
import concurrent.futures
import contextlib
import importlib.util
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import requests

from running_server import Server

ROUTERS = {"sglang": "sglang_router", "vllm": "vllm_router"}
WORKER_FLAGS = ("--served-model-name", "tale", "--threads", "1", "--max-total-tokens", "16384", "--drain-timeout", "20",
                "--enable-cache-report")


def free_port():
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(what, seconds=30):
    end = time.monotonic() + seconds
    while True:
        try:
            if what():
                return
        except requests.RequestException:
            pass
        assert time.monotonic() < end, f"never came true: {what.__doc__ or what}"
        time.sleep(0.1)


class Router:
    def __init__(self, kind, workers, policy):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.kind = kind
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [sys.executable, "-m", f"{ROUTERS[kind]}.launch_router", "--host", "127.0.0.1", "--port", str(self.port),
                   "--prometheus-port", str(free_port()), "--policy", policy, "--worker-urls", *workers,
                   "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1",
                   "--health-check-endpoint", "/ready", "--retry-max-retries", "10", "--retry-max-backoff-ms", "500",
                   # A worker that is drained refuses on purpose; it is the health check that decides who is asked.
                   "--disable-circuit-breaker"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        wait_for(lambda: len(self.healthy()) == len(workers), 60)

    def workers(self):
        return requests.get(self.url + "/workers", timeout=5).json()["workers"]

    def healthy(self):
        return [worker["url"] for worker in self.workers() if worker["is_healthy"]]

    def _find(self, url):
        return next((worker for worker in self.workers() if worker["url"] == url), None)

    # The two have a common ancestor, but name these routes differently.
    def remove(self, url):
        if self.kind == "sglang":
            reply = requests.delete(f"{self.url}/workers/{self._find(url)['id']}", timeout=10)
        else:
            reply = requests.post(self.url + "/remove_worker", params={"url": url}, timeout=10)
        assert reply.status_code in (200, 202), reply.text
        wait_for(lambda: self._find(url) is None)

    def add(self, url):
        if self.kind == "sglang":
            reply = requests.post(self.url + "/workers", json={"url": url}, timeout=30)
        else:
            reply = requests.post(self.url + "/add_worker", params={"url": url}, timeout=30)
        assert reply.status_code in (200, 202), reply.text
        wait_for(lambda: url in self.healthy())

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Fleet:
    def __init__(self, kind, policy):
        self.workers = [Server(*WORKER_FLAGS) for _ in range(3)]
        self.router = Router(kind, [worker.url for worker in self.workers], policy)

    def restart(self, index):
        """A worker is taken out, drained, and started anew on its port, as a rolling restart does."""
        old = self.workers[index]
        self.router.remove(old.url)
        assert old.stop() == 0, "".join(old.lines)
        self.workers[index] = Server(*WORKER_FLAGS, "--port", old.url.rsplit(":", 1)[1])
        self.router.add(old.url)

    def stop(self):
        self.router.stop()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.stop()


@pytest.fixture(params=sorted(ROUTERS))
def fleet(request):
    if importlib.util.find_spec(ROUTERS[request.param]) is None:
        pytest.skip(f"this Python has no {ROUTERS[request.param]}")
    policy = getattr(request.node.get_closest_marker("policy"), "args", ["round_robin"])[0]
    running = Fleet(request.param, policy)
    yield running
    running.stop()


def chat(url, text, max_tokens=8, **fields):
    body = {"model": "tale", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0, **fields}
    return requests.post(url + "/v1/chat/completions", json=body, timeout=60, stream=fields.get("stream", False))


def state(worker):
    return requests.get(worker.url + "/get_server_info", timeout=10).json()["internal_states"][0]


def answered_requests(worker):
    return state(worker)["num_requests_total"]


class Load:
    """Requests from a few clients until it is stopped; keeps what was not answered."""

    def __init__(self, url, clients=3):
        self.url, self.answers, self.failures, self.over = url, 0, [], threading.Event()
        self.pool = concurrent.futures.ThreadPoolExecutor(clients)
        self.jobs = [self.pool.submit(self._run, i) for i in range(clients)]

    def _run(self, client):
        turn = 0
        while not self.over.is_set():
            turn += 1
            try:
                reply = chat(self.url, f"Tale {client}.{turn}", 12)
                if reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"] is not None:
                    self.answers += 1
                else:
                    self.failures.append((reply.status_code, reply.text[:300]))
            except requests.RequestException as error:
                self.failures.append(repr(error))

    def stop(self):
        self.over.set()
        for job in self.jobs:
            job.result(120)
        return self


def test_requests_and_streams_reach_every_worker(fleet):
    assert requests.get(fleet.router.url + "/health", timeout=10).status_code == 200
    assert [model["id"] for model in requests.get(fleet.router.url + "/v1/models", timeout=10).json()["data"]] == ["tale"]
    before = [answered_requests(worker) for worker in fleet.workers]
    for i in range(9):
        assert chat(fleet.router.url, f"Tale {i}").status_code == 200
    assert all(now > then for now, then in zip(map(answered_requests, fleet.workers), before))
    with chat(fleet.router.url, "A tale", 16, stream=True) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert reply.status_code == 200 and lines[-1] == b"data: [DONE]" and len(lines) > 8
    generated = requests.post(fleet.router.url + "/generate", timeout=60, json={
        "text": "Once upon", "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
    assert generated.status_code == 200 and generated.json()["meta_info"]["completion_tokens"] == 4


@pytest.mark.policy("cache_aware")
def test_equal_prefixes_go_to_the_worker_that_has_them(fleet):
    stories = [f"Story number {i}: " + f"the {name} walked over the hill and met a friend. " * 12
               for i, name in enumerate(("fox", "miller", "king"))]
    for story in stories:
        assert chat(fleet.router.url, story).status_code == 200
    usages = [chat(fleet.router.url, story + f" What then, {i}?").json()["usage"] for i in range(3) for story in stories]
    hits = [usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"] for usage in usages]
    assert sum(hit > 0.7 for hit in hits) == len(hits), hits


def test_a_killed_worker_costs_no_answer(fleet):
    load = Load(fleet.router.url)
    wait_for(lambda: load.answers > 10)
    fleet.workers[0].process.send_signal(signal.SIGKILL)
    fleet.workers[0].process.wait()
    wait_for(lambda: fleet.workers[0].url not in fleet.router.healthy())
    after = load.answers
    wait_for(lambda: load.answers > after + 20)
    load.stop()
    assert load.failures == [] and load.answers > 30


def test_a_drained_worker_ends_its_streams_and_gets_no_more(fleet):
    with chat(fleet.router.url, "A very long tale", 400, stream=True, ignore_eos=True) as reply:
        pieces = reply.iter_lines()
        for _ in range(4):
            next(pieces)
        busy = next(worker for worker in fleet.workers
                    if state(worker)["num_running_reqs"])
        busy.process.terminate()
        wait_for(lambda: busy.url not in fleet.router.healthy())
        for i in range(6):
            assert chat(fleet.router.url, f"Tale {i}", 4).status_code == 200
        lines = [line for line in pieces if line]
    assert lines[-1] == b"data: [DONE]", lines[-3:]
    assert b'"finish_reason":"length"' in b"".join(lines)
    assert busy.process.wait(30) == 0


def test_a_rolling_restart_costs_no_answer(fleet):
    load = Load(fleet.router.url)
    for index in range(3):
        wait_for(lambda: load.answers > 5 * index)
        fleet.restart(index)
    answers = load.answers
    wait_for(lambda: load.answers > answers + 10)
    load.stop()
    assert load.failures == [] and load.answers > 20
    assert all(answered_requests(worker) > 0 for worker in fleet.workers)
