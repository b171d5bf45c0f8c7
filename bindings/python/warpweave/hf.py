"""transformers: attention and masks under one name.

    import warpweave
    warpweave.register_transformers()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="warpweave")
"""

from dataclasses import replace

import numpy as np

from ._arrays import alike, host_ints
from ._attention import Batch, Cache, Rules, attend, windowed_batch

NAME = "warpweave"


def register_transformers():
    """Makes attn_implementation="warpweave" known. Needs transformers 4.53 or later."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, padding_mask)
    return NAME


def padding_mask(batch_size, q_length, kv_length, attention_mask=None, use_vmap=False, config=None, **kwargs):
    """The mask as attention_forward reads it: [batch, kv_length] of booleans, None without padding. The causal
    rule and the window come with the call."""
    if use_vmap:
        raise NotImplementedError(f"{NAME}: this model adds a mask of its own (or_mask_function, and_mask_function); "
                                  "load it with attn_implementation=\"sdpa\"")
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and kv_length > chunk:
        raise NotImplementedError(f"{NAME}: chunked attention (attention_chunk_size {chunk}) does not run here; load "
                                  "the model with attn_implementation=\"sdpa\"")
    if attention_mask is None:
        return None
    attention_mask = attention_mask[:, -kv_length:].bool()
    return None if attention_mask.shape[1] == kv_length and bool(attention_mask.all()) else attention_mask


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None,
                      softcap=None, is_causal=None, s_aux=None, **kwargs):
    """query [batch, heads, rows, dim], key and value [batch, kv_heads, tokens, dim]; returns
    ([batch, rows, heads, dim], None)."""
    if dropout:
        raise NotImplementedError("dropout: does not run here; use model.eval()")
    if kwargs.get("output_attentions"):
        raise NotImplementedError("output_attentions: weights are never stored here; use eager")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise NotImplementedError(f"attention_mask: a mask of {attention_mask.ndim} dimensions does not run here, only "
                                  "padding [batch, tokens]; load the model with attn_implementation=\"sdpa\"")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    rules = Rules(causal=causal, window_left=sliding_window - 1 if sliding_window else -1, scale=scaling,
                  softcap=softcap or 0.0, sinks=None if s_aux is None else s_aux.float())
    batch, _, q_len, _ = query.shape
    kv_len = key.shape[2]
    cache = Cache(*alike(key, value), hnd=True)
    starts = _packed_starts(kwargs.get("position_ids"), attention_mask, batch, q_len, kv_len)
    if starts is not None:
        rows = Batch(starts, kv_indptr=starts)
        cache = Cache(*alike(key[0], value[0]), hnd=True)
        out, _ = attend(query[0].transpose(0, 1), cache, rows, rules)
        return out[None], None
    if sliding_window and not causal and sliding_window <= kv_len:
        return _both_sides(query, key, value, attention_mask, rules, sliding_window - 1), None
    if attention_mask is None:
        arrays = _batch(batch, q_len, kv_len)
    else:
        (k, k_step), (v, v_step) = _token_pages(key), _token_pages(value)
        if k_step != v_step:
            (k, k_step), (v, _) = _token_pages(key.contiguous()), _token_pages(value.contiguous())
        cache = Cache(k, v, hnd=True)
        arrays = _padded_batch(attention_mask, q_len, kv_len, k_step, causal)
    out, _ = attend(query.transpose(1, 2), cache, arrays, rules)
    return out, None


def _both_sides(query, key, value, mask, rules, side):
    """An encoder's window: a row sees `side` tokens before its own and `side` after it."""
    batch, _, q_len, _ = query.shape
    kv_len = key.shape[2]
    if q_len != kv_len:
        raise NotImplementedError(f"sliding_window: without causality it needs as many rows ({q_len}) as tokens ({kv_len})")
    begins, counts = np.zeros(batch, np.int64), np.full(batch, kv_len)
    if mask is not None:
        begins, counts = _padding_of(mask.cpu().numpy())
    (k, k_step), (v, v_step) = _token_pages(key), _token_pages(value)
    if k_step != v_step:
        (k, k_step), (v, _) = _token_pages(key.contiguous()), _token_pages(value.contiguous())
    of_rows = lambda values: np.repeat(values, q_len)  # noqa: E731
    arrays = windowed_batch(np.tile(np.arange(q_len), batch), of_rows(begins), of_rows(begins + counts),
                            of_rows(np.arange(batch) * k_step), (side, side))
    out, _ = attend(query.transpose(1, 2), Cache(k, v, hnd=True), arrays, replace(rules, causal=True, window_left=-1))
    return out


