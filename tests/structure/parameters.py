"""Functions and lambdas with more parameters than a reader keeps in mind: the rule of CONTRIBUTING.md for check_structure.py."""
import os
import re

MAX_PARAMETERS = 5
# Signatures that are not ours: the runtime's and libc's, behind the same names, and what Python calls through ctypes.
FOREIGN = ("src/device/cuda/testing/fake_cublaslt.cc", "src/device/cuda/testing/fake_cuda.cc",
           "src/base/testing/failing_allocator.cc", "bench/gpu/kernels_entry.cu")
# Functions that have more, and how many: they may only become fewer. Those of ptx.h are one instruction each, whose operands they are.
MANY_PARAMETERS = {
    ("src/attention/cuda/mla/mla_decode.cc", "launch_mla_decode"): 6,
    ("src/device/cuda/ptx.h", "tma_load_4d"): 8,
    ("src/device/cuda/ptx.h", "tma_multicast_4d"): 8,
}

# What may hold parentheses or commas that mean nothing here; newlines stay, so that lines keep their numbers.
LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
# What stands between a definition's parameters and its body, its members' values or its `= 0`.
TAIL = re.compile(r"\s*(?:(?:const|mutable|override|final|constexpr|noexcept(?:\([^()]*\))?|&&?|__attribute__\(\([^()]*\)\)|"
                  r"->\s*(?:[\w:&*\s]|<[^{};]*>)+?)\s*)*(\{|(?<!:):(?!:)|=\s*0\s*;)")
NAME = re.compile(r"(\w+|operator\s*(?:\(\)|[^\s\w(]+)|\])\s*(?:<[^<>;{}()]*>)?\s*$")
NO_NAME = {"if", "for", "while", "switch", "catch", "return", "sizeof", "decltype", "alignas", "noexcept", "constexpr", "requires",
           "__launch_bounds__", "asm", "volatile", "new", "throw", "case"}


def blank(match):
    text = match.group(0)
    return ("" if text[0] in "/#" else "0") + "\n" * text.count("\n")


def count(parameters):
    """Commas outside brackets, and one more; `<` opens one behind a name."""
    depth = 0
    commas = 0
    for at, char in enumerate(parameters):
        if char in "([{" or (char == "<" and re.search(r"\w\s*$", parameters[:at])):
            depth += 1
        elif char in ")]}" or (char == ">" and depth > 0 and parameters[at - 1] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            commas += 1
    return commas + 1 if parameters.strip() else 0


def is_definition(before, name, end):
    """Whether a name with parentheses, after `before` and in front of `end`, is defined there, not called or initialised."""
    if name in NO_NAME:
        return False
    if name == "]":
        return end == "{"
    before = re.sub(r"(?:[\w>]+\s*::\s*~?)+$", "", before).rstrip()
    if before.endswith(":"):
        return re.search(r"\b(public|private|protected)\s*:$", before) is not None
    if end == ":":
        return re.search(r"([;{}]|\b(explicit|inline|constexpr)|>)$", before) is not None
    return re.search(r"[\w*&>;{}\]]$|\b__launch_bounds__\([^()]*\)$", before) is not None


def many_parameters_of(text):
    """(line, name, parameters) of each definition in a file's text that has too many."""
    text = DIRECTIVE.sub(blank, LITERAL.sub(blank, text))
    open_at = []
    for at, char in enumerate(text):
        if char == "(":
            open_at.append(at)
        if char != ")" or not open_at:
            continue
        first = open_at.pop()
        parameters = count(text[first + 1:at])
        end = TAIL.match(text, at + 1) if parameters > MAX_PARAMETERS else None
        head = text[max(0, first - 200):first]
        name = NAME.search(head) if end else None
        if name and is_definition(head[:name.start()].rstrip(), name.group(1), end.group(1)[0]):
            yield text.count("\n", 0, first) + 1, "lambda" if name.group(1) == "]" else name.group(1), parameters


def many_parameters(root):
    unused = dict(MANY_PARAMETERS)
    for part in ("include", "src", "bench", "tests"):
        for folder, _, files in sorted(os.walk(os.path.join(root, part))):
            for file in sorted(files):
                path = os.path.relpath(os.path.join(folder, file), root)
                if not file.endswith((".h", ".cc", ".cu", ".cuh")) or path in FOREIGN:
                    continue
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    found = list(many_parameters_of(f.read()))
                for line, name, parameters in found:
                    allowed = MANY_PARAMETERS.get((path, name), MAX_PARAMETERS)
                    unused.pop((path, name), None)
                    if parameters > allowed:
                        yield f"{path}:{line}: {name} has {parameters} parameters, at most {allowed} are allowed; use a struct"
    for path, name in unused:
        yield f"tests/structure/parameters.py allows {path} a {name} of many parameters, which it no longer has"
