"""A small share of bench/grammar/compare.py: masks against llguidance's, finished texts against jsonschema."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("jsonschema")
pytest.importorskip("numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("WARPWEAVE_PROGRAM", "build/warpweave")).parent / "src/grammar/grammar_probe"


@pytest.mark.parametrize("part", [["--only", "masks", "--walks", "1", "--steps", "8"], ["--only", "texts", "--texts", "100"]])
def test_engine_agrees_with_others(part):
    command = [sys.executable, "bench/grammar/compare.py", "--no-real", "--probe", str(PROBE), *part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert ("equal" in last and "OURS" not in last) or "'invalid': 0" in last, done.stdout
