#!/usr/bin/env python3
"""Serves random tiny models and compares every log-probability with what transformers computes in float32.

    check_random_models.py make FOLDER --seed 1 --count 40 [--families llama,lfm2] [--gpu]   # needs torch, transformers
    check_random_models.py check FOLDER [--program build/warpweave] [--gpu] --flags --dtype float32  # needs numpy alone

make writes FOLDER/<draw>-<family>/: a model as transformers saves it, and golden.npz: prompts, their greedy
continuations and the log-probabilities at each of their tokens. check serves each model under flags that the draw's
number decides: prompts in one batch with log-probabilities of all tokens, then again with parts of the answers as
prefix hits. A last line counts; the exit status is 1 where something differs. A model that is refused is listed apart.
"""
import argparse
import concurrent.futures
import copy
import json
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np

GREEDY_TOKENS = 48
UNLISTED = -99.0
GPU_BACKENDS = ["", "triton", "flashinfer", "fa3", "fa4", "torch_native", "flex_attention", "trtllm_mha", "flashmla",
                "cutlass_mla"]
TOLERANCE = 2e-3  # of log-probabilities in float32, where logits reach about 30


# ---- make


def fix_served_rope(model):
    """longrope and dynamic follow the length read so far; a server keeps what the longest served context asks for."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    rotary = next((module for module in model.modules() if hasattr(module, "inv_freq")), None)
    values = getattr(model.config, "rope_parameters", None) or {}
    kind = values.get("rope_type")
    if kind == "dynamic" and "alpha" not in values:
        served = int(model.config.max_position_embeddings * values["factor"])
        rotary.inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, seq_len=served)
        rotary.rope_type = "default"
    if kind == "longrope":
        original = values["original_max_position_embeddings"]
        length = original + 1 if model.config.max_position_embeddings > original else original
        rotary.inv_freq, scaling = ROPE_INIT_FUNCTIONS["longrope"](model.config, seq_len=length)
        if "short_mscale" in values:  # Phi-MoE asks anew for both, by each length
            scaling = values["long_mscale" if length > original else "short_mscale"]
            rotary.config = copy.deepcopy(model.config)
            rotary.config.rope_parameters.update(short_mscale=scaling, long_mscale=scaling)
            rotary.rope_init_fn = lambda *_, **__: (rotary.inv_freq, scaling)
        rotary.attention_scaling, rotary.rope_type = scaling, "default"


def prompts_of(rng, vocab):
    """Of one token and of many; two that begin alike."""
    def draw(count):
        return [rng.randrange(2, vocab) for _ in range(count)]
    first = draw(rng.choice([17, 30, 64, 65]))
    return [first, first[:rng.choice([7, 16])] + draw(rng.choice([1, 9, 40])), draw(1), draw(rng.choice([2, 5, 33]))]


def golden(model, prompt, listed):
    import torch
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].double()
    logprobs = torch.log_softmax(logits, -1).float().numpy()
    if listed < logprobs.shape[1]:  # a file for less: the likeliest of each row alone
        logprobs[logprobs < np.sort(logprobs, -1)[:, -listed:-listed + 1]] = UNLISTED
    return np.array(ids, np.int32), logprobs


def drop_defaults(folder, rng):
    """Files may leave out what transformers takes by default."""
    from transformers import AutoConfig
    path = folder / "config.json"
    config = json.loads(path.read_text())
    defaults = AutoConfig.for_model(config["model_type"]).to_dict()
    for key in list(config):
        same = key in defaults and config[key] == defaults[key] and key not in ("model_type", "vocab_size")
        if same and rng.random() < 0.5:
            shorter = {k: v for k, v in config.items() if k != key}
            before = AutoConfig.for_model(**config).to_dict()
            if AutoConfig.for_model(**shorter).to_dict() == before:
                config = shorter
    path.write_text(json.dumps(config, indent=2) + "\n")


def make(folder, seed, name, gpu):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import make_family_goldens as goldens
    import random_models
    rng = random.Random(f"{name} {seed}")
    model_type, keys = random_models.FAMILIES[name](rng, gpu)
    try:
        config = AutoConfig.for_model(model_type, **keys)
    except Exception:  # some families need whole heads in a row
        keys["hidden_size"] = keys["num_attention_heads"] * 8 * rng.randint(1, 3)
        config = AutoConfig.for_model(model_type, **keys)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    dtype = rng.choice([torch.bfloat16, torch.float16, torch.float16 if gpu else torch.float32])
    goldens.randomize(model, dtype, torch.Generator().manual_seed(seed))
    fix_served_rope(model)
    out = folder / f"{seed}-{name}"
    out.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for i, prompt in enumerate(prompts_of(rng, config.vocab_size)):
        arrays[f"ids{i}"], arrays[f"logprobs{i}"] = golden(model, prompt, 32 if gpu else config.vocab_size)
        arrays[f"prompt{i}"] = np.array(len(prompt))
    model.config.dtype = dtype
    model.to(dtype).save_pretrained(out, max_shard_size=rng.choice(["20KB", "5GB"]))
    if model_type == "kimi_linear":
        if not (out / "model.safetensors").exists():
            model.save_pretrained(out)
            for shard in [*out.glob("model-*"), out / "model.safetensors.index.json"]:
                shard.unlink(missing_ok=True)
        goldens.publish_kimi_linear(out)
    elif not gpu:
        drop_defaults(out, rng)
    np.savez_compressed(out / "golden.npz", **arrays)


# ---- check


def flags_of(folder, options):
    """What a draw is served with, by its name; --flags come last and win."""
    rng = random.Random(folder.name)
    flags = ["--page-size", str(rng.choice([1, 16, 64])), "--chunked-prefill-size", str(rng.choice([16, 32, 64, 512]))]
    backends = GPU_BACKENDS if options.gpu else ["torch_native", "intel_amx", "flex_attention", "", ""]
    backend = rng.choice(backends)
    if backend:
        flags += ["--attention-backend", backend]
    switches = ["--disable-overlap-schedule", "--enable-deterministic-inference"]
    switches += ["--disable-cuda-graph"] if options.gpu else ["--enable-mixed-chunk"]
    flags += [flag for flag in switches if rng.random() < 0.25]
    if folder.name.split("-")[1].startswith(("qwen3_next", "qwen3_5", "lfm2", "kimi")):
        flags += ["--mamba-track-interval", rng.choice(["16", "37", "64"])]
    return flags + options.flags


def that_work(lines, flags, rng):
    """Flags among those that a refusal names as working; None: it names none."""
    found = re.search(r"works: (.*)", "".join(lines))
    if not found:
        return None
    return flags + rng.choice(found.group(1).strip().split(" | ")).split()


class Server:
    def __init__(self, program, model, flags):
        command = [program, "serve", "--model-path", str(model), "--skip-tokenizer-init", "--port", "0",
                   "--max-total-tokens", "4096", "--max-logprob-values", "10000000", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.url, self.done = [], None, threading.Event()
        threading.Thread(target=self.read, daemon=True).start()
        self.done.wait(120)

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"Chat page: (http://[0-9.:]+)", line)
            if found and self.url is None:
                self.url = found.group(1)
                self.done.set()
        self.done.set()

    def ask(self, body):
        request = urllib.request.Request(self.url + "/generate", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from None

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=30)


class Errors:
    """How far log-probabilities are off: the largest difference, and all of them relative to what is expected."""

    def __init__(self):
        self.worst, self.squares, self.norm = 0.0, 0.0, 0.0

    def add(self, row, wanted):
        """Of a row's listed tokens; likely ones alone, where types are narrow."""
        ids, got = [int(e[1]) for e in row], np.array([e[0] for e in row], np.float64)
        off = (got - wanted[ids])[wanted[ids] > -18]
        if not np.isfinite(got).all():
            off = np.array([np.inf])
        self.worst = max(self.worst, float(np.abs(off).max()) if len(off) else 0.0)
        self.squares += float((off * off).sum())
        self.norm += float((wanted[ids] ** 2)[wanted[ids] > -18].sum())

    def relative(self):
        return (self.squares / max(self.norm, 1e-9)) ** 0.5


