"""Linear attention beside flash-linear-attention (fla) and FlashInfer, in one process and by turns: microseconds and how many times
ours they take, the geometric mean and the least.

  linear_peers.py ENTRY [--draws N] [--models M] [--seed SEED] [--most-settings N] [--seconds S] [--only WORDS] [--compile-only]

ENTRY is liblinear_bench_entry.so (linear_entry.cc). Without --draws the fixed rows; else N drawn loads over M drawn pairs of heads and
dims (fla compiles anew for each), from a seed of the clock unless it is given. Of fla and FlashInfer runs what can be imported; FlashInfer
has GDN with dims of 128 alone. A peer's inputs are ours, but with the gates made and, for FlashInfer's prompts, q and k normed ahead; its
outputs are compared with ours before it is timed: "diff" is ||theirs - ours|| / ||ours||.

Rows come in a drawn order, so that those of --seconds are a fair part of them. Behind ours stand its multiple of linear_bench's floor and
GB/s of states and rows. --compile-only fills Triton's cache for a later run with the same seed.

A figure is a graph of launches over sets of states that miss the L2 cache, the median of rounds in which all take turns. fla (PyPI:
flash-linear-attention, fla-core) searches every kernel's settings for every shape; --most-settings tries so many of them, evenly. They are
compiled ahead by as many processes as there are CPUs.
"""
import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
import types

STATE_SETS_BYTES, MOST_SETS, DECODE_LAUNCHES, ROUNDS = 256 << 20, 64, 16, 7
# What linear_bench times when it is told nothing, but for drafts: kind, phase, heads and dims of k and v, requests, tokens, state.
FIXED = ([("gdn", "extend", 16, 32, 128, 128, n, t, "f32") for n, t in ((1, 4096), (1, 16384), (1, 65536), (8, 4096), (16, 1024))] +
         [("gdn", "decode", 16, 32, 128, 128, n, 1, s) for s in ("f32", "bf16") for n in (1, 8, 64, 256)] +
         [("kda", "extend", 32, 32, 128, 128, 1, t, "f32") for t in (4096, 16384, 65536)] +
         [("kda", "decode", 32, 32, 128, 128, n, 1, "f32") for n in (1, 8, 64, 256)])


