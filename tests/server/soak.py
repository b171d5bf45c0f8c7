"""Mixed load for minutes or hours on a real server, with a watch for what leaks.

    soak.py --minutes 60 --report docs/soak.md [--seed N]     (scripts/soak builds first and calls this)

The load comes in rounds: streams read to their end, streams dropped in the middle, aborts, log
probabilities, streams through adapters, an adapter that comes and goes, answers that are kept and gone
on from, requests that are wrong, and once a round three times as many requests as the server takes.
The server guesses ahead from what it has served (NGRAM). After each round everybody is quiet, and then are counted: resident memory, file descriptors,
threads and KV pages of the server. What was taken for a request must have come back. /health is asked
all the time; its times are reported and never judged here.
"""

import argparse
import dataclasses
import http.client
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

from lora_files import write_adapter
from running_server import Server
from soak_report import write_report

MAX_RUNNING, MAX_QUEUED = 8, 16
FLAGS = ["--enable-metrics", "--max-running-requests", str(MAX_RUNNING), "--max-queued-requests", str(MAX_QUEUED),
         "--max-total-tokens", "8192", "--context-length", "1024", "--log-level", "warning",
         # A trie that is full after minutes, so that what grows afterwards is no guess.
         "--speculative-algorithm", "NGRAM", "--speculative-ngram-capacity", "20000",
         # Buffers of a step grow to the most rows that any step had: with prompts that are cut, widest_steps() has such steps
         # at the start, and not a late minute by chance.
         "--chunked-prefill-size", "256"]
LOADED, GUEST = ("fox", "owl"), "guest"  # adapters: there from the start, and loaded by request
WORKERS = 6
MIN_ROUNDS = 8
PATIENCE_S = 600  # a bound for hangs, not a speed: other programs may share the machine
TEXT = "Once upon a time there was a little fox who lived at the edge of the wood and knew every path. "


@dataclasses.dataclass
class Sample:
    """The server at rest."""

    seconds: float
    rss_bytes: int
    anonymous_bytes: int   # of that, what no file stands behind
    descriptors: int
    threads: int
    used_tokens: int       # of the KV pool, by requests: none are there
    evictable_tokens: int  # of the KV pool, by the prefix cache
    health_p99_ms: float   # of the round before
    requests: int          # so far


