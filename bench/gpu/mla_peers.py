"""FlashMLA and FlashAttention 3 on the shapes of mla_bench, in bf16: microseconds and how many times ours they take.

mla_bench --random 100 --seed 7 --json shapes.json; python3 mla_peers.py shapes.json FLASHMLA.so FA3.so
The libraries are vLLM's `_flashmla_C.abi3.so` and `vllm_flash_attn/_vllm_fa3_C.abi3.so`. As in mla_bench, a figure is a
graph of launches over enough copies of the pool to miss the L2 cache, the schedule made before. FlashMLA reads pages of 64
tokens alone; FlashAttention gets the latent as V and the rotated part as K.
"""
import json
import math
import statistics
import sys

import torch

LATENT, ROPE, UNCACHED_BYTES, MIN_LAUNCHES = 512, 64, 400 << 20, 8
SCALE = 0.0722


class Problem:
    """One shape's tensors: q [requests, q_len, heads, 576], pools [pages, page, 576], a shuffled page table."""

    def __init__(self, shape):
        self.lens = shape["kv_lens"]
        self.q_len, self.heads, self.page = shape["q_len"], shape["heads"], shape["page_size"]
        counts = [-(-n // self.page) for n in self.lens]
        order = torch.randperm(sum(counts), device="cuda", dtype=torch.int32)
        self.table = torch.zeros(len(counts), max(counts), device="cuda", dtype=torch.int32)
        at = 0
        for r, n in enumerate(counts):
            self.table[r, :n] = order[at:at + n]
            at += n
        pool_bytes = sum(counts) * self.page * (LATENT + ROPE) * 2
        copies = max(1, -(-UNCACHED_BYTES // pool_bytes))
        self.pools = [torch.randn(sum(counts), self.page, LATENT + ROPE, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        self.q = torch.randn(len(counts), self.q_len, self.heads, LATENT + ROPE, device="cuda", dtype=torch.bfloat16)
        self.kv_lens = torch.tensor(self.lens, device="cuda", dtype=torch.int32)


def flash_mla(p):
    if p.page != 64:
        return None
    plan = [None, None]

    def call(copy):
        out, _, plan[0], plan[1] = torch.ops._flashmla_C.dense_decode_fwd(
            p.q, p.pools[copy].unsqueeze(2), LATENT, p.kv_lens, p.table, SCALE, True, plan[0], plan[1], None)
        return out

    return call


def flash_attention(p):
    ops = torch.ops._vllm_fa3_C
    batch, most, longest = len(p.lens), p.q_len, max(p.lens)
    indptr = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * p.q_len
    plan = ops.get_scheduler_metadata(batch, most, longest, p.heads, 1, ROPE, LATENT, torch.bfloat16, p.kv_lens, indptr, None, None,
                                      None, None, p.page, 0, True, -1, -1, False, 0, None, 0)
    rows = p.q.flatten(0, 1)
    q_rope, q_latent = rows[..., LATENT:].contiguous(), rows[..., :LATENT].contiguous()
    pools = [(x[..., LATENT:].unsqueeze(2), x[..., :LATENT].unsqueeze(2)) for x in p.pools]

    def call(copy):
        k, v = pools[copy]
        out, *_ = ops.fwd(q_rope, k, v, None, None, q_latent, None, indptr, None, None, None, p.kv_lens, most, longest, p.table, None,
                          None, None, None, None, None, None, None, SCALE, True, -1, -1, 0.0, True, plan, 0, None, 0, None, 1, 0, None)
        return out

    return call


def graph_us(call, copies):
    launches = max(copies, MIN_LAUNCHES)
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            call(i % copies)
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times[1:])


def reference(p, request):
    """[q_len, heads, 512] in float32 of one request."""
    n = p.lens[request]
    rows = p.pools[0][p.table[request, :-(-n // p.page)].long()].flatten(0, 1)[:n].float()
    scores = torch.einsum("qhd,td->qht", p.q[request].float(), rows) * SCALE
    first = n - p.q_len + torch.arange(p.q_len, device="cuda")
    scores.masked_fill_(torch.arange(n, device="cuda")[None, None] > first[:, None, None], -torch.inf)
    return torch.softmax(scores, -1) @ rows[:, :LATENT]


def main():
    shapes_path, flashmla, fa3 = sys.argv[1:4]
    torch.ops.load_library(flashmla)
    torch.ops.load_library(fa3)
    torch.manual_seed(0)
    peers = {"FlashMLA": flash_mla, "FA3": flash_attention}
    ratios, best = {name: [] for name in peers}, []
    said = set()
    for shape in json.load(open(shapes_path)):
        if shape["format"] != "bf16" or shape["us"] <= 0:
            continue
        p, times = Problem(shape), {}
        for name, make in peers.items():
            try:
                call = make(p)
                if call is None:
                    continue
                out = call(0).reshape(len(p.lens), p.q_len, p.heads, LATENT)[-1].float()
                expected = reference(p, -1)
                error = ((out - expected).norm() / expected.norm()).item()
                if not error < 0.02:
                    raise RuntimeError(f"wrong by {error:.3f}")
                times[name] = graph_us(call, len(p.pools))
            except Exception as error:  # a peer that cannot run a shape is left out, with its reason once
                reason = " ".join(str(error).split())[:200]
                if (name, reason) not in said:
                    print(f"({name} left out on {shape['name']}: {reason})", file=sys.stderr, flush=True)
                    said.add((name, reason))
        for name, us in times.items():
            ratios[name].append(us / shape["us"])
        if times:
            best.append(min(times.values()) / shape["us"])
        columns = "".join(f"  {name} {us:9.1f} us {us / shape['us']:5.2f} x" for name, us in times.items())
        print(f"{shape['name']:<48} {shape['us']:9.1f} us{columns}", flush=True)
        del p
    for name, values in [*ratios.items(), ("the best peer", best)]:
        if values:
            mean = math.exp(sum(map(math.log, values)) / len(values))
            print(f"{name}: {len(values)} shapes, geometric mean {mean:.3f} x ours, least {min(values):.2f}, below 0.93: "
                  f"{sum(v < 0.93 for v in values)}")


if __name__ == "__main__":
    main()
