"""Plan once per forward, run once per layer, over pages in CSR form; and why this backend. Needs numpy only."""

import numpy as np
import warpweave

rng = np.random.default_rng(0)
PAGE_SIZE, Q_HEADS, KV_HEADS, DIM = 16, 8, 2, 64

# Three requests with 5, 1 and 20 new rows, which see 40, 100 and 20 tokens: 3, 7 and 2 pages.
qo_indptr = [0, 5, 6, 26]
kv_indptr = [0, 3, 10, 12]
kv_indices = rng.permutation(16)[:12]
last_page_len = [8, 4, 4]

wrapper = warpweave.BatchPrefillWithPagedKVCacheWrapper(kv_layout="NHD")
wrapper.plan(qo_indptr, kv_indptr, kv_indices, last_page_len, Q_HEADS, KV_HEADS, DIM, PAGE_SIZE, causal=True,
             q_data_type="float32")
print(wrapper.explain())

for layer in range(4):
    cache = rng.standard_normal((16, 2, PAGE_SIZE, KV_HEADS, DIM)).astype(np.float32)  # [pages, k and v, ...]
    q = rng.standard_normal((26, Q_HEADS, DIM)).astype(np.float32)
    out, lse = wrapper.run(q, cache, return_lse_ln=True)
    print(f"layer {layer}: out {out.shape}, log-sum-exp of the first row {lse[0, 0]:.3f}")
