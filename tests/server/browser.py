"""Headless Chromium driven through its debugging pipe: no package needed beside the browser."""
import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Browser:
    def __init__(self, width=1280, height=800):
        self.profile = tempfile.mkdtemp(prefix="ui-test-")
        to_browser, self.requests = os.pipe()
        self.answers, from_browser = os.pipe()
        # The browser reads requests from descriptor 3 and writes answers to 4.
        child_in = fcntl.fcntl(to_browser, fcntl.F_DUPFD, 100)
        child_out = fcntl.fcntl(from_browser, fcntl.F_DUPFD, 100)

        def place_pipes():
            os.dup2(child_in, 3)
            os.dup2(child_out, 4)

        self.process = subprocess.Popen(
            [find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=place_pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for descriptor in (to_browser, from_browser, child_in, child_out):
            os.close(descriptor)
        self.buffer = b""
        self.next_id = 0
        self.session = None
        self.console = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.size(width, height)

    def call(self, method, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.requests, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                data = os.read(self.answers, 1 << 16)
                if not data:
                    raise RuntimeError("the browser has closed its pipe")
                self.buffer += data
            raw, self.buffer = self.buffer.split(b"\0", 1)
            answer = json.loads(raw)
            if answer.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.console.append(answer["params"])
            if answer.get("id") == self.next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, expression, seconds=15):
        end = time.monotonic() + seconds
        # A name the page has not defined yet counts as not there yet.
        attempt = f"(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"
        while not self.js(attempt):
            if time.monotonic() > end:
                raise AssertionError(f"the page never reached: {expression}\n{self.text('body')}")
            time.sleep(0.05)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def screenshot(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.requests)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)
