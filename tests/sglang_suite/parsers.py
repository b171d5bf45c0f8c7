#!/usr/bin/env python3
"""SGLang's own unit tests of tool-call and reasoning parsers, with this server's parser behind their classes.

    parsers.py --checkout DIR [--probe build/src/output/answer_probe]

Nothing of SGLang is kept or loaded but the test files of the checkout. Modules that they import are replaced by
stand-ins whose detectors ask answer_probe. What SGLang's detectors keep inside (`_buffer`, `current_tool_id`) equals
anything here. Tests of formats that are not served, and of SGLang's own grammars, are skipped and counted. Every whole
text is also cut in two at each of its characters, and into single characters: the joined events must be the same.
Prints the counts and each test that differs.
"""

import argparse
import collections
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import types
import unittest

CALLS = {"PythonicDetector": "pythonic", "MistralDetector": "mistral", "Llama32Detector": "llama3", "KimiK2Detector": "kimi_k2",
         "DeepSeekV3Detector": "deepseekv3", "Qwen3CoderDetector": "qwen3_coder", "Qwen25Detector": "qwen25",
         "Glm4MoeDetector": "glm45", "Glm47MoeDetector": "glm47", "HermesDetector": "hermes"}
REASONING = {"DeepSeekR1Detector": ("deepseek-r1", True), "Qwen3Detector": ("qwen3", False), "KimiDetector": ("kimi", False),
             "KimiK2Detector": ("kimi_k2", False), "Glm45Detector": ("glm45", False), "GptOssDetector": ("gpt-oss", False),
             "Nemotron3Detector": ("nemotron_3", False), "BaseReasoningFormatDetector": ("qwen3", False)}
SAME_REASONING = {"qwen3-thinking": "Qwen3Detector", "minimax": "Qwen3Detector", "interns1": "Qwen3Detector",
                  "deepseek-v3": "Qwen3Detector", "step3": "DeepSeekR1Detector"}
ALWAYS_REASONING = ("qwen3-thinking", "minimax")
FILES = ("test_function_call_parser.py", "test_reasoning_parser.py", "test_hermes_detector.py", "test_llama32_detector.py",
         "test_mistral_detector.py", "test_glm47_moe_detector.py")


class Anything:
    """Equals everything: state that is SGLang's own affair."""

    def __eq__(self, other):
        return True

    def __contains__(self, item):
        return True

    def __len__(self):
        return 0

    __hash__ = None


class Record(types.SimpleNamespace):
    """A protocol class: fields as given."""

    def dump(self):
        return {key: value.dump() if isinstance(value, Record) else value for key, value in vars(self).items()}


