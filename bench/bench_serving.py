#!/usr/bin/env python3
"""Load test of a running server, with the flags and figures of SGLang's bench_serving.

Standard library only. Requests are streamed; each figure is over the requests that succeeded:
  TTFT  time to first token        TPOT  time per output token after the first
  ITL   time between tokens        E2E   whole request
Datasets: `random-ids` (uniform token ids, lengths in [ratio x len, len]) and `sharegpt` (log-normal
lengths as in conversations, pieces of the text in --dataset-path).

  bench/bench_serving.py --num-prompts 200 --max-concurrency 64 --random-input-len 256
"""

import argparse
import asyncio
import json
import pathlib
import random
import statistics
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATHS = {
    "sglang": "/generate",
    "sglang-oai": "/v1/completions",
    "sglang-oai-chat": "/v1/chat/completions",
}


class Connection:
    """HTTP/1.1 over one kept-alive socket: post() yields the answer's body piece by piece."""

    def __init__(self, url):
        self.host, self.port = url.hostname, url.port or 80
        self.reader = self.writer = None

    async def request(self, method, path, body=b"", headers=()):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        head = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}",
                "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
        self.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        return status, self._body(fields)

    async def _body(self, fields):
        if fields.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(fields.get("content-length", 0)))
            return
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            chunk = (await self.reader.readexactly(size + 2))[:-2]
            if size == 0:
                return
            yield chunk

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def call(args, method, path, body=b""):
    connection = Connection(args.url)
    status, pieces = await connection.request(method, path, body, auth_headers(args))
    data = b"".join([piece async for piece in pieces])
    connection.close()
    if status != 200:
        raise SystemExit(f"{method} {path}: {status} {data[:300].decode(errors='replace')}")
    return data


def auth_headers(args):
    return [f"Authorization: Bearer {args.api_key}"] if args.api_key else []


def random_lengths(args, rng, length):
    low = max(1, int(length * args.random_range_ratio))
    return [rng.randint(low, length) for _ in range(args.num_prompts)]


