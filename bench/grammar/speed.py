#!/usr/bin/env python3
"""Compile and mask times of all engines in one run, each along random walks of its own.

    speed.py --probe PROGRAM [--walks N] [--steps N] [--repeats N]

Ours are timed in the program, the peers around their call in Python (about 1 us of its own). Every walk is done
`--repeats` times from a fresh compilation, and of each step the least time counts: on a machine that others use too,
the rest is their doing.
"""
import argparse
import json
import os
import random
import time

import numpy

import compare
import schemas
import vocabulary


def now_us():
    return time.perf_counter() * 1e6


class Ours:
    name = "warpweave"

    def __init__(self, args, tokens, end):
        self.probe = vocabulary.Probe(args.probe, tokens, end)

    def compile(self, kind, source):
        answer = self.probe.ask(compile=kind, source=source, compact=True)
        return answer["us"] if answer["ok"] else None

    def mask(self):
        answer = self.probe.mask()
        return answer["us"], answer["mask"]

    def accept(self, token):
        answer = self.probe.ask(accept=token)
        return answer["us"] if answer["ok"] else None

    def rollback(self, count):
        return self.probe.ask(rollback=count)["us"]


class Llguidance:
    name = "llguidance"

    def __init__(self, args, tokens, end):
        self.tokenizer = vocabulary.llguidance_tokenizer(tokens, end)

    def compile(self, kind, source):
        import llguidance
        begun = now_us()
        self.matcher = llguidance.LLMatcher(self.tokenizer, compare.ll_grammar(kind, source))
        return None if self.matcher.is_error() else now_us() - begun

    def mask(self):
        begun = now_us()
        mask = self.matcher.compute_bitmask()
        return now_us() - begun, mask

    def accept(self, token):
        begun = now_us()
        return now_us() - begun if self.matcher.consume_token(token) else None

    def rollback(self, count):
        begun = now_us()
        self.matcher.rollback(count)
        return now_us() - begun


class Xgrammar:
    name = "xgrammar"

    def __init__(self, args, tokens, end):
        import xgrammar
        self.xgrammar = xgrammar
        info = xgrammar.TokenizerInfo([t or b"<|special_%d|>" % i for i, t in enumerate(tokens)], stop_token_ids=[end])
        self.compiler = xgrammar.GrammarCompiler(info, cache_enabled=False, max_threads=1)
        self.bitmask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, kind, source):
        begun = now_us()
        try:
            if kind == "json_schema":
                compiled = self.compiler.compile_json_schema(source, any_whitespace=False)
            elif kind == "regex":
                compiled = self.compiler.compile_regex(source)
            else:
                return None  # its notation is GBNF, these are Lark
        except RuntimeError:
            return None
        taken = now_us() - begun
        self.matcher = self.xgrammar.GrammarMatcher(compiled)
        return taken

    def mask(self):
        begun = now_us()
        self.matcher.fill_next_token_bitmask(self.bitmask)
        return now_us() - begun, self.bitmask.numpy().tobytes()

    def accept(self, token):
        begun = now_us()
        return now_us() - begun if self.matcher.accept_token(token) else None

    def rollback(self, count):
        begun = now_us()
        self.matcher.rollback(count)
        return now_us() - begun


def one_walk(engine, case, walk, has_text, args):
    """Times of each step by what was done, or None when the engine refuses the case."""
    kind, name, source = case
    taken = engine.compile(kind, source)
    if taken is None:
        return None
    times = {"compile": [taken], "mask": [], "accept": [], "rollback": []}
    draw = random.Random(f"{name} {walk}")
    for _ in range(args.steps):
        taken, mask = engine.mask()
        times["mask"].append(taken)
        ids = compare.id_array(mask, len(has_text))
        ids = ids[has_text[ids]]
        taken = engine.accept(int(ids[draw.randrange(len(ids))])) if len(ids) > 0 else None
        if taken is None:
            break
        times["accept"].append(taken)
    if len(times["accept"]) > 4:
        times["rollback"].append(engine.rollback(1))
    return times


def measure(engine, cases, tokens, end, args):
    times = {"compile": [], "mask": [], "accept": [], "rollback": []}
    refused = 0
    has_text = numpy.array([i != end and len(token) > 0 for i, token in enumerate(tokens)])
    for case in cases:
        for walk in range(args.walks):
            repeats = [one_walk(engine, case, walk, has_text, args) for _ in range(args.repeats)]
            if None in repeats:
                refused += 1
                break
            for what in times:
                times[what] += [min(step) for step in zip(*(r[what] for r in repeats))]
    return times, refused


def line(values):
    if not values:
        return "-"
    v = numpy.array(values)
    return f"mean {v.mean():9.1f}  p50 {numpy.percentile(v, 50):8.1f}  p99 {numpy.percentile(v, 99):9.1f}  max {v.max():9.1f}  ({len(v)})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", help="the name of one engine")
    args = parser.parse_args()
    name, tokens, end = vocabulary.load()
    print(f"vocabulary: {name}, {len(tokens)} tokens; microseconds; load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    languages = schemas.languages()
    groups = {"schemas": schemas.made_up_schemas(), "regexes": [c for c in languages if c[0] == "regex"],
              "grammars": [c for c in languages if c[0] == "ebnf"]}
    for make in (Ours, Llguidance, Xgrammar):
        if args.only not in (None, make.name):
            continue
        try:
            engine = make(args, tokens, end)
        except ImportError as missing:
            print(f"{make.name}: not installed ({missing})")
            continue
        for group, cases in groups.items():
            times, refused = measure(engine, cases, tokens, end, args)
            print(f"{engine.name}, {len(cases)} {group}, {refused} refused")
            for what, values in times.items():
                print(f"  {what:9}{line(values)}")


if __name__ == "__main__":
    main()
