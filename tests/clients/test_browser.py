"""A page of another origin that calls the server with fetch() and the headers that openai-js sends."""

import http.server
import json
import threading

import pytest

import browser
from running_server import Server

pytestmark = pytest.mark.skipif(not browser.find_chromium(), reason="no chromium on this machine")

HEADERS = {  # openai-js in a browser, with dangerouslyAllowBrowser
    "Accept": "application/json", "Authorization": "Bearer key", "Content-Type": "application/json",
    "X-Stainless-Arch": "other:unknown", "X-Stainless-Lang": "js", "X-Stainless-OS": "Unknown",
    "X-Stainless-Package-Version": "6.0.0", "X-Stainless-Retry-Count": "0", "X-Stainless-Runtime": "browser:chrome",
    "X-Stainless-Runtime-Version": "140.0.0", "X-Stainless-Timeout": "600"}
BODY = {"model": "tale", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True}


class BlankPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>blank</title>")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def origin():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), BlankPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def page(origin):
    chromium = browser.Browser()
    chromium.open(origin + "/")
    yield chromium
    chromium.close()


def fetched(page, url):
    """What the page's fetch() of a streamed chat gives: its text, or why it failed."""
    call = {"method": "POST", "headers": HEADERS, "body": json.dumps(BODY)}
    return page.js(f"fetch({json.dumps(url + '/v1/chat/completions')}, {json.dumps(call)})"
                   ".then(async reply => reply.status + ' ' + await reply.text(), error => 'failed: ' + error)")


def test_an_allowed_origin_streams_a_chat(page, origin):
    server = Server("--served-model-name", "tale", "--api-key", "key", "--allowed-origins", origin)
    try:
        reply = fetched(page, server.url)
        assert reply.startswith("200 data: ") and reply.endswith("data: [DONE]\n\n"), reply
    finally:
        assert server.stop() == 0


def test_another_origin_is_kept_out_by_the_browser(page, origin):
    server = Server("--served-model-name", "tale", "--api-key", "key", "--allowed-origins", "https://elsewhere.example")
    try:
        assert fetched(page, server.url).startswith("failed: ")
    finally:
        assert server.stop() == 0
