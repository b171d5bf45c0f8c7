"""Warpweave's attention for Python: the kernels of the server as functions over torch tensors or numpy arrays.

flash_attn_func and its siblings have flash-attn's shape, flash_mla_with_kvcache FlashMLA's, the Batch...Wrapper classes
flashinfer's; register_transformers makes both attention and masks known to transformers under the name "warpweave".
See docs/python.md.
"""

from ._core import abi_version, backends, load_backend_plugin
from ._runtime import set_num_threads
from .fla import chunk_gated_delta_rule, chunk_kda, fused_recurrent_gated_delta_rule, fused_recurrent_kda
from .flash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from .hf import register_transformers
from .mla import BatchMLAPagedAttentionWrapper, flash_mla_with_kvcache, get_mla_metadata
from .wrappers import (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper,
                       BatchPrefillWithRaggedKVCacheWrapper, merge_state, merge_states)

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper", "BatchMLAPagedAttentionWrapper", "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper", "abi_version", "backends", "chunk_gated_delta_rule", "chunk_kda",
    "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache", "flash_mla_with_kvcache",
    "fused_recurrent_gated_delta_rule", "fused_recurrent_kda", "get_mla_metadata", "load_backend_plugin",
    "merge_state", "merge_states", "register_transformers", "set_num_threads",
]