def compare(answer, case, start, options):
    """Errors of one answer whose prompt is case.ids[:start]; past a near tie that went the other way nothing is."""
    ids, logprobs, meta, errors = case["ids"], case["logprobs"], answer["meta_info"], Errors()
    for place, row in enumerate(meta.get("input_top_logprobs") or []):
        if row:
            errors.add(row, logprobs[place - 1])
    for step, (row, token) in enumerate(zip(meta["output_top_logprobs"], answer["output_ids"])):
        wanted = logprobs[start + step - 1]
        errors.add(row, wanted)
        if start + step >= len(ids) or token != ids[start + step]:
            lost = wanted.max() - wanted[token]
            if not options.relative and start + step < len(ids) and lost > 2 * options.tolerance:
                return errors, f"token {step} behind {start} is {token}, not {ids[start + step]}"
            break
    if options.relative:
        return errors, f"relative error {errors.relative():.3g}" if not errors.relative() <= options.relative else None
    return errors, f"log-probabilities differ by {errors.worst:.4g}" if not errors.worst <= options.tolerance else None


def check_model(server, cases, options):
    vocab = cases[0]["logprobs"].shape[1]
    common = {"return_logprob": True, "top_logprobs_num": min(128, vocab)}
    greedy = {"temperature": 0, "max_new_tokens": GREEDY_TOKENS, "ignore_eos": True}
    prompts = [case["ids"][:case["prompt"]].tolist() for case in cases]
    rounds = [(prompts, dict(common, logprob_start_len=0)),
              ([case["ids"][:case["prompt"] + 13 * i + 3].tolist() for i, case in enumerate(cases)], common),
              ([case["ids"].tolist()[:-1] for case in cases], dict(common, logprob_start_len=0))]
    worst, faults = 0.0, []
    for number, (wanted, more) in enumerate(rounds):
        answers = server.ask({"input_ids": wanted, "sampling_params": greedy, **more})
        for i, (answer, case) in enumerate(zip(answers, cases)):
            errors, fault = compare(answer, case, len(wanted[i]), options)
            worst = max(worst, errors.relative() if options.relative else errors.worst)
            if fault:
                faults.append(f"round {number} prompt {i}: {fault}")
    return worst, faults


