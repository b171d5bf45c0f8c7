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


def in_rows(array):
    """[tokens, heads] or [tokens, heads, dim] as kernels read it: as it lies where heads lie within tokens and a head's elements
    side by side, else a compact copy."""
    if array is None:
        return None
    if torch_of(array) is not None:
        strides = array.stride()
    elif isinstance(array, np.ndarray):
        strides = [stride // array.itemsize for stride in array.strides]
    else:
        return array  # of another library, which says by an error what cannot be read
    if array.ndim == 3 and array.shape[-1] > 1 and strides[-1] != 1:
        return compact(array)
    extent = 1
    for size, stride in zip(reversed(array.shape), reversed(strides)):
        if size > 1 and stride < extent:
            return compact(array)
        extent += (size - 1) * stride
    return array


def turned(state):
    """[..., k dim, v dim] of [..., v dim, k dim], or the other way round; a view."""
    return state.transpose(-1, -2) if torch_of(state) is not None else np.swapaxes(state, -1, -2)


def float_copy(array):
    """`array` in float32 as a new, compact one."""
    torch = torch_of(array)
    if torch is not None:
        return array.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return np.array(array, dtype=np.float32, order="C")


def filled(like, shape, value):
    array = empty(like, shape, "float32")
    array[...] = value
    return array


def new_out(v, out):
    return empty(v, v.shape) if out is None else out


def run(q, k, v, state, out, *, q_indptr=None, slots=None, **options):
    """q, k [tokens, k heads, k dim], v [tokens, v heads, v dim], all of one type; `out` as v, or with a batch before the
    tokens; `state` is read and written in place. Without q_indptr each token is a sequence of its own. options: those
    of _core.linear_attention. Of no tokens nothing is computed, and a state from zeros stays zeros."""
    options = {name: value for name, value in options.items() if value is not None}
    if options.get("scale") == 0:
        raise ValueError("scale: is 0, which leaves nothing of q; without it, it is 1 / sqrt(k dim)")
    gates = {name: options.pop(name) for name in ("g", "beta", "a", "b", "a_log", "dt_bias") if name in options}
    if wants_gradients([q, k, v, state, *gates.values()]):
        raise NotImplementedError("linear attention has no gradients here: run it under torch.no_grad(), or use fla's to train")
    if q.shape[0] == 0:
        if options.get("from_zeros"):
            state[...] = 0
        return out
    stream = stream_of(q)
    gates = {name: readable(in_rows(array)) for name, array in gates.items()}
    q, k, v = (readable(in_rows(array)) for array in (q, k, v))
    _core.linear_attention(context(), q, k, v, readable(state), readable(out),
                           q_indptr=host_ints(q_indptr), slots=host_ints(slots), stream=stream, **gates, **options)
    return out


def check_dims(layout, **arrays):
    """`layout`: the names of the dimensions, joined by ", "."""
    count = layout.count(",") + 1
    for name, array in arrays.items():
        if len(array.shape) != count:
            raise ValueError(f"{name}: has the shape {tuple(array.shape)}, must be [{layout}]")


def indptr_of(q, cu_seqlens):
    """Where the sequences of q [batch, tokens, ...] begin."""
    batch, tokens = q.shape[:2]
    if cu_seqlens is None:
        return np.arange(batch + 1, dtype=np.int64) * tokens
    if batch != 1:
        raise ValueError(f"cu_seqlens: sequences end to end need a batch of 1, q has {batch}")
    return covering(cu_seqlens, tokens)


def covering(cu_seqlens, tokens):
    """cu_seqlens on the host, which must hold all of q's tokens: nothing would be computed of others."""
    starts = host_ints(cu_seqlens)
    if starts.ndim != 1 or not len(starts):
        raise ValueError(f"cu_seqlens: has the shape {starts.shape}, must be [sequences + 1]")
    if starts[0] != 0 or starts[-1] != tokens:
        raise ValueError(f"cu_seqlens: goes from {starts[0]} to {starts[-1]}, must go from 0 to q's {tokens} tokens; pass the tokens "
                         "of its sequences alone")
    return starts


__all__ = ["as_floats", "check_dims", "compact", "covering", "filled", "float_copy", "indptr_of", "new_out", "run", "turned"]
