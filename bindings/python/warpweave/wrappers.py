"""Plan and run in the shape of flashinfer's wrappers, for inference.

plan() once per forward, with lengths and page tables; run() once per layer. Differences, each refused or
named, none silent: log-sum-exps are natural logarithms (`return_lse_ln`), positions are encoded by the
caller, and a workspace buffer is not needed (the argument only says which device).

On a GPU plan() puts the batch's arrays on the current stream and run() may be captured into a CUDA graph,
after one run() outside of it. With use_cuda_graph=True later plans of the same shape reach the graphs
captured before.
"""

import sys

import numpy as np

from . import _core
from ._arrays import device_of, empty, host_ints, kv_format, pack_bits, readable, stream_of, torch_of
from ._attention import Batch, Cache, Rules, run
from ._runtime import context


def _unpack(cache):
    """(k, v) of a pair or of one [pages, 2, ...] tensor."""
    if isinstance(cache, (tuple, list)):
        return cache
    return cache[:, 0], cache[:, 1]


class _Wrapper:
    def __init__(self, workspace_buffer=None, kv_layout="NHD", backend="auto", use_cuda_graph=False, device=None,
                 max_pages_per_request=None):
        """device: "cpu" or "cuda"; None: where workspace_buffer is, else where plan()'s arrays are.
        use_cuda_graph needs max_pages_per_request, the width of the page tables."""
        if kv_layout not in ("NHD", "HND"):
            raise ValueError(f"kv_layout: {kv_layout} is not NHD or HND")
        if use_cuda_graph != (max_pages_per_request is not None):
            raise ValueError("max_pages_per_request: is needed with use_cuda_graph, and has no meaning without")
        self._device = None if device is None else str(device).partition(":")[0]
        if device is None and workspace_buffer is not None:
            self._device = device_of(workspace_buffer)
        self._max_pages = max_pages_per_request or 0
        self._hnd = kv_layout == "HND"
        self._backend = backend
        self._plan = None
        self._options = None
        self._scratch = _core.Workspace(context(), 0)

    def _set(self, batch, options, like):
        """Keeps the plan while the options stay: planning a batch is then all there is to do."""
        options |= dict(device=self._device or device_of(like), max_pages_per_request=self._max_pages)
        if options != self._options:
            self._plan = None
            self._plan = _core.Plan(self._scratch, **options)
            self._options = options
        self._plan.set_batch(**batch.arguments(), stream=_plan_stream(options["device"]))

    def _run(self, q, k, v, out, lse_ln, return_lse_ln, sinks, scales):
        if self._plan is None:
            raise ValueError("run: call plan() first")
        if device_of(q) != self._options["device"]:
            raise ValueError(f"q: is on {device_of(q)}, the plan on {self._options['device']}; pass device= to the wrapper")
        scales = [_scale(s, q, self._options["num_kv_heads"]) for s in scales[:2]] + list(scales[2:])
        v_dim = self._options["v_head_dim"]
        cache = Cache(k, v, self._hnd, self._options["kv_format"], *scales, v_dim=v_dim)
        out, lse = run(self._plan, q, cache, v_dim, sinks, out, return_lse_ln, lse_ln)
        return (out, lse) if return_lse_ln else out

    def explain(self):
        """Which backend runs, and why."""
        return self._plan.explain() if self._plan is not None else ""


def _options(heads, page_size, q_data_type, kv_data_type, sm_scale, logits_soft_cap, causal, window_left, use_sinks,
             tree, backend):
    num_q_heads, num_kv_heads, head_dim, v_head_dim = heads
    q_name = str(q_data_type).removeprefix("torch.")
    if q_name not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"q_data_type: is {q_name}, must be one of float32, float16, bfloat16")
    kv_name = str(kv_data_type if kv_data_type is not None else q_data_type).removeprefix("torch.")
    return dict(num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
                v_head_dim=v_head_dim or head_dim, page_size=page_size, kv_format=kv_format(None, kv_name),
                q_dtype=q_name, scale=sm_scale or 0.0, softcap=logits_soft_cap or 0.0, causal=bool(causal),
                window_left=window_left, use_sinks=use_sinks, use_tree_mask=tree, backend=backend)


def _plan_stream(device):
    """torch's current stream, where torch is in use on a GPU; else the default one."""
    torch = sys.modules.get("torch")
    in_use = device == "cuda" and torch is not None and torch.cuda.is_initialized()
    return torch.cuda.current_stream(0).cuda_stream if in_use else 0


def _scale(scale, q, heads):
    """A number as an array: one value on the CPU, one per head on a GPU."""
    if not isinstance(scale, (int, float)):
        return scale
    if device_of(q) == "cpu":
        return np.asarray([scale], np.float32)
    torch = torch_of(q)
    if torch is None:
        raise ValueError("k_scale, v_scale: on a GPU pass float32 arrays with one value per KV head")
    return torch.full((heads,), float(scale), dtype=torch.float32, device=q.device)


