"""FlashInfer on the problems of bench_attention.py, where it is installed (`pip install flashinfer-python`; it
compiles on first use). Each function gives {name: call on one of the problem's K/V copies}; a peer that cannot
run a problem is left out with its reason on standard error."""
import importlib.util
import sys

import torch

INSTALLED = importlib.util.find_spec("flashinfer") is not None
_workspace = None


def workspace():
    global _workspace
    if _workspace is None:
        _workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
    return _workspace


def csr(p):
    """The page table of a Problem as FlashInfer reads it: indptr, indices, last_page_len."""
    counts = [-(-n // p.page) for n in p.kv_lens_list]
    indptr = torch.tensor([0] + counts, dtype=torch.int32).cumsum(0).to(torch.int32).cuda()
    indices = torch.cat([p.table[r, :c] for r, c in enumerate(counts)])
    last = torch.tensor([n - (c - 1) * p.page for n, c in zip(p.kv_lens_list, counts)], dtype=torch.int32).cuda()
    return indptr, indices, last


def attempt(name, make):
    try:
        call = make()
        call(0)
        torch.cuda.synchronize()
        return {name: call}
    except Exception as error:  # a peer's failure is no failure of ours
        print(f"({name} left out: {' '.join(str(error).split())[:200]})", file=sys.stderr)
        return {}


def flashinfer_decode(p, tensor_cores):
    def make():
        import flashinfer
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=tensor_cores)
        wrapper.plan(*csr(p), p.hq, p.hkv, p.d, p.page, q_data_type=p.dtype, kv_data_type=p.pools[0][0].dtype)
        return lambda copy: wrapper.run(p.q, tuple(p.pools[copy]), out=p.out)

    if not INSTALLED or p.kv == "e2m1":
        return {}
    return attempt("flashinfer tc" if tensor_cores else "flashinfer", make)


def flashinfer_prefill(p, backend="fa3"):
    def make():
        import flashinfer
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend=backend)
        wrapper.plan(p.q_indptr, *csr(p), p.hq, p.hkv, p.d, p.page, causal=p.causal, q_data_type=p.dtype,
                     kv_data_type=p.pools[0][0].dtype)
        return lambda copy: wrapper.run(p.q, tuple(p.pools[copy]), out=p.out)

    return attempt(f"flashinfer {backend}", make) if INSTALLED else {}
