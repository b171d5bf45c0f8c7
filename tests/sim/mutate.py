#!/usr/bin/env python3
"""Automatic mutations of src/sched and src/kv: how many do the unit tests and the simulation catch?

A mutant is one small change of one source line: a comparison flipped or moved by one, a call dropped, a `+ 1` or `- 1`
left out, a whole number made one larger. Asserts and audits are not mutated: one that checks less fails no test. Of all
places that a text search finds, a random sample is taken; each mutant's file (for a header: every file that includes it)
is compiled again and linked in front of the libraries of a finished build, then kv_test, sched_test and the simulation
run, which must decide as the unchanged program does. A test that fails, crashes or does not end catches the mutant.

  tests/sim/mutate.py --build build --sample 200 --seed 1 --out mutants.jsonl
  tests/sim/mutate.py --build build --list                  all places, nothing is run
  tests/sim/mutate.py --build build --only 'kv/page_pool.h:41:'   the places that begin so

Results are appended to --out as lines of JSON, and places that it has are not run again. Needs
`ninja sim kv_test sched_test`.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("src/sched", "src/kv")
TARGETS = ("kv_test", "sched_test", "sim")
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
# A default of a field, or the name of a constant: no step of an algorithm.
DEFAULT = re.compile(r"^\s*(static\s+|inline\s+|constexpr\s+)*[\w:<>]+ \w+ = -?\d+;")
CALL = re.compile(r"(?:[A-Za-z_][\w]*(?:\(\))?(?:\.|->|::))*[A-Za-z_]\w*\(")
NOT_A_CALL = {"if", "for", "while", "switch", "return", "sizeof", "catch"}

Place = collections.namedtuple("Place", "file line kind begin end text")


def blank_out(text):
    """The text with comments, strings, includes and asserts as spaces, so that places keep their columns."""
    spaces = lambda match: re.sub(r"[^\n]", " ", match.group())
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^#[^\n]*|\b(?:static_)?assert\([^;]*;', spaces,
                  text, flags=re.S | re.M)


def without_audits(code):
    """The code with the bodies of audits as spaces."""
    for match in reversed(list(re.finditer(r"\b(?:audit\w*|spare_count_holds)\([^;{}]*\{", code))):
        depth, end = 1, match.end()
        while depth > 0:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        code = code[:match.end()] + re.sub(r"[^\n]", " ", code[match.end():end]) + code[end:]
    return code


def end_of_call(code, at):
    """Behind the `;` of a call whose name begins at `at`; None where what stands there is more than a call."""
    opened = CALL.match(code, at)
    depth, i = 1, opened.end()
    while i < len(code) and depth > 0:
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        i += 1
    return i + 1 if code[i:i + 1] == ";" else None


def calls_in(code):
    """Statements that are a call and nothing else: at a statement's begin, or behind `if (...)` and `else`."""
    for match in CALL.finditer(code):
        before = code[:match.start()].rstrip()
        if not before or before[-1] not in ";{})" and not before.endswith("else"):
            continue
        if match.start() > 0 and (code[match.start() - 1].isalnum() or code[match.start() - 1] in "_.>:~"):
            continue
        if re.split(r"\W", match.group())[0] in NOT_A_CALL or code[match.start() - 1] == "(":
            continue
        end = end_of_call(code, match.start())
        if end is not None:
            yield match.start(), end


def places_of(path):
    code = without_audits(blank_out(path.read_text()))
    name = str(path.relative_to(ROOT / "src"))

    def place(kind, begin, end, new):
        return Place(name, code.count("\n", 0, begin) + 1, kind, begin, end, new)

    for match in re.finditer(r"(?<= )(<|<=|>|>=|==|!=)(?= )", code):
        operator = match.group()
        yield place("flipped", match.start(), match.end(), OPPOSITE[operator])
        if operator in MOVED:
            yield place("moved by one", match.start(), match.end(), MOVED[operator])
    for match in re.finditer(r" [+-] 1(?=[ ;,)\]])", code):
        yield place("one left out", match.start(), match.end(), "")
    for match in re.finditer(r"(?<![\w.\"'])\d+(?![\w.'])", code):
        line_begin = code.rfind("\n", 0, match.start()) + 1
        line = code[line_begin:code.find("\n", match.start())]
        if DEFAULT.match(line) or "template" in line:
            continue
        yield place("one more", match.start(), match.end(), str(int(match.group()) + 1))
    for begin, end in calls_in(code):
        yield place("call dropped", begin, end, ";")


def all_places():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.*")):
            if path.suffix in (".cc", ".h") and not path.stem.endswith("_test"):
                yield from places_of(path)


