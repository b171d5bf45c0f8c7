"""The chat page in a real browser: against a stand-in for the server's API, then the real server."""
import http.server
import json
import os
import pathlib
import re
import subprocess
import threading
import time

import pytest

from browser import Browser, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no chromium here")
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "src/server/ui/index.html"
PROGRAM = pathlib.Path(os.environ.get("WARPWEAVE_BIN", ROOT / "build/warpweave"))
SCREENSHOTS = os.environ.get("UI_TEST_SCREENSHOTS")


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # a stream ends with the connection

    def log_message(self, *args):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def refused(self):
        if not self.server.key or self.headers.get("Authorization") == "Bearer " + self.server.key:
            return False
        self.answer(401, json.dumps({"error": {"message": "the API key is wrong", "code": 401}}))
        return True

    def do_GET(self):
        if self.path.split("?")[0] == "/":
            return self.answer(200, PAGE.read_text(), "text/html; charset=utf-8")
        if self.refused():
            return None
        if self.path == "/v1/models":
            return self.answer(200, json.dumps({"data": [{"id": "tale-llama"}]}))
        if self.path == "/get_server_info":
            return self.answer(200, json.dumps(INFO))
        return self.answer(404, "{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.server.requests.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for i, word in enumerate(self.server.words):
                event = {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
                # Cut in the middle of an event, as a network may.
                data = f"data: {json.dumps(event)}\n\n".encode()
                self.wfile.write(data[:9])
                self.wfile.flush()
                self.wfile.write(data[9:])
                self.wfile.flush()
                time.sleep(self.server.delay_s)
            usage = {"prompt_tokens": 40, "completion_tokens": len(self.server.words),
                     "prompt_tokens_details": {"cached_tokens": 32}}
            done = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            self.wfile.write(f"data: {json.dumps(done)}\n\n".encode())
            self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.disconnects += 1


INFO = {
    "max_total_num_tokens": 65536,
    "attention": {"prefill": "intel_amx", "decode": "torch_native",
                  "reasons": ["prefill: unset -> intel_amx, because the CPU has avx512_bf16",
                              "decode: torch_native, because it was asked for"]},
    "internal_states": [{
        "num_running_reqs": 1, "num_queue_reqs": 0, "num_used_tokens": 4096,
        "num_evictable_tokens": 1024, "token_usage": 0.0625, "last_gen_throughput": 123.4,
        "cache_hit_rate": 0.75}],
}


@pytest.fixture
def api():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.key, server.requests, server.disconnects = "", [], 0
    server.words, server.delay_s = ["Once ", "upon ", "a ", "time."], 0.01
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def shared_browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def page(shared_browser, api):
    shared_browser.size(1280, 800)
    shared_browser.dark(False)
    shared_browser.console.clear()
    shared_browser.open(f"http://127.0.0.1:{api.server_port}/")
    shared_browser.wait("byId('state').className === 'up'")
    return shared_browser


def shot(page, name):
    if SCREENSHOTS:
        page.screenshot(os.path.join(SCREENSHOTS, name + ".png"))


def ask(page, text):
    page.js("byId('prompt').focus()")
    page.type(text)
    page.press("Enter", 13)


def test_streams_an_answer_and_shows_its_figures(page, api):
    page.wait("byId('model').textContent === 'tale-llama'")
    ask(page, "Tell me a tale")
    page.wait("document.querySelector('.message.assistant .facts') !== null")
    assert page.text(".message.user .body") == "Tell me a tale"
    assert page.text(".message.assistant .body") == "Once upon a time."
    assert api.requests[0]["messages"] == [{"role": "user", "content": "Tell me a tale"}]
    assert api.requests[0]["stream"] is True
    assert page.text("#cached-tokens") == "32 tokens"
    assert "tokens/s" in page.text("#speed")
    shot(page, "answer")


def test_the_next_question_carries_the_conversation(page, api):
    for answers, text in enumerate(("one", "two"), start=1):
        ask(page, text)
        page.wait(f"running === null && document.querySelectorAll('.facts').length === {answers} "
                  f"&& conversation.length === {2 * answers}")
    roles = [m["role"] for m in api.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_live_view_names_each_phase_and_why(page):
    page.wait("byId('state').className === 'up'")
    attention = page.text("#attention")
    for part in ("prefill: intel_amx", "the CPU has avx512_bf16", "decode: torch_native", "was asked for"):
        assert part in attention
    assert page.text("#kv-used") == "4,096 of 65,536 tokens"
    assert page.text("#hit-rate") == "75.0 %"


def test_stop_closes_the_request_and_keeps_the_text(page, api):
    api.words, api.delay_s = ["word "] * 500, 0.02
    ask(page, "go on")
    page.wait("document.querySelector('.message.assistant .body')?.textContent.length > 20")
    shot(page, "streaming")
    assert page.text("#send") == "Stop"
    page.press("Escape", 27)
    page.wait("document.querySelector('.facts') !== null")
    assert "stopped" in page.text(".facts")
    end = time.monotonic() + 10
    while api.disconnects == 0 and time.monotonic() < end:
        time.sleep(0.05)
    assert api.disconnects == 1


def test_a_new_chat_while_an_answer_streams_starts_empty(page, api):
    api.words, api.delay_s = ["word "] * 500, 0.02
    ask(page, "go on")
    page.wait("document.querySelector('.message.assistant .body')?.textContent.length > 20")
    page.js("byId('new-chat').click()")
    page.wait("running === null && document.querySelector('.message') === null")
    assert page.js("conversation.length") == 0


def test_markup_from_the_model_stays_text(page, api):
    api.words = ["<img src=x onerror=\"window.hit=1\">", "<script>window.hit=1</script>"]
    ask(page, "<b>me</b>")
    page.wait("document.querySelector('.facts') !== null")
    assert page.text(".message.assistant .body") == "".join(api.words)
    assert page.text(".message.user .body") == "<b>me</b>"
    assert page.js("window.hit === undefined && document.querySelectorAll('.message img, .message b').length === 0")


def test_a_missing_api_key_is_said_and_entering_it_helps(page, api):
    api.key = "secret"
    page.open(f"http://127.0.0.1:{api.server_port}/?2")
    page.wait("byId('state').className === 'down'")
    ask(page, "hello")
    page.wait("document.querySelector('.message.error') !== null")
    assert "the API key is wrong" in page.text(".message.error")
    page.js("byId('api-key').value = 'secret'; byId('api-key').dispatchEvent(new Event('change'))")
    page.wait("byId('state').className === 'up'")
    ask(page, "hello again")
    page.wait("document.querySelector('.message.assistant .body:not(:empty)') !== null")


def test_fits_a_phone_and_the_dark(page, api):
    page.size(390, 800)
    page.dark(True)
    ask(page, "A long word: " + "x" * 300)
    page.wait("document.querySelector('.facts') !== null")
    assert page.js("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    shot(page, "phone")
    page.js("byId('toggle-panel').click()")
    assert page.js("getComputedStyle(byId('panel')).display") == "block"
    shot(page, "phone-panel")
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 27)"


def test_every_control_has_a_name(page):
    unnamed = page.js("""[...document.querySelectorAll('button, input, textarea, meter')].filter(e =>
        !(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-labelledby') || e.labels?.length)).length""")
    assert unnamed == 0
    assert page.js("document.documentElement.lang") == "en"
    assert page.console == []


@pytest.fixture
def real_server():
    if not PROGRAM.exists():
        pytest.skip(f"no program at {PROGRAM}")
    server = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--model-path", ROOT / "models/tale-llama",
                               "--max-total-tokens", "8192"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    address = None
    for line in server.stdout:
        lines.append(line)
        if address := re.search(r"http://127\.0\.0\.1:\d+/", line):
            break
    assert address, "".join(lines)
    # Nobody reads on: a full pipe would stop the server's log.
    threading.Thread(target=server.stdout.read, daemon=True).start()
    yield address.group()
    server.terminate()
    assert server.wait(30) == 0


def test_against_the_real_server(shared_browser, real_server):
    shared_browser.size(1280, 800)
    shared_browser.console.clear()
    shared_browser.open(real_server)
    shared_browser.wait("byId('state').className === 'up'")
    for answers, text in enumerate(("Tell me a tale of a fox.", "And then?"), 1):
        ask(shared_browser, text)
        shared_browser.wait(f"document.querySelectorAll('.facts').length === {answers}", 60)
    assert shared_browser.js("[...document.querySelectorAll('.assistant .body')].every(e => e.textContent)")
    assert shared_browser.js("document.querySelector('.message.error')") is None
    # The second question repeats the first turn, which the prefix cache holds.
    assert int(shared_browser.text("#cached-tokens").split()[0]) > 0
    assert "because" in shared_browser.text("#attention")
    assert shared_browser.console == []
