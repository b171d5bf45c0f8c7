"""Torch tensors on a GPU against torch's own attention in float32. Skipped where there is no GPU, or no kernels for it."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
import torch.nn.functional as F  # noqa: E402
import warpweave  # noqa: E402


def kernels_missing():
    try:
        q = torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16, device="cuda")
        warpweave.flash_attn_func(q, q, q)
    except NotImplementedError as error:
        return str(error)
    return ""


MISSING = kernels_missing()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2.5e-2}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(dtype)


def reference(q, k, v, causal=False, window=-1, softcap=0.0):
    """[tokens, heads, dim] in float32: (out, lse [tokens, heads])."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.float(), k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->qhk", q, k) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(q.shape[0], device="cuda")[:, None] + k.shape[0] - q.shape[0]
    token = torch.arange(k.shape[0], device="cuda")[None]
    hidden = (token > at) if causal else torch.zeros_like(token > at)
    if window >= 0:
        hidden = hidden | (token < at - window)
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    return torch.einsum("qhk,khd->qhd", scores.softmax(-1).nan_to_num(0), v), scores.logsumexp(-1)


def close(got, expected, dtype=torch.bfloat16):
    torch.testing.assert_close(got.float(), expected, atol=TOLERANCE[dtype], rtol=2e-2)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("lens", [(130, 130), (1, 1000), (37, 500)])
def test_flash_attn_func(dtype, causal, dim, lens):
    q, k, v = rows(2, lens[0], 8, dim, dtype=dtype), rows(2, lens[1], 2, dim, dtype=dtype), rows(2, lens[1], 2, dim, dtype=dtype)
    out, lse, _ = warpweave.flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)
    assert out.is_cuda and out.dtype == dtype and out.shape == q.shape and lse.shape == (2, 8, lens[0])
    for b in range(2):
        expected, expected_lse = reference(q[b], k[b], v[b], causal)
        close(out[b], expected, dtype)
        torch.testing.assert_close(lse[b].T, expected_lse, atol=2e-3, rtol=1e-3)


def test_the_error_is_that_of_torch():
    """Both round to bfloat16: against float32 ours may be as far off as torch's, not further."""
    q, k, v = rows(2, 700, 16, 128), rows(2, 700, 4, 128), rows(2, 700, 4, 128)
    theirs = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True)
    ours = warpweave.flash_attn_func(q, k, v, causal=True)
    exact = torch.stack([reference(q[b], k[b], v[b], True)[0] for b in range(2)])
    error = [float((x.float() - exact).norm() / exact.norm()) for x in (ours, theirs.transpose(1, 2))]
    assert error[0] <= 1.2 * error[1], error


def test_window_and_softcap():
    q, k, v = rows(1, 300, 8, 128), rows(1, 400, 2, 128), rows(1, 400, 2, 128)
    out = warpweave.flash_attn_func(q, k, v, window_size=(50, 0), softcap=15.0)
    close(out[0], reference(q[0], k[0], v[0], True, 50, 15.0)[0])


def test_tensors_as_models_hold_them():
    qkv = rows(2, 200, 3, 8, 64)  # one tensor for all three
    q, k, v = qkv.unbind(2)
    out = warpweave.flash_attn_func(q, k, v, causal=True)
    close(out[1], reference(q[1], k[1], v[1], True)[0])
    heads_first = rows(2, 8, 200, 64).transpose(1, 2)
    out = warpweave.flash_attn_func(heads_first, k, v.contiguous())
    close(out[1], reference(heads_first[1], k[1], v[1])[0])


def test_out_is_written_where_asked():
    q, k, v = rows(2, 40, 8, 128), rows(2, 40, 2, 128), rows(2, 40, 2, 128)
    out = torch.full_like(q, float("nan"))
    assert warpweave.flash_attn_func(q, k, v, causal=True, out=out) is out
    close(out[0], reference(q[0], k[0], v[0], True)[0])


@pytest.mark.parametrize("starts_k", [[0, 9, 30, 37, 800], [0, 64, 128, 192, 1024]])
def test_varlen(starts_k):
    starts_q = torch.tensor([0, 5, 5, 12, 300], dtype=torch.int32, device="cuda")
    starts_k = torch.tensor(starts_k, dtype=torch.int32, device="cuda")
    q, k, v = rows(300, 8, 128), rows(int(starts_k[-1]), 2, 128), rows(int(starts_k[-1]), 2, 128)
    out = warpweave.flash_attn_varlen_func(q, k, v, starts_q, starts_k, 288, 1024, causal=True)
    for a, b, c, d in zip(starts_q[:-1], starts_q[1:], starts_k[:-1], starts_k[1:]):
        close(out[a:b], reference(q[a:b], k[c:d], v[c:d], True)[0])


