"""The chat page in a real browser: against a stand-in for the server's API, then the real server."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import pytest

from browser import Browser, find_chromium
from page_api import PageApi

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no chromium here")
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("WARPWEAVE_PROGRAM", ROOT / "build/warpweave"))
SCREENSHOTS = os.environ.get("UI_TEST_SCREENSHOTS")

LONG_ANSWER = """## Why the sky is blue
Sunlight is **scattered** by air; *short* waves more than long ones, as `1/λ⁴` says. See
[Rayleigh](https://example.org/rayleigh).

1. Blue light goes astray
2. Red light goes on
   - so sunsets are red
   - and the noon sky is not

| colour | wave length | scattered |
|---|---:|:---:|
| blue | 450 nm | 5.8 × |
| red | 700 nm | 1 × |

> The sea is blue for another reason.

```python
def scattered(nm):
    return (700 / nm) ** 4
```
"""


@pytest.fixture
def api():
    server = PageApi()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def shared_browser():
    browser = Browser()
    yield browser
    browser.close()


def open_page(browser, url):
    browser.open(url)
    browser.wait("document.getElementById('state').className === 'up'")


@pytest.fixture
def page(shared_browser, api):
    shared_browser.size(1440, 900)
    shared_browser.dark(False)
    shared_browser.console.clear()
    open_page(shared_browser, api.url())
    return shared_browser


def shot(page, name):
    if SCREENSHOTS:
        time.sleep(0.2)
        page.screenshot(os.path.join(SCREENSHOTS, name + ".png"))


def ask(page, text):
    page.js("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter", 13)


IDLE = "document.getElementById('send').textContent === 'Send'"


def answered(page, answers=1, seconds=15):
    page.wait(f"{IDLE} && document.querySelectorAll('.message.assistant .facts:not(:empty)').length === {answers}", seconds)


def ask_and_wait(page, text, answers=1):
    ask(page, text)
    answered(page, answers)


def click(page, name, within="body"):
    """The last button of that name, as a user would find it."""
    assert page.js(f"""(() => {{
        const all = [...document.querySelectorAll({within!r} + ' button')].filter(b => b.textContent.trim() === {name!r});
        all.at(-1)?.click();
        return all.length > 0;
    }})()"""), f"no button {name}: {page.text('body')}"


def roles(api):
    return [message["role"] for message in api.requests[-1]["messages"]]


def test_streams_an_answer_and_shows_its_figures(page, api):
    ask_and_wait(page, "Tell me a tale")
    assert page.text(".message.user .body") == "Tell me a tale"
    assert page.text(".message.assistant .body") == "Once upon a time."
    assert api.requests[0]["messages"] == [{"role": "user", "content": "Tell me a tale"}]
    assert api.requests[0]["stream"] is True and api.requests[0]["model"] == "test-model"
    assert page.text("#cached-tokens") == "32 tokens"
    assert page.text("#completion-tokens") == "4 tokens"
    assert float(page.text("#speed").split()[0]) > 5
    assert "4 tokens · " in page.text(".facts")


def test_the_rate_is_shown_while_the_answer_streams(page, api):
    api.deltas, api.delay_s = ["word "] * 400, 0.02
    ask(page, "go on")
    page.wait("parseFloat(document.getElementById('speed').textContent) > 10")
    page.wait("parseFloat(document.getElementById('throughput').textContent) > 10")
    assert page.text("#send") == "Stop"
    assert "tokens/s" in page.text(".facts")
    shot(page, "streaming")
    page.press("Escape", 27)
    page.wait(IDLE)


def test_markdown_becomes_nodes_and_code_can_be_copied(page, api):
    api.deltas, api.delay_s = [LONG_ANSWER[i:i + 7] for i in range(0, len(LONG_ANSWER), 7)], 0.001
    ask_and_wait(page, "Why is the sky blue?")
    body = ".message.assistant .body"
    shape = page.js(f"[...document.querySelector('{body}').children].map(e => e.tagName + (e.className && '.' + e.className))")
    assert shape == ["H4", "P", "OL", "DIV.table", "BLOCKQUOTE", "DIV.code"]
    assert page.js(f"document.querySelectorAll('{body} ol > li').length") == 2
    assert page.js(f"document.querySelectorAll('{body} ol ul li').length") == 2
    assert page.js(f"document.querySelector('{body} a').href") == "https://example.org/rayleigh"
    assert page.js(f"document.querySelector('{body} a').rel").split() == ["noopener", "noreferrer", "nofollow"]
    assert page.text(f"{body} strong") == "scattered" and page.text(f"{body} em") == "short"
    assert page.js(f"document.querySelectorAll('{body} td.right').length") == 2
    assert page.js(f"document.querySelector('{body} pre code').textContent") == "def scattered(nm):\n    return (700 / nm) ** 4"
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    click(page, "Copy", ".code")
    page.wait("document.querySelector('.code button').textContent === 'Copied'")
    assert page.js("navigator.clipboard.readText()") == "def scattered(nm):\n    return (700 / nm) ** 4"
    click(page, "Copy", ".message.assistant .actions")
    page.wait("[...document.querySelectorAll('.actions button')].some(b => b.textContent === 'Copied')")
    assert page.js("navigator.clipboard.readText()") == LONG_ANSWER
    page.js("document.getElementById('log').scrollTop = 0")
    shot(page, "markdown-light")
    page.dark(True)
    shot(page, "markdown-dark")


def test_the_next_question_carries_the_conversation(page, api):
    ask_and_wait(page, "one", 1)
    ask_and_wait(page, "two", 2)
    assert roles(api) == ["user", "assistant", "user"]


def test_an_answer_can_be_made_again(page, api):
    ask_and_wait(page, "one", 1)
    api.deltas = ["Another ", "answer."]
    click(page, "Regenerate")
    page.wait("document.querySelector('.message.assistant .body').innerText === 'Another answer.'")
    assert roles(api) == ["user"]
    assert page.js("document.querySelectorAll('.message').length") == 2


def test_a_question_can_be_edited(page, api):
    ask_and_wait(page, "one", 1)
    ask_and_wait(page, "two", 2)
    page.js("[...document.querySelectorAll('.message.user button')].find(b => b.textContent === 'Edit').click()")
    page.js("document.querySelector('.edit textarea').value = 'three'")
    click(page, "Ask again")
    page.wait("document.querySelectorAll('.message').length === 2")
    answered(page)
    assert api.requests[-1]["messages"] == [{"role": "user", "content": "three"}]
    # A failed edit brings everything back.
    api.fails = "no room"
    page.js("[...document.querySelectorAll('.message.user button')].find(b => b.textContent === 'Edit').click()")
    page.js("document.querySelector('.edit textarea').value = 'four'")
    click(page, "Ask again")
    page.wait("document.getElementById('prompt').value === 'four'")
    assert page.text(".message.user .body") == "three"
    assert page.text(".message.assistant .body") == "Once upon a time."


def test_a_cut_answer_can_be_continued(page, api):
    api.finish = "length"
    ask_and_wait(page, "one")
    assert "cut at the token limit" in page.text(".facts")
    api.finish, api.deltas = "stop", [" There", " was."]
    click(page, "Continue")
    page.wait("document.querySelector('.message.assistant .body').innerText.endsWith('There was.')")
    page.wait(IDLE)
    assert page.text(".message.assistant .body") == "Once upon a time. There was."
    assert api.requests[-1]["continue_final_message"] is True
    assert api.requests[-1]["messages"][-1] == {"role": "assistant", "content": "Once upon a time."}
    assert "Continue" not in page.text(".message.assistant .actions")


def test_a_failed_turn_returns_the_question(page, api):
    ask_and_wait(page, "one")
    api.fails = "the queue is full; try again"
    ask(page, "a long question")
    page.wait("!document.getElementById('notice').hidden")
    assert page.js("document.getElementById('prompt').value") == "a long question"
    assert "503: the queue is full" in page.text("#notice")
    assert page.js("document.querySelectorAll('.message').length") == 2
    shot(page, "failed-turn")
    api.fails = ""
    page.press("Enter", 13)
    answered(page, 2)
    assert page.js("document.getElementById('notice').hidden")
    assert roles(api) == ["user", "assistant", "user"]


def test_a_server_that_dies_in_mid_stream_leaves_what_came(page, api):
    api.deltas, api.dies_after = ["word "] * 50, 20
    ask(page, "go on")
    page.wait("!document.getElementById('notice').hidden")
    assert "before" in page.text("#notice")
    assert page.text(".message.assistant .body") == ("word " * 20).strip()
    assert "broken off" in page.text(".facts")
    shot(page, "server-died")
    api.dies_after = -1
    click(page, "Continue")
    page.wait(f"{IDLE} && document.querySelector('.message.assistant .body').innerText.split(' ').length === 70")
    # Where nothing came at all, the question comes back.
    api.dies_after = 0
    ask(page, "and now?")
    page.wait("document.getElementById('prompt').value === 'and now?'")
    assert page.js("document.querySelectorAll('.message').length") == 2


def test_stop_closes_the_request_and_keeps_the_text(page, api):
    api.deltas, api.delay_s = ["word "] * 500, 0.02
    ask(page, "go on")
    page.wait("document.querySelector('.message.assistant .body')?.textContent.length > 20")
    page.press("Escape", 27)
    answered(page)
    assert "stopped" in page.text(".facts")
    end = time.monotonic() + 10
    while api.disconnects == 0 and time.monotonic() < end:
        time.sleep(0.05)
    assert api.disconnects == 1


def test_a_new_chat_while_an_answer_streams_starts_empty(page, api):
    api.deltas, api.delay_s = ["word "] * 500, 0.02
    ask(page, "go on")
    page.wait("document.querySelector('.message.assistant .body')?.textContent.length > 20")
    page.js("document.getElementById('new-chat').click()")
    page.wait(f"{IDLE} && document.querySelector('.message') === null")
    page.wait("document.querySelectorAll('#chat-list li').length === 1")
    page.js("document.querySelector('#chat-list .chat-title').click()")
    assert page.text(".message.assistant .body").startswith("word word")
    assert "Continue" in page.text(".message.assistant .actions")


def test_chats_are_kept_in_the_browser(page, api):
    ask_and_wait(page, "first chat")
    page.js("document.getElementById('new-chat').click()")
    ask_and_wait(page, "second chat")
    open_page(page, api.url() + "?again")
    page.wait("document.querySelectorAll('#chat-list li').length === 2")
    assert page.text(".message.user .body") == "second chat"
    page.js("document.querySelectorAll('#chat-list .chat-title')[1].click()")
    assert page.text(".message.user .body") == "first chat"
    ask_and_wait(page, "more", 2)
    assert roles(api) == ["user", "assistant", "user"]
    shot(page, "chats")
    page.js("document.querySelector('#chat-list .small').click()")
    assert page.js("document.querySelectorAll('#chat-list li').length") == 2
    page.js("document.querySelector('#chat-list .small').click()")
    page.wait("document.querySelectorAll('#chat-list li').length === 1")
    assert page.js("document.querySelector('.message')") is None
    page.js("localStorage.setItem('warpweave.chats', '[{\"id\": 3}, null, {\"id\": \"a\", \"messages\": [{\"role\": \"x\"}]}]')")
    open_page(page, api.url() + "?damaged")
    assert page.js("document.querySelectorAll('#chat-list li').length") == 0
    assert page.console == []


def test_max_tokens_stay_within_the_context(page, api):
    page.js("""(() => { const field = document.getElementById('max-tokens'); field.value = '999999';
                        field.dispatchEvent(new Event('input')); })()""")
    assert "context holds 2,048 tokens" in page.text("#max-tokens-note")
    ask_and_wait(page, "hello")
    assert api.requests[-1]["max_tokens"] == 2048
    page.js("document.getElementById('max-tokens').dispatchEvent(new Event('change'))")
    assert page.js("document.getElementById('max-tokens').value") == "2048"


def test_live_view_names_each_phase_and_why(page):
    attention = page.js("document.getElementById('attention').textContent")
    for part in ("prefill: intel_amx", "the CPU has avx512_bf16", "decode: torch_native", "was asked for"):
        assert part in attention
    assert page.text("#kv-used") == "16,384 of 65,536"
    assert page.text("#hit-rate") == "75 %"
    heads = page.js("[...document.querySelectorAll('aside h2')].map(e => e.textContent)")
    assert heads.index("Settings") < heads.index("Attention")


def test_the_kv_bar_and_the_plots_can_be_seen(page):
    page.wait("document.querySelector('.plot-line').getAttribute('d').split('L').length > 2")
    widths = page.js("""['kv', 'kv-bar-used', 'kv-bar-cached'].map(id => {
        const box = document.getElementById(id).getBoundingClientRect(); return [box.width, box.height]; })""")
    (all_width, height), (used, _), (cached, _) = widths
    assert height >= 10 and used / all_width == pytest.approx(0.25, abs=0.01)
    assert cached / all_width == pytest.approx(0.125, abs=0.01)
    colours = page.js("""['kv', 'kv-bar-used', 'kv-bar-cached'].map(id =>
        getComputedStyle(document.getElementById(id)).backgroundColor)""")
    assert len(set(colours)) == 3
    names = page.js("[...document.querySelectorAll('.plot-name span')].map(e => e.textContent)")
    assert names == ["Output", "Running requests", "KV pool filled"]
    assert page.text("#kv-filled") == "38 %"


def test_figures_of_an_earlier_answer_are_not_shown_with_the_next(page, api):
    ask_and_wait(page, "one")
    assert page.text("#completion-tokens") == "4 tokens"
    api.deltas, api.delay_s = ["word "] * 50, 5
    ask(page, "two")
    page.wait("document.getElementById('send').textContent === 'Stop' && document.querySelectorAll('.message').length === 4")
    assert page.text("#speed") == "\u2013"
    page.press("Escape", 27)
    page.wait(IDLE)
    page.js("document.getElementById('new-chat').click()")
    assert [page.text(f"#{name}") for name in ("speed", "first-token", "completion-tokens")] == ["\u2013"] * 3


def test_a_server_that_is_gone_has_no_figures(page, api):
    page.wait("document.querySelector('.plot-line').getAttribute('d').split('L').length > 2")
    page.size(390, 844)
    api.key = "secret"  # from now on every look is refused, as a proxy before a dead server may do it
    page.wait("document.getElementById('state').className === 'down'")
    assert page.text("#model") == "needs an API key"
    assert page.js("(() => { const model = document.getElementById('model'); return model.scrollWidth <= model.clientWidth; })()")
    figures = "['throughput', 'running', 'kv-filled', 'kv-used', 'queued'].map(id => document.getElementById(id).textContent)"
    assert page.js(figures) == ["\u2013"] * 5
    assert page.js("document.getElementById('kv-bar-used').style.width") == "0px"
    before = page.js("document.querySelector('.plot-line').getAttribute('d').match(/M/g).length")
    api.key = ""
    page.wait("document.getElementById('state').className === 'up'")
    assert page.text("#model") == "test-model"
    page.wait(f"document.querySelector('.plot-line').getAttribute('d').match(/M/g).length === {before + 1}")


def test_reasoning_and_tool_calls_are_shown(page, api):
    api.deltas = [{"reasoning_content": "The user "}, {"reasoning_content": "wants <b>weather</b>."}, "Let me look.",
                  {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
                  {"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\":"}}]},
                  {"tool_calls": [{"index": 0, "function": {"arguments": " \"Oslo\"}"}}]}]
    api.finish = "tool_calls"
    ask_and_wait(page, "Weather in Oslo?")
    assert page.js("document.querySelector('.reasoning-text').textContent") == "The user wants <b>weather</b>."
    assert page.text(".message.assistant .body") == "Let me look."
    assert page.text(".call-name") == "Calls weather"
    assert page.text(".call pre") == '{\n  "city": "Oslo"\n}'
    assert "asks for tools" in page.text(".facts")
    page.js("document.querySelector('.reasoning').open = true")
    shot(page, "reasoning")


def test_tale_llama_says_what_it_is_and_offers_prompts(page, api):
    assert "Chat with test-model" in page.text(".empty") and "tale-llama" not in page.text(".empty")
    assert page.js("document.querySelectorAll('.prompts button').length") == 4
    api.model = "tale-llama"
    open_page(page, api.url() + "?tale")
    page.wait("document.querySelectorAll('.prompts button').length >= 3")
    assert "tiny model" in page.text(".empty")
    shot(page, "tale-llama")
    page.js("document.querySelector('.prompts button').click()")
    answered(page)
    assert "fox" in api.requests[-1]["messages"][0]["content"]


def test_no_markup_of_a_model_is_obeyed(page, api):
    corpus = (pathlib.Path(__file__).parent / "markup_corpus.json").read_text()
    # The renderer itself, on each text: whole, and cut after each piece as a stream brings it.
    report = page.js(f"""(async () => {{
        const {{MarkdownView}} = await import('/ui/markdown.js');
        const allowed = new Set(['P','SPAN','BR','CODE','EM','STRONG','DEL','A','H3','H4','H5','H6','HR','BLOCKQUOTE','UL','OL',
                                 'LI','DIV','TABLE','TBODY','TR','TH','TD','PRE','BUTTON']);
        const bad = [];
        const holder = document.createElement('div');
        document.body.append(holder);
        for (const text of {corpus}) {{
            const box = document.createElement('div');
            holder.append(box);
            const view = new MarkdownView(box);
            for (let end = 1; end <= text.length; ++end) view.update(text.slice(0, end));
            const fresh = document.createElement('div');
            new MarkdownView(fresh).update(text);
            if (fresh.textContent !== box.textContent) bad.push(['a stream ends otherwise', text]);
            for (const node of box.querySelectorAll('*')) {{
                if (!allowed.has(node.tagName)) bad.push([node.tagName, text]);
                for (const a of node.attributes) {{
                    if (a.name.startsWith('on') || a.name === 'style' || a.name === 'src' || a.name === 'id') bad.push([a.name, text]);
                    if (a.name === 'href' && !/^(https?|mailto):/.test(a.value)) bad.push([a.value, text]);
                }}
                if (node.tagName === 'A') node.dispatchEvent(new MouseEvent('mouseover'));
            }}
        }}
        await new Promise(resolve => setTimeout(resolve, 300));
        holder.remove();
        return bad;
    }})()""")
    assert report == []
    # And through a stream, as text of both sides.
    api.deltas = ["<img src=x onerror=\"window.hit=1\">", "<script>window.hit=1</script>"]
    ask_and_wait(page, "<b>me</b>")
    assert page.text(".message.assistant .body") == "".join(api.deltas)
    assert page.text(".message.user .body") == "<b>me</b>"
    assert page.js("window.hit === undefined && document.querySelectorAll('.message img, .message b').length === 0")
    own = re.compile(r"/(ui/[a-z_]+\.(js|css)|v1/models|get_server_info)?$")
    assert [path for path in api.paths if not own.match(path)] == []


def test_rendering_looks_at_each_character_a_bounded_number_of_times(page):
    """Counts what the searches of the renderer read, so that no machine's speed matters."""
    shares = page.js("""(async () => {
        const {MarkdownView} = await import('/ui/markdown.js');
        const pieces = ['*a ', '[', '](', '`a ', '> ', '**', '_a', '![', '|a|\\n|-|\\n', '- a\\n  ', '~~a ', '\\\\', '```\\n', '``', '[a](b '];
        const {indexOf} = String.prototype, {exec} = RegExp.prototype;
        let read = 0;
        String.prototype.indexOf = function(what, from = 0) {
            const at = indexOf.call(this, what, from);
            read += (at === -1 ? this.length : at + 1) - from;
            return at;
        };
        RegExp.prototype.exec = function(text) {
            const from = this.global || this.sticky ? this.lastIndex : 0;
            const found = exec.call(this, text);
            read += (found ? found.index + found[0].length : this.sticky ? from + 1 : text.length) - from;
            return found;
        };
        try {
            return pieces.map(piece => {
                const text = piece.repeat(Math.floor(20000 / piece.length));
                read = 0;
                new MarkdownView(document.createElement('div')).update(text);
                return [piece, Math.round(read / text.length)];
            });
        } finally {
            String.prototype.indexOf = indexOf;
            RegExp.prototype.exec = exec;
        }
    })()""")
    assert len(shares) == 15 and any(share > 0 for _, share in shares)
    assert [entry for entry in shares if entry[1] > 100] == [], shares


def test_the_state_of_the_api_key_is_said(page, api):
    assert "needs no key" in page.text("#key-state")
    api.key = "secret"
    page.open(api.url() + "?2")
    page.wait("document.getElementById('state').className === 'down'")
    assert "needs a key" in page.text("#key-state")
    ask(page, "hello")
    page.wait("!document.getElementById('notice').hidden")
    assert "the API key is wrong" in page.text("#notice")
    enter = "(() => { const field = document.getElementById('api-key'); field.value = %r; field.dispatchEvent(new Event('change')); })()"
    page.js(enter % "wrong")
    page.wait("document.getElementById('key-state').textContent.includes('refuses')")
    page.js(enter % "secret")
    page.wait("document.getElementById('state').className === 'up'")
    assert "Accepted" in page.text("#key-state")
    page.js("document.getElementById('composer').requestSubmit()")
    answered(page)
    page.js(enter % "")


def test_fits_a_phone_and_the_dark(page, api):
    page.size(390, 800)
    page.dark(True)
    api.deltas = [LONG_ANSWER]
    ask_and_wait(page, "A long word: " + "x" * 300)
    assert page.js("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    box = page.js("(() => { const b = document.getElementById('model').getBoundingClientRect(); return [b.width, b.height, b.right]; })()")
    assert box[0] > 40 and box[1] > 8 and box[2] <= 390
    assert page.text("#model") == "test-model"
    shot(page, "phone-dark")
    page.js("document.getElementById('toggle-panel').click()")
    assert page.js("getComputedStyle(document.getElementById('panel')).display") == "block"
    shot(page, "phone-panel-dark")
    page.dark(False)
    shot(page, "phone-panel-light")
    page.js("document.getElementById('toggle-chats').click()")
    shot(page, "phone-chats-light")
    page.js("document.getElementById('toggle-chats').click()")
    shot(page, "phone-light")
    page.dark(True)
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 27)"


def test_a_long_model_name_fits_a_phone(page, api):
    api.model = "An-Instruct-Model-With-A-Name-Longer-Than-Phones-Are-Wide.Q4_K_M"
    page.size(390, 844)
    open_page(page, api.url() + "?long")
    page.wait("document.getElementById('model').textContent.startsWith('An-Instruct')")
    ask_and_wait(page, "hello")
    assert page.js("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    right = page.js("['toggle-panel', 'send', 'log'].map(id => document.getElementById(id).getBoundingClientRect().right)")
    assert max(right) <= 390, right
    shot(page, "phone-long-name")


def test_every_control_has_a_name(page):
    ask_and_wait(page, "hello")
    unnamed = page.js("""[...document.querySelectorAll('button, input, textarea, meter, [role=meter]')].filter(e =>
        !(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-labelledby') || e.labels?.length)).length""")
    assert unnamed == 0
    assert page.js("document.documentElement.lang") == "en"
    assert page.console == []


class RealServer:
    def __init__(self, *flags):
        if not PROGRAM.exists():
            pytest.skip(f"no program at {PROGRAM}")
        command = [PROGRAM, "serve", "--port", "0", "--model-path", ROOT / "models/tale-llama", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                if "Chat page" in line:
                    self.port = found.group(1)
                    break
        else:
            pytest.fail("".join(lines))
        # Nobody reads on: a full pipe would stop the server's log.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.port}/"


@pytest.fixture
def real_server():
    server = RealServer("--max-total-tokens", "8192")
    yield server.url
    server.process.terminate()
    assert server.process.wait(30) == 0


def test_against_the_real_server(shared_browser, real_server):
    page = shared_browser
    page.size(1440, 900)
    page.dark(False)
    page.console.clear()
    open_page(page, real_server)
    page.wait("document.querySelectorAll('.prompts button').length >= 3")
    ask(page, "Tell me a tale of a fox.")
    answered(page, 1, 60)
    # Alone it fits the context, beside the prompt it does not: the answer gets what is left.
    page.js("document.getElementById('max-tokens').value = '2048'")
    ask(page, "And then?")
    answered(page, 2, 60)
    shot(page, "real-server")
    assert page.js("[...document.querySelectorAll('.assistant .body')].every(e => e.textContent)")
    assert page.js("document.getElementById('notice').hidden")
    # The second question repeats the first turn, which the prefix cache holds.
    assert int(page.text("#cached-tokens").split()[0]) > 0
    assert float(page.text("#speed").split()[0]) > 1
    assert "because" in page.js("document.getElementById('attention').textContent")
    assert page.console == []


def test_the_real_server_killed_in_mid_stream(shared_browser):
    page = shared_browser
    server = RealServer()
    try:
        open_page(page, server.url)
        page.js("document.getElementById('max-tokens').value = ''")
        ask(page, "Tell me a very long tale of a fox.")
        page.wait("document.querySelector('.message.assistant .body')?.textContent.length > 40", 60)
        server.process.send_signal(signal.SIGKILL)
        page.wait("!document.getElementById('notice').hidden")
        assert "before" in page.text("#notice")
        assert "broken off" in page.text(".facts") and len(page.text(".message.assistant .body")) > 20
        page.wait("document.getElementById('state').className === 'down'")
        assert page.text("#model") == "does not answer"
        assert page.js("document.getElementById('running').textContent") == "\u2013"
        before = page.text(".message.assistant .body")
        ask(page, "Are you there?")
        page.wait("document.getElementById('prompt').value === 'Are you there?'")
        assert page.text(".message.assistant .body") == before
    finally:
        server.process.kill()
        server.process.wait()
