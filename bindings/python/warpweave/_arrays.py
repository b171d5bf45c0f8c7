"""Arrays of whichever library the caller uses: torch tensors stay torch, everything else is numpy.

torch is never imported here: a torch tensor brings its module along.
"""

import functools
import sys

import numpy as np

_DTYPES = ("float32", "float16", "bfloat16")
_FORMATS = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def torch_of(array):
    """The torch module, when `array` is one of its tensors."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else None


def readable(array):
    """Something that offers DLPack or the buffer protocol."""
    if array is None:
        return None
    torch = torch_of(array)
    if torch is None:
        return array if hasattr(array, "__dlpack__") else np.asarray(array)
    array = array.detach()
    # fp8 by its bytes: not every version of torch hands it over.
    if array.element_size() == 1 and array.dtype.is_floating_point:
        array = array.view(torch.uint8)
    # A capsule made like this waits for no stream: the caller's stream orders the work.
    return torch.utils.dlpack.to_dlpack(array) if array.is_cuda else array


def flat(array):
    """[batch, tokens, ...] as [batch * tokens, ...]: a copy where it is no view, so never of what is written to. The size is
    said in full, for of an empty array -1 could be anything."""
    return None if array is None else array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def wants_gradients(arrays):
    """Whether torch would follow gradients through a function of `arrays`."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_grad_enabled() and any(
        isinstance(array, torch.Tensor) and array.requires_grad for array in arrays)


@functools.cache
def _refusing_function():
    torch = sys.modules["torch"]

    class NoGradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out, *inputs):
            return out.view_as(out)

        @staticmethod
        def backward(ctx, *grads):
            raise NotImplementedError("warpweave: attention has no gradients here; train with another one "
                                      "(attn_implementation=\"sdpa\"), or run under torch.no_grad()")

    return NoGradients


def refusing_backward(out, inputs):
    """`out`, a result of `inputs`: its backward raises, so that no gradient is lost in silence."""
    return _refusing_function().apply(out, *inputs)


def device_of(array):
    """"cpu" or "cuda"."""
    torch = torch_of(array)
    if torch is not None:
        return "cuda" if array.is_cuda else "cpu"
    where = getattr(array, "__dlpack_device__", None)
    return "cuda" if where is not None and int(where()[0]) == 2 else "cpu"


def stream_of(array):
    """The stream that work on `array` goes to: torch's current one for its tensors, else the default stream."""
    torch = torch_of(array)
    return torch.cuda.current_stream(array.device).cuda_stream if torch is not None and array.is_cuda else 0


def is_capturing(array):
    torch = torch_of(array)
    return torch is not None and array.is_cuda and torch.cuda.is_current_stream_capturing()


def dense_rows(array):
    """`array` [..., rows, heads, dim] as kernels on a GPU read it in place: dense heads, one stride for all rows."""
    if torch_of(array) is None or not array.is_cuda:
        return array
    strides, shape = array.stride(), array.shape
    dense = strides[-1] == 1 and (shape[-2] == 1 or strides[-2] == shape[-1])
    even = array.ndim < 4 or shape[0] == 1 or strides[0] == shape[1] * strides[1]
    return array if dense and even else array.contiguous()


def alike(k, v):
    """(k, v) with equal strides, as kernels on a GPU want them."""
    if torch_of(k) is None or not k.is_cuda or k.stride() == v.stride():
        return k, v
    return k.contiguous(), v.contiguous()


def dtype_name(array):
    """"float32", "bfloat16", "float8_e4m3fn", ..."""
    return str(array.dtype).removeprefix("torch.")


def q_dtype(array):
    name = dtype_name(array)
    if name not in _DTYPES:
        raise ValueError(f"q: its dtype is {name}, must be one of {', '.join(_DTYPES)}")
    return name


def kv_format(array, given=None):
    """The KV format that a cache tensor's dtype says, unless it is given."""
    if given is not None:
        return _FORMATS.get(given, given)
    name = dtype_name(array)
    if name in _DTYPES:
        return name
    if name in _FORMATS:
        return _FORMATS[name]
    raise ValueError(f"the cache's dtype is {name}: pass kv_format (fp8_e4m3, fp8_e5m2, fp4_e2m1, fp8_ds_mla or "
                     "fp4_mla) to say what its bytes mean")


def empty(like, shape, dtype=None):
    """A new array of the kind of `like`; `dtype` is "float32" or None: that of `like`."""
    torch = torch_of(like)
    if torch is not None:
        return torch.empty(shape, dtype=torch.float32 if dtype == "float32" else like.dtype, device=like.device)
    if device_of(like) == "cuda":
        raise ValueError("out: only torch tensors are made on a GPU here; pass an array to write to (and one for lse)")
    if dtype is None and dtype_name(like) == "bfloat16":
        raise ValueError("out: numpy has no bfloat16; pass an array to write to")
    return np.empty(shape, dtype=dtype or np.dtype(dtype_name(like)))


def host_ints(values, dtype=np.int32):
    """Lengths and page tables as the C interface takes them."""
    if values is None:
        return None
    if torch_of(values) is not None:
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise ValueError(f"lengths and page tables hold integers, this holds {array.dtype}")
    if array.size and (array.max() > np.iinfo(dtype).max or array.min() < np.iinfo(dtype).min):
        raise ValueError(f"a length or page id does not fit into {np.dtype(dtype).name}")
    return np.ascontiguousarray(array, dtype=dtype)


def pack_bits(mask):
    """[rows, columns] of booleans as 32-bit words, column 0 in the lowest bit."""
    if torch_of(mask) is not None:
        mask = mask.detach().cpu().numpy()
    mask = np.asarray(mask).astype(bool)
    words = (mask.shape[1] + 31) // 32
    padded = np.zeros((mask.shape[0], words * 32), dtype=bool)
    padded[:, : mask.shape[1]] = mask
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").reshape(mask.shape[0], words)
