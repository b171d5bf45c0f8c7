#!/usr/bin/env python3
"""Masks against llguidance's along random walks, each difference settled by jsonschema or Python's re; random texts
against jsonschema; schemas accepted.

    compare.py --probe PROGRAM [--walks N] [--steps N] [--texts N] [--only masks|texts|store] [--no-real]
"""
import argparse
import functools
import json
import random
import re
import sys

import numpy

import schemas
import vocabulary


def id_array(mask, count):
    ids = numpy.flatnonzero(numpy.unpackbits(numpy.frombuffer(mask, numpy.uint8), bitorder="little"))
    return ids[ids < count]


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
        if may_end and (len(ids) == 0 or draw.random() < 0.4):
            return text
        if len(ids) == 0:
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
        ids = id_array(answer["mask"], len(self.tokens))
        return ids[ids != self.end], answer["end"]

    def accept(self, token):
        return self.probe.ask(accept=token)["ok"]


class TheirStep:
    def __init__(self, matcher, tokens, end):
        self.matcher, self.tokens, self.end = matcher, tokens, end

    def allowed(self):
        ids = id_array(self.matcher.compute_bitmask(), len(self.tokens))
        return ids[ids != self.end], self.end in ids

    def accept(self, token):
        return self.matcher.consume_token(token)


def is_valid(kind, source, text):
    """Whether jsonschema, or Python's re, takes a finished text; None: neither can say (for a pattern that Python lacks)."""
    import jsonschema
    if kind == "regex":
        return re.fullmatch(source, text.decode("utf-8", "replace"), re.ASCII) is not None
    if kind != "json_schema":
        return None
    try:
        validator_of(source).validate(json.loads(text))
    except (jsonschema.ValidationError, ValueError):
        return False
    except Exception:
        return None
    return True


@functools.lru_cache(maxsize=8)
def validator_of(source):
    import jsonschema
    import referencing
    import referencing.jsonschema
    schema = json.loads(source)
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    # Drafts before 2019-09 do not look for documents in $defs.
    parts = [part for part in schema.get("$defs", {}).values() if isinstance(part, dict) and "://" in part.get("$id", "")]
    resources = [(part["$id"], referencing.Resource.from_contents(part, referencing.jsonschema.DRAFT7)) for part in parts]
    return validator(schema, format_checker=validator.FORMAT_CHECKER, registry=referencing.Registry().with_resources(resources))


def settle(engines, case, path, only_ours, only_theirs):
    """Who is right where the masks differ: finished texts that one engine alone allows, and their verdicts."""
    kind, name, source = case
    probe, new_theirs, tokens, end = engines
    draw = random.Random(name)
    behind = b"".join(tokens[t] for t in path)
    for only, whose in ((only_theirs, "theirs"), (only_ours, "ours")):
        for token in draw.choices(only, k=8) if only else []:
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
    spelling = False
    for _ in range(args.walks):
        probe.ask(compile=kind, source=source, compact=True)
        theirs = new_theirs()
        path = []
        for _ in range(args.steps):
            answer = probe.mask()
            a, b = id_array(answer["mask"], len(tokens)), id_array(theirs.compute_bitmask(), len(tokens))
            masks += 1
            if theirs.is_error():
                return "theirs gives up", theirs.get_error().splitlines()[0][:100], masks
            both = a
            if not numpy.array_equal(a, b):
                ours_only, theirs_only = numpy.setdiff1d(a, b).tolist(), numpy.setdiff1d(b, a).tolist()
                both = numpy.intersect1d(a, b)
                behind = b"".join(tokens[t] for t in path)
                if not ours_only and in_name_escapes(behind, [tokens[t] for t in theirs_only]):
                    spelling = True
                else:
                    outcome, text = settle((probe, new_theirs, tokens, end), case, path, ours_only, theirs_only)
                    few = [[tokens[i] for i in only[:4]] for only in (ours_only, theirs_only)]
                    return outcome, f"{text}; behind {behind!r} ours only {few[0]}, theirs only {few[1]}", masks
            both = both[both != end]
            if len(both) == 0 or answer["end"] and draw.random() < 0.3:
                break
            token = int(both[draw.randrange(len(both))])
            if not probe.ask(accept=token)["ok"] or not theirs.consume_token(token):
                return "accept disagrees with the mask", repr(tokens[token]), masks
            path.append(token)
    return ("equal but for escapes in further names" if spelling else "equal"), "", masks


