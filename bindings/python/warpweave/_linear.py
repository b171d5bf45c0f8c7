"""Calls of linear attention as every style of function makes them: one batch of sequences, states [sequences, v heads, v dim,
k dim] in float32."""

import numpy as np

from . import _core
from ._arrays import empty, host_ints, readable, stream_of, torch_of, wants_gradients
from ._runtime import context


def as_floats(array):
    """`array` in float32, as it is where it has that type."""
    if array is None:
        return None
    if torch_of(array) is not None:
        return array.float()
    return np.asarray(array, dtype=np.float32)


def compact(array):
    if array is None:
        return None
    return array.contiguous() if torch_of(array) is not None else np.ascontiguousarray(array)


def swapped(state):
    """[..., k dim, v dim] of [..., v dim, k dim], or the other way round; a new array."""
    return state.transpose(-1, -2).contiguous() if torch_of(state) is not None else np.ascontiguousarray(np.swapaxes(state, -1, -2))


def copied(array):
    return array.clone() if torch_of(array) is not None else np.array(array, dtype=np.float32)


def zeros(like, shape):
    state = empty(like, shape, "float32")
    state[...] = 0
    return state


def new_out(v, out):
    return empty(v, v.shape) if out is None else out


def run(q, k, v, state, out, *, q_indptr=None, slots=None, **options):
    """q, k [tokens, k heads, k dim], v [tokens, v heads, v dim], all of one type; `state` is read and written in place. Without
    q_indptr each token is a sequence of its own. options: those of _core.linear_attention."""
    if wants_gradients([x for x in (q, k, v, options.get("g"), options.get("beta")) if x is not None]):
        raise NotImplementedError("linear attention has no gradients here: run it under torch.no_grad(), or use fla's to train")
    arrays = {name: readable(options.pop(name)) for name in ("g", "beta", "a", "b", "a_log", "dt_bias")
              if options.get(name) is not None}
    options = {name: value for name, value in options.items() if value is not None}
    _core.linear_attention(context(), readable(q), readable(k), readable(v), readable(state), readable(out),
                           q_indptr=host_ints(q_indptr), slots=host_ints(slots), stream=stream_of(q), **arrays, **options)
    return out


def flat(array):
    """[batch, tokens, ...] as [batch * tokens, ...]."""
    return None if array is None else array.reshape(-1, *array.shape[2:])


def indptr_of(q, cu_seqlens):
    """Where the sequences of q [batch, tokens, ...] begin."""
    batch, tokens = q.shape[:2]
    if cu_seqlens is None:
        return np.arange(batch + 1, dtype=np.int64) * tokens
    if batch != 1:
        raise ValueError(f"cu_seqlens: sequences end to end need a batch of 1, q has {batch}")
    return host_ints(cu_seqlens)


__all__ = ["as_floats", "compact", "copied", "flat", "indptr_of", "new_out", "run", "swapped", "zeros"]
