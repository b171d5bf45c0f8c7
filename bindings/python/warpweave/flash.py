"""Functions in the shape of flash-attn's, for inference: same names, arguments and layouts.

q, k, v are [batch, tokens, heads, dim] (or [tokens, heads, dim] for varlen), torch tensors on the CPU or a
GPU, or numpy arrays. Rows are aligned with the last token: row i of q_len stands at position kv_len - q_len + i.
Arguments that do not run here are refused by name, never ignored.
"""

import dataclasses
import functools

import numpy as np

from . import _core
from ._arrays import alike, dense_rows, flat, host_ints, readable, stream_of, torch_of
from ._attention import Batch, Cache, Rules, attend, window_rules, windowed_batch
from ._runtime import context


def _refuse(**given):
    for name, value in given.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name}: does not run here; leave it out")


def _rules(causal, window_size, softmax_scale, softcap, deterministic=False):
    causal, left = window_rules(causal, window_size)
    return Rules(causal=causal, window_left=left, scale=softmax_scale, softcap=softcap, deterministic=deterministic)


@functools.lru_cache(maxsize=256)
def _equal_lengths(batch, q_len, kv_len):
    """Each sequence is one page."""
    pages = np.arange(batch, dtype=np.int32).reshape(batch, 1)
    return Batch(_steps(batch, q_len), np.full(batch, kv_len, np.int32), pages, page_size=max(1, kv_len))


@functools.lru_cache(maxsize=16)
def _two_sided(batch, q_len, kv_len, window):
    rows = batch * q_len
    positions = np.tile(np.arange(q_len) + kv_len - q_len, batch)
    pages = np.repeat(np.arange(batch) * kv_len, q_len)
    left, right = (-1 if side is None else int(side) for side in window)
    return windowed_batch(positions, np.zeros(rows, np.int64), np.full(rows, kv_len), pages, (left, right))


def _without_pages(cache):
    parts = {name: getattr(cache, name) for name in ("k", "v", "k_block_scales", "v_block_scales")}
    return dataclasses.replace(cache, **{name: flat(part) for name, part in parts.items() if part is not None})


def _no_tokens(batch, q_len, lens=None):
    """A page holds a token at least, so where there are none there are no pages either."""
    return Batch(_steps(batch, q_len), lens, kv_indptr=np.zeros(batch + 1, np.int32))


def _check_shapes(q, k, v):
    for name, array in (("q", q), ("k", k), ("v", v)):
        if len(array.shape) != 4:
            raise ValueError(f"{name}: has {len(array.shape)} dimensions, must have 4: [batch, tokens, heads, dim]")
        if array.shape[0] != q.shape[0]:
            raise ValueError(f"{name}: has a batch of {array.shape[0]}, q has {q.shape[0]}")
    if v.shape[1] != k.shape[1]:
        raise ValueError(f"v: has {v.shape[1]} tokens, k has {k.shape[1]}")


def _steps(count, step=1):
    return np.arange(count + 1, dtype=np.int32) * np.int32(step)