def in_name_escapes(behind, only):
    """Whether masks differ only in how a member's name may be escaped. llguidance takes every spelling in names that
    the schema does not name, and so also other spellings of names that it does: with {"properties": {"a": {"type":
    "integer"}}} it takes {"\\u0061": "x"}, which jsonschema finds invalid. Ours takes one spelling."""
    if re.search(rb"\\(u[0-9a-fA-F]{0,3})?$", behind):
        return True
    return all(b"\\" in token for token in only)


def all_schemas(args):
    cases = schemas.made_up_schemas() + schemas.own_schemas()
    if args.real:
        cases += [("json_schema", name, json.dumps(schema)) for name, schema in schemas.schemastore_schemas()]
    return cases


def compare_masks(probe, tokens, end, args):
    engines = (probe, vocabulary.llguidance_tokenizer(tokens, end), tokens, end)
    counts, masks = {}, 0
    for case in all_schemas(args) + schemas.languages():
        outcome, detail, compared = compare_one(engines, case, args)
        counts[outcome] = counts.get(outcome, 0) + 1
        masks += compared
        if not outcome.startswith("equal") and outcome != "theirs refuses":
            print(f"  {outcome}: {case[1]}: {detail}", flush=True)
    taken = sum(count for outcome, count in counts.items() if outcome != "theirs refuses")
    equal = sum(count for outcome, count in counts.items() if outcome.startswith("equal"))
    print(f"masks: {masks} compared, in {taken} schemas, regexes and grammars that llguidance takes; equal in {equal}:", counts)
    return sum(count for outcome, count in counts.items() if outcome.startswith(("OURS", "accept")))


def random_texts(probe, tokens, end, args):
    """Random walks to their end; every finished text must be valid."""
    counts = {"finished": 0, "invalid": 0, "not judged": 0, "unfinished": 0}
    cases = [case for case in all_schemas(args) if probe.ask(compile="json_schema", source=case[2], compact=False)["ok"]]
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
            valid = is_valid(kind, source, text)
            counts["not judged"] += valid is None
            if valid is False:
                counts["invalid"] += 1
                print(f"  INVALID: {name}: {text[:300]!r}", flush=True)
    print(f"texts of {len(cases)} schemas:", counts)
    return counts["invalid"]


def pick(ids, tokens, draw, step):
    """A random token, short ways to an end preferred as a model prefers them."""
    if len(ids) > 400:
        some = [draw.randrange(len(ids)) for _ in range(100)]
        ids = numpy.concatenate([ids[some], ids[ids < 256]])  # the first tokens are the single bytes
    ids = ids.tolist()
    closing = [i for i in ids if tokens[i][:1] in (b'"', b"}", b"]", b",") and len(tokens[i]) < 4]
    if step > 100:  # long enough: no further member where the end is near
        closing = [i for i in closing if tokens[i][:1] != b","] or closing
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
    inside = [name for name, schema in schemas.single_schemas() if schemas.stays_inside(name, schema)]
    print(f"  whose references stay inside them: {len([name for name in inside if name not in refused])} of {len(inside)}")
    for name, why in refused.items():
        print(f"  {name}: {why[:150]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--only", choices=["masks", "texts", "store"])
    parser.add_argument("--real", action=argparse.BooleanOptionalAction, default=True, help="the schemas of schemastore too")
    args = parser.parse_args()
    name, tokens, end = vocabulary.load()
    print(f"vocabulary: {name}, {len(tokens)} tokens")
    probe = vocabulary.Probe(args.probe, tokens, end)
    wrong = 0
    if args.only in (None, "masks"):
        wrong += compare_masks(probe, tokens, end, args)
    if args.only in (None, "texts"):
        wrong += random_texts(probe, tokens, end, args)
    if args.only in (None, "store"):
        accepted_schemas(probe)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
