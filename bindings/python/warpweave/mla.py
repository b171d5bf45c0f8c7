"""Latent attention (MLA, DeepSeek) in the shapes of FlashMLA and of flashinfer, for inference.

All query heads meet one row a token, [latent | rope], of which the latent part is the value too: the absorbed form.
Lengths are on the host once per step: get_mla_metadata() or plan() read them, the calls of all layers use them.
"""

import numpy as np

from ._arrays import device_of, host_ints, torch_of
from ._attention import Batch, Cache, Rules, attend
from .wrappers import _options, _refuse_lse, _Wrapper


def _refuse(**given):
    for name, (value, why) in given.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name}: {why}")


def _row_requests(q_lens, lens, indptr, indices):
    """Each row as a request of its own that sees all tokens of the one it is of: attention that is not causal."""
    of_row = np.repeat(np.arange(len(q_lens)), q_lens)
    pages = [indices[indptr[r] : indptr[r + 1]] for r in of_row]
    counts = np.array([0] + [len(p) for p in pages], np.int32)
    return Batch(np.arange(len(of_row) + 1, dtype=np.int32), lens[of_row], None, np.cumsum(counts, dtype=np.int32),
                 np.concatenate([np.zeros(0, np.int32), *pages]).astype(np.int32))


class MlaMetadata:
    """The lengths of a step, and the batch that they make with its page table: read by the step's first layer, used
    by all. A step with other lengths or pages needs another."""

    def __init__(self, cache_seqlens):
        if cache_seqlens is None:
            raise ValueError("cache_seqlens: is None, must be the requests' tokens [batch]")
        self.lens = host_ints(cache_seqlens).copy()
        if self.lens.ndim != 1:
            raise ValueError(f"cache_seqlens: has the shape {self.lens.shape}, must be [batch]")
        self._table = self._key = self._batch = None

    def batch(self, block_table, rows, page_size, causal):
        key = (rows, page_size, causal)
        if self._table is block_table and self._key == key:
            return self._batch
        table, requests = host_ints(block_table), len(self.lens)
        if table.ndim != 2 or table.shape[0] != requests:
            raise ValueError(f"block_table: has the shape {table.shape}, must be [{requests}, blocks of a request]")
        step, repeats = (rows, 1) if causal else (1, rows)
        self._batch = Batch(np.arange(requests * repeats + 1, dtype=np.int32) * np.int32(step),
                            np.repeat(self.lens, repeats), np.repeat(table, repeats, axis=0), page_size=page_size)
        self._table, self._key = block_table, key
        return self._batch


def get_mla_metadata(cache_seqlens, num_q_tokens_per_head_k=None, num_heads_k=1, num_heads_q=None,
                     is_fp8_kvcache=False, topk=None):
    """(metadata, num_splits) of one step for flash_mla_with_kvcache. cache_seqlens [batch] is read here, and waited for
    where it is on a GPU. How tokens are split over a GPU is decided where the work is launched: num_splits, of the
    kind of cache_seqlens, [batch + 1], says one part for each request and is not read again. is_fp8_kvcache,
    num_q_tokens_per_head_k and num_heads_q change nothing here."""
    _refuse(topk=(topk, "sparse attention does not run here"))
    if num_heads_k != 1:
        raise ValueError(f"num_heads_k: is {num_heads_k}, latent attention has 1")
    metadata = MlaMetadata(cache_seqlens)
    splits = np.arange(len(metadata.lens) + 1, dtype=np.int32)
    torch = torch_of(cache_seqlens)
    return metadata, splits if torch is None else torch.from_numpy(splits).to(cache_seqlens.device)


def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata=None,
                           num_splits=None, softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, *,
                           out=None, kv_format=None, k_scale=None):
    """(out [batch, rows, heads, head_dim_v], natural lse [batch, heads, rows]) of q [batch, rows, heads, dim] over
    pages of latent rows k_cache [blocks, page_size, 1, dim], whose first head_dim_v values are V.

    tile_scheduler_metadata, from get_mla_metadata, has the lengths; without it cache_seqlens is read at every call.
    softmax_scale is dim ** -0.5 where it is not given, as in FlashMLA; DeepSeek's is that of the heads, of 192.
    is_fp8_kvcache: k_cache [blocks, page_size, 1, 656] holds tokens of 656 bytes (uint8 or float8_e4m3fn: 512 e4m3 codes,
    4 float32 scales that are powers of two, 64 bfloat16 values), of dim 576 and head_dim_v 512. kv_format "fp4_mla": of
    416 (256 bytes of e2m1 codes, 32 e4m3 scales, 64 bfloat16). k_scale, one float32 value, multiplies a cache of fp8 rows."""
    _refuse(indices=(indices, "sparse attention does not run here"))
    if is_fp8_kvcache:
        if kv_format not in (None, "fp8_ds_mla"):
            raise ValueError(f"kv_format: is {kv_format}, is_fp8_kvcache means fp8_ds_mla")
        kv_format = "fp8_ds_mla"
    if q.ndim != 4 or k_cache.ndim != 4 or k_cache.shape[2] != 1:
        raise ValueError("q must be [batch, rows, heads, dim], k_cache [blocks, page_size, 1, dim]")
    metadata = MlaMetadata(cache_seqlens) if tile_scheduler_metadata is None else tile_scheduler_metadata
    if not isinstance(metadata, MlaMetadata):
        raise ValueError(f"tile_scheduler_metadata: is a {type(metadata).__name__}, must come from get_mla_metadata()")
    if metadata is tile_scheduler_metadata and cache_seqlens is not None and device_of(cache_seqlens) == "cpu":
        if not np.array_equal(host_ints(cache_seqlens), metadata.lens):  # one on a GPU would be waited for
            raise ValueError("cache_seqlens: are not those of tile_scheduler_metadata; each step needs its own get_mla_metadata()")
    if len(metadata.lens) != q.shape[0]:
        raise ValueError(f"tile_scheduler_metadata: has {len(metadata.lens)} requests, q {q.shape[0]}")
    batch = metadata.batch(block_table, q.shape[1], k_cache.shape[1], causal or q.shape[1] == 1)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    cache = Cache(k_cache, None, False, kv_format, k_scale, v_dim=head_dim_v)
    out, lse = attend(q, cache, batch, Rules(causal=True, scale=scale), out, want_lse=True)
    return out, lse.transpose(-1, -2) if torch_of(lse) is not None else np.swapaxes(lse, -1, -2)


