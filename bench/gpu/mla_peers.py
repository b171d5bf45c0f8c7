"""Latent attention in bf16 beside FlashMLA and FlashAttention 3: microseconds and how many times ours they take.

build_kernels.sh; python3 mla_peers.py FLASHMLA.so FA3.so [--random N] [--seed S] [--seconds T]
                                       [--shape HEADS,Q_LEN,REQUESTS,TOKENS,PAGE]... [--kernels OURS.so]...
The libraries are vLLM's `_flashmla_C.abi3.so` and `vllm_flash_attn/_vllm_fa3_C.abi3.so`. A figure is the median of replays
of a graph of launches over enough copies of the pool to miss the L2 cache, the schedule made before; replays go by turns.
FlashMLA reads pages of 64 tokens alone; FlashAttention gets the latent as V and the rotated part as K. N shapes (100, where
none is named) are drawn from the seed (the clock's); none begins after T seconds (600). More libraries of ours are timed
beside the first, to which ratios refer.
"""
import argparse
import ctypes as ct
import math
import os
import random
import statistics
import sys
import time

import torch

from gpu_events import elapsed_us
from ww_attention import B, F, I, L, P, ok, stream

LATENT, ROPE, UNCACHED_BYTES, MIN_LAUNCHES, REPLAYS = 512, 64, 256 << 20, 8, 7
DIM, SCALE = LATENT + ROPE, 0.0722
MOST_WRONG = 0.02


class MlaParams(ct.Structure):  # as mla_params.h has it
    _fields_ = [("q", P), ("q_token_stride", L), ("q_head_stride", L), ("out", P), ("out_token_stride", L), ("out_head_stride", L),
                ("lse", P), ("kv", P), ("page_stride_bytes", L), ("token_stride_bytes", L), ("page_table", P), ("page_rows", P),
                ("page_table_stride", I), ("kv_lens", P), ("q_indptr", P), ("tree_mask", P), ("tree_mask_words", I),
                ("num_requests", I), ("num_heads", I), ("max_q_len", I), ("page_size", I), ("page_shift", I), ("causal", B),
                ("earlier_kv_settled", B), ("scale", F), ("kv_scale", P)]


class Shape:
    def __init__(self, heads, q_len, page, kv_lens):
        self.heads, self.q_len, self.page, self.kv_lens = heads, q_len, page, kv_lens
        self.drawn, self.name = False, f"h{heads} q{q_len} {len(kv_lens)}x{max(kv_lens)} page {page}"


def even_shape(text):
    heads, q_len, requests, tokens, page = map(int, text.split(","))
    return Shape(heads, q_len, page, [tokens] * requests)


