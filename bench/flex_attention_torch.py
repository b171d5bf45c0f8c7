"""torch on the shapes of flex_attention_bench: SDPA and, where it runs, compiled flex_attention.

python bench/flex_attention_torch.py [--threads N] [--repeats N] [--tokens N]
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F

Q_HEADS, KV_HEADS, DIM = 32, 8, 128


def median_ms(repeats, body):
    body()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {args.threads} threads, bf16")
    for tokens in [args.tokens] if args.tokens else [2048, 8192]:
        q = torch.randn(1, Q_HEADS, tokens, DIM, dtype=torch.bfloat16)
        k, v = (torch.randn(1, KV_HEADS, tokens, DIM, dtype=torch.bfloat16) for _ in range(2))
        flops = tokens * (tokens + 1) / 2 * Q_HEADS * DIM * 4

        def show(what, ms, share=1.0):
            print(f"{what:28s} {tokens:5d} {ms:9.2f} ms  {share * flops / ms / 1e6:7.1f} GFLOP/s visible", flush=True)

        with torch.inference_mode():
            show("sdpa causal", median_ms(args.repeats, lambda: F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True)))
        try:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention
            compiled = torch.compile(flex_attention)
            masks = {
                "flex causal": (lambda b, h, i, j: i >= j, 1.0),
                "flex window(1024)": (lambda b, h, i, j: (i >= j) & (i - j < 1024),
                                      sum(min(i + 1, 1024) for i in range(tokens)) / (tokens * (tokens + 1) / 2)),
            }
            for name, (mask, share) in masks.items():
                block_mask = create_block_mask(mask, None, None, tokens, tokens, device="cpu")
                with torch.inference_mode():
                    show(name, median_ms(args.repeats, lambda: compiled(
                        q, k, v, block_mask=block_mask, enable_gqa=True)), share)
        except Exception as error:  # no compiler for it on this machine
            print("flex_attention does not run here:", str(error).splitlines()[0])


if __name__ == "__main__":
    main()
