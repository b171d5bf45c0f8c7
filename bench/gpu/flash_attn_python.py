"""Times the Python package's flash_attn_func beside torch's scaled_dot_product_attention on the same tensors,
taking turns in one process. Run: python3 flash_attn_python.py [BATCHxTOKENS...] (default 4x4096); causal, bf16,
32 q heads on 8 kv heads, head dim 128. Prints medians in microseconds; needs torch and the installed package."""
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import warpweave
from gpu_events import elapsed_us


def interleaved(calls, rounds=60):
    times = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(elapsed_us(call))
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    for shape in sys.argv[1:] or ["4x4096"]:
        batch, tokens = (int(x) for x in shape.split("x"))
        q = torch.randn(batch, tokens, 32, 128, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(batch, tokens, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]

        def sdpa(backend):
            def call():
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
            return call

        calls = {"warpweave": lambda: warpweave.flash_attn_func(q, k, v, causal=True),
                 "torch cuDNN": sdpa(SDPBackend.CUDNN_ATTENTION), "torch flash": sdpa(SDPBackend.FLASH_ATTENTION)}
        out, theirs = calls["warpweave"](), calls["torch cuDNN"]().transpose(1, 2)
        difference = float((out.float() - theirs.float()).norm() / theirs.float().norm())
        flops = 4 * batch * 32 * 128 * tokens * (tokens + 1) / 2
        cells = [f"{name} {us:.0f} us ({flops / us / 1e6:.0f} TFLOP/s)" for name, us in interleaved(calls).items()]
        print(f"| {shape} | {' | '.join(cells)} | relative difference {difference:.1e} |", flush=True)


if __name__ == "__main__":
    main()