@pytest.mark.parametrize("kv", ["bfloat16", "float8_e4m3fn"])
def test_kvcache_appends_in_place(kv):
    dtype = getattr(torch, kv)
    lens = torch.tensor([40, 3], dtype=torch.int32, device="cuda")
    table = torch.tensor([[4, 1, 6], [2, 0, 0]], dtype=torch.int32, device="cuda")
    k_cache, v_cache = rows(7, 16, 2, 128, dtype=dtype), rows(7, 16, 2, 128, dtype=dtype)
    q, k, v = rows(2, 2, 8, 128), rows(2, 2, 2, 128), rows(2, 2, 2, 128)
    out = warpweave.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lens, block_table=table, causal=True)
    for b in range(2):
        n = int(lens[b]) + 2
        keys, values = (c[table[b].long()].reshape(-1, 2, 128)[:n].float() for c in (k_cache, v_cache))
        torch.testing.assert_close(keys[-2:], k[b].to(dtype).float())
        close(out[b], reference(q[b], keys, values, True)[0])


def paged(lens, page, heads=2, dim=128):
    counts = [-(-n // page) for n in lens]
    order = torch.randperm(sum(counts) + 2)
    indptr = torch.tensor([0] + counts).cumsum(0).to(torch.int32)
    last = torch.tensor([n - (c - 1) * page for n, c in zip(lens, counts)], dtype=torch.int32)
    return rows(len(order), 2, page, heads, dim), indptr, order[: sum(counts)].to(torch.int32), last


def tokens_of(cache, indptr, indices, r, n):
    pages = cache[indices[indptr[r] : indptr[r + 1]].long()]
    return (pages[:, i].reshape(-1, *cache.shape[3:])[:n] for i in range(2))


@pytest.mark.parametrize("page", [1, 16, 64])
def test_wrappers(page):
    lens, q_lens = [500, 17, 130], [200, 17, 1]
    cache, indptr, indices, last = paged(lens, page)
    starts = torch.tensor([0] + q_lens).cumsum(0).to(torch.int32)
    prefill = warpweave.BatchPrefillWithPagedKVCacheWrapper(torch.empty(1, device="cuda"))
    prefill.plan(starts, indptr, indices, last, 8, 2, 128, page, q_data_type=torch.bfloat16)
    q = rows(sum(q_lens), 8, 128)
    out, lse = prefill.run(q, cache, return_lse_ln=True)
    decode = warpweave.BatchDecodeWithPagedKVCacheWrapper(device="cuda")
    decode.plan(indptr, indices, last, 8, 2, 128, page, q_data_type=torch.bfloat16)
    q1 = rows(3, 8, 128)
    out1 = decode.run(q1, cache)
    for r, n in enumerate(lens):
        k, v = tokens_of(cache, indptr, indices, r, n)
        a, b = starts[r], starts[r + 1]
        expected, expected_lse = reference(q[a:b], k, v, True)
        close(out[a:b], expected)
        torch.testing.assert_close(lse[a:b], expected_lse, atol=2e-3, rtol=1e-3)
        close(out1[r : r + 1], reference(q1[r : r + 1], k, v)[0])
    assert decode.explain().startswith("prefill attention: ")


def test_run_in_a_graph_sees_later_plans():
    page, heads = 16, (8, 2)
    wrapper = warpweave.BatchDecodeWithPagedKVCacheWrapper(device="cuda", use_cuda_graph=True, max_pages_per_request=80)
    cache, indptr, indices, last = paged([1000, 40, 5], page)

    def plan(lens):
        counts = torch.tensor([-(-n // page) for n in lens])
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        used = torch.cat([indices[indptr[r] : indptr[r] + c] for r, c in enumerate(counts)])
        tail = torch.tensor([n - (int(c) - 1) * page for n, c in zip(lens, counts)], dtype=torch.int32)
        wrapper.plan(ends.to(torch.int32), used, tail, *heads, 128, page, q_data_type=torch.bfloat16)

    q, out = rows(3, 8, 128), torch.empty(3, 8, 128, dtype=torch.bfloat16, device="cuda")
    plan([1000, 40, 5])
    wrapper.run(q, cache, out=out)  # before the capture: this one may allocate
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):  # as two layers
            wrapper.run(q, cache, out=out)
    for lens in ([1000, 40, 5], [3, 33, 1], [900, 1, 5]):
        plan(lens)
        out.fill_(float("nan"))
        graph.replay()
        for r, n in enumerate(lens):
            k, v = tokens_of(cache, indptr, indices, r, n)
            close(out[r : r + 1], reference(q[r : r + 1], k, v)[0])
    eager = wrapper.run(q, cache)  # after a capture and without a new plan
    torch.testing.assert_close(eager, out)
    with pytest.raises(ValueError, match="shape of the first"):
        wrapper.plan(torch.tensor([0, 1], dtype=torch.int32), indices[:1], last[:1], *heads, 128, page,
                     q_data_type=torch.bfloat16)


def test_prefill_in_a_graph():
    q, k, v = rows(300, 8, 128), rows(300, 2, 128), rows(300, 2, 128)
    wrapper = warpweave.BatchPrefillWithRaggedKVCacheWrapper(device="cuda")
    wrapper.plan([0, 300], [0, 300], 8, 2, 128, q_data_type=torch.bfloat16)
    eager = wrapper.run(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = wrapper.run(q, k, v)
    out.fill_(0)
    graph.replay()
    torch.testing.assert_close(out, eager)


def test_what_plans_is_not_captured():
    q = rows(1, 4, 8, 128)
    warpweave.flash_attn_func(q, q, q)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capture a wrapper's run"):
        with torch.cuda.graph(graph):
            warpweave.flash_attn_func(q, q, q)


def test_the_callers_stream_orders_the_work():
    stream = torch.cuda.Stream()
    q, k, v = rows(1, 2000, 8, 128), rows(1, 2000, 2, 128), rows(1, 2000, 2, 128)
    expected = reference(q[0], k[0], v[0], True)[0]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(q)
        torch.cuda._sleep(20_000_000)
        late.copy_(q)
        out = warpweave.flash_attn_func(late, k, v, causal=True)
    stream.synchronize()
    close(out[0], expected)


def test_a_plan_runs_on_another_stream():
    lens = [100, 300]
    cache, indptr, indices, last = paged(lens, 16)
    wrapper = warpweave.BatchDecodeWithPagedKVCacheWrapper(device="cuda")
    wrapper.plan(indptr, indices, last, 8, 2, 128, 16, q_data_type=torch.bfloat16)
    q = rows(2, 8, 128)
    here = wrapper.run(q, cache)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        there = wrapper.run(q, cache)
    torch.cuda.synchronize()
    torch.testing.assert_close(there, here)


def test_merge_states():
    q, k, v = rows(1, 64, 8, 128), rows(1, 400, 2, 128), rows(1, 400, 2, 128)
    parts = [warpweave.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True) for a, b in ((0, 130), (130, 400))]
    (out_a, lse_a, _), (out_b, lse_b, _) = parts
    merged, lse = warpweave.merge_state(out_a[0].float(), lse_a[0].T.contiguous(), out_b[0].float(), lse_b[0].T.contiguous())
    expected, expected_lse = reference(q[0], k[0], v[0])
    close(merged, expected)
    torch.testing.assert_close(lse, expected_lse, atol=2e-3, rtol=1e-3)


def test_refusals_name_the_argument():
    q = rows(1, 4, 8, 128)
    with pytest.raises(NotImplementedError, match="kv.k: the tensor is on DLPack device type 1"):
        warpweave.flash_attn_func(q, q.cpu(), q.cpu())
    with pytest.raises(ValueError, match="num_q_heads"):
        warpweave.flash_attn_func(q[:, :, :3], q[:, :, :2], q[:, :, :2])
    wrapper = warpweave.BatchPrefillWithRaggedKVCacheWrapper(device="cpu")
    wrapper.plan([0, 4], [0, 4], 8, 8, 128, q_data_type="bfloat16")
    with pytest.raises(ValueError, match="is on cuda, the plan on cpu"):
        wrapper.run(q[0], q[0], q[0])
    with pytest.raises(ValueError, match="max_pages_per_request"):
        warpweave.BatchDecodeWithPagedKVCacheWrapper(device="cuda", use_cuda_graph=True)


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="latent attention has kernels for sm_90")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("page", [1, 64])
def test_latent_attention(dtype, page):
    lens, rank, rope, heads = [700, 33, 64], 512, 64, 16
    counts = [-(-n // page) for n in lens]
    cache = rows(sum(counts), page, rank + rope, dtype=dtype)
    order = torch.randperm(sum(counts), device="cuda").int()
    table = torch.zeros(3, max(counts), dtype=torch.int32, device="cuda")
    for r, own in enumerate(order.split(counts)):
        table[r, : len(own)] = own
    kv_lens = torch.tensor(lens, dtype=torch.int32, device="cuda")
    q = rows(3, 2, heads, rank + rope, dtype=dtype)
    metadata, splits = warpweave.get_mla_metadata(kv_lens, 2 * heads, 1)
    assert splits.is_cuda and splits.shape == (4,)
    pages = cache[:, :, None]
    out, lse = warpweave.flash_mla_with_kvcache(q, pages, table, kv_lens, rank, metadata, splits, 192**-0.5, True)
    wrapper = warpweave.BatchMLAPagedAttentionWrapper(device="cuda")
    wrapper.plan(torch.arange(0, 7, 2), torch.tensor([0, *counts]).cumsum(0).int(), order, kv_lens, heads, rank, rope,
                 page, True, 192**-0.5, dtype)
    flat = q.reshape(6, heads, rank + rope)
    same = wrapper.run(flat[..., :rank], flat[..., rank:], cache[..., :rank], cache[..., rank:])
    assert torch.equal(same.reshape(out.shape), out)
    for r, tokens in enumerate(lens):
        k = cache[table[r, : counts[r]].long()].reshape(-1, rank + rope)[:tokens].float()
        scores = torch.einsum("rhd,td->rht", q[r].float(), k) * 192**-0.5
        hidden = torch.arange(tokens, device="cuda")[None] > torch.arange(tokens - 2, tokens, device="cuda")[:, None]
        scores = scores.masked_fill(hidden[:, None], float("-inf"))
        close(out[r], scores.softmax(-1) @ k[:, :rank], dtype)
        torch.testing.assert_close(lse[r].T, scores.logsumexp(-1), atol=2e-2, rtol=1e-3)
