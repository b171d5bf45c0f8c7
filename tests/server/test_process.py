"""The server as a process: signals, lost output, full disks, ports, descriptors, starting and stopping."""

import concurrent.futures
import fcntl
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest

from running_server import ROOT, Server

def stream_of(tokens):
    return {"text": "Once", "stream": True, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}


LONG = stream_of(2000)
PATIENCE_S = 60  # a bound for hangs, not a speed


def program():
    return os.environ.get("WARPWEAVE_PROGRAM", "build/warpweave")


def port_of(url):
    return int(url.rsplit(":", 1)[1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def wait_until(what, condition):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise AssertionError(what)


def healthy(port):
    return ask(port, "GET", "/health")[0] == 200


_started = []


@pytest.fixture(autouse=True)
def no_server_outlives_its_test():
    yield
    for process in _started:
        if process.poll() is None:
            process.kill()
            process.wait()
    _started.clear()


def start(*flags, **popen):
    """A server whose output goes where the test says; waits for nothing."""
    port = free_port()
    command = [str(ROOT / program()), "serve", "--model-path", "models/tale-llama", "--port", str(port), *flags]
    _started.append(subprocess.Popen(command, cwd=ROOT, **popen))
    return _started[-1], port


def end(process):
    process.terminate()
    assert process.wait(timeout=PATIENCE_S) == 0


def open_stream(port, body=LONG):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("POST", "/generate", json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline().startswith(b"data: ")
    return connection, answer


def all_events(streams):
    """Read side by side: a stream that nobody reads is cut."""
    with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
        return list(pool.map(lambda stream: events(stream[1]), streams))


def events(answer):
    lines = [line[6:] for line in answer.read().decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_sigterm_lets_streams_finish_and_refuses_new_requests():
    server = Server("--drain-timeout", "600")
    port = port_of(server.url)
    streams = [open_stream(port, stream_of(500)) for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(all_events, streams)
        server.process.send_signal(signal.SIGTERM)
        wait_until("draining", lambda: ask(port, "GET", "/health")[0] == 503)
        status, text, headers = ask(port, "POST", "/generate", LONG)
        assert status == 503 and "shutting down" in text and "Retry-After" in headers
        for stream in reading.result():
            assert stream[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 500}
    assert server.process.wait(timeout=PATIENCE_S) == 0


def test_what_a_shutdown_ends_says_so():
    server = Server("--drain-timeout", "0")
    port = port_of(server.url)
    streams = [open_stream(port) for _ in range(8)]
    whole = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    whole.request("POST", "/generate", json.dumps({**LONG, "stream": False}))
    running = lambda: json.loads(ask(port, "GET", "/get_server_info")[1])["internal_states"][0]
    wait_until("nine run", lambda: running()["num_running_reqs"] == 9)
    server.process.send_signal(signal.SIGTERM)
    answer = whole.getresponse()
    assert answer.status == 503 and answer.headers["Retry-After"]
    for stream in all_events(streams):
        *_, last, error = stream
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert "shutting down" in error["error"]["message"]
    assert server.process.wait(timeout=PATIENCE_S) == 0


def test_a_second_signal_ends_at_once():
    server = Server()
    _streams = [open_stream(port_of(server.url)) for _ in range(8)]
    server.process.send_signal(signal.SIGTERM)
    wait_until("draining", lambda: ask(port_of(server.url), "GET", "/health")[0] == 503)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=PATIENCE_S) == 128 + signal.SIGINT


def test_killed_and_started_again_on_the_same_port():
    first, port = start(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until("ready", lambda: healthy(port))
    _stream = open_stream(port)
    first.kill()
    first.wait()
    second = subprocess.Popen([str(ROOT / program()), "serve", "--model-path", "models/tale-llama", "--port", str(port)],
                              cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until("ready again", lambda: healthy(port))
    end(second)


def test_stopped_for_longer_than_its_timeouts_and_continued():
    server = Server("--http-timeout", "0.5")
    port = port_of(server.url)
    _, stream = open_stream(port, stream_of(300))
    half = socket.create_connection(("127.0.0.1", port))
    half.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    server.process.send_signal(signal.SIGCONT)
    assert healthy(port)
    assert events(stream)[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert b" 408 " in half.recv(4096)
    assert server.stop() == 0


def test_a_reader_of_the_output_that_goes_away_ends_nothing():
    process, port = start("--log-requests", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline()
    process.stdout.close()  # serve 2>&1 | head -n 1
    wait_until("ready", lambda: healthy(port))
    for _ in range(100):
        assert healthy(port)
    assert ask(port, "POST", "/generate", {"text": "Once"})[0] == 200
    end(process)


def test_a_log_that_nobody_reads_holds_nobody_up():
    process, port = start("--log-requests", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pipesize=16384)
    wait_until("ready", lambda: healthy(port))
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        for _ in range(2000):  # 70 KB of log
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
    assert ask(port, "POST", "/generate", {"text": "Once"})[0] == 200
    kept = os.read(process.stdout.fileno(), 16384)
    assert kept.count(b"/health 200") < 2000
    assert healthy(port)
    process.terminate()
    assert process.wait(timeout=PATIENCE_S) == 0
    lost = re.findall(r"lines of this log that are lost, because its reader did not keep up: (\d+)",
                      process.stdout.read().decode())
    assert len(lost) == 1 and int(lost[0]) > 1000


def test_a_full_disk_under_the_log_ends_nothing(tmp_path):
    def tiny_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    with open(tmp_path / "log", "wb") as log:
        process, port = start("--log-requests", stdout=log, stderr=log, preexec_fn=tiny_files)
    wait_until("ready", lambda: healthy(port))
    for _ in range(100):
        assert healthy(port)
    assert (tmp_path / "log").stat().st_size == 2000
    end(process)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            process, port = start("--log-requests", stdout=full, stderr=full)
        wait_until("ready", lambda: healthy(port))
        end(process)


def test_a_full_disk_under_a_dump_ends_nothing_and_leaves_no_part_of_one(tmp_path):
    def tiny_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    dump, traces = tmp_path / "batch.wwb", tmp_path / "traces"
    process, port = start("--device", "cpu", "--dump-batch", "2", "--dump-batch-file", str(dump), "--profile-dir",
                          str(traces), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=tiny_files)
    wait_until("ready", lambda: healthy(port))
    assert ask(port, "POST", "/start_profile", {})[0] == 200
    for _ in range(2):  # the recorded forward is in the first
        status, text, _ = ask(port, "POST", "/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 50}})
        assert status == 200 and json.loads(text)["meta_info"]["completion_tokens"] > 0
    status, text, _ = ask(port, "POST", "/stop_profile", {})
    assert status == 500 and "--profile-dir" in text
    assert healthy(port)
    process.terminate()
    said = process.communicate(timeout=PATIENCE_S)[0].decode()
    assert process.returncode == 0
    assert re.search(r"--dump-batch 2: .*batch\.wwb.*cannot be written", said), said
    assert not dump.exists()
    assert list(traces.iterdir()) == []


def test_a_dump_into_a_full_device_leaves_the_device():
    process, port = start("--device", "cpu", "--dump-batch", "1", "--dump-batch-file", "/dev/full",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until("ready", lambda: healthy(port))
    assert ask(port, "POST", "/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 5}})[0] == 200
    process.terminate()
    assert "/dev/full" in process.communicate(timeout=PATIENCE_S)[0].decode()
    assert process.returncode == 0 and os.path.exists("/dev/full")


def test_started_without_standard_streams():
    def close_all():
        for fd in (0, 1, 2):
            os.close(fd)

    process, port = start("--log-requests", preexec_fn=close_all)
    wait_until("ready", lambda: healthy(port))
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(20):  # a log line in a socket would break the answers
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = client.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b'{"status":"ok"}')
    end(process)


def test_a_port_in_use_is_said_before_the_model_is_loaded():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run([str(ROOT / program()), "serve", "--model-path", "models/tale-llama", "--port", str(port)],
                              cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr and f"--port {port + 1}" in done.stderr
    assert "Model:" not in done.stdout


def start_slowly(folder):
    """Dummy weights of a model that takes a moment; the port is open from the start."""
    config = json.loads((ROOT / "models/tale-llama/config.json").read_text())
    config.update(num_hidden_layers=24, hidden_size=1024, intermediate_size=4096, num_attention_heads=16,
                  num_key_value_heads=16, head_dim=64)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "models/tale-llama" / name, folder)
    return start("--model-path", str(folder), "--load-format", "dummy", "--max-total-tokens", "4096",
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_health_says_503_and_how_far_while_the_model_loads(tmp_path):
    process, port = start_slowly(tmp_path)
    seen, pages = [], []

    def is_loading():
        return json.loads(ask(port, "GET", "/health")[1]).get("status") == "loading"

    def ready():
        status, text, headers = ask(port, "GET", "/health")
        if status == 503 and json.loads(text).get("status") == "loading":
            assert headers["Retry-After"]
            seen.append(json.loads(text)["progress"])
            pages.append(ask(port, "GET", "/"))
            answered = ask(port, "POST", "/generate", {"text": "The", "sampling_params": {"max_new_tokens": 1}})[0]
            assert answered == 503 or not is_loading()  # loaded meanwhile, though perhaps not warmed up and ready
        return status == 200

    wait_until("ready", ready)
    assert seen and seen == sorted(seen) and 0 < seen[-1] <= 1
    # A browser that comes early sees how far it is and asks again; the last one may be the chat page already.
    early = [page for status, page, headers in pages if status == 503 and headers["Content-Type"].startswith("text/html")]
    assert len(early) >= len(pages) - 1 and 'http-equiv="refresh"' in early[0] and "The model is loading" in early[0]
    assert ask(port, "POST", "/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}})[0] == 200
    end(process)


def test_sigterm_while_loading_ends_the_process(tmp_path):
    process, port = start_slowly(tmp_path)
    wait_until("listening", lambda: ask(port, "GET", "/health")[0] == 503)
    process.terminate()
    assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM


def sockets_of(pid):
    """inode -> (table, state) of the process's sockets."""
    own = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        found = re.match(r"socket:\[(\d+)\]", os.readlink(fd))
        if found:
            own.add(found.group(1))
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "unix", "packet", "netlink"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            inode = {"unix": 6, "packet": 8}.get(table, 9)
            if len(fields) > inode and fields[inode] in own:
                found.append((table, fields))
    return own, found


def test_sigterm_at_the_moment_of_readiness_drains():
    """The signal comes while the server, which takes requests, still writes that it is ready: its reader is full."""
    usual, port = start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until("ready", lambda: healthy(port))
    end(usual)
    before = usual.stdout.read().partition(b"The server is fired up")[0]
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * (size - len(before) - 20))
    process, port = start(stdout=writing, stderr=subprocess.STDOUT)
    os.close(writing)
    wait_until("ready", lambda: healthy(port))
    process.terminate()
    time.sleep(0.3)  # the signal is taken, or has ended the process
    with os.fdopen(reading, "rb") as output:
        assert b"fired up" in output.read()
    assert process.wait(timeout=PATIENCE_S) == 0


def test_there_is_one_listener_and_no_other_socket():
    server = Server("--enable-metrics")
    port = port_of(server.url)
    own, found = sockets_of(server.process.pid)
    assert len(own) == 1 and len(found) == 1, found
    table, fields = found[0]
    assert table == "tcp" and fields[3] == "0A", found  # listening
    assert fields[1] == f"0100007F:{port:04X}"
    assert server.stop() == 0


def test_too_few_descriptors_lower_the_connections_and_health_answers(tmp_path):
    def few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with open(tmp_path / "log", "w") as log:
        process, port = start("--max-connections", "4096", stdout=log, stderr=log, preexec_fn=few_files)
    wait_until("ready", lambda: healthy(port))
    said = re.search(r"--max-connections 4096 is lowered to (\d+)", (tmp_path / "log").read_text())
    assert said and 0 < int(said.group(1)) < 256
    lines_before = len((tmp_path / "log").read_text().splitlines())
    clients = []
    for _ in range(400):
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        client.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        clients.append(client)
    wait_until("health at the limit", lambda: healthy(port))
    for client in clients:
        client.close()
    wait_until("health after it", lambda: healthy(port))
    assert len((tmp_path / "log").read_text().splitlines()) - lines_before <= 2
    end(process)


def test_the_limit_of_open_files_is_raised_to_what_connections_need():
    def soft_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    process, port = start("--max-connections", "1000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          preexec_fn=soft_limit)
    wait_until("ready", lambda: healthy(port))
    limits = pathlib.Path(f"/proc/{process.pid}/limits").read_text()
    assert int(re.search(r"Max open files\s+(\d+)", limits).group(1)) >= 1000
    end(process)


@pytest.mark.parametrize("interval, logged", [("0", False), ("0.01", True)])
def test_log_interval(interval, logged):
    server = Server("--log-interval", interval)
    _, stream = open_stream(port_of(server.url), stream_of(300))
    events(stream)
    assert server.stop() == 0
    assert any("tok/s" in line for line in server.lines) == logged


def test_wrong_origins_and_hosts_name_their_flag():
    for flag, value in (("--allowed-origins", "a.example"), ("--allowed-origins", "https://a.example/page"),
                        ("--allowed-hosts", "http://a.example"), ("--allowed-hosts", "a.example:80")):
        done = subprocess.run([str(ROOT / program()), "serve", flag, value], cwd=ROOT, capture_output=True, text=True,
                              timeout=PATIENCE_S)
        assert done.returncode == 2 and flag in done.stderr and "try: " in done.stderr
