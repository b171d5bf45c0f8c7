"""flash-linear-attention (fla, PyPI) on the rows that linear_bench printed: microseconds and how many times ours they take.

linear_bench random 40 7 > rows.txt; python3 linear_peers.py rows.txt [SECONDS]
Needs torch, triton, flash-linear-attention, fla-core, einops. Prompts by chunk_*, decode by fused_recurrent_* over enough sets
of states to miss the L2 cache, launches in a graph where fla lets them be captured. It stops after SECONDS.
"""
import math
import re
import statistics
import sys
import time

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla.ops.kda import chunk_kda, fused_recurrent_kda

ROW = re.compile(r"(?i)(gdn|kda)\s+(extend|decode)\s+heads\s+(\d+)/\s*(\d+) dims\s+(\d+)/\s*(\d+)\s+(\d+) x\s+(\d+) state (\w+)\s*:\s+([\d.]+) us")
STATE_SETS_BYTES = 400 << 20


def calls_of(kind, phase, k_heads, v_heads, k_dim, v_dim, requests, tokens):
    """Calls to time, one a set of states."""
    batch, length = (requests, 1) if phase == "decode" else (1, requests * tokens)
    indptr = None if phase == "decode" else torch.arange(requests + 1, device="cuda", dtype=torch.int32) * tokens

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    q, k = (random(batch, length, k_heads, k_dim) for _ in range(2))
    v, beta = random(batch, length, v_heads, v_dim), torch.rand(batch, length, v_heads, device="cuda").bfloat16()
    decays = (batch, length, v_heads, k_dim) if kind == "kda" else (batch, length, v_heads)
    g = -0.1 * torch.rand(*decays, device="cuda")
    state_bytes = requests * v_heads * k_dim * v_dim * 4
    sets = 1 if phase == "extend" else max(2, min(64, STATE_SETS_BYTES // state_bytes + 1))
    states = [random(requests, v_heads, k_dim, v_dim, dtype=torch.float32) for _ in range(sets)]
    function = {("gdn", "extend"): chunk_gated_delta_rule, ("gdn", "decode"): fused_recurrent_gated_delta_rule,
                ("kda", "extend"): chunk_kda, ("kda", "decode"): fused_recurrent_kda}[kind, phase]
    options = dict(output_final_state=True, use_qk_l2norm_in_kernel=True)
    if indptr is not None:
        options["cu_seqlens"] = indptr
    return [lambda s=s: function(q=q, k=k, v=v, g=g, beta=beta, initial_state=s, **options) for s in states]


def median_us(run, launches):
    times = []
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times[1:])


def measure(calls, phase):
    calls[0]()
    torch.cuda.synchronize()
    launches = len(calls) if phase == "extend" else max(16, len(calls))

    def run():
        for i in range(launches):
            calls[i % len(calls)]()

    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return median_us(graph.replay, launches)
    except Exception:  # a call that waits for the device cannot be captured
        torch.cuda.synchronize()
        return median_us(run, launches)


def main():
    until = time.time() + (float(sys.argv[2]) if len(sys.argv) > 2 else 1e9)
    ratios = {}
    torch.manual_seed(0)
    with torch.no_grad():
        for line in open(sys.argv[1]):
            row = ROW.search(line)
            if row is None or time.time() > until:
                continue
            kind, phase, *sizes, _, ours = row.groups()
            try:
                us = measure(calls_of(kind.lower(), phase, *map(int, sizes)), phase)
            except Exception as error:  # a shape that a peer does not take is left out, with the reason
                print(f"(left out: {line.strip()[:60]}: {' '.join(str(error).split())[:160]})", flush=True)
                continue
            ratios.setdefault(f"{kind} {phase}", []).append(us / float(ours))
            print(f"{line.strip()[:76]} ours {float(ours):9.1f} fla {us:9.1f} us {us / float(ours):5.2f} x", flush=True)
    for name, values in ratios.items():
        print(f"{name}: {len(values)} rows, geometric mean {math.exp(sum(map(math.log, values)) / len(values)):.2f} x ours, "
              f"least {min(values):.2f}")


if __name__ == "__main__":
    main()