def read_cases(folder):
    data = np.load(folder / "golden.npz")
    return [{"ids": data[f"ids{i}"], "logprobs": data[f"logprobs{i}"].astype(np.float64),
             "prompt": int(data[f"prompt{i}"])} for i in range(4)]


def start(folder, options):
    """A server of the draw's flags, or of others that its refusal names; and the flags."""
    flags = flags_of(folder, options)
    server = Server(options.program, folder, flags)
    if server.url is None:
        server.stop()
        others = that_work(server.lines, flags, random.Random(folder.name))
        if others:
            flags, server = others, Server(options.program, folder, others)
    return server, " ".join(flags)


def check(folder, options):
    cases = read_cases(folder)
    server, flags = start(folder, options)
    if server.url is None:
        server.stop()
        errors = [line.strip() for line in server.lines if "error" in line] or server.lines[-1:]
        return "refused", f'{" ".join(errors)[:400]} ({flags})'
    status = None
    try:
        worst, faults = check_model(server, cases, options)
        status = server.stop()
    except Exception as error:  # the server went away, or an answer is no answer
        server.process.kill()
        return "broken", f"{error!r} {''.join(server.lines[-3:])}"[:600] + f" ({flags})"
    if status != 0:
        faults.append(f"exit status {status}")
    return ("differs", f'{"; ".join(faults[:3])} ({flags})') if faults else ("same", f"{worst:.2g} ({flags})")


def make_all(options):
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import random_models
    names = options.families.split(",") if options.families else list(random_models.FAMILIES)
    for seed in range(options.seed, options.seed + options.count):
        name = names[seed % len(names)]
        try:
            make(options.folder, seed, name, options.gpu)
        except Exception as error:  # transformers has limits of its own
            print(f"no model {seed}-{name}: {error!r}"[:300], flush=True)
    return 0


def check_all(options):
    counts, begun = {}, time.monotonic()
    folders = sorted((file.parent for file in options.folder.glob("*/golden.npz")),
                     key=lambda folder: int(folder.name.split("-")[0]))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for folder, (result, detail) in zip(folders, pool.map(lambda f: check(f, options), folders)):
            counts[result] = counts.get(result, 0) + 1
            print(f"{result:8} {folder.name}: {detail}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()), f"in {time.monotonic() - begun:.0f} s")
    return 0 if set(counts) <= {"same", "refused"} else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--families", default="")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--program", default="build/warpweave")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--relative", type=float, default=0, help="compare so, for 16-bit types; tokens may differ")
    parser.add_argument("--jobs", type=int, default=1, help="servers at the same time")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    return make_all(options) if options.what == "make" else check_all(options)


if __name__ == "__main__":
    sys.exit(main())