def _refuse_lse(return_lse):
    if return_lse:
        raise ValueError("return_lse: flashinfer's is a base-2 logarithm; use return_lse_ln, the natural one, which "
                         "merge_state takes here")


def _page_lens(page_indptr, last_page_len, page_size):
    pages = np.diff(page_indptr)
    return np.where(pages > 0, (pages - 1) * page_size + host_ints(last_page_len), 0).astype(np.int32)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Rows of several requests over pages [pages, page_size, kv_heads, dim] (NHD) or
    [pages, kv_heads, page_size, dim] (HND), in CSR form."""

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, head_dim_vo=None, tree_mask=None, causal=True, pos_encoding_mode="NONE",
             sm_scale=None, window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
             use_sinks=False):
        """tree_mask: booleans [rows, longest request]: which rows of its request a row sees; all rows see the
        tokens before them."""
        if pos_encoding_mode != "NONE":
            raise NotImplementedError("pos_encoding_mode: encode positions before; only NONE runs here")
        indptr = host_ints(paged_kv_indptr)
        batch = Batch(host_ints(qo_indptr), _page_lens(indptr, paged_kv_last_page_len, page_size), None, indptr,
                      host_ints(paged_kv_indices), tree_mask=None if tree_mask is None else pack_bits(tree_mask))
        self._set(batch, _options((num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo), page_size, q_data_type,
                                  kv_data_type, sm_scale, logits_soft_cap, causal, window_left, use_sinks,
                                  tree_mask is not None, self._backend), paged_kv_indptr)

    def run(self, q, paged_kv_cache, k_scale=None, v_scale=None, out=None, lse_ln=None, return_lse=False,
            return_lse_ln=False, sinks=None, k_block_scales=None, v_block_scales=None):
        """out of q [rows, heads, dim]; with return_lse_ln also its log-sum-exps [rows, heads]. k_scale and
        v_scale, numbers or one per head, are for fp8 and fp4 caches: value = stored * scale."""
        _refuse_lse(return_lse)
        k, v = _unpack(paged_kv_cache)
        return self._run(q, k, v, out, lse_ln, return_lse_ln, sinks, (k_scale, v_scale, k_block_scales, v_block_scales))


class BatchDecodeWithPagedKVCacheWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """One row of each request over its pages: q is [requests, heads, dim]."""

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
             pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16",
             kv_data_type=None, sm_scale=None, use_sinks=False):
        super().plan(np.arange(len(indptr), dtype=np.int32), indptr, indices, last_page_len, num_qo_heads,
                     num_kv_heads, head_dim, page_size, pos_encoding_mode=pos_encoding_mode, sm_scale=sm_scale,
                     window_left=window_left, logits_soft_cap=logits_soft_cap, q_data_type=q_data_type,
                     kv_data_type=kv_data_type, use_sinks=use_sinks)


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    """Rows of several requests over K and V laid end to end [tokens, kv_heads, dim]."""

    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, causal=True,
             pos_encoding_mode="NONE", sm_scale=None, window_left=-1, logits_soft_cap=None, q_data_type="float16",
             kv_data_type=None, use_sinks=False):
        if pos_encoding_mode != "NONE":
            raise NotImplementedError("pos_encoding_mode: encode positions before; only NONE runs here")
        self._set(Batch(host_ints(qo_indptr), kv_indptr=host_ints(kv_indptr)),
                  _options((num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo), 0, q_data_type, kv_data_type,
                           sm_scale, logits_soft_cap, causal, window_left, use_sinks, False, self._backend), kv_indptr)

    def run(self, q, k, v, out=None, lse_ln=None, return_lse=False, return_lse_ln=False, sinks=None):
        _refuse_lse(return_lse)
        return self._run(q, k, v, out, lse_ln, return_lse_ln, sinks, ())


def merge_states(v, s):
    """Attention over the union of disjoint token sets from the results over each: v [rows, states, heads, dim]
    and their natural log-sum-exps s [rows, states, heads], both float32. Returns (v, s) merged."""
    out = empty(v, (v.shape[0], *v.shape[2:]))
    lse = empty(v, out.shape[:-1], "float32")
    _core.merge_states(context(), readable(v), readable(s), readable(out), readable(lse), stream_of(v))
    return out, lse


def merge_state(v_a, s_a, v_b, s_b):
    """merge_states of two: v [rows, heads, dim], s [rows, heads]."""
    stack = torch_of(v_a) or np
    return merge_states(stack.stack([v_a, v_b], 1), stack.stack([s_a, s_b], 1))
