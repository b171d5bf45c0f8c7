#!/usr/bin/env python3
"""The rules of the tree that a machine can check: includes go one way, folders explain themselves.

    check_structure.py ROOT     exit 1 with one line per broken rule
"""
import os
import re
import sys

from parameters import many_parameters

# A folder of src/ may include itself and what stands before it.
ORDER = ["base", "device", "flags", "text", "grammar", "output", "kv", "sched", "batch", "attention", "conformance", "replay",
         "ops", "linear", "capi", "model", "lora", "sample", "spec", "engine", "server", "cli"]
# The transport and the API know the engine only by its public header.
FORBIDDEN = {"server": {"engine", "lora", "model", "ops", "attention", "sample", "batch", "sched", "kv"}}
MAX_README_LINES = 15
# JSON from outside is read under limits, by base/json_parse.h and json_file.h alone.
JSON_PARSE = re.compile(r"\b\w*[jJ]son::(parse|accept)\(|simdjson[^;]*(\.|->)(parse|load)\(")

# CUDA's runtime is called in src/device/cuda, whose functions the rest uses, and in kernels; tests call what they like.
RUNTIME_CALL = re.compile(r"\bcuda[A-Z]\w*\(")


def runtime_calls(root):
    """Files that call the runtime by themselves."""
    for folder, _, files in sorted(os.walk(os.path.join(root, "src"))):
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if not name.endswith((".h", ".cc")) or name.endswith("_test.cc") or "testing" in path:
                continue
            if path.startswith("src/device/cuda/"):
                continue
            with open(os.path.join(root, path), encoding="utf-8") as f:
                calls = sum(len(RUNTIME_CALL.findall(line.split("//")[0])) for line in f)
            if calls > 0:
                yield f"{path} calls CUDA's runtime {calls} times; use what src/device/cuda has, or add to it"


MAX_COLUMNS = 120
# Tables of one row a line, what is written by tools, texts of other languages, and folders whose lines are still to be cut.
WIDE = ("src/flags/flag_table.cc", "src/flags/known_flags", "src/grammar/schema_formats.cc", "src/cli/loading_routes.cc",
        "src/attention/backends/flex_attention/cuda_source.cc", "src/linear/cuda/", "src/ops/cuda/")
MAX_LINES = 500


def sizes(root):
    """Lines of C++ that are too wide, and files that are too long; tests quote other languages as they are."""
    for part in ("include", "src"):
        for folder, _, files in sorted(os.walk(os.path.join(root, part))):
            for name in sorted(files):
                path = os.path.relpath(os.path.join(folder, name), root)
                if not name.endswith((".h", ".cc", ".cu", ".cuh")):
                    continue
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    lines = f.read().split("\n")
                if len(lines) - 1 > MAX_LINES:
                    yield f"{path} has {len(lines) - 1} lines, at most {MAX_LINES} are allowed"
                if path.startswith(WIDE) or name.endswith(("_test.cc", "_fuzz.cc")) or "testing" in path:
                    continue
                for number, line in enumerate(lines, 1):
                    if len(line) > MAX_COLUMNS and 'R"' not in line:
                        yield f"{path}:{number} has {len(line)} columns, at most {MAX_COLUMNS} are allowed"


MAX_FUNCTION_LINES = 60
# Functions that are longer, with the lines that they may have: they may become shorter, and the numbers with them.
LONG_FUNCTIONS = {
    ("src/attention/backends/fa3/kernels/sm90_extend.cuh", "sm90_extend"): 86,
    ("src/attention/backends/flashinfer/kernels/sm80_decode_state.cuh", "accumulate"): 71,
    ("src/attention/cuda/decode_plan.cuh", "decode_plan"): 90,
    ("src/attention/backends/torch_native/cuda_attention.cu", "attention_kernel"): 83,
    ("src/ops/cuda/lora.cuh", "lora_expand_kernel"): 72, ("src/ops/cuda/lora.cuh", "lora_shrink_kernel"): 67,
}
# Each is one list.
LISTS = ("src/flags/flag_table.cc", "src/server/metrics.cc")
FUNCTION_END = re.compile(r"\)\s*(const)?\s*(noexcept)?\s*(override)?\s*(->.*)?\{$")
FUNCTION = re.compile(r"^( {0,4})[A-Za-z_~]")
NO_FUNCTION = re.compile(r"^\s*(if|for|while|switch|else|do|return|namespace|struct|class|enum)\b")


