#!/usr/bin/env python3
"""Runs the server tests of an SGLang checkout against this server; prints what passed, failed and was skipped.

    WARPWEAVE_PROGRAM=build/warpweave python3 tests/sglang_suite/run.py --checkout DIR [FILE ...]
        [-k EXPRESSION] [--json FILE]

With FILEs (as named below, or the end of such a name) only those run; --json adds their results to those in the file.
"""

import argparse
import collections
import json
import pathlib
import sys

import pytest

import shims

# Those that talk to a server over HTTP. Others load SGLang's classes, or ask what only a large model knows.
FILES = """
test_srt_endpoint.py test_abort.py entrypoints/http_server/test_abort_request.py test_metrics.py
test_penalty.py test_skip_tokenizer_init.py test_regex_constrained.py test_ebnf_constrained.py
test_request_queue_validation.py test_health_check.py test_input_embeddings.py test_start_profile.py
test_session_control.py test_weight_version.py test_fim_completion.py
openai_server/basic/test_openai_embedding.py openai_server/basic/test_openai_server.py
openai_server/features/test_cache_report.py openai_server/features/test_enable_thinking.py
openai_server/features/test_json_constrained.py openai_server/features/test_json_mode.py
openai_server/features/test_openai_server_ebnf.py openai_server/features/test_openai_server_hidden_states.py
openai_server/features/test_reasoning_content.py openai_server/function_call/test_openai_function_calling.py
openai_server/function_call/test_tool_choice.py openai_server/validation/test_large_max_new_tokens.py
openai_server/validation/test_matched_stop.py openai_server/validation/test_openai_server_ignore_eos.py
openai_server/validation/test_request_length_validation.py
""".split()


class Results:
    def __init__(self):
        self.outcome = {}
        self.reason = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcome[report.nodeid] = report.outcome
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                self.reason[report.nodeid] = (crash.message if crash else str(report.longrepr)).splitlines()[0][:200]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkout", type=pathlib.Path, required=True)
    parser.add_argument("files", nargs="*")
    parser.add_argument("-k", dest="expression")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    shims.install(args.checkout.resolve())
    folders = [args.checkout / "test" / name for name in ("srt", "registered", "manual")]
    wanted = [name for name in FILES if not args.files or name.endswith(tuple(args.files))]
    files = [str(folder / name) for folder in folders for name in wanted if (folder / name).exists()]
    if not files:
        sys.exit(f"{args.checkout}: no test/srt or test/registered with server tests")
    results = Results()
    flags = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "--continue-on-collection-errors",
             "--import-mode=importlib"]
    if args.expression:
        flags += ["-k", args.expression]
    pytest.main([*flags, *files], plugins=[results])
    print(dict(collections.Counter(results.outcome.values())))
    for name, reason in sorted(results.reason.items()):
        print("FAILED", name.rsplit("/", 1)[-1], reason)
    for flag, reason in shims.DROPPED.items():
        print("REFUSED", flag, reason)
    if args.json:
        add_to(args.json, results)


def add_to(path, results):
    """Results of earlier pieces stay, those of tests that ran again are replaced."""
    known = json.loads(path.read_text()) if path.exists() else {"outcome": {}, "reason": {}}
    for name, outcome in results.outcome.items():
        known["outcome"][name] = outcome
        known["reason"].pop(name, None)
    known["reason"].update(results.reason)
    path.write_text(json.dumps(known, indent=1))
    print("all pieces:", dict(collections.Counter(known["outcome"].values())))


if __name__ == "__main__":
    main()
