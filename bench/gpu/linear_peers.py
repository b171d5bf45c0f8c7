"""flash-linear-attention (fla) and, for prompts of GDN with dims of 128, FlashInfer's Hopper kernel beside linear_bench: microseconds
and how many times ours they take, the geometric mean and the least.

  linear_peers.py LINEAR_BENCH [--draws N] [--models N] [--seed SEED] [--flashinfer LIBRARY] [--seconds S] [--settings FILE]

Without --draws the rows of linear_bench; else N drawn loads over --models drawn pairs of heads and dims (fla compiles and searches its
settings anew for each; about 0.3 s a row for ours, twice, beside the peers' time), from a seed taken at run time unless it is given. linear_bench times all rows before and after the peers, and
the mean of both counts: ours and theirs by turns on one machine. As there, a figure is a graph of launches over sets of states that miss
the L2 cache; q and k are normed within, but for FlashInfer, which gets them normed.

fla (PyPI: flash-linear-attention, fla-core) searches every kernel's settings for every shape. All its settings are tried here, but each
for few launches, and the kernels are compiled ahead by as many processes as there are CPUs. --settings keeps what was found: where FILE
has settings of a kernel, only those are tried for further shapes; of other kernels, with --most-settings, so many, evenly.
LIBRARY is FlashInfer 0.6.3's launch_delta_rule_prefill_kernel_gbai in bf16 behind two C functions, gdn_prefill_true (more v than k
heads) and gdn_prefill_false, with its arguments; its Python package compiles 32 variants of it on first use.
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

STATE_SETS_BYTES, MOST_SETS, DECODE_LAUNCHES = 256 << 20, 64, 16
ROW = re.compile(r"(?i)(gdn|kda)\s+(extend|decode)\s+heads\s+(\d+)/\s*(\d+) dims\s+(\d+)/\s*(\d+)\s+(\d+) x\s+(\d+) state (\w+)\s*:\s+([\d.]+) us")
# What linear_bench times when it is told nothing, but for drafts.
FIXED = ([("gdn", "extend", 16, 32, 128, 128, n, t, "f32") for n, t in ((1, 4096), (1, 16384), (1, 65536), (8, 4096), (16, 1024))] +
         [("gdn", "decode", 16, 32, 128, 128, n, 1, "f32") for n in (1, 8, 64, 256)] + [("gdn", "decode", 16, 32, 128, 128, 256, 1, "bf16")] +
         [("kda", "extend", 32, 32, 128, 128, 1, t, "f32") for t in (4096, 16384, 65536)] +
         [("kda", "decode", 32, 32, 128, 128, n, 1, "f32") for n in (1, 64, 256)])


def drawn_rows(models, draws, seed):
    rng = random.Random(seed)
    rows = []
    for i in range(models):
        kind = "kda" if i % 2 else "gdn"
        k_heads = rng.choice((4, 8, 16, 32))
        v_heads = k_heads * (1 if kind == "kda" else rng.choice((1, 2)))
        dims = rng.choice((64, 128, 128, 192, 256)), rng.choice((64, 128, 128, 192, 256))
        for j in range(draws * i // models, draws * (i + 1) // models):
            load = ("extend", rng.randint(1, 8), rng.randint(256, 8192)) if j % 2 else ("decode", 2 ** rng.randint(0, 7), 1)
            rows.append((kind, load[0], k_heads, v_heads, *dims, *load[1:], "f32"))
    return rows


def ours(bench, rows):
    """{row: microseconds}"""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(" ".join(map(str, row)) + "\n" for row in rows))
        file.flush()
        ask = [] if rows is FIXED else ["rows", file.name]
        text = subprocess.run([bench, *ask], capture_output=True, text=True, check=True).stdout
    times = {}
    for kind, phase, *sizes, state, us in ROW.findall(text):
        times[(kind.lower(), phase, *map(int, sizes), state)] = float(us)
    return times


class Inputs:
    """A row's tensors; `sets` states, so that launches one after the other miss the L2 cache."""

    def __init__(self, row):
        import torch
        self.kind, self.phase, k_heads, v_heads, k_dim, v_dim, requests, tokens, _ = row
        shape = (requests, tokens)
        make = lambda *s: torch.randn(*shape, *s, device="cuda", dtype=torch.bfloat16)
        self.q, self.k, self.v = make(k_heads, k_dim), make(k_heads, k_dim), make(v_heads, v_dim)
        self.beta = torch.rand(*shape, v_heads, device="cuda")
        self.g = -0.1 * torch.rand(*shape, v_heads, *((k_dim,) if self.kind == "kda" else ()), device="cuda")
        bytes_ = requests * v_heads * k_dim * v_dim * 4
        self.sets = 1 if self.phase == "extend" else max(2, min(MOST_SETS, STATE_SETS_BYTES // bytes_ + 1))
        self.states = [torch.randn(requests, v_heads, k_dim, v_dim, device="cuda") for _ in range(self.sets)]
        self.launches = 3 if self.phase == "extend" else max(self.sets, DECODE_LAUNCHES)


def fla_call(x):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.kda import chunk_kda, fused_recurrent_kda
    function = {("gdn", "extend"): chunk_gated_delta_rule, ("gdn", "decode"): fused_recurrent_gated_delta_rule,
                ("kda", "extend"): chunk_kda, ("kda", "decode"): fused_recurrent_kda}[x.kind, x.phase]
    return lambda i: function(q=x.q, k=x.k, v=x.v, g=x.g, beta=x.beta, initial_state=x.states[i % x.sets], output_final_state=True,
                              use_qk_l2norm_in_kernel=True)


def flashinfer_call(x, library):
    import torch
    requests, tokens, k_heads, dim = x.q.shape
    v_heads = x.v.shape[2]
    if x.kind != "gdn" or x.phase != "extend" or dim != 128 or x.v.shape[3] != 128:
        return None
    q, k = (torch.nn.functional.normalize(rows.float(), dim=-1).bfloat16().contiguous() for rows in (x.q, x.k))
    alpha, out, end = x.g.exp(), torch.empty_like(x.v), torch.empty_like(x.states[0])
    indptr = torch.arange(requests + 1, device="cuda", dtype=torch.int64) * tokens
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    workspace = torch.empty(sms * 128, device="cuda", dtype=torch.uint8)
    function = getattr(library, "gdn_prefill_true" if v_heads > k_heads else "gdn_prefill_false")
    pointers = [t.data_ptr() for t in (out, end, q, k, x.v, x.states[0], alpha, x.beta, indptr, workspace)]
    kept = (q, k, alpha, out, end, indptr, workspace)

    def call(_):
        stream = torch.cuda.current_stream().cuda_stream
        if function(*map(ctypes.c_void_p, (stream, *pointers)), requests, k_heads, k_heads, v_heads, v_heads, dim,
                    ctypes.c_longlong(requests * tokens), ctypes.c_float(dim ** -0.5), sms) != 0:
            raise RuntimeError("FlashInfer refused")
        return kept

    return call


def timed_us(call, launches):
    import torch

    def run():
        for i in range(launches):
            call(i)

    call(0)
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        replay = graph.replay
    except Exception:  # a call that waits for the device cannot be captured
        torch.cuda.synchronize()
        replay = run
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times[1:])


def search_quickly(settings, part=None, parts=1, most=None):
    """Has Triton time each of a kernel's settings by a few launches; with `part`, only every parts-th of them. `settings`: {kernel:
    settings that were best, as texts}, which alone are tried where there are some."""
    import torch
    from triton.runtime.autotuner import Autotuner, OutOfResources

    def bench(self, *args, config, **meta):
        current = {**meta, **config.all_kwargs()}
        full = {**self.nargs, **current}
        try:
            def call():
                if config.pre_hook:
                    config.pre_hook(full)
                self.pre_hook(full)
                self.fn.run(*args, **current)
                self.post_hook(full, exception=None)

            call()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(1 if part is not None else 3):
                call()
            end.record()
            end.synchronize()
            return [begin.elapsed_time(end)] * 3
        except OutOfResources:
            return [float("inf")] * 3
        except Exception as error:
            if "PassManager" in str(error) or "out of resource" in str(error).lower():
                return [float("inf")] * 3
            raise

    run = Autotuner.run

    def limited(self, *args, **kwargs):
        if not getattr(self, "limited_here", False):
            self.limited_here = True
            known = settings.get(self.base_fn.__name__, [])
            every = len(self.configs) if most is None or known else most  # that many of them, evenly
            self.configs = ([c for c in self.configs if str(c) in known] or
                            [self.configs[i * len(self.configs) // every] for i in range(min(every, len(self.configs)))])
            if part is not None:
                self.configs = self.configs[:1] + self.configs[1 + part::parts]  # of several each may be too large for a multiprocessor
        result = run(self, *args, **kwargs)
        if part is None and len(self.configs) > 1:
            found = settings.setdefault(self.base_fn.__name__, [])
            if str(self.best_config) not in found:
                found.append(str(self.best_config))
        return result

    Autotuner._bench, Autotuner.run = bench, limited


def compile_ahead(args, rows):
    """Every shape's kernels with every setting, by many processes at once, into Triton's cache."""
    shapes = list({row[:6]: row for row in rows if row[8] == "f32"}.values())
    short = [(*r[:6], 1, 1 if r[1] == "decode" else 256, "f32") for r in shapes]
    settings = json.loads(pathlib.Path(args.settings).read_text()) if args.settings and pathlib.Path(args.settings).exists() else {}
    parts = os.cpu_count()
    jobs = []
    for part in range(parts):
        # Known or few settings: processes share the shapes; else every process has every shape, and its part of the settings.
        shared_out = settings or args.most_settings
        ask = {"rows": short[part::parts] if shared_out else short, "settings": settings, "part": None if shared_out else part,
               "parts": parts, "most": args.most_settings}
        jobs.append(subprocess.Popen([sys.executable, __file__, args.bench, "--compile", json.dumps(ask)], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE, text=True))
    for job in jobs:
        _, error = job.communicate()
        if job.returncode != 0:
            print("(compiling ahead:", error.strip().splitlines()[-1][:200], ")", flush=True)


def compile_part(ask):
    import torch
    search_quickly(ask["settings"], ask["part"], ask["parts"], ask["most"])
    with torch.no_grad():
        for row in ask["rows"]:
            fla_call(Inputs(tuple(row)))(0)
            torch.cuda.synchronize()


def report(name, ratios):
    if ratios:
        print(f"{name}: {len(ratios)} rows, geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} x ours, "
              f"least {min(ratios):.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--flashinfer")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--settings")
    parser.add_argument("--most-settings", type=int)
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        return compile_part(json.loads(args.compile))
    until = time.time() + args.seconds
    rows = drawn_rows(args.models, args.draws, args.seed) if args.draws else FIXED
    library = ctypes.CDLL(args.flashinfer) if args.flashinfer else None
    first = ours(args.bench, rows)
    print(f"{len(rows)} rows{f', seed {args.seed}' if args.draws else ''}; ours in {time.time() + args.seconds - until:.0f} s", flush=True)
    compile_ahead(args, rows)
    print(f"compiled after {time.time() + args.seconds - until:.0f} s", flush=True)
    import torch
    import fla
    settings = json.loads(pathlib.Path(args.settings).read_text()) if args.settings and pathlib.Path(args.settings).exists() else {}
    search_quickly(settings, most=args.most_settings)
    print(torch.cuda.get_device_name(), "fla", fla.__version__, "torch", torch.__version__, flush=True)
    theirs = {}
    with torch.no_grad():
        for row in rows:
            if time.time() > until:
                print("(time is up)")
                break
            try:
                x = Inputs(row)
                calls = {"fla": fla_call(x) if row[8] == "f32" else None, "flashinfer": flashinfer_call(x, library) if library else None}
                theirs[row] = {name: timed_us(call, x.launches) for name, call in calls.items() if call is not None}
            except Exception as error:  # a shape that a peer does not take is left out, with the reason
                print("(left out:", *row, " ".join(str(error).split())[:160], ")", flush=True)
            x = calls = None
            torch.cuda.empty_cache()
    if args.settings:
        pathlib.Path(args.settings).write_text(json.dumps(settings))
    second = ours(args.bench, rows)
    ratios, best = {}, []
    for row, times in theirs.items():
        if not times:
            continue
        us = (first[row] + second[row]) / 2
        texts = [f"{name} {peer:9.1f} ({peer / us:5.2f} x)" for name, peer in times.items()]
        print(f"{row[0]} {row[1]} heads {row[2]:2}/{row[3]:2} dims {row[4]:3}/{row[5]:3} {row[6]:3} x {row[7]:5} {row[8]:4}: ours "
              f"{first[row]:8.1f} {second[row]:8.1f} us, {', '.join(texts)}", flush=True)
        for name, peer in times.items():
            ratios.setdefault(f"{name}, {row[0]} {row[1]}", []).append(peer / us)
        best.append(min(times.values()) / us)
    for name, values in ratios.items():
        report(name, values)
    report("best of the peers", best)


if __name__ == "__main__":
    main()
