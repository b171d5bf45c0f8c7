"""torch's scaled_dot_product_attention on the shapes of attention_bench, contiguous bf16 K and V.

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {args.threads} threads, bf16")
    with torch.inference_mode():
        if args.only != "decode":
            for tokens in (2048, 8192):
                q, k, v = tensors(1, tokens, tokens)
                s = median_seconds(
                    args.repeats if tokens < 4096 else min(args.repeats, 3),
                    lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
                flops = tokens * (tokens + 1) / 2 * Q_HEADS * DIM * 4
                print(f"prefill b1 {tokens:5d}      {s * 1e3:9.2f} ms  {flops / s / 1e9:7.1f} GFLOP/s")
        if args.only != "prefill":
            for batch in (1, 16):
                for kv_len in (4096, 32768):
                    q, k, v = tensors(batch, 1, kv_len)
                    s = median_seconds(
                        args.repeats, lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
                    rate = 2 * batch * kv_len * KV_HEADS * DIM * 2 / s
                    print(f"decode  b{batch:<2d} kv {kv_len:5d}  {s * 1e3:9.3f} ms  {rate / 1e9:7.2f} GB/s")


if __name__ == "__main__":
    main()
