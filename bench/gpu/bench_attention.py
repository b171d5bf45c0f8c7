"""Times the attention kernels beside cuDNN SDPA (torch, contiguous K/V) in one process, interleaved.
Decode: CUDA graphs that walk over enough K/V copies to miss the L2. Prefill: long repeats.
Run: ./build_kernels.sh, then python3 bench_attention.py [decode|prefill|...] (default: all). Prints rows
and writes attention-DATE.json and .md (a table) into $OUT or here."""
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import peers
import ww_attention as ww
from gpu_events import elapsed_us

BF = torch.bfloat16
ROWS = []


def graph_of(fs):
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for f in fs[:2]:
            f()
    torch.cuda.current_stream().wait_stream(s)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for f in fs:
            f()
    return g


def interleaved(graphs, min_ms=60.0, least=7):
    """{name: (replay, calls)} -> {name: median us a call}, one replay of each in turn."""
    times = {name: [] for name in graphs}
    for name, (g, n) in graphs.items():
        g()
    torch.cuda.synchronize()
    total = 0.0
    while total < min_ms * len(graphs) or len(next(iter(times.values()))) < least:
        for name, (g, n) in graphs.items():
            us = elapsed_us(g)
            times[name].append(us / n)
            total += us * 1e-3
        if len(next(iter(times.values()))) > 300:
            break
    return {name: statistics.median(v) for name, v in times.items()}


def copies_for(nbytes, floor=400e6, cap=12, least=4):
    """Calls in a graph, each on K and V of its own: at least a few, since one alone follows no other."""
    return max(least, min(cap, int(floor / nbytes) + 1))


def decode(lib, shapes=((1, 4096), (1, 32768), (8, 8192), (64, 2048), (64, 8192), (256, 1024)),
           pages=(64, 16, 1), heads=(32, 8), d=128, kv="16", hnd=False, peer=True, label="decode"):
    for b, s in shapes:
        nbytes = int(b * s * heads[1] * d * 2 * ww.KV_BYTES[kv])
        n = copies_for(nbytes)
        graphs, keep = {}, []
        if peer:
            q = torch.randn(b, heads[0], 1, d, device="cuda", dtype=BF)
            kvs = [tuple(torch.randn(b, heads[1], s, d, device="cuda", dtype=BF) for _ in range(2)) for _ in range(n)]
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                g = graph_of([lambda k=k, v=v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True) for k, v in kvs])
            graphs["cudnn"] = (g.replay, n)
            keep.append((q, kvs))
        for page in pages:
            p = ww.Problem([1] * b, [s] * b, heads=heads, d=d, page=page, kv=kv, hnd=hnd, poison=False, copies=n)
            for early in (False, True):
                r = ww.Decode(lib, p, early=early)
                r.plan()
                g = graph_of([lambda c=c, r=r: r.run(c) for c in range(n)])
                graphs[f"page{page}" + early * " as launched in a forward pass"] = (g.replay, n)
                keep.append((p, r, g))
            if not hnd and page == 16:
                for name, call in {**peers.flashinfer_decode(p, False), **peers.flashinfer_decode(p, True)}.items():
                    g = graph_of([lambda c=c, call=call: call(c) for c in range(n)])
                    graphs[f"{name} page{page}"] = (g.replay, n)
                    keep.append(g)
        us = interleaved(graphs)
        base = us.get("cudnn")
        row = {"case": f"{label} {kv} d{d} {b}x{s}", "bytes": nbytes}
        text = []
        for name, t in us.items():
            row[name] = round(t, 2)
            text.append(f"{name} {t:.1f} us ({nbytes / t / 1e3:.0f} GB/s" + (f", {t / base:.3f}x)" if base and name != "cudnn" else ")"))
        ROWS.append(row)
        print("|", row["case"], "|", " | ".join(text), "|", flush=True)
        del graphs, keep
        torch.cuda.empty_cache()


def prefill_flops(b, h, sq, sk, d, causal=True):
    n = sq * (sk - sq) + sq * (sq + 1) / 2 if causal else sq * sk
    return 4 * b * h * n * d