def _joined(first, second):
    """[..., a] and [..., b] as [..., a + b]: as they lie where they are parts of one array, else copied together."""
    torch = torch_of(first)
    shape = (*first.shape[:-1], first.shape[-1] + second.shape[-1])
    if torch is not None:
        alike = first.dtype == second.dtype and first.stride() == second.stride() and first.stride(-1) == 1
        follows = second.data_ptr() - first.data_ptr() == first.shape[-1] * first.element_size()
        if alike and follows and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr():
            return first.as_strided(shape, first.stride())
        return torch.cat((first, second), -1)
    alike = first.dtype == second.dtype and first.strides == second.strides and first.strides[-1] == first.itemsize
    if alike and second.ctypes.data - first.ctypes.data == first.shape[-1] * first.itemsize:
        return np.lib.stride_tricks.as_strided(first, shape, first.strides, writeable=False)
    return np.concatenate((first, second), -1)


class BatchMLAPagedAttentionWrapper(_Wrapper):
    """plan() and run() in the shape of flashinfer's class of this name; wrappers.py says how the wrappers differ.

    Where ckv_cache and kpe_cache are parts of one array [pages, page_size, ckv + kpe], and q_nope and q_pe of one, they
    are read as they lie; otherwise run() first copies them together, the whole cache each time."""

    def __init__(self, float_workspace_buffer=None, use_cuda_graph=False, qo_indptr=None, kv_indptr=None,
                 kv_indices=None, kv_len_arr=None, backend="auto", *, device=None, max_pages_per_request=None):
        """The arrays for graphs are the library's own: max_pages_per_request in their place, as in wrappers.py."""
        _refuse(qo_indptr=(qo_indptr, "pass it to plan()"), kv_indptr=(kv_indptr, "pass it to plan()"),
                kv_indices=(kv_indices, "pass it to plan()"), kv_len_arr=(kv_len_arr, "pass it to plan()"))
        super().__init__(float_workspace_buffer, "NHD", "auto" if backend in ("auto", "fa2", "fa3") else backend,
                         use_cuda_graph, device, max_pages_per_request)

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size,
             causal, sm_scale, q_data_type, kv_data_type=None, use_profiler=False):
        """kv_indptr counts pages, kv_len_arr tokens. Without `causal` every row sees all tokens of its request."""
        _refuse(use_profiler=(use_profiler, "there is no profiler here"))
        q_indptr, lens = host_ints(qo_indptr), host_ints(kv_len_arr)
        indptr, indices = host_ints(kv_indptr), host_ints(kv_indices)
        if causal or (np.diff(q_indptr) <= 1).all():
            batch = Batch(q_indptr, lens, None, indptr, indices)
        else:
            batch = _row_requests(np.diff(q_indptr), lens, indptr, indices)
        options = _options((num_heads, 1, head_dim_ckv + head_dim_kpe, head_dim_ckv), page_size, q_data_type,
                           kv_data_type, sm_scale, None, True, -1, False, False, self._backend)
        self._set(batch, options | dict(latent=True), kv_indptr)

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False, profiler_buffer=None,
            kv_len=None, page_table=None, return_lse_base_on_e=False, *, return_lse_ln=False, ckv_scale=None):
        """out [rows, heads, ckv] of q_nope [rows, heads, ckv] and q_pe [rows, heads, kpe] over ckv_cache [pages,
        page_size, ckv] and kpe_cache [pages, page_size, kpe]. Log-sum-exps [rows, heads], natural ones, with
        return_lse_ln, or with return_lse and return_lse_base_on_e. ckv_scale: of an fp8 cache, for both parts."""
        _refuse(profiler_buffer=(profiler_buffer, "there is no profiler here"), kv_len=(kv_len, "pass it to plan()"),
                page_table=(page_table, "pass its pages to plan()"))
        _refuse_lse(return_lse and not return_lse_base_on_e)
        want_lse = return_lse_ln or return_lse
        cache = _joined(ckv_cache, kpe_cache)
        return self._run(_joined(q_nope, q_pe), cache[:, :, None], None, out, lse, want_lse, None, (ckv_scale,))
