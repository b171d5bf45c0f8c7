"""One call of attention for all styles: options, batch, tensors."""

from dataclasses import dataclass

import numpy as np

from . import _core
from ._arrays import (dense_rows, device_of, empty, is_capturing, kv_format, q_dtype, readable, refusing_backward, stream_of,
                      wants_gradients)
from ._runtime import plan


@dataclass
class Cache:
    """K and V with how they are stored; `hnd`: heads before tokens. Without v attention is latent, and V the first
    v_dim values of k's rows."""

    k: object
    v: object
    hnd: bool = False
    format: str | None = None
    k_scales: object = None
    v_scales: object = None
    k_block_scales: object = None
    v_block_scales: object = None
    v_dim: int = 0

    def core(self):
        return _core.KvCache(
            readable(self.k), readable(self.v), kv_format(self.k, self.format), self.hnd,
            *(readable(s) for s in (self.k_scales, self.v_scales, self.k_block_scales, self.v_block_scales)))

    def shape(self):
        """(KV heads, page_size or tokens) of a cache with or without pages."""
        heads, tokens = (-3, -2) if self.hnd else (-2, -3)
        return self.k.shape[heads], self.k.shape[tokens]


@dataclass
class Rules:
    """Which tokens a row sees, and what happens to its scores."""

    causal: bool = True
    window_left: int = -1
    scale: float | None = None
    softcap: float = 0.0
    sinks: object = None
    deterministic: bool = False
    backend: str = ""


@dataclass
class Batch:
    """The arrays of ww_batch, as int32 numpy arrays."""

    q_indptr: object
    kv_lens: object = None
    page_table: object = None
    page_indptr: object = None
    page_indices: object = None
    kv_indptr: object = None
    tree_mask: object = None
    page_size: int = 0

    def arguments(self):
        return self.__dict__

    def key(self):
        """Equal for batches that are planned alike."""
        return tuple((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in self.__dict__.values())


def window_rules(causal, window_size):
    """causal and window_left of a (left, right) window; refuses a bound to the right of a row."""
    left, right = (-1 if x is None else int(x) for x in window_size)
    if right == 0:
        causal = True
    elif right > 0 and not causal:
        raise NotImplementedError(f"window_size: a bound of {right} tokens to the right does not run in this function; use "
                                  "flash_attn_func, causal attention (right = 0) or none (-1)")
    return causal, left if left >= 0 else -1


def windowed_batch(positions, begins, ends, first_pages, window):
    """A window that ends behind its row: each row is a request of its own over pages of one token.

    Of each row: its position, the tokens [begin, end) that its sequence has, and the page of that sequence's token 0.
    `window`: how many tokens it sees on its left and on its right, -1 for all. A row outside [begin, end) sees nothing."""
    left, right = (np.iinfo(np.int32).max if side < 0 else side for side in window)
    inside = (positions >= begins) & (positions < ends)
    first = np.where(inside, np.maximum(positions - left, begins), 0)
    last = np.where(inside, np.minimum(positions + right, ends - 1), -1)
    lens = last - first + 1
    steps = np.arange(max(1, lens.max(initial=1)))
    table = first_pages[:, None] + np.minimum(first[:, None] + steps, np.maximum(last, 0)[:, None])
    rows = np.arange(len(positions) + 1, dtype=np.int32)
    return Batch(rows, lens.astype(np.int32), table.astype(np.int32), page_size=1)


def options_of(q, cache, rules, v_head_dim, page_size=0, tree=False):
    kv_heads, _ = cache.shape()
    return dict(
        num_q_heads=q.shape[-2], num_kv_heads=kv_heads, head_dim=q.shape[-1], v_head_dim=v_head_dim,
        page_size=page_size, kv_format=kv_format(cache.k, cache.format), q_dtype=q_dtype(q),
        scale=rules.scale or 0.0, softcap=rules.softcap or 0.0, causal=bool(rules.causal),
        window_left=rules.window_left, use_sinks=rules.sinks is not None, use_tree_mask=tree,
        deterministic=rules.deterministic, backend=rules.backend, device=device_of(q), latent=cache.v is None)


def v_dim_of(cache):
    if cache.v is None:
        return cache.v_dim
    packed = kv_format(cache.k, cache.format) == "fp4_e2m1"
    return cache.v.shape[-1] * (2 if packed else 1)


def attend(q, cache, batch, rules, out=None, want_lse=False, lse=None):
    """out (and lse as [..., heads]) of q over cache. q is [rows, heads, dim] or [batch, rows, heads, dim]."""
    v_dim = v_dim_of(cache)
    planned = plan(**options_of(q, cache, rules, v_dim, tree=batch.tree_mask is not None))
    if device_of(q) == "cpu":
        planned.core.set_batch(**batch.arguments())
    else:
        if is_capturing(q):
            raise RuntimeError("a CUDA graph cannot hold this call, which plans: capture a wrapper's run() instead")
        planned.set_batch(batch, stream_of(q))  # the layers of a model ask for the same again and again
    return run(planned.core, q, cache, v_dim, rules.sinks, out, want_lse, lse)


def run(chosen, q, cache, v_dim, sinks=None, out=None, want_lse=False, lse=None):
    inputs = (q, cache.k, cache.v, sinks)
    follows = wants_gradients(inputs)
    if follows and (out is not None or want_lse):
        raise NotImplementedError("out, lse: attention has no gradients here; call under torch.no_grad()")
    if out is None:
        out = empty(q, (*q.shape[:-1], v_dim))
    if want_lse and lse is None:
        lse = empty(q, q.shape[:-1], "float32")
    chosen.run(readable(dense_rows(q)), cache.core(), readable(out), readable(lse), readable(sinks), stream_of(q))
    return (refusing_backward(out, inputs) if follows else out), lse