def make_prompts(args, info):
    """A list of (prompt, number of output tokens); a prompt is token ids or a text."""
    rng = random.Random(args.seed)
    if args.dataset_name == "random-ids":
        inputs = random_lengths(args, rng, args.random_input_len)
        outputs = random_lengths(args, rng, args.random_output_len)
        vocab = info["vocab_size"]
        return [([rng.randrange(vocab) for _ in range(n)], out) for n, out in zip(inputs, outputs)]
    if args.dataset_path:
        text = pathlib.Path(args.dataset_path).read_text(errors="replace")
    else:
        text = "\n".join(file.read_text() for file in sorted((ROOT / "docs").glob("**/*.md")))
    words = text.split()
    prompts = []
    for _ in range(args.num_prompts):
        # Medians of about 40 words in and 100 tokens out, with the long tails of conversations.
        count = max(4, min(int(rng.lognormvariate(3.7, 1.0)), info["context_length"] // 8))
        output = max(4, min(int(rng.lognormvariate(4.6, 0.8)), info["context_length"] // 4))
        start = rng.randrange(max(1, len(words) - count))
        prompts.append((" ".join(words[start : start + count]), output))
    return prompts


def request_body(args, prompt, output_len, model):
    extra = json.loads(args.extra_request_body)
    if args.backend == "sglang":
        key = "text" if isinstance(prompt, str) else "input_ids"
        params = {"temperature": 0.0, "max_new_tokens": output_len, "ignore_eos": args.ignore_eos}
        return {key: prompt, "sampling_params": params, "stream": True, **extra}
    body = {"model": model, "temperature": 0.0, "max_tokens": output_len, "stream": True,
            "ignore_eos": args.ignore_eos, "stream_options": {"include_usage": True}, **extra}
    if args.backend == "sglang-oai":
        return {"prompt": prompt, **body}
    return {"messages": [{"role": "user", "content": prompt}], **body}


class Result:
    def __init__(self):
        self.ok = False
        self.error = ""
        self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        self.ttft = self.latency = 0.0
        self.itl = []

    @property
    def tpot(self):
        return (self.latency - self.ttft) / (self.output_tokens - 1)


class EventReader:
    """Follows one stream's events: arrival times and token counts."""

    def __init__(self, result, backend):
        self.result = result
        self.native = backend == "sglang"
        self.start = self.last = time.perf_counter()
        self.tokens = 0
        self.done = False

    def on_event(self, data, now):
        result = self.result
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        if self.native:
            meta = event["meta_info"]
            result.prompt_tokens, total = meta["prompt_tokens"], meta["completion_tokens"]
            result.cached_tokens = meta["cached_tokens"]
            new = total - self.tokens
        else:
            if usage := event.get("usage"):
                result.prompt_tokens = usage["prompt_tokens"]
                result.output_tokens = usage["completion_tokens"]
                result.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
            choice = event["choices"][0] if event["choices"] else {}
            new = 1 if choice.get("text") or choice.get("delta", {}).get("content") else 0
        if new <= 0:
            return
        if self.tokens == 0:
            result.ttft = now - self.start
        else:
            result.itl.extend([(now - self.last) / new] * new)
        self.tokens += new
        self.last = now

    def finish(self):
        if not self.done:
            raise RuntimeError("the stream ended without [DONE]")
        self.result.latency = self.last - self.start
        if self.native:
            self.result.output_tokens = self.tokens
        self.result.ok = True


async def run_one(args, connection, body):
    result = Result()
    events = EventReader(result, args.backend)
    try:
        data = json.dumps(body).encode()
        status, pieces = await connection.request("POST", PATHS[args.backend], data,
                                                  auth_headers(args))
        rest = b""
        async for piece in pieces:
            now = time.perf_counter()
            rest += piece
            if status != 200:
                continue
            *whole, rest = rest.split(b"\n\n")
            for event in whole:
                events.on_event(event.removeprefix(b"data: "), now)
        if status != 200:
            raise RuntimeError(f"HTTP {status}: {rest[:300].decode(errors='replace')}")
        events.finish()
    except (OSError, ValueError, KeyError, RuntimeError, asyncio.IncompleteReadError) as error:
        result.error = f"{type(error).__name__}: {error}"
        connection.close()
    return result


async def run_all(args, bodies):
    rng = random.Random(args.seed + 1)
    free = [Connection(args.url) for _ in range(args.max_concurrency or len(bodies))]
    slots = asyncio.Semaphore(len(free))

    async def run(body):
        async with slots:
            connection = free.pop()
            try:
                return await run_one(args, connection, body)
            finally:
                free.append(connection)

    start = time.perf_counter()
    tasks = []
    for body in bodies:
        tasks.append(asyncio.create_task(run(body)))
        if args.request_rate != float("inf"):
            await asyncio.sleep(rng.expovariate(args.request_rate))
    results = await asyncio.gather(*tasks)
    duration = time.perf_counter() - start
    for connection in free:
        connection.close()
    return results, duration


def percentile(values, percent):
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(values):
    if not values:
        values = [0.0]
    milliseconds = [1000 * value for value in values]
    return {"mean": statistics.fmean(milliseconds), "median": statistics.median(milliseconds),
            "std": statistics.pstdev(milliseconds), "p95": percentile(milliseconds, 95),
            "p99": percentile(milliseconds, 99), "max": max(milliseconds)}


def summarize(args, results, duration):
    good = [result for result in results if result.ok]
    inputs = sum(result.prompt_tokens for result in good)
    outputs = sum(result.output_tokens for result in good)
    summary = {
        "backend": args.backend, "dataset_name": args.dataset_name, "seed": args.seed,
        "num_prompts": args.num_prompts, "max_concurrency": args.max_concurrency,
        "request_rate": args.request_rate if args.request_rate != float("inf") else "inf",
        "random_input_len": args.random_input_len, "random_output_len": args.random_output_len,
        "random_range_ratio": args.random_range_ratio,
        "completed": len(good), "failed": len(results) - len(good), "duration": duration,
        "total_input_tokens": inputs, "total_output_tokens": outputs,
        "total_cached_tokens": sum(result.cached_tokens for result in good),
        "request_throughput": len(good) / duration,
        "input_throughput": inputs / duration, "output_throughput": outputs / duration,
        "total_throughput": (inputs + outputs) / duration,
        "concurrency": sum(result.latency for result in good) / duration,
    }
    series = {
        "e2e_latency": [result.latency for result in good],
        "ttft": [result.ttft for result in good],
        "tpot": [result.tpot for result in good if result.output_tokens > 1],
        "itl": [gap for result in good for gap in result.itl],
    }
    for name, values in series.items():
        for statistic, value in spread(values).items():
            summary[f"{statistic}_{name}_ms"] = value
    return summary


TITLES = {"e2e_latency": "End-to-End Latency", "ttft": "Time to First Token",
          "tpot": "Time per Output Token (excl. 1st token)", "itl": "Inter-Token Latency"}


def print_summary(summary):
    def line(name, value):
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        print(f"{name + ':':<40} {shown:<10}")

    print(f"{' Serving Benchmark Result ':=^52}")
    line("Backend", summary["backend"])
    line("Traffic request rate", summary["request_rate"])
    line("Max request concurrency", summary["max_concurrency"] or "not set")
    line("Successful requests", summary["completed"])
    line("Failed requests", summary["failed"])
    line("Benchmark duration (s)", summary["duration"])
    line("Total input tokens", summary["total_input_tokens"])
    line("Total cached tokens", summary["total_cached_tokens"])
    line("Total generated tokens", summary["total_output_tokens"])
    line("Request throughput (req/s)", summary["request_throughput"])
    line("Input token throughput (tok/s)", summary["input_throughput"])
    line("Output token throughput (tok/s)", summary["output_throughput"])
    line("Total token throughput (tok/s)", summary["total_throughput"])
    line("Concurrency", summary["concurrency"])
    for name, title in TITLES.items():
        print(f"{title:-^52}")
        for statistic in ("mean", "median", "p99"):
            short = {"e2e_latency": "E2E Latency"}.get(name, name.upper())
            line(f"{statistic.capitalize()} {short} (ms)", summary[f"{statistic}_{name}_ms"])
    print("=" * 52)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=PATHS, default="sglang")
    parser.add_argument("--base-url", help="http://HOST:PORT; wins over --host and --port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--model", help="the name to ask for; default: the served one")
    parser.add_argument("--dataset-name", choices=["random-ids", "sharegpt"], default="random-ids")
    parser.add_argument("--dataset-path", help="text for `sharegpt`; default: the files in docs/")
    parser.add_argument("--num-prompts", type=int, default=200)
    parser.add_argument("--random-input-len", type=int, default=256, help="tokens")
    parser.add_argument("--random-output-len", type=int, default=64, help="tokens")
    parser.add_argument("--random-range-ratio", type=float, default=0.0)
    parser.add_argument("--request-rate", type=float, default=float("inf"), help="requests/s")
    parser.add_argument("--max-concurrency", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--disable-ignore-eos", dest="ignore_eos", action="store_false")
    parser.add_argument("--flush-cache", action="store_true")
    parser.add_argument("--warmup-requests", type=int, default=1)
    parser.add_argument("--extra-request-body", default="{}", metavar="JSON")
    parser.add_argument("--output-file", help="a JSON line is appended to it")
    args = parser.parse_args()
    args.url = urllib.parse.urlsplit(args.base_url or f"http://{args.host}:{args.port}")
    if args.backend == "sglang-oai-chat" and args.dataset_name == "random-ids":
        parser.error("sglang-oai-chat takes texts; use --dataset-name sharegpt")
    return args


async def run(args):
    info = json.loads(await call(args, "GET", "/get_model_info"))
    model = args.model or info["served_model_name"]
    bodies = [request_body(args, prompt, output, model)
              for prompt, output in make_prompts(args, info)]
    if args.warmup_requests:
        warm, _ = await run_all(args, bodies[:1] * args.warmup_requests)
        if not warm[0].ok:
            raise SystemExit(f"the warm-up request failed: {warm[0].error}")
    if args.flush_cache:
        await call(args, "POST", "/flush_cache")
    results, duration = await run_all(args, bodies)
    summary = summarize(args, results, duration)
    print_summary(summary)
    for error in sorted({result.error for result in results if not result.ok}):
        print("failed:", error, file=sys.stderr)
    if args.output_file:
        with open(args.output_file, "a") as file:
            file.write(json.dumps(summary) + "\n")
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    arguments = parse_args()
    sys.exit(asyncio.run(run(arguments)))
