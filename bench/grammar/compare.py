#!/usr/bin/env python3
"""Masks against llguidance's along random walks; random texts against jsonschema; schemas accepted.

    compare.py --probe PROGRAM [--walks N] [--steps N] [--texts N] [--store]
"""
import argparse
import json
import random
import sys

import numpy

import schemas
import vocabulary


def bits(mask):
    return int.from_bytes(mask, "little")


def set_ids(mask, count):
    ids = numpy.flatnonzero(numpy.unpackbits(numpy.frombuffer(mask, numpy.uint8), bitorder="little"))
    return ids[ids < count].tolist()


def ll_grammar(kind, source):
    """As Lark, so that masks are of all tokens that may follow and not of the one that is forced."""
    import llguidance
    if kind == "json_schema":
        schema = json.loads(source)
        schema["x-guidance"] = {"whitespace_flexible": False}
        lark = "start: %json " + json.dumps(schema)
    elif kind == "regex":
        lark = json.loads(llguidance.LLMatcher.grammar_from_regex(source))["grammars"][0]["lark_grammar"]
    else:
        lark = source
    return llguidance.LLMatcher.grammar_from_lark('%llguidance {"no_forcing": true}\n' + lark)


def compare_one(probe, tokenizer, tokens, end, case, args):
    """(outcome, detail)"""
    import llguidance
    kind, name, source = case
    ours = probe.ask(compile=kind, source=source, compact=True)
    theirs = llguidance.LLMatcher(tokenizer, ll_grammar(kind, source))
    if theirs.is_error():
        return "theirs refuses", theirs.get_error()[:100]
    if not ours["ok"]:
        return "ours refuses", ours["error"][:160]
    draw = random.Random(name)
    steps = differ = 0
    first = ""
    for _ in range(args.walks):
        probe.ask(compile=kind, source=source, compact=True)
        theirs = llguidance.LLMatcher(tokenizer, ll_grammar(kind, source))
        text = b""
        for _ in range(args.steps):
            answer = probe.mask()
            their_mask = theirs.compute_bitmask()
            a, b = bits(answer["mask"]), bits(their_mask) & ((1 << len(tokens)) - 1)
            steps += 1
            if a != b:
                differ += 1
                if not first:
                    only = lambda m: [tokens[i] for i in set_ids(m.to_bytes(len(tokens) // 8 + 8, "little"), len(tokens))[:6]]
                    first = f"behind {text!r}: ours only {only(a & ~b)}, theirs only {only(b & ~a)}"
            both = set_ids((a & b).to_bytes(len(tokens) // 8 + 8, "little"), len(tokens))
            if not both:
                break
            token = draw.choice(both)
            if answer["end"] and draw.random() < 0.3 or token == end:
                break
            if not probe.ask(accept=token)["ok"] or not theirs.consume_token(token):
                return "accept disagrees with the mask", repr(text + tokens[token])
            text += tokens[token]
    return ("equal" if differ == 0 else "differs"), f"{differ} of {steps}: {first}" if differ else str(steps)


def compare_masks(probe, tokens, end, args):
    tokenizer = vocabulary.llguidance_tokenizer(tokens, end)
    counts, steps = {}, [0, 0]
    for case in schemas.made_up_schemas() + schemas.own_schemas() + schemas.languages():
        outcome, detail = compare_one(probe, tokenizer, tokens, end, case, args)
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome != "equal":
            print(f"  {outcome}: {case[1]}: {detail}")
    print("masks:", counts)


def random_texts(probe, tokens, end, args):
    """Random walks to their end; every finished text must be valid."""
    import jsonschema
    finished = invalid = unfinished = 0
    cases = schemas.made_up_schemas() + schemas.own_schemas()
    for _, name, source in cases:
        validator = jsonschema.validators.validator_for(json.loads(source), default=jsonschema.Draft202012Validator)(json.loads(source))
        draw = random.Random(name)
        for _ in range(max(1, args.texts // len(cases))):
            if not probe.ask(compile="json_schema", source=source, compact=False)["ok"]:
                break
            text = walk(probe, tokens, end, draw)
            if text is None:
                unfinished += 1
                continue
            finished += 1
            try:
                validator.validate(json.loads(text))
            except Exception as problem:
                invalid += 1
                print(f"  INVALID {name}: {text[:200]!r}: {str(problem)[:120]}")
    print(f"texts: {finished} finished, {invalid} of them invalid, {unfinished} unfinished")
    return invalid


def walk(probe, tokens, end, draw, steps=120):
    """Random tokens, short ways to an end preferred as a model prefers them."""
    text = b""
    short = range(256)  # the tokens of one byte
    for step in range(steps):
        answer = probe.mask()
        if not answer["ok"]:
            return None
        if answer["end"] and draw.random() < 0.4:
            return text.decode("utf-8", "strict")
        ids = set_ids(answer["mask"], len(tokens))
        if len(ids) > 400:
            ids = draw.sample(ids, 300) + [i for i in short if answer["mask"][i // 8] >> (i % 8) & 1]
        closing = [i for i in ids if tokens[i][:1] in b'"}],0123456789' and tokens[i] and len(tokens[i]) < 4]
        plain = [i for i in ids if tokens[i].strip()]
        token = draw.choice(closing if closing and draw.random() < 0.2 + step / 60 else plain or ids)
        if token == end:
            return text.decode("utf-8", "strict")
        if not probe.ask(accept=token)["ok"]:
            raise RuntimeError(f"a token of the mask was refused: {text + tokens[token]!r}")
        text += tokens[token]
    return None


def accepted_schemas(probe):
    store = schemas.schemastore_schemas()
    refused = {}
    for name, schema in store:
        answer = probe.ask(compile="json_schema", source=json.dumps(schema), compact=False)
        if not answer["ok"]:
            refused[name] = answer["error"]
    print(f"schemas of schemastore: {len(store) - len(refused)} of {len(store)} accepted")
    for name, why in refused.items():
        print(f"  {name}: {why[:150]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--only", choices=["masks", "texts", "store"])
    args = parser.parse_args()
    name, tokens, end = vocabulary.load()
    print(f"vocabulary: {name}, {len(tokens)} tokens")
    probe = vocabulary.Probe(args.probe, tokens, end)
    if args.only in (None, "masks"):
        compare_masks(probe, tokens, end, args)
    invalid = random_texts(probe, tokens, end, args) if args.only in (None, "texts") else 0
    if args.only in (None, "store"):
        accepted_schemas(probe)
    return 1 if invalid else 0


if __name__ == "__main__":
    sys.exit(main())
