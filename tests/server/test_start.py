"""What a new user sees: the server's first lines, and the chat in the terminal."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from running_server import ROOT, Server

PROGRAM = os.environ.get("WARPWEAVE_PROGRAM", "build/warpweave")


def lines_of(*flags):
    running = Server(*flags)
    try:
        give_up = time.monotonic() + 5
        while not running.lines[-1].startswith("Chat page") and time.monotonic() < give_up:
            time.sleep(0.01)
        time.sleep(0.2)   # what came after the address would be seen
        return list(running.lines), running
    except BaseException:
        running.stop()
        raise


def test_the_address_comes_last_and_refusals_are_one_line():
    lines, running = lines_of()
    try:
        assert lines[-1] == f"Chat page: {running.url}/\n"
        assert len([line for line in lines if "refused" in line]) == 1
        assert re.search(r"\d+ others refused \(why: warpweave explain, or --log-level debug\)", "".join(lines))
        pool = next(line for line in lines if line.startswith("KV pool: "))
        assert re.search(r"GB reserved for \d+ tokens .* 0 tokens used;", pool)
    finally:
        assert running.stop() == 0


def test_the_curl_line_works_and_the_model_has_its_folders_name():
    lines, running = lines_of()
    try:
        command = next(line for line in lines if line.startswith("Try: "))[len("Try: "):]
        assert '"model": "default"' in command and "a tale of a fox" in command
        done = subprocess.run(command.replace("curl ", "curl -sS --fail-with-body ", 1), shell=True, stdout=subprocess.PIPE,
                              timeout=60)
        assert done.returncode == 0 and json.loads(done.stdout)["model"] == "tale-llama"
        with urllib.request.urlopen(running.url + "/v1/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "tale-llama"
    finally:
        assert running.stop() == 0


def test_metrics_that_are_off_name_their_flag():
    _, running = lines_of()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(running.url + "/metrics")
        assert refused.value.code == 404 and b"--enable-metrics" in refused.value.read()
    finally:
        assert running.stop() == 0


def test_debug_says_every_refusal():
    lines, running = lines_of("--log-level", "debug")
    try:
        assert len([line for line in lines if line.startswith("  refused ")]) > 1
    finally:
        assert running.stop() == 0


def chat(text, *flags):
    return subprocess.run([PROGRAM, "run", "--model-path", "models/tale-llama", *flags], cwd=ROOT, input=text, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)


def test_run_takes_sampling_flags_and_set():
    done = chat("/set\n/set temperature 0\n/set max_tokens 5\n/set\n/exit\n", "--temperature", "0.25", "--top-p", "0.5")
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("system_prompt", 1)
    assert re.search(r"temperature +0\.25\n", before) and re.search(r"top_p +0\.5\n", before)
    assert re.search(r"temperature +0\n", after) and re.search(r"max_tokens +5\n", after)


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye"])
def test_run_ends_by_the_words_of_other_programs(word):
    done = chat(f"{word}\n/set\n")
    assert done.returncode == 0 and "temperature" not in done.stdout and "unknown" not in done.stderr


def test_run_says_what_is_wrong():
    done = chat("/set temperatur 1\n/set top_p 2\n/hlep\n/help\n")
    assert "did you mean temperature?" in done.stderr
    assert "top_p must be a number, 0.001 to 1, not '2'" in done.stderr
    assert "did you mean /help?" in done.stderr
    assert "/set NAME VALUE" in done.stdout
    wrong = chat("", "--temperature", "hot")
    assert wrong.returncode == 2 and "warpweave run --temperature" in wrong.stderr


def test_run_of_a_script_fails_where_an_answer_failed():
    too_long = "tale " * 4000
    failed = chat(f"{too_long}\nTell me a tale\n", "--max-tokens", "4")
    assert failed.returncode == 1, failed.stderr
    assert "context" in failed.stderr and failed.stdout.strip(), "the next line is answered"


def test_greedy_chat_repeats_itself_and_ends_where_told():
    answers = {chat("Tell me a tale\n", "--temperature", "0", "--max-tokens", "8").stdout for _ in range(2)}
    assert len(answers) == 1 and 10 < len(answers.pop()) < 80


def test_serve_refuses_the_flags_of_run():
    done = subprocess.run([PROGRAM, "serve", "--temperature", "0.5"], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2 and "--temperature: a flag of warpweave run" in done.stderr
