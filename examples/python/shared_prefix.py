"""A prefix that many requests share, attended once, and merged with each request's own tokens. Needs numpy only."""

import numpy as np
import warpweave

rng = np.random.default_rng(0)
REQUESTS, PREFIX, OWN, Q_HEADS, KV_HEADS, DIM = 4, 300, 20, 8, 2, 64


def rows(*shape):
    return rng.standard_normal(shape).astype(np.float32)


q = rows(REQUESTS, 1, Q_HEADS, DIM)
prefix_k, prefix_v = rows(PREFIX, KV_HEADS, DIM), rows(PREFIX, KV_HEADS, DIM)
own_k, own_v = rows(REQUESTS, OWN, KV_HEADS, DIM), rows(REQUESTS, OWN, KV_HEADS, DIM)

# All rows see the whole prefix: one sequence with REQUESTS rows, not causal.
o_prefix, l_prefix, _ = warpweave.flash_attn_func(q.reshape(1, REQUESTS, Q_HEADS, DIM), prefix_k[None], prefix_v[None],
                                                  return_attn_probs=True)
o_own, l_own, _ = warpweave.flash_attn_func(q, own_k, own_v, causal=True, return_attn_probs=True)
merged, _ = warpweave.merge_state(o_prefix[0], np.ascontiguousarray(l_prefix[0].T), o_own[:, 0], l_own[:, :, 0])

whole_k = np.concatenate([np.broadcast_to(prefix_k, (REQUESTS, *prefix_k.shape)), own_k], axis=1)
whole_v = np.concatenate([np.broadcast_to(prefix_v, (REQUESTS, *prefix_v.shape)), own_v], axis=1)
whole = warpweave.flash_attn_func(q, whole_k, whole_v, causal=True)
difference = np.abs(merged - whole[:, 0]).max()
print(f"prefix once and merged, against the whole: largest difference {difference:.1e}")
assert difference < 1e-5