def prefill(lib, kinds=("sm90",), shapes=((16, 1024), (4, 4096), (1, 16384)), heads=(32, 8), d=128,
            pages=("ragged", 64, 16, 1), causal=True, peer=True, min_ms=250.0, kv="16"):
    """`ragged`: one page per request, contiguous."""
    for b, s in shapes:
        flops = prefill_flops(b, heads[0], s, s, d, causal)
        graphs, keep = {}, []
        if peer:
            q = torch.randn(b, heads[0], s, d, device="cuda", dtype=BF)
            k, v = (torch.randn(b, heads[1], s, d, device="cuda", dtype=BF) for _ in range(2))

            def cudnn(q=q, k=k, v=v):
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            graphs["cudnn"] = (cudnn, 1)
        for kind in kinds:
            for page in pages:
                if kind == "sm80" and page not in ("ragged", 16):
                    continue
                p = ww.Problem([s] * b, [s] * b, heads=heads, d=d, page=s if page == "ragged" else page,
                               causal=causal, poison=False, kv=kv)
                r = ww.Extend(lib, p, kind)
                r.plan()
                graphs[f"{kind} {page}"] = (r.run, 1)
                keep.append((p, r))
                if page == 16 and kv == "16":
                    for name, call in peers.flashinfer_prefill(p).items():
                        graphs[f"{name} {page}"] = (lambda call=call: call(0), 1)
        us = interleaved(graphs, min_ms)
        row = {"case": f"prefill {'' if kv == '16' else kv + ' '}d{d} {'causal' if causal else 'full'} {b}x{s}", "flops": flops}
        text = []
        for name, t in us.items():
            row[name] = round(t, 1)
            text.append(f"{name} {t:.0f} us ({flops / t / 1e6:.0f} TF" + (f", {us['cudnn'] / t:.3f}x)" if peer and name != "cudnn" else ")"))
        ROWS.append(row)
        print("|", row["case"], "|", " | ".join(text), "|", flush=True)
        del graphs, keep
        torch.cuda.empty_cache()


