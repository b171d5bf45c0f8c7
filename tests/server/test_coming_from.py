"""docs/coming-from-*.md against the program: every flag, endpoint and field of their tables does what the table says."""
import pathlib
import re
import subprocess

import pytest
import requests

from running_server import ROOT

DOCS = sorted((pathlib.Path(ROOT) / "docs").glob("coming-from-*.md"))


def code_spans(cell):
    return re.findall(r"`([^`]+)`", cell)


def rows(heading):
    """(document, their code spans, cell of "here") of the tables below headings that match."""
    found = []
    for document in DOCS:
        section = ""
        for line in document.read_text().splitlines():
            if line.startswith("## "):
                section = line[3:]
            elif line.startswith("| `") or re.match(r"\| [a-z_`]+ \|", line):
                cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
                if re.match(heading, section):
                    found.append((document.name, section, code_spans(cells[0]), cells[1]))
    assert len(found) > 20, heading
    return found


@pytest.fixture(scope="session")
def flags(server):
    listed = subprocess.run([server.process.args[0], "docs", "flags"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for line in listed.splitlines() if line.startswith("| `--") for name in re.findall(r"--[a-z0-9-]+", line.split("|")[1])}


def refusal(program, flag):
    for line in ([flag], [flag, "7"]):
        done = subprocess.run([program, "explain", *line], cwd=ROOT, capture_output=True, text=True)
        if "known, not supported" in done.stderr:
            return True
    return False


def test_there_are_three_documents():
    assert [d.name for d in DOCS] == ["coming-from-llama-cpp.md", "coming-from-sglang.md", "coming-from-vllm.md"]


def test_flags(server, flags):
    wrong = []
    for document, _, theirs, here in rows("Flags"):
        for flag in theirs:
            if here == "same" and flag not in flags:
                wrong.append(f"{document}: {flag} is not the same here")
            elif here == "none" and flag in flags:
                wrong.append(f"{document}: {flag} is here")
            elif here == "refused" and (flag in flags or not refusal(server.process.args[0], flag)):
                wrong.append(f"{document}: {flag} is not refused by name")
        for flag in code_spans(here):
            if flag not in flags:
                wrong.append(f"{document}: there is no {flag}")
        if here not in ("same", "none", "refused") and not code_spans(here):
            wrong.append(f"{document}: what does '{here}' mean?")
    assert wrong == []


def test_every_flag_of_the_line_is_obeyed_or_refused_by_name(server, flags):
    """SGLang's document says that no flag of its own is unknown here."""
    for document, _, theirs, _ in rows("Flags"):
        for flag in theirs:
            if document == "coming-from-sglang.md" and flag not in flags:
                assert refusal(server.process.args[0], flag), flag


def is_there(server, route):
    method, path = route.split()
    reply = requests.request(method, server.url + path, json={} if method == "POST" else None, timeout=30)
    return reply.status_code not in (404, 405)


def test_endpoints(server):
    wrong = []
    for document, _, theirs, here in rows("Endpoints"):
        expected = [(route, here != "none") for route in (theirs if here in ("same", "none") else code_spans(here))]
        assert expected, (document, here)
        wrong += [f"{document}: {route} {'is missing' if there else 'is here'}"
                  for route, there in expected if is_there(server, route) != there]
    assert wrong == []


BODIES = {
    "POST /v1/chat/completions": '"model": "default", "messages": [{"role": "user", "content": "hi"}]',
    "POST /v1/completions": '"model": "default", "prompt": "hi"',
    "POST /generate": "",
}


def send(server, route, member):
    body = [part for part in (BODIES[route], member) if part]
    if "max_" not in member and route != "POST /generate":
        body.append('"max_tokens": 2')
    if route == "POST /generate" and '"input_ids"' not in member:
        body.append('"text": "hi"')
    if route == "POST /generate" and '"sampling_params"' not in member:
        body.append('"sampling_params": {"max_new_tokens": 2}')
    return requests.post(server.url + route.split()[1], data="{" + ", ".join(body) + "}", timeout=60,
                         headers={"Content-Type": "application/json"})


def test_fields(server):
    wrong = []
    for document, section, theirs, here in rows("Fields of"):
        route = code_spans(section)[0]
        for member in theirs if here in ("same", "refused") else code_spans(here):
            reply = send(server, route, member)
            if (reply.status_code == 200) != (here != "refused"):
                wrong.append(f"{document}: {member}: {reply.status_code} {reply.text[:200]}")
    assert wrong == []