class Build:
    """What a finished build says of itself: commands and who includes what."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.link = {target: self.ninja("-t", "commands", target).splitlines()[-1] for target in TARGETS}
        commands = json.loads((self.folder / "compile_commands.json").read_text())
        self.compile = {re.search(r" -o (\S+)", entry["command"]).group(1): entry for entry in commands}
        self.objects = sorted(output for output in self.compile if self.is_ours(output))
        self.includes = {}
        for output in self.objects:
            lines = self.ninja("-t", "deps", output).splitlines()[1:]
            self.includes[output] = {os.path.normpath(self.folder / line.strip()) for line in lines}

    def ninja(self, *arguments):
        return subprocess.run(["ninja", "-C", str(self.folder), *arguments], capture_output=True, text=True,
                              check=True).stdout

    @staticmethod
    def is_ours(output):
        return re.search(r"^(src/(sched|kv|batch)/|tests/sim/CMakeFiles/sim_objects)", output) is not None

    def objects_of(self, path):
        return [output for output in self.objects if str(path) in self.includes[output]]

    def compile_to(self, output, overlay, path, mutated, to):
        """Compiles one object's file with the mutated one in place of `path`; whether it compiled."""
        entry = self.compile[output]
        words = [word for word in shlex.split(entry["command"]) if word != "-O2"]
        if words[0].endswith("ccache"):
            words = words[1:]
        words[words.index("-o") + 1] = str(to)
        if str(path) == os.path.normpath(entry["file"]):
            words = [str(mutated) if word == entry["file"] else word for word in words]
        words[1:1] = ["-O0", "-w", f"-I{overlay}"]
        return subprocess.run(words, cwd=self.folder, capture_output=True).returncode == 0

    def link_to(self, target, replaced, to):
        """Links the target with replaced objects first, so that they win over those of the libraries."""
        command = self.link[target]
        words = shlex.split(command.replace(": &&", "").replace("&& :", ""))
        words = [word for word in words if word not in replaced]
        at = words.index("-o")
        words[at:at + 2] = ["-o", str(to), *(str(path) for path in replaced.values())]
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True)


def belongs_to(output, target):
    """Whether an object of the build may take part in the target: test files are in their own test alone."""
    if "_test.dir" in output:
        return f"/{target}.dir/" in output
    if "sim_objects" in output or "/batch/" in output:
        return target == "sim"
    return target != "kv_test" or "/kv/" in output


def arguments_of(target, options):
    if target != "sim":
        return ["--gtest_brief=1"]
    return ["--schedules", str(options.schedules), "--threads", "1", "--decisions", options.decisions]


def decisions_of(build, schedules):
    """What the unchanged simulation decides."""
    done = subprocess.run([build.folder / "tests/sim/sim", "--schedules", str(schedules)], capture_output=True, text=True,
                          check=True)
    return re.search(r"decisions (0x[0-9a-f]+)", done.stdout).group(1)


class Mutant:
    """One place, changed, in a folder of its own; objects are made when a target first needs them."""

    def __init__(self, build, place, folder):
        self.build = build
        self.path = ROOT / "src" / place.file
        self.folder = pathlib.Path(folder)
        self.mutated = self.folder / "overlay" / place.file
        self.mutated.parent.mkdir(parents=True)
        text = self.path.read_text()
        self.mutated.write_text(text[:place.begin] + place.text + text[place.end:])
        self.outputs = build.objects_of(self.path)
        self.made = {}

    def objects_for(self, target):
        """What stands in place of the build's objects in this target; None where a file does not compile."""
        wanted = [output for output in self.outputs if belongs_to(output, target)]
        for output in wanted:
            if output in self.made:
                continue
            self.made[output] = self.folder / f"{len(self.made)}.o"
            overlay = self.folder / "overlay"
            if not self.build.compile_to(output, overlay, self.path, self.mutated, self.made[output]):
                return None
        return {output: self.made[output] for output in wanted}


def judge(build, place, options):
    """'caught: by what', 'does not compile' or 'survived'."""
    # A header's mutants take many files; those of the simulation are the lightest to compile.
    targets = reversed(TARGETS) if place.file.endswith(".h") else TARGETS
    with tempfile.TemporaryDirectory() as folder:
        mutant = Mutant(build, place, folder)
        for target in targets:
            objects = mutant.objects_for(target)
            if objects is None:
                return "does not compile"
            if not objects:
                continue
            program = mutant.folder / target
            linked = build.link_to(target, objects, program)
            if linked.returncode != 0:
                return f"does not link: {linked.stderr[-300:]}"
            limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (options.cpu_seconds, options.cpu_seconds))
            done = subprocess.run([program, *arguments_of(target, options)], cwd=folder, capture_output=True,
                                  preexec_fn=limit)
            if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
                return f"caught: {target} does not end"
            if done.returncode != 0:
                return f"caught: {target}"
    return "survived"


def name_of(place):
    return f"{place.file}:{place.line}: {place.kind} at {place.begin}"


def line_of(place):
    return (ROOT / "src" / place.file).read_text().splitlines()[place.line - 1].strip()


def summary(results):
    """Mutants and those caught, by folder and kind; mutants that no compiler takes do not count."""
    counts = collections.defaultdict(lambda: [0, 0])
    for result in results:
        if result["result"].startswith("does not"):
            continue
        for row in ("all", result["file"].split("/")[0], result["kind"]):
            counts[row][0] += 1
            counts[row][1] += result["result"].startswith("caught")
    for row, (number, caught) in counts.items():
        print(f"{row:14} {number:5} mutants {caught:5} caught {100 * caught / number:6.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=20000, help="of the simulation, a mutant")
    parser.add_argument("--cpu-seconds", type=int, default=60, help="that a test may take")
    parser.add_argument("--out", default="mutants.jsonl")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()

    places = [place for place in all_places() if name_of(place).startswith(options.only)]
    if options.list:
        for place in places:
            print(f"{name_of(place)} -> {place.text!r}   {line_of(place)}")
        return 0
    random.Random(options.seed).shuffle(places)
    out = pathlib.Path(options.out)
    results = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    known = {result["name"] for result in results}
    build = Build(options.build)
    options.decisions = decisions_of(build, options.schedules)
    for place in places[:options.sample]:
        if name_of(place) in known:
            continue
        result = {"name": name_of(place), "file": place.file, "kind": place.kind, "new": place.text,
                  "line": line_of(place), "result": judge(build, place, options)}
        results.append(result)
        with out.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['result']:28} {result['name']} -> {place.text!r}   {result['line']}", flush=True)
    summary(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
