"""A running `warpweave serve` on a free port, for tests and for soak.py."""

import os
import pathlib
import re
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Server:
    """A running `warpweave serve`; `url` is its root."""

    def __init__(self, *flags, model="models/tale-llama"):
        program = os.environ.get("WARPWEAVE_PROGRAM", "build/warpweave")
        command = [program, "serve", "--model-path", model, "--port", "0", *flags]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = []
        self.url = None
        threading.Thread(target=self._read, daemon=True).start()
        deadline = time.monotonic() + 60
        while self.url is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start:\n" + "".join(self.lines))
            time.sleep(0.01)

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"Chat page: (http://\S+?)/?$", line.strip())
            if found:
                self.url = found.group(1)

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)
