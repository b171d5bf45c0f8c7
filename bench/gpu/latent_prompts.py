"""Prompts of latent attention in the 192/128 form beside FlashAttention 3 and cuDNN: microseconds, TFLOP/s of visible scores,
and how many times ours the best peer takes.

build_kernels.sh; python3 latent_prompts.py FA3.so [HEADS,REQUESTS,TOKENS[,full]]...
FA3.so: vLLM's `vllm_flash_attn/_vllm_fa3_C.abi3.so`. Causal; `full`: as for a chunk of a prefix. K and V of ours stand side
by side as the server expands them, those of the peers by themselves. Medians of launches by turns.
"""
import math
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import ww_attention as ww
from gpu_events import elapsed_us

QK, V, PAGE = 192, 128, 128
ROUNDS, ROUND_US = 7, 6000


class Problem:
    def __init__(self, heads, requests, tokens, causal):
        self.heads, self.requests, self.tokens, self.causal = heads, requests, tokens, causal
        self.n, self.scale = requests * tokens, 1 / math.sqrt(QK)
        self.q = torch.randn(self.n, heads, QK, device="cuda", dtype=torch.bfloat16)
        self.kv = torch.randn(self.n, heads, QK + V, device="cuda", dtype=torch.bfloat16)
        self.k, self.v = self.kv[..., :QK].contiguous(), self.kv[..., QK:].contiguous()
        self.indptr = torch.arange(requests + 1, device="cuda", dtype=torch.int32) * tokens
        self.flops = 2 * (QK + V) * heads * requests * tokens * tokens * (0.5 if causal else 1)

    def by_request(self, x):
        return x.view(self.requests, self.tokens, self.heads, -1)


class Ours:
    def __init__(self, lib, p):
        if p.tokens % PAGE:
            raise ValueError(f"requests of a multiple of {PAGE} tokens")
        self.lib, pages = lib, p.tokens // PAGE
        self.out = torch.zeros(p.n, p.heads, V, device="cuda", dtype=torch.bfloat16)
        self.lse = torch.zeros(p.n, p.heads, device="cuda")
        self.table = torch.arange(p.requests * pages, device="cuda", dtype=torch.int32)
        self.lens = torch.full((p.requests,), p.tokens, device="cuda", dtype=torch.int32)
        rows = lib.ww_latent_tile_rows()
        self.max_items = p.n // rows + p.requests
        self.items = torch.zeros(self.max_items, 2, device="cuda", dtype=torch.int32)
        self.header = torch.zeros(6, device="cuda", dtype=torch.int32)
        self.work = ww.ExtendWorklist(self.items.data_ptr(), self.header.data_ptr())
        a = self.args = ww.AttentionParams()
        a.q, a.q_token_stride, a.out, a.out_token_stride = p.q.data_ptr(), p.heads * QK, self.out.data_ptr(), p.heads * V
        a.lse, a.k, a.v = self.lse.data_ptr(), p.kv.data_ptr(), p.kv.data_ptr() + 2 * QK
        a.head_stride, a.token_stride, a.page_stride = QK + V, p.heads * (QK + V), PAGE * p.heads * (QK + V)
        a.page_table, a.page_table_stride, a.kv_lens = self.table.data_ptr(), pages, self.lens.data_ptr()
        a.q_indptr, a.num_requests, a.num_tokens, a.group = p.indptr.data_ptr(), p.requests, p.n, 1
        a.num_q_heads = a.num_kv_heads = p.heads
        a.page_size, a.page_shift, a.window_left, a.decode_q_len = PAGE, int(math.log2(PAGE)), -1, 1
        a.causal, a.scale = p.causal, p.scale
        plan = ww.PlanInput()
        plan.kv_lens, plan.q_indptr, plan.num_requests, plan.num_kv_heads = a.kv_lens, a.q_indptr, p.requests, p.heads
        plan.window_left, plan.decode_q_len, plan.head_token_bytes, plan.causal = -1, 1, 2 * (QK + V), p.causal
        plan.merged_pieces_a_tile, plan.tile_tokens, plan.section_bytes = 1, 64, 48 << 20
        ww.ok(lib.ww_extend_plan(plan, rows, 1, self.work.items, self.work.header, ww.stream()))

    def __call__(self):
        ww.ok(self.lib.ww_latent_extend(self.args, self.work, self.max_items, ww.stream()))
        return self.out


def peers(p):
    def fa3():
        return torch.ops._vllm_fa3_C.fwd(*map(p.by_request, (p.q, p.k, p.v)), *[None] * 20, p.scale, p.causal, -1, -1, 0.0, True, None,
                                         1, None, 0, None, 1, 0, None)[0]

    def fa3_varlen():
        return torch.ops._vllm_fa3_C.fwd(p.q, p.k, p.v, *[None] * 4, p.indptr, p.indptr, *[None] * 3, p.tokens, p.tokens, *[None] * 9,
                                         p.scale, p.causal, -1, -1, 0.0, True, None, 1, None, 0, None, 1, 0, None)[0]

    q, k, v = (p.by_request(x).transpose(1, 2) for x in (p.q, p.k, p.v))

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.causal, scale=p.scale).transpose(1, 2)

    return {"FA3": fa3, "FA3 varlen": fa3_varlen, "cuDNN": cudnn}


def error(p, out):
    """Of the last request's last head, over its first, middle and last rows, beside float32."""
    begin, head, out = p.n - p.tokens, p.heads - 1, out.reshape(p.n, p.heads, V)
    rows = torch.cat([begin + at + torch.arange(128, device="cuda") for at in (0, p.tokens // 2, p.tokens - 128)])
    scores = p.q[rows, head].float() @ p.k[begin:, head].float().T * p.scale
    if p.causal:
        scores.masked_fill_(torch.arange(p.tokens, device="cuda")[None] > (rows - begin)[:, None], -math.inf)
    expected = torch.softmax(scores, -1) @ p.v[begin:, head].float()
    return ((out[rows, head].float() - expected).norm() / expected.norm()).item()


def run(lib, p):
    calls, us = {}, {}
    for name, call in {"ours": Ours(lib, p), **peers(p)}.items():
        try:
            if not (wrong := error(p, call())) < 0.01:
                raise RuntimeError(f"wrong by {wrong:.3f}")
            calls[name], us[name] = call, []
        except Exception as why:  # a peer that cannot run the shape is left out, and says why
            print(f"({name} left out: {' '.join(str(why).split())[:200]})", file=sys.stderr)
    repeats = max(1, int(ROUND_US / (p.flops / 600e6)))
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            call()
            all_us = elapsed_us(call, repeats)
            if turn:
                us[name].append(all_us / repeats)
    medians = {name: statistics.median(times) for name, times in us.items()}
    best = min((x for name, x in medians.items() if name != "ours"), default=math.nan)
    columns = "  ".join(f"{name} {x:.1f} us {p.flops / x * 1e-6:.0f} TFLOP/s" for name, x in medians.items())
    print(f"{p.heads} heads, {p.requests}x{p.tokens}, {'causal' if p.causal else 'full'}: {columns}  "
          f"{best / medians.get('ours', math.nan):.3f} x", flush=True)


def main():
    lib = ww.load(ww.library_path())
    torch.ops.load_library(sys.argv[1])
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    for shape in sys.argv[2:] or ["16,4,4096", "16,1,16384", "128,4,4096", "128,1,16384"]:
        heads, requests, tokens, *full = shape.split(",")
        run(lib, Problem(int(heads), int(requests), int(tokens), not full))


if __name__ == "__main__":
    main()