def function_begin(lines, number):
    """The line where a function begins whose signature ends in this one, with its indentation; None: there is none."""
    if not FUNCTION_END.search(lines[number]):
        return None
    for first in range(number, max(number - 8, -1), -1):
        begin = FUNCTION.match(lines[first])
        if begin and not NO_FUNCTION.match(lines[first]) and (first == number or lines[first].endswith((",", "("))):
            return first, begin.group(1)
        if first < number and not lines[first].endswith((",", "(", "&", "|")):
            return None
    return None


def long_functions(root):
    """Functions that are too long, by the indentation of their first and last line; tests tell stories."""
    unused = set(LONG_FUNCTIONS)
    for folder, _, files in sorted(os.walk(os.path.join(root, "src"))):
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if not name.endswith((".h", ".cc", ".cu", ".cuh")) or name.endswith(("_test.cc", "_fuzz.cc")):
                continue
            if "testing" in path or path in LISTS:
                continue
            with open(os.path.join(root, path), encoding="utf-8") as f:
                lines = f.read().split("\n")
            number = 0
            while number < len(lines):
                begin = function_begin(lines, number)
                number += 1
                if begin is None:
                    continue
                first, indentation = begin
                while number < len(lines) and not lines[number].startswith(indentation + "}"):
                    number += 1
                length = number - first + 1
                words = re.findall(r"(\w+)\(", lines[first])
                allowed = max([LONG_FUNCTIONS.get((path, word), MAX_FUNCTION_LINES) for word in words] or [MAX_FUNCTION_LINES])
                if length > MAX_FUNCTION_LINES:
                    unused -= {(path, word) for word in words}
                if length > allowed:
                    yield f"{path}:{first + 1} has a function of {length} lines, at most {allowed} are allowed"
    for path, word in sorted(unused):
        yield f"LONG_FUNCTIONS allows {path} a long {word}, which it no longer has"


def readmes(root):
    """Folders of src/, tests and bench without a README, and READMEs that are too long, in their subfolders, too."""
    for part in [f"src/{part}" for part in ORDER] + ["tests", "bench"]:
        if not os.path.exists(os.path.join(root, part, "README.md")):
            yield f"{part}/README.md is missing"
    for part in ("src", "tests", "bench"):
        for folder, _, files in sorted(os.walk(os.path.join(root, part))):
            if "README.md" not in files:
                continue
            path = os.path.join(os.path.relpath(folder, root), "README.md")
            with open(os.path.join(root, path), encoding="utf-8") as f:
                lines = len(f.readlines())
            if lines > MAX_README_LINES:
                yield f"{path} has {lines} lines, at most {MAX_README_LINES} are allowed"


def included(path):
    with open(path, encoding="utf-8") as f:
        return re.findall(r'^#include "([^"]+)"', f.read(), re.M)


def main():
    root = sys.argv[1]
    broken = []
    src = os.path.join(root, "src")
    for folder, _, files in sorted(os.walk(src)):
        part = os.path.relpath(folder, src).split(os.sep)[0]
        for name in files:
            if not name.endswith((".h", ".cc")):
                continue
            path = os.path.join(folder, name)
            for target in included(path):
                other = target.split("/")[0]
                if part not in ORDER:
                    broken.append(f"{path}: src/{part} has no place in the order of includes")
                elif other in ORDER and ORDER.index(other) > ORDER.index(part):
                    broken.append(f"{path} includes {target}: src/{part} stands before src/{other}")
                elif other in FORBIDDEN.get(part, ()) and not name.endswith("_test.cc"):
                    broken.append(f"{path} includes {target}: src/{part} may not know src/{other}")
            if part != "base" and "testing" not in path and not name.endswith(("_test.cc", "_fuzz.cc", "_probe.cc")):
                with open(path, encoding="utf-8") as f:
                    if JSON_PARSE.search(f.read()):
                        broken.append(f"{path} parses JSON by itself; use base/json_parse.h or base/json_file.h")
    broken += [*readmes(root), *runtime_calls(root), *sizes(root), *long_functions(root), *many_parameters(root)]
    print("\n".join(broken) or "structure: every rule holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
