"""Attention in plain numpy, in float64: what the tests compare with when torch is not there."""

import numpy as np


def attention(q, k, v, sees, scale=None, softcap=0.0, sinks=None):
    """q [rows, heads, dim], k and v [tokens, kv_heads, dim], sees [rows, tokens]: (out, natural lse [rows, heads])."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    out = np.zeros((rows, heads, v.shape[2]))
    lse = np.full((rows, heads), -np.inf)
    for h in range(heads):
        scores = q[:, h] @ k[:, h // group].T * (dim**-0.5 if scale is None else scale)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(sees, scores, -np.inf)
        for r in range(rows):
            if not np.asarray(sees)[r].any():
                continue
            top = max(scores[r].max(), -np.inf if sinks is None else sinks[h])
            weights = np.exp(scores[r] - top)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
            out[r, h] = weights @ v[:, h // group] / total
            lse[r, h] = top + np.log(total)
    return out, lse


def causal(rows, tokens, window=-1):
    position = np.arange(rows)[:, None] + tokens - rows
    token = np.arange(tokens)[None]
    return (token <= position) & ((window < 0) | (token >= position - window))


def paged(k, lens, page_size, rng):
    """Tokens of several sequences (k: a list of [tokens, heads, dim]) in shuffled pages: the pages
    [pages, page_size, heads, dim] filled with NaN elsewhere, and the CSR arrays."""
    counts = [-(-n // page_size) for n in lens]
    order = rng.permutation(sum(counts) + 3)
    pages = np.full((len(order), page_size, *k[0].shape[1:]), np.nan, np.float32)
    indptr, indices = [0], []
    for sequence, count in zip(k, counts):
        for p in range(count):
            page = order[len(indices)]
            part = sequence[p * page_size : (p + 1) * page_size]
            pages[page, : len(part)] = part
            indices.append(page)
        indptr.append(len(indices))
    last = [n - (c - 1) * page_size if c else 0 for n, c in zip(lens, counts)]
    return pages, np.array(indptr, np.int32), np.array(indices, np.int32), np.array(last, np.int32)