def _lse_heads_first(lse):
    """[batch, rows, heads] -> [batch, heads, rows], as flash-attn returns it."""
    return lse.transpose(-1, -2) if torch_of(lse) is not None else np.swapaxes(lse, -1, -2)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False, *, out=None):
    """Attention of a batch of equal lengths. With return_attn_probs: (out, softmax_lse, None)."""
    _refuse(dropout_p=dropout_p or None, alibi_slopes=alibi_slopes)
    _check_shapes(q, k, v)
    batch, q_len, kv_len = q.shape[0], q.shape[1], k.shape[1]
    rules = dict(scale=softmax_scale, softcap=softcap, deterministic=deterministic)
    cache = Cache(*alike(k, v))
    if kv_len == 0:  # whatever the window
        cache, arrays, rules = _without_pages(cache), _no_tokens(batch, q_len), Rules(causal=False, **rules)
    elif not causal and window_size[1] is not None and window_size[1] > 0:
        # A bound on the right: K and V as pages of one token, which every row has a list of.
        arrays = _two_sided(batch, q_len, kv_len, tuple(window_size))
        cache = Cache(*alike(*(x.reshape(batch * kv_len, 1, *x.shape[2:]) for x in (k, v))))
        rules = Rules(causal=True, **rules)
    else:
        arrays = _equal_lengths(batch, q_len, kv_len)
        rules = _rules(causal, window_size, softmax_scale, softcap, deterministic)
    out, lse = attend(q, cache, arrays, rules, out, want_lse=return_attn_probs)
    return (out, _lse_heads_first(lse), None) if return_attn_probs else out


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None, *, out=None):
    """Attention of sequences laid end to end, by their starts; with block_table, K and V are pages
    [blocks, page_size, heads, dim] and cu_seqlens_k only says lengths. softmax_lse is [heads, rows]."""
    _refuse(dropout_p=dropout_p or None, alibi_slopes=alibi_slopes)
    q_indptr, kv_indptr = host_ints(cu_seqlens_q), host_ints(cu_seqlens_k)
    if block_table is None:
        arrays = Batch(q_indptr, kv_indptr=kv_indptr)
        k, v = alike(k, v)
    else:
        arrays = Batch(q_indptr, np.diff(kv_indptr).astype(np.int32), host_ints(block_table), page_size=k.shape[1])
    out, lse = attend(q, Cache(k, v), arrays, _rules(causal, window_size, softmax_scale, softcap, deterministic), out,
                      want_lse=return_attn_probs)
    return (out, _lse_heads_first(lse), None) if return_attn_probs else out


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None,
                            causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
                            alibi_slopes=None, num_splits=0, return_softmax_lse=False, *, out=None, kv_format=None,
                            k_scales=None, v_scales=None, k_block_scales=None, v_block_scales=None):
    """Attention over a cache, after the new k and v (if given) are stored in it at cache_seqlens.

    The cache is [batch, tokens, heads, dim], or pages [blocks, page_size, heads, dim] with block_table
    [batch, blocks of a sequence]. cache_seqlens, an int or [batch], counts the tokens before k and v.
    num_splits is a choice of kernels and has no meaning here. kv_format and the scales are for fp8 and fp4
    caches; see docs/python.md."""
    _refuse(rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_leftpad=cache_leftpad, alibi_slopes=alibi_slopes)
    cache = Cache(k_cache, v_cache, False, kv_format, k_scales, v_scales, k_block_scales, v_block_scales)
    batch, q_len = q.shape[:2]
    page_size = k_cache.shape[1]
    if block_table is not None:
        if cache_batch_idx is not None:
            raise ValueError("cache_batch_idx: has no meaning with block_table")
        table = host_ints(block_table)
    else:
        index = np.arange(batch, dtype=np.int32) if cache_batch_idx is None else host_ints(cache_batch_idx)
        table = index.reshape(batch, 1)
    if cache_seqlens is None:
        cache_seqlens = page_size if k is None and block_table is None else 0
    lens = np.broadcast_to(host_ints(cache_seqlens), (batch,)).astype(np.int32)
    if k is not None:
        _append(cache, k, v, lens, table, page_size)
        lens = lens + np.int32(k.shape[1])
    if page_size == 0 and block_table is None:
        cache, arrays = _without_pages(cache), _no_tokens(batch, q_len, lens)
    else:
        arrays = Batch(_steps(batch, q_len), lens, table, page_size=page_size)
    out, lse = attend(q, cache, arrays, _rules(causal, window_size, softmax_scale, softcap), out,
                      want_lse=return_softmax_lse)
    return (out, _lse_heads_first(lse)) if return_softmax_lse else out


def _append(cache, k, v, lens, table, page_size):
    """Stores k and v [batch, rows, heads, dim] behind the lens[b] tokens of each sequence."""
    if v is None:
        raise ValueError("v: is needed with k")
    rows = k.shape[1]
    positions = lens.astype(np.int64)[:, None] + np.arange(rows)
    if positions.size and positions.max() >= table.shape[1] * page_size:
        raise ValueError(f"k: {positions.max() + 1} tokens of a sequence do not fit into its {table.shape[1]} pages of "
                         f"{page_size}")
    pages = np.take_along_axis(table.astype(np.int64), positions // page_size, axis=1)
    slots = np.ascontiguousarray((pages * page_size + positions % page_size).reshape(-1))
    _core.append_kv(context(), readable(dense_rows(k)), readable(dense_rows(v)), slots, cache.core(), stream_of(k))
