"""A small serving loop over a paged KV cache: store each new token, plan once, attend per layer. Needs numpy only."""

import numpy as np
import warpweave

LAYERS, PAGES, PAGE_SIZE, Q_HEADS, KV_HEADS, DIM = 2, 32, 16, 8, 2, 64

rng = np.random.default_rng(0)
k_cache = np.zeros((LAYERS, PAGES, PAGE_SIZE, KV_HEADS, DIM), np.float32)
v_cache = np.zeros_like(k_cache)
block_table = np.array([[3, 9, 4], [17, 2, 30]], np.int32)  # the pages of each sequence
seqlens = np.zeros(2, np.int32)

for step in range(40):
    for layer in range(LAYERS):
        q = rng.standard_normal((2, 1, Q_HEADS, DIM)).astype(np.float32)
        k = rng.standard_normal((2, 1, KV_HEADS, DIM)).astype(np.float32)
        v = rng.standard_normal((2, 1, KV_HEADS, DIM)).astype(np.float32)
        # k and v go into the cache at seqlens; attention then covers seqlens + 1 tokens.
        out = warpweave.flash_attn_with_kvcache(q, k_cache[layer], v_cache[layer], k, v, cache_seqlens=seqlens,
                                                block_table=block_table, causal=True)
    seqlens += 1

print(f"{seqlens.tolist()} tokens in the cache, last output {out.shape}, mean {out.mean():+.4f}")
