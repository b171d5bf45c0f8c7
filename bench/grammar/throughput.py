#!/usr/bin/env python3
"""Tokens per second of a running server with and without structured output, in turns.

    throughput.py --url http://127.0.0.1:30000 [--batch 64] [--tokens 128] [--rounds 5] [--schemas 8]

Each round sends `--batch` requests at once, first free ones, then as many under JSON schemas whose strings are long
enough that no answer ends early; the seconds of a round run from the first request to the last answer. The ratio is
that of the best rounds.
"""
import argparse
import json
import statistics
import threading
import time
import urllib.request


def schema(kind):
    """Long texts, and `kind` makes schemas that share nothing."""
    return json.dumps({"type": "object", "additionalProperties": False, "required": ["title", "text"], "properties": {
        "title": {"enum": [f"tale {kind}", f"story {kind}"]}, "text": {"type": "string", "minLength": 20000 + kind}}})


def ask(url, tokens, json_schema, counts, at):
    params = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    if json_schema is not None:
        params["json_schema"] = json_schema
    body = json.dumps({"text": f"Number {at}: once upon a time", "sampling_params": params}).encode()
    request = urllib.request.Request(url + "/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        counts[at] = json.load(answer)["meta_info"]["completion_tokens"]


def one_round(args, turn, with_schema):
    """Tokens per second; the schemas of each turn are new ones, compiled and met for the first time."""
    schemas = [schema(turn * args.schemas + at) if with_schema else None for at in range(args.schemas)]
    counts = [0] * args.batch
    threads = [threading.Thread(target=ask, args=(args.url, args.tokens, schemas[at % args.schemas], counts, at))
               for at in range(args.batch)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sum(counts) != args.batch * args.tokens:
        raise SystemExit(f"{sum(counts)} tokens came where {args.batch * args.tokens} were asked for")
    return sum(counts) / (time.perf_counter() - begun)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:30000")
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
        values = rates[with_schema]
        print(f"{name:12} best {max(values):8.1f}  median {statistics.median(values):8.1f} tokens/s ({args.rounds} rounds of {args.batch} x {args.tokens})")
    print(f"ratio of the best {max(rates[True]) / max(rates[False]):.3f}, of the medians {statistics.median(rates[True]) / statistics.median(rates[False]):.3f}")


if __name__ == "__main__":
    main()
