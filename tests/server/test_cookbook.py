"""docs/cookbook.md, run as it stands: each block of sh or python against a server, its output held to the text block."""
import pathlib
import re
import subprocess
import sys

import pytest

from running_server import ROOT, Server

DOCUMENT = pathlib.Path(ROOT) / "docs/cookbook.md"
RECIPES = re.findall(r"^## (\d+\. .*?)$(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.S | re.M)


@pytest.fixture(scope="module")
def kitchen():
    running = Server("--enable-metrics", "--enable-cache-report")
    yield running
    assert running.stop() == 0


def fits(output, expected):
    """Whether the output is the expected text, whose "..." stand for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, output.strip(), re.S) is not None


def test_there_are_ten_recipes():
    assert [int(title.split(".")[0]) for title, _ in RECIPES] == list(range(1, 11))


def test_outputs_are_told_apart():
    assert fits("a 1 b", "a ... b") and not fits("a 1 c", "a ... b") and not fits("x a 1 b", "a ... b")


@pytest.mark.parametrize("title,text", RECIPES, ids=[title for title, _ in RECIPES])
def test_recipe(kitchen, title, text):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M)
    assert [language for language, _ in blocks] in (["sh", "text"], ["python", "text"])
    (language, code), (_, expected) = blocks
    assert "http://127.0.0.1:30000" in code
    code = code.replace("http://127.0.0.1:30000", kitchen.url)
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert fits(done.stdout, expected), f"printed:\n{done.stdout}\nthe document says:\n{expected}"