class Probe:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.cuts = 0

    def events(self, pieces, end, **format_fields):
        self.process.stdin.write(json.dumps({"pieces": pieces, "end": end, **format_fields}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def whole(self, text, **format_fields):
        meaning = joined(self.events([text], True, **format_fields))
        for pieces in [[text[:at], text[at:]] for at in range(1, len(text))] + [list(text)]:
            self.cuts += 1
            assert joined(self.events(pieces, True, **format_fields)) == meaning, f"another meaning when cut: {pieces}"
        return meaning


def joined(lists):
    """Reasoning, content, and [name, arguments] of each call."""
    reasoning, content, calls = "", "", []
    for kind, text, _ in [event for events in lists for event in events]:
        if kind == "reasoning":
            reasoning += text
        elif kind == "content":
            content += text
        elif kind == "call":
            calls.append([text, ""])
        else:
            calls[-1][1] += text
    return reasoning, content, calls


PROBE = None
WHOLE_CALLS = False  # a call is handed over when it ends, as some of SGLang's detectors do


class CallDetector:
    _buffer = current_tool_id = current_tool_name_sent = prev_tool_call_arr = streamed_args_for_tool = Anything()
    MARKS = {"mistral": "[TOOL_CALLS]", "llama3": "<|python_tag|>", "kimi_k2": "<|tool_calls_section_begin|>",
             "deepseekv3": "<｜tool▁calls▁begin｜>", "qwen3_coder": "<tool_call>", "qwen25": "<tool_call>", "glm45": "<tool_call>",
             "glm47": "<tool_call>", "hermes": "<tool_call>"}

    def __init__(self):
        self.calls = CALLS[type(self).__name__]
        self.pieces = []
        self.held = {}

    def format(self, tools):
        return {"calls": self.calls, "tools": [tool.dump() for tool in tools]}

    def has_tool_call(self, text):
        return self.MARKS[self.calls] in text

    def detect_and_parse(self, text, tools):
        _, content, calls = PROBE.whole(text, **self.format(tools))
        items = [Record(tool_index=i, name=name, parameters=arguments) for i, (name, arguments) in enumerate(calls)]
        return Record(normal_text=content, calls=items)

    def parse_streaming_increment(self, piece, tools):
        """Of what comes at once a call and its arguments are one item, except where SGLang's detector makes two of them."""
        self.pieces.append(piece)
        content, items = "", []
        for kind, text, number in PROBE.events(self.pieces, False, **self.format(tools))[-1]:
            if kind == "content":
                content += text
            elif kind == "call":
                items.append(Record(tool_index=number, name=text, parameters=""))
            elif items and items[-1].tool_index == number and (items[-1].name is None or self.calls != "mistral"):
                items[-1].parameters += text
            else:
                items.append(Record(tool_index=number, name=None, parameters=text))
        return Record(normal_text=content, calls=self.ended(items) if WHOLE_CALLS else items)

    def ended(self, items):
        """Calls whose arguments are whole, each once."""
        for item in items:
            call = self.held.setdefault(item.tool_index, Record(tool_index=item.tool_index, name=item.name, parameters=""))
            call.parameters += item.parameters
        whole = [call for call in self.held.values() if is_json(call.parameters)]
        for call in whole:
            del self.held[call.tool_index]
        return whole


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class ReasoningDetector:
    _buffer = Anything()

    def __init__(self, *marks, stream_reasoning=True, force_reasoning=None):
        self.name, forced = REASONING[type(self).__name__]
        self.forced = forced if force_reasoning is None else force_reasoning
        self.stream_reasoning = stream_reasoning
        self.pieces = []
        marks = ("◁think▷", "◁/think▷") if self.name == "kimi" else ("<think>", "</think>")
        self.think_start_token, self.think_end_token = marks
        self.tool_start_token = {"glm45": "<tool_call>", "kimi_k2": "<|tool_calls_section_begin|>"}.get(self.name)

    @property
    def stripped_think_start(self):
        """Whether the mark came and is in nothing that was handed over."""
        reasoning, content, _ = joined(PROBE.events(self.pieces, False, **self.format()))
        return self.think_start_token in "".join(self.pieces) and self.think_start_token not in reasoning + content

    @property
    def _in_reasoning(self):
        """Whether a letter that came next would be reasoning."""
        return joined(PROBE.events(self.pieces + ["x"], False, **self.format()))[0].endswith("x")

    def format(self):
        return {"reasoning": self.name, "begins_in_reasoning": self.forced}

    def detect_and_parse(self, text):
        reasoning, content, _ = PROBE.whole(text, **self.format())
        return Record(reasoning_text=reasoning, normal_text=content)

    def parse_streaming_increment(self, piece):
        self.pieces.append(piece)
        reasoning, content, _ = joined(PROBE.events(self.pieces, False, **self.format())[-1:])
        return Record(reasoning_text=reasoning, normal_text=content)


class ReasoningParser:
    def __init__(self, model_type=None, stream_reasoning=True, force_reasoning=None):
        if not model_type:
            raise ValueError("Model type must be specified")
        name = model_type.lower()
        kinds = {name: kind for kind, (name, _) in reversed(REASONING.items())} | SAME_REASONING
        if name not in kinds:
            raise ValueError(f"Unsupported model type: {model_type}")
        forced = force_reasoning or name in ALWAYS_REASONING or None
        self.detector = REASONING_STAND_INS[kinds[name]](stream_reasoning=stream_reasoning, force_reasoning=forced)

    def parse_non_stream(self, text):
        result = self.detector.detect_and_parse(text)
        return result.reasoning_text, result.normal_text

    def parse_stream_chunk(self, text):
        result = self.detector.parse_streaming_increment(text)
        return result.reasoning_text, result.normal_text


class NotServed:
    """A class of SGLang that has no counterpart here: tests that make one are skipped."""

    def __init__(self, *arguments, **named):
        raise unittest.SkipTest(type(self).__name__)


CALL_STAND_INS = {name: type(name, (CallDetector,), {}) for name in CALLS}
REASONING_STAND_INS = {name: type(name, (ReasoningDetector,), {}) for name in REASONING}
REASONING_STAND_INS["ReasoningParser"] = ReasoningParser
STAND_INS = {"Function": Record, "Tool": Record, "StreamingParseResult": Record, "CustomTestCase": unittest.TestCase,
             "register_cpu_ci": lambda *arguments, **named: None}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any module of sglang and xgrammar: the names above, and an empty class for every other one."""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("sglang", "xgrammar"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        detectors = REASONING_STAND_INS if spec.name.endswith("reasoning_parser") else CALL_STAND_INS
        module.__getattr__ = lambda name: (STAND_INS | detectors).get(name, type(name, (NotServed,), {}))
        return module

    def exec_module(self, module):
        pass


# Of classes that are SGLang's alone: its base classes, its grammars, its record of a result.
NOT_OURS = ("TestBaseFormatDetector", "TestEBNFGeneration", "TestStreamingParseResult", "TestBaseReasoningFormatDetector",
            "TestGetStructureConstraint")
OF_GRAMMARS = ("structural_tag", "structure_info")


def tests_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in suite:
            if type(test).__name__ not in NOT_OURS and not any(word in test.id() for word in OF_GRAMMARS):
                yield test


def main():
    global PROBE, WHOLE_CALLS
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--checkout", required=True, type=pathlib.Path)
    arguments.add_argument("--probe", default="build/src/output/answer_probe")
    chosen = arguments.parse_args()
    PROBE = Probe(chosen.probe)
    sys.meta_path.insert(0, StandIns())
    passed, in_pieces, differ, skipped = 0, 0, [], collections.Counter()
    for test in (test for name in FILES for path in chosen.checkout.glob(f"test/**/{name}") for test in tests_of(path)):
        result = unittest.TestResult()
        test.run(result)
        if result.skipped:
            skipped[result.skipped[0][1]] += 1
            continue
        if result.wasSuccessful():
            passed += 1
            continue
        why = (result.failures + result.errors)[0][1].strip().splitlines()[-1]
        WHOLE_CALLS, again = True, unittest.TestResult()
        test.run(again)
        WHOLE_CALLS = False
        in_pieces += again.wasSuccessful()
        differ.append((test.id(), "only in that arguments come in pieces" if again.wasSuccessful() else why))
    for test, why in differ:
        print(f"differs: {test}: {why}")
    print(f"{passed} of {passed + len(differ)} tests pass, {in_pieces} more where a call is handed over when it ends; "
          f"{PROBE.cuts} cuts of whole texts give what the whole gives")
    print("not served, so not run: " + (", ".join(f"{name} {count}" for name, count in sorted(skipped.items())) or "none"))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
