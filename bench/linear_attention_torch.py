"""transformers' torch code of the gated delta rule on the shapes of linear_attention_bench, best of several runs.

python bench/linear_attention_torch.py [--threads N] [--repeats N] [--k-heads N] [--v-heads N]
"""
import argparse
import time

import torch
import transformers
from transformers.models.qwen3_next import modeling_qwen3_next as q3n

DIM = 128


def best_ms(repeats, body):
    body()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        body()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--k-heads", type=int, default=16)
    parser.add_argument("--v-heads", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {args.threads} threads, float32, "
          f"{args.k_heads} k heads, {args.v_heads} v heads, dims {DIM}")
    shapes = [("extend", 1, 64), ("extend", 1, 512), ("extend", 1, 2048), ("extend", 8, 256),
              ("decode", 1, 1), ("decode", 8, 1), ("decode", 64, 1)]
    for phase, batch, tokens in shapes:
        q, k = (torch.randn(batch, tokens, args.k_heads, DIM) for _ in range(2))
        v = torch.randn(batch, tokens, args.v_heads, DIM)
        g = -0.1 * torch.randn(batch, tokens, args.v_heads).abs()
        beta = torch.full((batch, tokens, args.v_heads), 0.5)
        state = torch.zeros(batch, args.v_heads, DIM, DIM)
        rule = q3n.torch_chunk_gated_delta_rule if phase == "extend" else q3n.torch_recurrent_gated_delta_rule

        def run():
            group = args.v_heads // args.k_heads
            rule(q.repeat_interleave(group, dim=2), k.repeat_interleave(group, dim=2), v, g=g, beta=beta,
                 initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)

        with torch.inference_mode():
            ms = best_ms(args.repeats, run)
        print(f"{phase} {batch} x {tokens:<5d} {ms:9.3f} ms  {batch * tokens / ms * 1e3:9.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