def mixed_lengths(count, tokens, seed=0):
    """`count` lengths of 64..4096 that add up to about `tokens`."""
    g = torch.Generator().manual_seed(seed)
    return [int(x) for x in torch.randint(64, 2 * tokens // count - 64, (count,), generator=g).clamp(64, 4096)]


def ragged(lib, label, q_lens, kv_lens, page, window=-1, heads=(32, 8), d=128):
    """Prefill of unlike requests, without a peer."""
    p = ww.Problem(q_lens, kv_lens, heads=heads, d=d, page=page, window=window, poison=False)
    r = ww.Extend(lib, p, "sm90")
    r.plan()
    entries = 0
    for q, kv in zip(q_lens, kv_lens):
        seen = torch.arange(kv - q + 1, kv + 1, dtype=torch.float64)
        entries += float((seen if window < 0 else seen.clamp(max=window + 1)).sum())
    us = interleaved({"fa3": (r.run, 1)}, 150.0)["fa3"]
    tflops = 4 * heads[0] * d * entries / us / 1e6
    ROWS.append({"case": label, "fa3": round(us, 1), "TFLOP/s": round(tflops)})
    print(f"| {label} | {us:.0f} us ({tflops:.0f} TFLOP/s) |", flush=True)


def skewed(lib, label, kv_lens, page, kv="16", heads=(32, 8), d=128):
    """Decode of unlike lengths, without a peer."""
    nbytes = int(sum(kv_lens) * heads[1] * d * 2 * ww.KV_BYTES[kv])
    n = copies_for(nbytes)
    p = ww.Problem([1] * len(kv_lens), kv_lens, heads=heads, d=d, page=page, kv=kv, poison=False, copies=n)
    r = ww.Decode(lib, p)
    r.plan()
    g = graph_of([lambda c=c: r.run(c) for c in range(n)])
    us = interleaved({"decode": (g.replay, n)})["decode"]
    ROWS.append({"case": label, "decode": round(us, 1), "GB/s": round(nbytes / us / 1e3)})
    print(f"| {label} | {us:.1f} us ({nbytes / us / 1e3:.0f} GB/s) |", flush=True)


def unlike(lib):
    lengths = mixed_lengths(24, 58249)
    ragged(lib, f"prefill 24 mixed lengths, {sum(lengths)} tokens", lengths, lengths, 4096)
    ragged(lib, "prefill 8x512 on 16384, page 64", [512] * 8, [16896] * 8, 64)
    ragged(lib, "prefill 8x512 on 16384, page 16", [512] * 8, [16896] * 8, 16)
    ragged(lib, "prefill window 4096 at 32768", [32768], [32768], 32768, window=4095)
    skewed(lib, "decode 1x65536 + 63x1024, page 16", [65536] + [1024] * 63, 16)
    g = torch.Generator().manual_seed(1)
    skewed(lib, "decode 64 lengths of 256..8192, page 16",
           [int(x) for x in torch.randint(256, 8193, (64,), generator=g)], 16)


def plans(lib):
    for b, s in ((1, 4096), (64, 2048), (256, 1024)):
        p = ww.Problem([1] * b, [s] * b, page=64, poison=False)
        r = ww.Decode(lib, p)
        g = graph_of([r.plan] * 20)
        us = interleaved({"plan": (g.replay, 20)}, 5.0)
        print(f"| decode plan {b}x{s} | {us['plan']:.2f} us |", flush=True)


def markdown():
    """ROWS as one table: case, then `name time (ratio to cuDNN)`."""
    lines = ["| case | us, and x of cuDNN SDPA's time |", "|---|---|"]
    for row in ROWS:
        cells = []
        for name, value in row.items():
            if name in ("case", "bytes", "flops"):
                continue
            peer = row.get("cudnn")
            ratio = f" ({value / peer:.3f}x)" if peer and name != "cudnn" else ""
            cells.append(f"{name} {value}{ratio}")
        lines.append(f"| {row['case']} | {', '.join(cells)} |")
    return "\n".join(lines)


ALL = ["decode", "hnd", "fp8", "fp4", "d64", "d256", "unlike", "prefill", "prefill_fp8", "prefill64", "prefill256", "plans"]


def main():
    lib = ww.load(ww.library_path())
    what = sys.argv[1:] or ALL
    print(torch.cuda.get_device_name(), torch.__version__, torch.backends.cudnn.version())
    for name in what:
        t = time.time()
        if name == "decode": decode(lib)
        if name == "hnd": decode(lib, pages=(64, 16), hnd=True, label="decode hnd")
        if name == "fp8": decode(lib, shapes=((1, 32768), (64, 2048), (64, 8192)), pages=(64, 16), kv="e4m3", peer=False)
        if name == "fp4": decode(lib, shapes=((1, 32768), (64, 2048), (64, 8192)), pages=(64, 16), kv="e2m1", peer=False)
        if name == "d64": decode(lib, shapes=((64, 8192),), pages=(64,), d=64)
        if name == "d256": decode(lib, shapes=((64, 8192),), pages=(64,), d=256, heads=(16, 4))
        if name == "prefill": prefill(lib)
        if name == "prefill80": prefill(lib, kinds=("sm80",), pages=("ragged", 16))
        if name == "prefill_fp8": prefill(lib, pages=("ragged", 64, 16), kv="e4m3", peer=False)
        if name == "prefill64": prefill(lib, shapes=((4, 4096),), d=64, pages=("ragged", 16))
        if name == "prefill256": prefill(lib, shapes=((4, 4096), (1, 16384)), d=256, heads=(16, 4), pages=("ragged", 16))
        if name == "unlike": unlike(lib)
        if name == "plans": plans(lib)
        print(f"({name}: {time.time() - t:.1f} s)", flush=True)
    out = os.environ.get("OUT", ".")
    name = os.path.join(out, f"attention-{time.strftime('%Y-%m-%d')}")
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version(), "rows": ROWS}
    with open(name + ".json", "w") as f:
        json.dump(report, f, indent=1)
    with open(name + ".md", "w") as f:
        f.write(f"{report['device']}, torch {report['torch']}, cuDNN {report['cudnn']}\n\n{markdown()}\n")


if __name__ == "__main__":
    main()
