"""Two builds of the program by turns on a CPU, in processor seconds of their own, for a machine that others use, too.

  python bench/by_turns.py OLD/warpweave NEW/warpweave --model-path DIR [--dtype bfloat16] [--rounds 9]

Both serve the folder (its config.json is enough) with made-up weights and one thread, and are asked in turn, every other
round in the opposite order: a prompt of 512 tokens, 128 new tokens of one request, 64 new tokens of eight. The last lines
are the medians and the median of the rounds' own ratios.
"""
import argparse
import concurrent.futures
import json
import os
import random
import socket
import statistics
import subprocess
import time
import urllib.request

CASES = (("prefill 512", 1, 512, 1), ("decode, 1 request", 1, 16, 128), ("decode, 8 requests", 8, 16, 64))


class Server:
    def __init__(self, program, options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.process = subprocess.Popen(
            [program, "serve", "--model-path", options.model_path, "--load-format", "dummy", "--skip-tokenizer-init",
             "--device", "cpu", "--dtype", options.dtype, "--threads", "1", "--port", self.url.rsplit(":", 1)[1],
             "--disable-radix-cache", "--max-total-tokens", "12000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self):
        for _ in range(240):
            try:
                return urllib.request.urlopen(self.url + "/health", timeout=2).close()
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(f"{self.process.args[0]} does not answer")

    def ask(self, prompt, new_tokens):
        body = {"input_ids": prompt,
                "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}}
        request = urllib.request.Request(self.url + "/generate", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)["output_ids"]

    def cpu_seconds(self):
        folder = f"/proc/{self.process.pid}/task"
        return sum(int(open(f"{folder}/{task}/schedstat").read().split()[0]) for task in os.listdir(folder)) / 1e9

    def run(self, seed, batch, prompt_tokens, new_tokens):
        drawn = random.Random(seed)
        prompts = [[drawn.randrange(3, 30000) for _ in range(prompt_tokens)] for _ in range(batch)]
        before = self.cpu_seconds()
        with concurrent.futures.ThreadPoolExecutor(batch) as pool:
            answers = list(pool.map(lambda prompt: self.ask(prompt, new_tokens), prompts))
        return self.cpu_seconds() - before, answers[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    servers = [Server(program, options) for program in (options.old, options.new)]
    seconds = {name: [] for name, *_ in CASES}
    try:
        for server in servers:
            server.wait()
        for round_ in range(options.rounds + 1):  # the first one warms up
            rows = {}
            for which in (0, 1) if round_ % 2 else (1, 0):
                rows[which] = [servers[which].run(round_, *case) for _, *case in CASES]
            for i, (name, *_) in enumerate(CASES):
                if round_ > 0:
                    seconds[name].append((rows[0][i][0], rows[1][i][0]))
            same = all(old[1] == new[1] for old, new in zip(rows[0], rows[1]))
            print(f"round {round_}:", "the same tokens" if same else "other tokens", flush=True)
    finally:
        for server in servers:
            server.process.terminate()
    for name, pairs in seconds.items():
        old, new = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratio = statistics.median(new / old for old, new in pairs)
        print(f"{name}: old {old:.3f} s, new {new:.3f} s, new / old {ratio:.3f}")


if __name__ == "__main__":
    main()