def random_shape(seed):
    draw = random.Random(seed)
    heads, page = 8 << draw.randrange(5), 64
    q_len, requests, longest = 1 + draw.randrange(3), 1 << draw.randrange(8), 256 << draw.randrange(8)
    if draw.randrange(4) == 0:
        heads = 1 + draw.randrange(128)
    if draw.randrange(4) == 0:
        page = 1 << draw.randrange(7)
    lens = [longest // 4 + draw.randrange(3 * longest // 4) for _ in range(requests)]
    shape = Shape(heads, q_len, page, lens)
    shape.drawn, shape.name = True, f"{seed}: h{heads} q{q_len} {requests} to {longest} page {page}"
    return shape


class Problem:
    """One shape's tensors: q [requests, q_len, heads, 576], pools [pages, page, 576], a shuffled page table."""

    memory = torch.empty(0)

    def __init__(self, shape):
        self.shape, self.lens = shape, shape.kv_lens
        self.q_len, self.heads, self.page = shape.q_len, shape.heads, shape.page
        counts = [-(-n // self.page) for n in self.lens]
        pages, widest = sum(counts), max(counts)
        order = torch.randperm(pages, device="cuda", dtype=torch.int32)
        begins = torch.tensor([0] + counts, device="cuda").cumsum(0)[:-1]
        at = torch.arange(widest, device="cuda")[None]
        known = at < torch.tensor(counts, device="cuda")[:, None]
        self.table = torch.where(known, order[(begins[:, None] + at).clamp(max=pages - 1)], 0).to(torch.int32).contiguous()
        numbers = pages * self.page * DIM
        copies = max(1, -(-UNCACHED_BYTES // (2 * numbers)))
        if Problem.memory.numel() < copies * numbers:  # kept, since making numbers takes longer than timing
            Problem.memory = None
            Problem.memory = torch.empty(max(copies * numbers, 3 << 30), device="cuda", dtype=torch.bfloat16).normal_()
        self.pools = [Problem.memory[i * numbers:(i + 1) * numbers].view(pages, self.page, DIM) for i in range(copies)]
        self.q = torch.randn(len(counts), self.q_len, self.heads, DIM, device="cuda", dtype=torch.bfloat16)
        self.kv_lens = torch.tensor(self.lens, device="cuda", dtype=torch.int32)
        self.indptr = torch.arange(len(counts) + 1, device="cuda", dtype=torch.int32) * self.q_len


class Ours:
    def __init__(self, path):
        self.lib = ct.CDLL(path)
        self.lib.ww_mla_params_bytes.restype = self.lib.ww_mla_workspace_bytes.restype = ct.c_size_t
        if self.lib.ww_mla_params_bytes() != ct.sizeof(MlaParams):
            raise RuntimeError(f"MlaParams has {self.lib.ww_mla_params_bytes()} bytes, here {ct.sizeof(MlaParams)}")
        self.lib.ww_mla_workspace_bytes.argtypes = [ct.POINTER(MlaParams)]
        self.lib.ww_mla_plan.argtypes = [ct.POINTER(MlaParams), P, P]
        self.lib.ww_mla_decode.argtypes = [ct.POINTER(MlaParams), P, B, P]

    def __call__(self, p):
        rows = len(p.lens) * p.q_len
        out = torch.empty(rows, p.heads, LATENT, device="cuda", dtype=torch.bfloat16)
        lse = torch.empty(rows, p.heads, device="cuda")
        a = MlaParams(p.q.data_ptr(), p.heads * DIM, DIM, out.data_ptr(), p.heads * LATENT, LATENT, lse.data_ptr(), 0,
                      p.page * DIM * 2, DIM * 2, p.table.data_ptr(), None, p.table.shape[1], p.kv_lens.data_ptr(),
                      p.indptr.data_ptr(), None, 0, len(p.lens), p.heads, p.q_len, p.page, p.page.bit_length() - 1, True, True, SCALE, None)
        if p.page & (p.page - 1):
            a.page_shift = -1
        workspace = torch.empty(self.lib.ww_mla_workspace_bytes(a), device="cuda", dtype=torch.uint8)
        ok(self.lib.ww_mla_plan(a, workspace.data_ptr(), stream()))

        def call(copy, first=True):
            a.kv = p.pools[copy].data_ptr()
            ok(self.lib.ww_mla_decode(a, workspace.data_ptr(), not first, stream()))
            return out

        call.kept = lse  # the kernel writes it
        return call


def flash_mla(p):
    if p.page != 64:
        return None
    plan = [None, None]

    def call(copy, first=True):
        out, _, plan[0], plan[1] = torch.ops._flashmla_C.dense_decode_fwd(
            p.q, p.pools[copy].unsqueeze(2), LATENT, p.kv_lens, p.table, SCALE, True, plan[0], plan[1], None)
        return out

    return call


def flash_attention(p):
    ops = torch.ops._vllm_fa3_C
    batch, most, longest = len(p.lens), p.q_len, max(p.lens)
    plan = ops.get_scheduler_metadata(batch, most, longest, p.heads, 1, ROPE, LATENT, torch.bfloat16, p.kv_lens, p.indptr, None, None,
                                      None, None, p.page, 0, True, -1, -1, False, 0, None, 0)
    rows = p.q.flatten(0, 1)
    q_rope, q_latent = rows[..., LATENT:].contiguous(), rows[..., :LATENT].contiguous()
    pools = [(x[..., LATENT:].unsqueeze(2), x[..., :LATENT].unsqueeze(2)) for x in p.pools]

    def call(copy, first=True):
        k, v = pools[copy]
        out, *_ = ops.fwd(q_rope, k, v, None, None, q_latent, None, p.indptr, None, None, None, p.kv_lens, most, longest, p.table, None,
                          None, None, None, None, None, None, None, SCALE, True, -1, -1, 0.0, True, plan, 0, None, 0, None, 1, 0, None)
        return out

    return call


def graph_of(call, copies):
    """A graph of launches, and how many."""
    launches = max(copies, MIN_LAUNCHES)
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            call(i % copies, i == 0)
    return graph, launches


def times_us(calls, copies):
    """Medians of replays by turns."""
    graphs = {name: graph_of(call, copies) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for turn in range(REPLAYS + 1):
        for name, (graph, launches) in graphs.items():
            us = elapsed_us(graph.replay)
            if turn:
                times[name].append(us / launches)
    return {name: statistics.median(of) for name, of in times.items()}


def reference(p, request):
    """[q_len, heads, 512] in float32 of one request."""
    n = p.lens[request]
    rows = p.pools[0][p.table[request, :-(-n // p.page)].long()].flatten(0, 1)[:n].float()
    scores = torch.einsum("qhd,td->qht", p.q[request].float(), rows) * SCALE
    first = n - p.q_len + torch.arange(p.q_len, device="cuda")
    scores.masked_fill_(torch.arange(n, device="cuda")[None, None] > first[:, None, None], -torch.inf)
    return torch.softmax(scores, -1) @ rows[:, :LATENT]


def right_calls(shape, p, makers, said):
    """Those of the makers that run the shape, and are right; others are left out, with the reason once."""
    expected, calls = reference(p, -1), {}
    for name, make in makers.items():
        try:
            call = make(p)
            if call is None:
                continue
            out = call(0).reshape(len(p.lens), p.q_len, p.heads, LATENT)[-1].float()
            error = ((out - expected).norm() / expected.norm()).item()
            if not error < MOST_WRONG:
                raise RuntimeError(f"wrong by {error:.3f}")
            calls[name] = call
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            if (name, reason) not in said:
                print(f"({name} left out on {shape.name}: {reason})", file=sys.stderr, flush=True)
                said.add((name, reason))
    return calls


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def report(rows, ours):
    """`rows`: of shape and times by name."""
    for name in ours[1:]:
        both = [t[name] / t[ours[0]] for _, t in rows if name in t]
        if both:
            print(f"{name}: {mean(both):.3f} x {ours[0]}, least {min(both):.2f}, most {max(both):.2f}")
    best = []
    for shape, times in rows:
        peers = [us for name, us in times.items() if name not in ours]
        if shape.drawn and peers and ours[0] in times:
            best.append((min(peers) / times[ours[0]], shape))
    if not best:
        return
    values = [ratio for ratio, _ in best]
    print(f"the best peer: {len(values)} drawn shapes, geometric mean {mean(values):.3f} x ours, least {min(values):.3f}, below 0.93: "
          f"{sum(v < 0.93 for v in values)}, below 1: {sum(v < 1 for v in values)}")
    for ratio, shape in sorted(best, key=lambda x: x[0])[:12]:
        print(f"  {ratio:.3f} {shape.name}")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("flashmla")
    parser.add_argument("fa3")
    parser.add_argument("--random", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--shape", action="append", type=even_shape, default=[])
    parser.add_argument("--kernels", action="append")
    return parser.parse_args()


def main():
    args, began = arguments(), time.monotonic()
    torch.ops.load_library(args.flashmla)
    torch.ops.load_library(args.fa3)
    paths = args.kernels or [os.path.join(os.path.dirname(os.path.abspath(__file__)), "ww_kernels.so")]
    ours = ["ours"] + [os.path.basename(path) for path in paths[1:]]
    makers = {name: Ours(path) for name, path in zip(ours, paths)} | {"FlashMLA": flash_mla, "FA3": flash_attention}
    count = args.random if args.random is not None else 0 if args.shape else 100
    shapes = args.shape + [random_shape(args.seed + i) for i in range(count)]
    print(f"{torch.cuda.get_device_name()}, seed {args.seed}", flush=True)
    rows, said = [], set()
    for shape in shapes:
        if time.monotonic() - began > args.seconds:
            print(f"(time is over after {len(rows)} shapes)")
            break
        p = Problem(shape)
        calls = right_calls(shape, p, makers, said)
        times = times_us(calls, len(p.pools))
        first = times.get(ours[0], math.nan)
        columns = "".join(f"  {name} {us:8.1f} {us / first:5.2f}" for name, us in times.items() if name != ours[0])
        print(f"{shape.name:<44} {first:8.1f} us{columns}", flush=True)
        rows.append((shape, times))
        del p, calls
    report(rows, ours)


if __name__ == "__main__":
    main()
