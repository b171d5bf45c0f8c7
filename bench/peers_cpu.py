"""Driver of bench/peers_cpu: one worker process per peer, all loaded at once, asked in turn so
that a noisy moment hits everyone; medians over --rounds. Every other round asks in the opposite
order. A shared machine's memory may run at different speeds from one minute to the next: --batches 1
with many rounds compares decode closely, and the last line is the median of the rounds' own ratios.

Per peer and batch size b it times b fresh random prompts of 512 tokens (--prompt) with 1 and with 128 new
tokens (greedy, end of sequence ignored, no prefix reuse):
--clock cpu counts the seconds that a peer's processors worked instead of those that went by: with --threads 1 for a machine
that others use, too.
With a GGUF format among --dtypes (q8_0, q4_0, q4_1, q4_k, q6_k) llama.cpp and warpweave serve the same file; --gguf FILE
names one in place of the random model.
  prefill tok/s = b * prompt / t(1)          decode tok/s = b * 127 / (t(128) - t(1))
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import random_deepseek
import random_llama
import random_qwen3_moe
import random_qwen3_next

NEW_TOKENS, VOCAB = 128, 32000
ROOT = pathlib.Path(__file__).resolve().parent.parent


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


class HttpPeer:
    """One request per prompt, all at once."""

    def generate(self, prompts, new_tokens):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(lambda p: self.one(p, new_tokens), prompts))


class LlamaCpp(HttpPeer):
    def __init__(self, paths, dtype, threads, slots):
        import xllamacpp
        params = xllamacpp.CommonParams()
        params.model.path = str(paths["gguf"])
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.n_parallel = slots
        params.n_ctx = slots * 1024
        params.warmup = True
        params.verbosity = 1
        self.server = xllamacpp.Server(params)

    def one(self, prompt, new_tokens):
        answer = post(self.server.listening_address + "/completion", {
            "prompt": prompt, "n_predict": new_tokens, "temperature": 0, "ignore_eos": True,
            "cache_prompt": False})
        if answer["tokens_predicted"] != new_tokens:
            raise RuntimeError(f"llama.cpp generated {answer['tokens_predicted']} tokens")


class CTranslate2:
    def __init__(self, paths, dtype, threads, _):
        import ctranslate2
        kind = {"f32": "float32", "bf16": "bfloat16"}[dtype]
        if kind not in ctranslate2.get_supported_compute_types("cpu"):
            raise RuntimeError(f"ctranslate2 has no {kind} on this CPU")
        self.generator = ctranslate2.Generator(str(paths["ct2"]), device="cpu", compute_type=kind,
                                               intra_threads=threads)

    def generate(self, prompts, new_tokens):
        tokens = [[f"w{t}" for t in p] for p in prompts]
        results = self.generator.generate_batch(
            tokens, max_length=new_tokens, min_length=new_tokens, sampling_topk=1, end_token=[],
            include_prompt_in_result=False, max_batch_size=0)
        if any(len(r.sequences_ids[0]) != new_tokens for r in results):
            raise RuntimeError("ctranslate2 stopped early")


class Torch:
    def __init__(self, paths, dtype, threads, _):
        import torch
        import transformers
        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            str(paths["hf"]), dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
        self.model.eval()

    def generate(self, prompts, new_tokens):
        torch = self.torch
        with torch.inference_mode():
            ids, cache = torch.tensor(prompts), None
            for _ in range(new_tokens):
                out = self.model(input_ids=ids, past_key_values=cache, use_cache=True,
                                 logits_to_keep=1)
                cache, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)


class Warpweave(HttpPeer):
    def __init__(self, paths, dtype, threads, _):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        program = os.environ.get("WARPWEAVE", str(ROOT / "build" / "warpweave"))
        model = paths.get("hf", paths["gguf"])
        self.process = subprocess.Popen(
            [program, "serve", "--model-path", str(model), "--skip-tokenizer-init",
             "--dtype", {"f32": "float32"}.get(dtype, "bfloat16"), "--threads", str(threads),
             "--port", str(port), "--log-level", "error"], stdout=sys.stderr)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/ready", timeout=1)
                return
            except OSError:
                time.sleep(0.1)
                if self.process.poll() is not None:
                    raise RuntimeError(f"{program} exited with {self.process.returncode}")
        raise RuntimeError("warpweave did not become ready in 60 s")

    def one(self, prompt, new_tokens):
        answer = post(self.url + "/generate", {
            "input_ids": prompt, "sampling_params": {
                "max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}})
        if answer["meta_info"]["completion_tokens"] != new_tokens:
            raise RuntimeError("warpweave stopped early")

    def close(self):
        self.process.terminate()
        self.process.wait()


def spent_s(clock, peer):
    """By `clock`; cpu: of the peer, which asks itself in this process."""
    if clock == "wall":
        return time.perf_counter()
    seconds = time.process_time()
    if isinstance(peer, Warpweave):
        stat = pathlib.Path(f"/proc/{peer.process.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


MODELS = {"llama": random_llama, "deepseek": random_deepseek, "qwen3-moe": random_qwen3_moe,
          "qwen3-next": random_qwen3_next}
PEERS = {"llama.cpp": LlamaCpp, "ctranslate2": CTranslate2, "torch": Torch, "warpweave": Warpweave}


def worker(args):
    """Answers {"batch", "new_tokens", "seed"} lines with {"seconds"} lines."""
    try:
        peer = PEERS[args.worker](json.loads(args.paths), args.dtype, args.threads, max(batches_of(args)))
    except Exception as error:  # the driver prints it and goes on without this peer
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        rng = random.Random(ask["seed"])
        prompts = [[rng.randrange(300, VOCAB) for _ in range(args.prompt)]
                   for _ in range(ask["batch"])]
        start = spent_s(args.clock, peer)
        peer.generate(prompts, ask["new_tokens"])
        print(json.dumps({"seconds": spent_s(args.clock, peer) - start}), flush=True)
    if hasattr(peer, "close"):
        peer.close()


class Worker:
    def __init__(self, name, paths, dtype, args):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", name, "--paths",
             json.dumps({k: str(v) for k, v in paths.items()}), "--dtype", dtype, "--threads",
             str(args.threads), "--clock", args.clock, "--prompt", str(args.prompt), "--batches", args.batches], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(args.threads)})
        first = self.read()
        self.error = first.get("error")

    def read(self):
        for line in self.process.stdout:  # libraries may print lines of their own
            if line.startswith("{"):
                return json.loads(line)
        return {"error": f"worker exited with {self.process.wait()}"}

    def seconds(self, batch, new_tokens, seed):
        self.process.stdin.write(json.dumps(
            {"batch": batch, "new_tokens": new_tokens, "seed": seed}) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def batches_of(args):
    return [int(b) for b in args.batches.split(",")]


def measure(workers, rounds, batches):
    """{peer: [{(batch, new_tokens): seconds}, one a round]}"""
    samples = {name: [] for name in workers}
    for round_index in range(-1, rounds):  # the first round warms up
        order = list(workers) if round_index % 2 else list(workers)[::-1]
        for name in workers:
            samples[name].append({})
        for batch in batches:
            for new_tokens in (1, NEW_TOKENS):
                for name in order:
                    samples[name][-1][batch, new_tokens] = workers[name].seconds(
                        batch, new_tokens, round_index * 1000 + batch * 10 + new_tokens)
    return {name: rounds_of[1:] for name, rounds_of in samples.items()}


def rates(seconds, prompt):
    """{column: tokens per second} of {(batch, new_tokens): seconds}"""
    columns = {}
    if (1, 1) in seconds:
        columns["prefill b1"] = prompt / seconds[1, 1]
    for batch in (1, 8):
        if (batch, 1) in seconds:
            decode_s = seconds[batch, NEW_TOKENS] - seconds[batch, 1]
            columns[f"decode b{batch}"] = batch * (NEW_TOKENS - 1) / decode_s
    if (8, 1) in seconds:
        columns["served, 8 at once"] = 8 * NEW_TOKENS / seconds[8, NEW_TOKENS]
    return columns


def report(dtype, samples, args):
    medians = {name: rates({key: statistics.median(s[key] for s in of_rounds) for key in of_rounds[0]}, args.prompt)
               for name, of_rounds in samples.items()}
    columns = list(next(iter(medians.values())))
    line = lambda name, values: print(f"  {name:24}" + "".join(f"{v:>19}" for v in values))
    print(f"\n{dtype}, tokens/s" + (" of processor time" if args.clock == "cpu" else ""))
    line("", columns)
    for name, row in medians.items():
        line(name, [f"{row[c]:.1f}" for c in columns])
    others = [name for name in samples if name != "warpweave"]
    if "warpweave" in samples and others:
        line("ours / best", [f"{medians['warpweave'][c] / max(medians[o][c] for o in others):.2f}"
                             for c in columns])
        by_round = [(rates(samples["warpweave"][i], args.prompt), [rates(samples[o][i], args.prompt) for o in others])
                    for i in range(len(samples["warpweave"]))]
        line("ours / best, by round", [
            f"{statistics.median(ours[c] / max(o[c] for o in theirs) for ours, theirs in by_round):.2f}"
            for c in columns])
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="llama")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--gguf", help="a file that llama.cpp and warpweave serve, in place of a random model")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--work-dir", default=str(ROOT / "build" / "peers"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--paths", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    with open("/proc/cpuinfo") as info:
        cpu = next((l.split(":")[1].strip() for l in info if l.startswith("model name")), "?")
    print(f"{cpu}, {args.gguf or args.model}, {args.threads} threads, prompt {args.prompt}, {NEW_TOKENS} new tokens, "
          f"medians of {args.rounds}")
    for dtype in [args.gguf] if args.gguf else args.dtypes.split(","):
        name = {"f32": "float32", "bf16": "bfloat16"}.get(dtype, dtype)
        paths = ({"gguf": args.gguf} if args.gguf else
                 MODELS[args.model].write_all(pathlib.Path(args.work_dir) / args.model / dtype, name))
        workers = {}
        for peer in args.peers.split(","):
            w = Worker(peer, paths, dtype, args)
            if w.error:
                print(f"  {peer}: left out: {w.error}")
            else:
                workers[peer] = w
        samples = measure(workers, args.rounds, batches_of(args))
        for w in workers.values():
            w.close()
        report(dtype, samples, args)


if __name__ == "__main__":
    main()
