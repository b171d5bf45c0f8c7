"""A Ray Serve application: each replica owns a `warpweave serve` process and passes requests on to it.

    WARPWEAVE=build/warpweave serve run examples.ray.app:build model_path=models/tale-llama replicas=2

Ray chooses the replica, restarts one whose check fails, and scales by ongoing requests. A replica that is shut down
sends its server SIGTERM, which ends what runs (--drain-timeout) and then the process.
"""
import os
import re
import shlex
import subprocess
import time

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve

app = FastAPI()
STOP_SECONDS = 60
# Of the connection between two parties, not of the message (RFC 9110, 7.6.1).
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}


@serve.deployment(max_ongoing_requests=256, graceful_shutdown_timeout_s=STOP_SECONDS + 10, health_check_period_s=5)
@serve.ingress(app)
class Warpweave:
    def __init__(self, model_path, threads, flags):
        command = [os.environ.get("WARPWEAVE", "warpweave"), "serve", "--port", "0", "--drain-timeout", str(STOP_SECONDS - 10)]
        if model_path:
            command += ["--model-path", model_path]
        if threads:
            command += ["--threads", str(threads)]
        # The log goes to a file: a pipe that nobody reads would cost lines.
        self.log_path = f"/tmp/warpweave-ray-{os.getpid()}.log"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(command + shlex.split(flags), stdout=log, stderr=subprocess.STDOUT)
        self.client = httpx.AsyncClient(base_url=self._wait_for_url(), timeout=None)

    def _wait_for_url(self):
        while True:
            with open(self.log_path) as log:
                text = log.read()
            if found := re.search(r"Chat page: (http://\S+?)/?$", text, re.M):
                return found.group(1)
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{text[-4000:]}")
            time.sleep(0.05)

    async def check_health(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}; its log is {self.log_path}")
        (await self.client.get("/health")).raise_for_status()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def forward(self, path: str, request: Request):
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        upstream = await self.client.send(
            self.client.build_request(request.method, "/" + path, params=request.query_params, headers=headers,
                                      content=await request.body()), stream=True)

        async def pieces():
            try:
                async for piece in upstream.aiter_raw():
                    yield piece
            finally:
                await upstream.aclose()  # a client that went away: the server stops computing its answer

        answered = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP_BY_HOP}
        return StreamingResponse(pieces(), upstream.status_code, answered)

    def __del__(self):
        process = getattr(self, "process", None)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def build(args):
    """The application for `serve run`: args are strings from the command line, or a config file's values."""
    replicas, most = int(args.get("replicas", 1)), int(args.get("max_replicas", 0))
    options = {"ray_actor_options": {"num_cpus": float(args.get("cpus", 1)), "num_gpus": float(args.get("gpus", 0))}}
    if most:
        options["autoscaling_config"] = {"min_replicas": replicas, "max_replicas": most, "target_ongoing_requests": 32}
    else:
        options["num_replicas"] = replicas
    return Warpweave.options(**options).bind(args.get("model_path", ""), int(args.get("threads", 0)), args.get("flags", ""))