def drawn_rows(models, draws, seed):
    rng = random.Random(seed)
    rows = []
    for i in range(models):
        kind = "kda" if i % 3 == 2 else "gdn"
        k_heads = rng.choice((4, 8, 16, 32))
        v_heads = k_heads * (1 if kind == "kda" else rng.choice((1, 2)))
        dims = (128, 128) if i % 2 == 0 else (rng.choice((64, 128, 192, 256)), rng.choice((64, 128, 192, 256)))
        for j in range(draws * i // models, draws * (i + 1) // models):
            load = ("extend", rng.randint(1, 8), rng.randint(256, 8192)) if j % 2 else ("decode", 2 ** rng.randint(0, 7), 1)
            rows.append((kind, load[0], k_heads, v_heads, *dims, *load[1:], "f32"))
    rng.shuffle(rows)
    return rows


def floor_and_bytes(row):
    """Microseconds that linear_bench's floor is, and bytes of states and rows, each once."""
    kind, phase, k_heads, v_heads, k_dim, v_dim, requests, tokens, state = row
    all_tokens = requests * tokens
    gates = 2 * v_heads * k_dim if kind == "kda" else 4 * v_heads
    bytes_ = all_tokens * (4 * k_heads * k_dim + 4 * v_heads * v_dim + gates) + 2 * requests * v_heads * k_dim * v_dim * (4 if state == "f32" else 2)
    flops = all_tokens * v_heads * (6 * k_dim * v_dim + 256 * (k_dim + v_dim)) if phase == "extend" else 0
    return max(bytes_ / 4.3e6, flops / 600e6), bytes_


class Inputs:
    """A row's tensors; `sets` states, so that launches one after the other miss the L2 cache."""

    def __init__(self, row):
        import torch
        self.kind, self.phase, k_heads, v_heads, k_dim, v_dim, requests, tokens, state = self.row = row
        make = lambda *s: torch.randn(requests, tokens, *s, device="cuda", dtype=torch.bfloat16)
        self.q, self.k, self.v = make(k_heads, k_dim), make(k_heads, k_dim), make(v_heads, v_dim)
        channels = (k_dim,) if self.kind == "kda" else ()
        self.a, self.b = make(v_heads, *channels), make(v_heads)
        self.a_log = torch.rand(v_heads, device="cuda") * 4 - 3
        self.dt_bias = torch.full((v_heads, *channels), -1.0, device="cuda")
        bytes_ = requests * v_heads * k_dim * v_dim * (4 if state == "f32" else 2)
        self.sets = 1 if self.phase == "extend" else max(2, min(MOST_SETS, STATE_SETS_BYTES // bytes_ + 1))
        shape = (self.sets * requests, v_heads, v_dim, k_dim)
        self.states = 0.1 * torch.randn(shape, device="cuda", dtype=torch.float32 if state == "f32" else torch.bfloat16)
        self.launches = 3 if self.phase == "extend" else max(self.sets, DECODE_LAUNCHES)

    def set_of(self, i):
        requests = self.row[6]
        return self.states[i % self.sets * requests:(i % self.sets + 1) * requests]

    def made_gates(self):
        """Logarithms of decays, and beta."""
        import torch
        by = self.a_log.exp()
        g = -(by[:, None] if self.kind == "kda" else by) * torch.nn.functional.softplus(self.a.float() + self.dt_bias)
        return g, self.b.float().sigmoid()


class Call(ctypes.Structure):
    """WwLinearBenchCall."""
    _fields_ = ([(name, ctypes.c_int) for name in ("kda", "k_heads", "v_heads", "k_dim", "v_dim", "requests", "longest")] +
                [("tokens", ctypes.c_int64), ("decode", ctypes.c_int), ("bf16_state", ctypes.c_int)] +
                [(name, ctypes.c_void_p) for name in ("q", "k", "v", "a", "b", "a_log", "dt_bias", "q_indptr", "slots", "states", "out",
                                                      "workspace")] +
                [("workspace_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p)])


def our_call(x, library):
    import torch
    kind, phase, k_heads, v_heads, k_dim, v_dim, requests, tokens, state = x.row
    out = torch.empty_like(x.v)
    indptr = torch.arange(requests + 1, device="cuda", dtype=torch.int32) * tokens
    slots = torch.arange(requests * x.sets, device="cuda", dtype=torch.int32)
    c = Call(kda=kind == "kda", k_heads=k_heads, v_heads=v_heads, k_dim=k_dim, v_dim=v_dim, requests=requests, longest=tokens,
             tokens=requests * tokens, decode=phase == "decode", bf16_state=state == "bf16",
             **{name: getattr(x, name).data_ptr() for name in ("q", "k", "v", "a", "b", "a_log", "dt_bias", "states")},
             q_indptr=indptr.data_ptr(), out=out.data_ptr())
    c.workspace_bytes = library.ww_linear_bench_workspace(ctypes.byref(c))
    workspace = torch.empty(c.workspace_bytes, device="cuda", dtype=torch.uint8)
    c.workspace = workspace.data_ptr()
    kept = (out, indptr, slots, workspace)

    def call(i):
        c.slots = slots.data_ptr() + i % x.sets * requests * 4
        c.stream = torch.cuda.current_stream().cuda_stream
        library.ww_linear_bench_run(ctypes.byref(c))
        return kept[0]

    return call


def fla_call(x):
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.kda import chunk_kda, fused_recurrent_kda
    if x.states.dtype != torch.float32:
        return None
    function = {("gdn", "extend"): chunk_gated_delta_rule, ("gdn", "decode"): fused_recurrent_gated_delta_rule,
                ("kda", "extend"): chunk_kda, ("kda", "decode"): fused_recurrent_kda}[x.kind, x.phase]
    g, beta = x.made_gates()
    if x.phase == "extend":
        beta = beta.bfloat16()
    turned = [x.set_of(i).transpose(-1, -2).contiguous() for i in range(x.sets)]
    return lambda i: function(q=x.q, k=x.k, v=x.v, g=g, beta=beta, initial_state=turned[i % x.sets], output_final_state=True,
                              use_qk_l2norm_in_kernel=True)[0]


def flashinfer_call(x):
    import torch
    if x.kind != "gdn" or x.k.shape[-1] != 128 or x.v.shape[-1] != 128:
        return None
    if x.phase == "decode":
        return flashinfer_decode(x)
    from flashinfer.gdn_prefill import chunk_gated_delta_rule
    requests, tokens = x.q.shape[:2]
    q, k = (torch.nn.functional.normalize(rows.float(), dim=-1).bfloat16().flatten(0, 1) for rows in (x.q, x.k))
    g, beta = (t.flatten(0, 1).contiguous() for t in x.made_gates())
    alpha, v, end = g.exp(), x.v.flatten(0, 1), torch.empty_like(x.states)
    out = torch.empty_like(v)
    starts = torch.arange(requests + 1, device="cuda", dtype=torch.int64) * tokens

    def call(_):
        chunk_gated_delta_rule(q, k, v, alpha, beta, None, x.states, True, starts, output=out, output_state=end, max_seqlen=tokens)
        return out.view(x.v.shape)

    return call


def flashinfer_decode(x):
    import torch
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose
    out = torch.empty_like(x.v)
    if x.states.dtype == torch.float32:
        state = lambda i: {"state": x.set_of(i)}
    else:
        requests = x.row[6]
        slots = [torch.arange(requests, device="cuda", dtype=torch.int32) + i * requests for i in range(x.sets)]
        state = lambda i: {"state": None, "initial_state": x.states, "initial_state_indices": slots[i % x.sets]}

    def call(i):
        gated_delta_rule_decode_pretranspose(x.q, x.k, x.v, A_log=x.a_log, a=x.a, dt_bias=x.dt_bias, b=x.b, output=out, **state(i))
        return out

    return call


def differences(x, calls):
    """Of each peer's outputs from ours, all from the same states."""
    before = x.states.clone()
    outs = {}
    for name, call in calls.items():
        x.states.copy_(before)
        outs[name] = call(0).float().clone()
    x.states.copy_(before)
    ours = outs.pop("ours")
    return {name: ((out - ours).norm() / ours.norm()).item() for name, out in outs.items()}


def captured(call, launches):
    import torch

    def run():
        for i in range(launches):
            call(i)

    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay
    except Exception:  # a call that waits for the device cannot be captured
        torch.cuda.synchronize()
        return run


def timed_us(calls, launches):
    """{name: microseconds}, all by turns."""
    from gpu_events import elapsed_us
    replays = {name: captured(call, launches) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, replay in replays.items():
            times[name].append(elapsed_us(replay) / launches)
    return {name: statistics.median(of[1:]) for name, of in times.items()}


def search_quickly(most=None, part=0, parts=1):
    """Has Triton time each of a kernel's settings by a few launches, and of more than `most` so many of them, evenly; of these every
    parts-th."""
    from gpu_events import elapsed_us
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
            return [elapsed_us(call, 1 if parts > 1 else 3)] * 3
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
            every = min(most or len(self.configs), len(self.configs))
            some = [self.configs[i * len(self.configs) // every] for i in range(every)]
            self.configs = some[:1] + some[1 + part::parts]  # of several each may be too large for a multiprocessor
        return run(self, *args, **kwargs)

    Autotuner._bench, Autotuner.run = bench, limited


def compile_ahead(args, rows):
    """fla's kernels of every shape with every setting, by many processes at once, into Triton's cache."""
    shapes = list({row[:6]: row for row in rows if row[8] == "f32"}.values())
    shapes.sort(key=lambda row: ("decode", "extend").index(row[1]) * (1 if row[0] == "kda" else 2))  # what compiles longest gets a process
    short = [(*r[:6], 1, 1 if r[1] == "decode" else 256, "f32") for r in shapes]
    processes = os.cpu_count()
    groups = min(len(short), processes)
    parts = processes // groups
    jobs = []
    for i in range(groups * parts):
        ask = {"rows": short[i % groups::groups], "most": args.most_settings, "part": i // groups, "parts": parts}
        jobs.append(subprocess.Popen([sys.executable, __file__, args.entry, "--compile", json.dumps(ask)], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE, text=True))
    for job in jobs:
        _, error = job.communicate()
        if job.returncode != 0:
            print("(compiling ahead:", error.strip().splitlines()[-1][:200], ")", flush=True)


def compile_part(ask):
    import torch
    search_quickly(ask["most"], ask["part"], ask["parts"])
    with torch.no_grad():
        for row in ask["rows"]:
            fla_call(Inputs(tuple(row)))(0)
            torch.cuda.synchronize()


def report(name, ratios):
    if ratios:
        print(f"{name}: {len(ratios)} rows, geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} x ours, "
              f"least {min(ratios):.3f}", flush=True)


def time_row(row, library, peers):
    """Prints a row; {peer: times ours}."""
    import torch
    x = Inputs(row)
    calls = {"ours": our_call(x, library)}
    for name, make in peers.items():
        try:
            call = make(x)
            if call is not None:
                call(0)
                torch.cuda.synchronize()
                calls[name] = call
        except Exception as error:  # a shape that a peer does not take is left out, with the reason
            print(f"({name} left out:", *row, " ".join(str(error).split())[:200], ")", flush=True)
    apart = differences(x, calls)
    times = timed_us(calls, x.launches)
    us = times.pop("ours")
    texts = [f"{name} {peer:9.1f} ({peer / us:5.2f} x, diff {apart[name]:.1e})" for name, peer in times.items()]
    floor, bytes_ = floor_and_bytes(row)
    print(f"{row[0]} {row[1]} heads {row[2]:2}/{row[3]:2} dims {row[4]:3}/{row[5]:3} {row[6]:3} x {row[7]:5} {row[8]:4}: ours {us:8.1f} us, "
          f"{us / floor:5.2f} x floor, {bytes_ / us * 1e-3:5.0f} GB/s, {', '.join(texts)}", flush=True)
    return {name: peer / us for name, peer in times.items()}


def bare_fla():
    """fla's kernels without its layers and models, whose import takes ten seconds and more."""
    if importlib.util.find_spec("fla") is None:
        return
    for name in ("fla", "fla.ops", "fla.modules"):
        spec = importlib.util.find_spec(name)
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__, module.__spec__ = list(spec.submodule_search_locations), spec
    try:
        sys.modules["fla"].__version__ = importlib.metadata.version("fla-core")
    except importlib.metadata.PackageNotFoundError:
        sys.modules["fla"].__version__ = "0"


def importable(name):
    try:
        __import__(name)
        return True
    except Exception as error:
        print(f"({name}: {error})", flush=True)
        return False


def import_fla():
    bare_fla()
    if importable("fla.ops.kda"):
        return True
    for name in [name for name in sys.modules if name.split(".")[0] == "fla"]:
        del sys.modules[name]
    return importable("fla")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entry")
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 31))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--most-settings", type=int)
    parser.add_argument("--only", help="rows that have all of these words, as in gdn,decode")
    parser.add_argument("--no-fla", action="store_true")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        import_fla()
        return compile_part(json.loads(args.compile))
    begin = time.time()
    rows = drawn_rows(args.models, args.draws, args.seed) if args.draws else FIXED
    if args.only:
        rows = [row for row in rows if all(word in map(str, row) for word in args.only.split(","))]
    print(f"{len(rows)} rows{f', seed {args.seed}' if args.draws else ''}", flush=True)
    peers = {"flashinfer": flashinfer_call} if importable("flashinfer.gdn_prefill") else {}
    if not args.no_fla and import_fla():
        compile_ahead(args, rows)
        print(f"compiled after {time.time() - begin:.0f} s", flush=True)
        if args.compile_only:
            return
        search_quickly(args.most_settings)
        peers["fla"] = fla_call
    import torch
    library = ctypes.CDLL(args.entry)
    library.ww_linear_bench_workspace.restype = ctypes.c_size_t
    print(torch.cuda.get_device_name(), "torch", torch.__version__, *peers, flush=True)
    ratios = {}
    with torch.no_grad():
        for row in rows:
            if time.time() - begin > args.seconds:
                print("(time is up)")
                break
            of_row = time_row(row, library, peers)
            dims = "dims 128" if row[4:6] == (128, 128) else "other dims"
            for name, ratio in of_row.items():
                ratios.setdefault(f"{name}, {row[0]} {row[1]}, {dims}", []).append(ratio)
            if of_row:
                ratios.setdefault("best of the peers", []).append(min(of_row.values()))
            torch.cuda.empty_cache()
    for name, values in ratios.items():
        report(name, values)
    print(f"{time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
