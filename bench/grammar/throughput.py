#!/usr/bin/env python3
"""Tokens per second of a running server with and without structured output, in turns.

    throughput.py --url http://127.0.0.1:30000 [--pid PID] [--batch 64] [--tokens 128] [--rounds 5] [--schemas 8]

Each round sends `--batch` requests at once, first free ones, then as many under JSON schemas whose strings are long
enough that no answer ends early; the seconds of a round run from the first request to the last answer. With the
server's process id also the processor time per token, which other work on the machine changes less.
"""
import argparse
import json
import os
import statistics
import threading
import time
import urllib.request


def schema(kind):
    """Long texts, and `kind` makes schemas that share nothing."""
    return json.dumps({"type": "object", "additionalProperties": False, "required": ["title", "text"], "properties": {
        "title": {"enum": [f"tale {kind}", f"story {kind}"]}, "text": {"type": "string", "minLength": 1500 + kind}}})


def ask(url, tokens, json_schema, counts, at):
    params = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    if json_schema is not None:
        params["json_schema"] = json_schema
    body = json.dumps({"text": f"Number {at}: once upon a time", "sampling_params": params}).encode()
    request = urllib.request.Request(url + "/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        counts[at] = json.load(answer)["meta_info"]["completion_tokens"]


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_round(args, turn, with_schema):
    """(tokens per second, processor microseconds per token); the schemas of each turn are new ones, compiled and met for the first time."""
    schemas = [schema(turn * args.schemas + at) if with_schema else None for at in range(args.schemas)]
    counts = [0] * args.batch
    threads = [threading.Thread(target=ask, args=(args.url, args.tokens, schemas[at % args.schemas], counts, at))
               for at in range(args.batch)]
    used = processor_seconds(args.pid) if args.pid else 0
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    used = processor_seconds(args.pid) - used if args.pid else 0
    if sum(counts) != args.batch * args.tokens:
        raise SystemExit(f"{sum(counts)} tokens came where {args.batch * args.tokens} were asked for")
    return sum(counts) / seconds, used * 1e6 / sum(counts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--pid", type=int, help="of the server's process on this machine")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--schemas", type=int, default=8, help="different ones in a round")
    args = parser.parse_args()
    rates = {False: [], True: []}
    one_round(args, 0, False)
    one_round(args, 0, True)
    for turn in range(1, args.rounds + 1):
        for with_schema in (False, True):
            rates[with_schema].append(one_round(args, turn, with_schema))
    for with_schema, name in ((False, "free"), (True, "json schema")):
        speeds, used = zip(*rates[with_schema])
        print(f"{name:12} best {max(speeds):8.1f}  median {statistics.median(speeds):8.1f} tokens/s, "
              f"processor time median {statistics.median(used):7.1f} us/token ({args.rounds} rounds of {args.batch} x {args.tokens})")
    speed, used = ([statistics.median(round_[i] for round_ in rates[w]) for w in (False, True)] for i in (0, 1))
    print(f"ratio of the median speeds {speed[1] / speed[0]:.3f}" + (f", of the processor times {used[1] / used[0]:.3f}" if args.pid else ""))


if __name__ == "__main__":
    main()