class Soak:
    def __init__(self, server, seed):
        self.server = server
        self.address = server.url.removeprefix("http://").split(":")
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.answers = {}    # (kind, status) -> count
        self.problems = []
        self.health_ms = []
        self.ending = threading.Event()

    # One request each; True when the answer was read to its end.

    def connect(self):
        return http.client.HTTPConnection(self.address[0], int(self.address[1]), timeout=PATIENCE_S)

    def note(self, kind, status, allowed):
        with self.lock:
            key = (kind, status)
            self.answers[key] = self.answers.get(key, 0) + 1
            if status not in allowed:
                self.problems.append(f"{kind} answered {status}, expected one of {sorted(allowed)}")

    def post(self, kind, path, body, allowed):
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            self.note(kind, answer.status, allowed)
            return text
        finally:
            connection.close()

    def stream(self, kind, rng, events, abort=False, adapter=None):
        """Reads `events` events of a stream (None: all); then goes away, or aborts and reads on."""
        rid = f"soak-{rng.getrandbits(64):x}"
        body = {"text": prompt(rng), "rid": rid, "stream": True,
                "sampling_params": {"max_new_tokens": rng.randint(10, 60), "temperature": 0.8, "ignore_eos": True}}
        if adapter:
            body["lora_path"] = adapter
        connection = self.connect()
        try:
            connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            self.note(kind, answer.status, {200, 429, 503} | ({404} if adapter == GUEST else set()))
            seen = 0
            for line in answer:
                seen += line.startswith(b"data:")
                if seen == events:
                    if not abort:
                        return
                    self.post("abort", "/abort_request", {"rid": rid}, {200, 404})
        finally:
            connection.close()

    def logprobs(self, rng):
        body = {"text": prompt(rng), "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5,
                "sampling_params": {"max_new_tokens": 16}}
        self.post("logprobs", "/generate", body, {200, 429, 503})

    def chat(self, rng):
        body = {"model": "tale", "messages": [{"role": "user", "content": prompt(rng)}], "max_tokens": 24,
                "n": rng.randint(1, 2)}
        self.post("chat", "/v1/chat/completions", body, {200, 429, 503})

    def guest(self, rng):
        """An adapter is loaded, used and unloaded, while others do the same with it."""
        self.post("load", "/load_lora_adapter", {"lora_name": GUEST, "lora_path": GUEST}, {200, 400})
        self.stream("guest", rng, rng.choice([None, 2]), adapter=GUEST)
        self.post("unload", "/unload_lora_adapter", {"lora_name": GUEST}, {200, 404})

    def kept(self, rng):
        """An answer that the server keeps, and one that goes on from it."""
        body = {"model": "tale", "input": prompt(rng)[:200], "max_output_tokens": 16}
        answer = self.post("kept", "/v1/responses", body, {200, 429, 503})
        if b'"resp_' not in answer:
            return
        body = {"model": "tale", "input": "And then?", "max_output_tokens": 16, "previous_response_id": json.loads(answer)["id"]}
        self.post("gone on", "/v1/responses", body, {200, 404, 429, 503})

    def wrong(self, rng):
        bad = [b"{", b"[" * 100_000, b'{"text": 5}', b'{"text": "x", "sampling_params": {"temperature": -1}}',
               b'{"text": "x", "sampling_params": {"max_new_tokens": 1e308}}', b'\xff\xfe', b'{"input_ids": [99999999]}',
               b'{"text": "' + b"a" * 100_000 + b'"}']
        self.post("wrong", "/generate", rng.choice(bad), {400, 413, 429, 503})
        messages = [[], [{"role": "user"}], "x", [{"role": "user", "content": "x", "tool_calls": [[]]}] * 3]
        self.post("wrong chat", "/v1/chat/completions", {"model": "tale", "messages": rng.choice(messages)},
                  {200, 400, 429, 503})
        self.post("no route", "/nothing", {}, {404})

    def one(self, rng):
        pick = rng.random()
        if pick < 0.20:
            self.stream("stream", rng, None)
        elif pick < 0.32:
            self.stream("adapted", rng, rng.choice([None, None, 3]), adapter=rng.choice(LOADED))
        elif pick < 0.36:
            self.guest(rng)
        elif pick < 0.48:  # often, so that as many are kept as may be before the second quarter begins
            self.kept(rng)
        elif pick < 0.56:
            self.stream("dropped", rng, rng.randint(1, 8))
        elif pick < 0.65:
            self.stream("aborted", rng, rng.randint(1, 8), abort=True)
        elif pick < 0.78:
            self.logprobs(rng)
        elif pick < 0.90:
            self.chat(rng)
        else:
            self.wrong(rng)

    def guarded(self, work, *args):
        try:
            work(*args)
        except (OSError, http.client.HTTPException) as error:
            with self.lock:
                self.problems.append(f"{type(error).__name__}: {error}")

    # A round: load, overload, rest.

    def load(self, seconds):
        end = time.monotonic() + seconds

        def work(seed):
            rng = random.Random(seed)
            while time.monotonic() < end:
                self.guarded(self.one, rng)

        run_all([(work, self.random.random()) for _ in range(WORKERS)])

    def overload(self):
        jobs = 3 * (MAX_RUNNING + MAX_QUEUED)
        run_all([(self.guarded, self.stream, "overload", random.Random(self.random.random()), None)
                 for _ in range(jobs)])

    def widest_steps(self):
        """Steps with as many rows as there can be: all requests but one write, and a long new prompt is read beside them."""
        for _ in range(3):
            rng = random.Random(self.random.random())
            writing = {"text": TEXT, "sampling_params": {"max_new_tokens": 300, "temperature": 0.8, "ignore_eos": True}}
            reading = {"text": f"{rng.getrandbits(60)} " + TEXT * 20, "return_logprob": True, "logprob_start_len": 0,
                       "top_logprobs_num": 5, "sampling_params": {"max_new_tokens": 16}}
            jobs = [(self.guarded, self.post, "wide", "/generate", writing, {200})] * (MAX_RUNNING - 1)
            run_all(jobs + [(self.guarded, self.post_later, "wide", "/generate", reading, {200})])

    def post_later(self, *request):
        time.sleep(0.3)  # the others are writing by then
        self.post(*request)

    def metrics(self):
        connection = self.connect()
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        values = {}
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if line.startswith("warpweave:"):
                values[name.partition("{")[0]] = float(value)
        return values

    def rest(self, seconds=PATIENCE_S):
        """Waits until nothing runs; then what is there is there for good."""
        end = time.monotonic() + seconds
        while True:
            values = self.metrics()
            busy = values["warpweave:num_running_reqs"] + values["warpweave:num_queue_reqs"]
            if busy == 0 and values["warpweave:kv_used_tokens"] == 0:
                time.sleep(0.3)  # closed connections are gone a moment later
                return values
            if time.monotonic() > end:
                self.problems.append(f"at rest after {seconds} s there were still {busy:.0f} requests and "
                                     f"{values['warpweave:kv_used_tokens']:.0f} tokens")
                return values
            time.sleep(0.05)

    def ask_health(self):
        while not self.ending.wait(0.1):
            start = time.monotonic()
            connection = self.connect()
            try:
                connection.request("GET", "/health")
                status = connection.getresponse().status
                self.note("health", status, {200})
            except OSError as error:
                self.problems.append(f"/health: {error}")
            finally:
                connection.close()
            with self.lock:
                self.health_ms.append((time.monotonic() - start) * 1e3)

    def sample(self, start):
        values = self.rest()
        process = pathlib.Path(f"/proc/{self.server.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        with self.lock:
            times, self.health_ms = sorted(self.health_ms), []
            requests = sum(self.answers.values())
        resident, anonymous = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
        return Sample(time.monotonic() - start, resident, anonymous, len(list((process / "fd").iterdir())),
                      int(status["Threads"]), int(values["warpweave:kv_used_tokens"]), int(values["warpweave:kv_evictable_tokens"]),
                      times[int(len(times) * 0.99)] if times else 0.0, requests)

    def run(self, seconds, round_seconds):
        start, samples = time.monotonic(), []
        asking = threading.Thread(target=self.guarded, args=(self.ask_health,))
        asking.start()
        try:
            self.widest_steps()
            # On a busy machine a round takes long; quarters need a few.
            while (time.monotonic() - start < seconds or len(samples) < MIN_ROUNDS) and not self.problems:
                self.load(round_seconds)
                self.overload()
                samples.append(self.sample(start))
        finally:
            self.ending.set()
            asking.join()
        self.post("flush", "/flush_cache", {}, {200})
        if self.metrics()["warpweave:kv_evictable_tokens"] != 0:
            self.problems.append("pages stay in the cache after it was emptied")
        return samples


def prompt(rng):
    return TEXT * rng.randint(1, 6) + str(rng.getrandbits(20))


def run_all(jobs):
    threads = [threading.Thread(target=job[0], args=job[1:]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def quarter(samples, which):
    """The samples of the second (2) or last (4) quarter of the time."""
    n = len(samples)
    return samples[n * (which - 1) // 4: n * which // 4]


def growth(samples):
    """What the last quarter has more than the second, as a share of it: {name: share}."""
    out = {}
    for name in ("rss_bytes", "descriptors", "threads"):
        middle, last = (statistics.median(getattr(s, name) for s in quarter(samples, q)) for q in (2, 4))
        out[name] = last / middle - 1
    return out


def leaks(samples, share):
    """What grew by more than `share` between the quarters, or was not given back, in words."""
    found = [f"{name} grew by {100 * grown:.1f} %, at most {100 * share:g} % are allowed"
             for name, grown in growth(samples).items() if grown > share]
    found += [f"after {s.seconds:.0f} s the KV pool had {s.used_tokens} tokens of no request"
              for s in samples if s.used_tokens != 0]
    return found


def soak(seconds, round_seconds, seed):
    """Runs a server of its own; gives the samples, the answers and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for i, name in enumerate((*LOADED, GUEST)):
            write_adapter(root / name, i)
        server = Server("--served-model-name", "tale", "--lora-root", folder, "--lora-paths",
                        *[f"{name}={root / name}" for name in LOADED], *FLAGS)
        run = Soak(server, seed)
        try:
            samples = run.run(seconds, round_seconds)
        finally:
            code = server.stop()
    if code != 0:
        run.problems.append(f"the server ended with {code}: " + "".join(server.lines[-20:]))
    return samples, run.answers, run.problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--round-seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=pathlib.Path, help="a Markdown file; its plot goes beside it as .svg")
    args = parser.parse_args()
    samples, answers, problems = soak(60 * args.minutes, args.round_seconds, args.seed)
    if len(samples) >= MIN_ROUNDS:
        problems += leaks(samples, 0.01)
        if args.report:
            write_report(args.report, samples, answers, growth(samples), problems)
    for problem in problems[:20]:
        print("soak:", problem, file=sys.stderr)
    print(f"soak: {len(samples)} rounds, {sum(answers.values())} requests, "
          f"{'clean' if not problems else f'{len(problems)} problems'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
