#!/usr/bin/env python3
"""Masks against llguidance's along random walks, each difference settled by jsonschema or Python's re; random texts
against jsonschema; schemas accepted.

    compare.py --probe PROGRAM [--walks N] [--steps N] [--texts N] [--only masks|texts|store]
"""
import argparse
import json
import random
import re
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


def complete(step, text, tokens, end, draw, steps=400):
    """A finished text that begins with `text`, walked as `walk` does; None when it does not end."""
    for count in range(steps):
        ids, may_end = step.allowed()
        if may_end and (not ids or draw.random() < 0.4):
            return text
        if not ids:
            return None
        token = pick(ids, tokens, draw, count)
        if not step.accept(token):
            return None
        text += tokens[token]
    return None


class OursStep:
    def __init__(self, probe, tokens, end):
        self.probe, self.tokens, self.end = probe, tokens, end

    def allowed(self):
        answer = self.probe.mask()
        return [i for i in set_ids(answer["mask"], len(self.tokens)) if i != self.end], answer["end"]

    def accept(self, token):
        return self.probe.ask(accept=token)["ok"]


class TheirStep:
    def __init__(self, matcher, tokens, end):
        self.matcher, self.tokens, self.end = matcher, tokens, end

    def allowed(self):
        ids = set_ids(self.matcher.compute_bitmask(), len(self.tokens))
        return [i for i in ids if i != self.end], self.end in ids

    def accept(self, token):
        return self.matcher.consume_token(token)


def is_valid(kind, source, text):
    """Whether jsonschema, or Python's re, takes a finished text; None: neither can say."""
    import jsonschema
    if kind == "regex":
        return re.fullmatch(source, text.decode("utf-8", "replace"), re.ASCII) is not None
    if kind != "json_schema":
        return None
    schema = json.loads(source)
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
    except Exception:
        return False
    return True


def settle(engines, case, path, only_ours, only_theirs):
    """Who is right where the masks differ: finished texts that one engine alone allows, and their verdicts."""
    kind, name, source = case
    probe, new_theirs, tokens, end = engines
    draw = random.Random(name)
    behind = b"".join(tokens[t] for t in path)
    for only, whose in ((only_theirs, "theirs"), (only_ours, "ours")):
        for token in draw.sample(only, min(4, len(only))):
            if whose == "ours":
                probe.ask(compile=kind, source=source, compact=True)
                step = OursStep(probe, tokens, end)
            else:
                step = TheirStep(new_theirs(), tokens, end)
            if token == end:
                text = behind
            elif not all(step.accept(t) for t in path + [token]):
                return "accept disagrees with the mask", repr(behind)
            else:
                text = complete(step, behind + tokens[token], tokens, end, draw)
            valid = is_valid(kind, source, text) if text is not None else None
            if valid is not None:
                verdicts = {("theirs", True): "ours is narrower", ("theirs", False): "theirs allows what is invalid",
                            ("ours", True): "theirs is narrower", ("ours", False): "OURS ALLOWS WHAT IS INVALID"}
                return verdicts[whose, valid], repr(text[:120])
    return "open", repr(behind)


def compare_one(engines, case, args):
    """(outcome, detail, masks compared)"""
    import llguidance
    probe, tokenizer, tokens, end = engines
    kind, name, source = case
    ours = probe.ask(compile=kind, source=source, compact=True)

    def new_theirs():
        return llguidance.LLMatcher(tokenizer, ll_grammar(kind, source))
    theirs = new_theirs()
    if theirs.is_error():
        return "theirs refuses", theirs.get_error().splitlines()[0][:100], 0
    if not ours["ok"]:
        return "ours refuses", ours["error"][:160], 0
    draw = random.Random(name)
    masks = 0
    for _ in range(args.walks):
        probe.ask(compile=kind, source=source, compact=True)
        theirs = new_theirs()
        path = []
        for _ in range(args.steps):
            answer = probe.mask()
            a, b = bits(answer["mask"]), bits(theirs.compute_bitmask()) & ((1 << len(tokens)) - 1)
            masks += 1
            ids = [set_ids(m.to_bytes(len(tokens) // 8 + 8, "little"), len(tokens)) for m in (a & ~b, b & ~a, a & b)]
            if theirs.is_error():
                return "theirs gives up", theirs.get_error().splitlines()[0][:100], masks
            if a != b:
                outcome, text = settle((probe, new_theirs, tokens, end), case, path, ids[0], ids[1])
                few = [[tokens[i] for i in only[:4]] for only in ids[:2]]
                return outcome, f"{text}; behind {b''.join(tokens[t] for t in path)!r} ours only {few[0]}, theirs only {few[1]}", masks
            both = [i for i in ids[2] if i != end]
            if not both or answer["end"] and draw.random() < 0.3:
                break
            token = draw.choice(both)
            if not probe.ask(accept=token)["ok"] or not theirs.consume_token(token):
                return "accept disagrees with the mask", repr(tokens[token]), masks
            path.append(token)
    return "equal", "", masks


def compare_masks(probe, tokens, end, args):
    engines = (probe, vocabulary.llguidance_tokenizer(tokens, end), tokens, end)
    counts, masks = {}, 0
    cases = schemas.made_up_schemas() + schemas.own_schemas() + schemas.languages()
    cases += [("json_schema", name, json.dumps(schema)) for name, schema in schemas.schemastore_schemas()]
    for case in cases:
        outcome, detail, compared = compare_one(engines, case, args)
        counts[outcome] = counts.get(outcome, 0) + 1
        masks += compared
        if outcome not in ("equal", "theirs refuses"):
            print(f"  {outcome}: {case[1]}: {detail}", flush=True)
    print("masks:", counts, masks, "compared")


def random_texts(probe, tokens, end, args):
    """Random walks to their end; every finished text must be valid."""
    counts = {"finished": 0, "invalid": 0, "unfinished": 0}
    cases = schemas.made_up_schemas() + schemas.own_schemas()
    cases += [("json_schema", name, json.dumps(schema)) for name, schema in schemas.schemastore_schemas()]
    cases = [case for case in cases if probe.ask(compile="json_schema", source=case[2], compact=False)["ok"]]
    for at, (kind, name, source) in enumerate(cases):
        draw = random.Random(name)
        for _ in range(args.texts * (at + 1) // len(cases) - args.texts * at // len(cases)):
            probe.ask(compile=kind, source=source, compact=False)
            text = complete(OursStep(probe, tokens, end), b"", tokens, end, draw)
            if text is None:
                counts["unfinished"] += 1
                print(f"  unfinished: {name}", flush=True)
                continue
            counts["finished"] += 1
            if not is_valid(kind, source, text):
                counts["invalid"] += 1
                print(f"  INVALID: {name}: {text[:300]!r}", flush=True)
    print(f"texts of {len(cases)} schemas:", counts)
    return counts["invalid"]


def pick(ids, tokens, draw, step):
    """A random token, short ways to an end preferred as a model prefers them."""
    if len(ids) > 400:
        ids = draw.sample(ids, 300) + [i for i in ids if len(tokens[i]) == 1]
    closing = [i for i in ids if tokens[i][:1] in b'"}],0123456789' and tokens[i] and len(tokens[i]) < 4]
    plain = [i for i in ids if tokens[i].strip()]
    return draw.choice(closing if closing and draw.random() < 0.2 + step / 60 else plain or ids)


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