def _packed_starts(position_ids, attention_mask, batch, q_len, kv_len):
    """Where sequences packed into one row begin, when positions start over; None otherwise."""
    if position_ids is None or attention_mask is not None or batch != 1 or q_len != kv_len or q_len < 2:
        return None
    positions = host_ints(position_ids).reshape(-1)
    if len(positions) != q_len or (np.diff(positions) == 1).all():
        return None
    starts = np.flatnonzero(np.concatenate(([True], np.diff(positions) != 1)))
    return np.append(starts, q_len).astype(np.int32)


def _batch(batch, q_len, kv_len):
    """Without padding each sequence is one page."""
    return Batch(np.arange(batch + 1, dtype=np.int32) * np.int32(q_len), np.full(batch, kv_len, np.int32),
                 np.arange(batch, dtype=np.int32).reshape(batch, 1), page_size=kv_len)


def _padded_batch(mask, q_len, kv_len, page_step, causal):
    """Pages of one token, those of sequence b from b * page_step on. Rows that stand in the padding become
    requests that see nothing."""
    first, lens = _padding_of(mask.cpu().numpy())
    q_indptr, kv_lens, tables = [0], [], []

    def add(rows, sequence, kv):
        if rows > 0:
            q_indptr.append(q_indptr[-1] + rows)
            kv_lens.append(kv)
            tables.append(sequence * page_step + first[sequence] + np.arange(lens.max(initial=1)))

    for sequence, (begin, count) in enumerate(zip(first, lens)):
        if not causal:
            add(q_len, sequence, count)
            continue
        offset = kv_len - q_len  # the position of the first row
        blind = int(np.clip(begin - offset, 0, q_len))
        seeing = int(np.clip(begin + count - offset, blind, q_len)) - blind
        add(blind, sequence, 0)
        add(seeing, sequence, count)
        add(q_len - blind - seeing, sequence, 0)
    return Batch(np.asarray(q_indptr, np.int32), np.asarray(kv_lens, np.int32), np.asarray(tables, np.int32), page_size=1)


def _padding_of(mask):
    """Where each sequence begins, and how many tokens it has."""
    lens = mask.sum(axis=1)
    first = np.where(lens > 0, mask.argmax(axis=1), 0)
    index = np.arange(mask.shape[1])
    if not (((index >= first[:, None]) & (index < (first + lens)[:, None])) == mask).all():
        raise NotImplementedError("attention_mask: padding inside a sequence does not run here, only on its left or right")
    return first, lens


def _token_pages(tensor):
    """[batch, heads, tokens, dim] as pages of one token [pages, heads, 1, dim], and the pages from one sequence to
    the next: a view, because a sequence's memory starts a whole number of tokens after that of the one before."""
    batch_step, head_step, token_step, last = tensor.stride()
    if last != 1 or token_step == 0 or batch_step % token_step != 0:
        tensor = tensor.contiguous()
        batch_step, head_step, token_step, last = tensor.stride()
    batch, heads, tokens, dim = tensor.shape
    step = batch_step // token_step
    pages = (batch - 1) * step + tokens
    return tensor.as_strided((pages, heads, 1, dim), (token_step, head_step, token_step, 1)), step
