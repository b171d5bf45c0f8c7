"""A stand-in for the server's API that the chat page's tests tell what to answer."""
import http.server
import json
import pathlib
import socket
import struct
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "src/server/ui"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


class Handler(http.server.BaseHTTPRequestHandler):
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
        path = self.path.split("?")[0]
        self.server.paths.append(path)
        name = "index.html" if path == "/" else path.removeprefix("/ui/")
        file = PAGE / name
        if "/" not in name and file.suffix in TYPES and file.exists():
            return self.answer(200, file.read_text(), TYPES[file.suffix])
        if self.refused():
            return None
        if path == "/v1/models":
            card = {"id": self.server.model, "root": self.server.model, "max_model_len": 2048}
            return self.answer(200, json.dumps({"data": [card]}))
        if path == "/get_server_info":
            return self.answer(200, json.dumps(self.server.info()))
        return self.answer(404, "{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.server.requests.append(body)
        if self.server.fails:
            self.answer(503, json.dumps({"error": {"message": self.server.fails}}))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.stream()
        except (BrokenPipeError, ConnectionResetError):
            self.server.disconnects += 1

    def send_event(self, event):
        # Cut in the middle of an event, as a network may.
        data = f"data: {json.dumps(event)}\n\n".encode()
        self.wfile.write(data[:9])
        self.wfile.flush()
        self.wfile.write(data[9:])
        self.wfile.flush()

    def stream(self):
        deltas = [{"content": d} if isinstance(d, str) else d for d in self.server.deltas]
        for i, delta in enumerate(deltas):
            if i == self.server.dies_after:
                # A process that is killed: its connections are reset.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.server.generated += 1
            usage = {"prompt_tokens": 40, "completion_tokens": i + 1, "prompt_tokens_details": {"cached_tokens": 32}}
            self.send_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": usage})
            time.sleep(self.server.delay_s)
        self.send_event({"choices": [{"index": 0, "delta": {}, "finish_reason": self.server.finish}]})
        self.wfile.write(b"data: [DONE]\n\n")


class PageApi(http.server.ThreadingHTTPServer):
    """Answers on a free port; its fields say how."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.key = ""          # asked for where not empty
        self.model = "test-model"
        self.deltas = ["Once ", "upon ", "a ", "time."]  # texts, or whole deltas
        self.delay_s = 0.01
        self.finish = "stop"
        self.fails = ""        # a message: every chat is a 503
        self.dies_after = -1   # so many deltas
        self.requests = []     # bodies of chats
        self.paths = []        # of every GET
        self.disconnects = 0
        self.generated = 1000
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"

    def info(self):
        return {
            "model_path": "/models/" + self.model, "max_total_num_tokens": 65536, "context_length": 2048, "api_key": bool(self.key),
            "attention": {"prefill": "intel_amx", "decode": "torch_native",
                          "reasons": ["prefill: unset -> intel_amx, because the CPU has avx512_bf16",
                                      "decode: torch_native, because it was asked for"]},
            "internal_states": [{
                "num_running_reqs": 1, "num_queue_reqs": 0, "num_used_tokens": 16384,
                "num_evictable_tokens": 8192, "token_usage": 0.25, "last_gen_throughput": 0.0,
                "generation_tokens_total": self.generated, "cache_hit_rate": 0.75}],
        }
