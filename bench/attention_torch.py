"""torch's scaled_dot_product_attention on the shapes of attention_bench, contiguous bf16 K and V.

The faster of enable_gqa and of K and V repeated to all heads beforehand, which is not timed. First
line: torch's own bf16 GEMM, the rate that prefill is compared with.

python bench/attention_torch.py [--threads N] [--repeats N] [--only prefill|decode]
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F

Q_HEADS, KV_HEADS, DIM = 32, 8, 128


def median_seconds(repeats, body):
    body()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tensors(batch, q_len, kv_len):
    q = torch.randn(batch, Q_HEADS, q_len, DIM, dtype=torch.bfloat16)
    k = torch.randn(batch, KV_HEADS, kv_len, DIM, dtype=torch.bfloat16)
    v = torch.randn(batch, KV_HEADS, kv_len, DIM, dtype=torch.bfloat16)
    return q, k, v


def paths(q, k, v, causal):
    group = Q_HEADS // KV_HEADS
    yield lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    yield lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def best_seconds(repeats, q, k, v, causal):
    return min(median_seconds(repeats, path) for path in paths(q, k, v, causal))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with torch.inference_mode():
        a, b = (torch.randn(4096, 4096, dtype=torch.bfloat16) for _ in range(2))
        gemm = 2 * 4096**3 / median_seconds(args.repeats, lambda: a @ b) / 1e9
        print(f"torch {torch.__version__}, {args.threads} threads, bf16; 4096^3 GEMM {gemm:.0f} GFLOP/s")
        if args.only != "decode":
            for tokens in (2048, 8192):
                s = best_seconds(args.repeats if tokens < 4096 else min(args.repeats, 3),
                                 *tensors(1, tokens, tokens), True)
                flops = tokens * (tokens + 1) / 2 * Q_HEADS * DIM * 4
                print(f"prefill b1 {tokens:5d}      {s * 1e3:9.2f} ms  {flops / s / 1e9:7.1f} GFLOP/s")
        if args.only != "prefill":
            for batch in (1, 16):
                for kv_len in (4096, 32768):
                    s = best_seconds(args.repeats, *tensors(batch, 1, kv_len), False)
                    rate = 2 * batch * kv_len * KV_HEADS * DIM * 2 / s
                    print(f"decode  b{batch:<2d} kv {kv_len:5d}  {s * 1e3:9.3f} ms  {rate / 1e9:7.2f} GB/s")


if __name__ == "__main__":
    main()
