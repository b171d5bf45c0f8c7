"""Torch tensors against torch's own attention."""

import threading

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
import warpweave  # noqa: E402

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def sdpa(q, k, v, **kwargs):
    """[batch, tokens, heads, dim] in float64."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **kwargs).transpose(1, 2)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 80])
def test_flash_attn_func(dtype, causal, dim):
    q, k, v = (torch.randn(2, 130, heads, dim, dtype=dtype) for heads in (8, 2, 2))
    out = warpweave.flash_attn_func(q, k, v, causal=causal)
    assert out.dtype == dtype and out.shape == q.shape
    torch.testing.assert_close(out.double(), sdpa(q, k, v, is_causal=causal), atol=TOLERANCE[dtype], rtol=0)


def test_transposed_and_sliced_tensors():
    """As models hold them: heads before tokens, one tensor for q, k and v."""
    qkv = torch.randn(2, 4, 50, 3 * 64)  # [batch, heads, tokens, ...]
    q, k, v = (x.transpose(1, 2) for x in qkv.split(64, dim=-1))
    torch.testing.assert_close(warpweave.flash_attn_func(q, k, v).double(), sdpa(q, k, v), atol=2e-5, rtol=0)


def test_backward_raises():
    q = torch.randn(1, 5, 2, 32, requires_grad=True)
    out = warpweave.flash_attn_func(q, q, q)
    torch.testing.assert_close(out.double(), sdpa(q, q, q), atol=2e-5, rtol=0)
    with pytest.raises(NotImplementedError, match="no gradients"):
        out.sum().backward()
    with pytest.raises(NotImplementedError, match="no gradients"):
        warpweave.flash_attn_func(q, q, q, return_attn_probs=True)
    with torch.no_grad():
        assert not warpweave.flash_attn_func(q, q, q).requires_grad


@pytest.mark.parametrize("window", [(2, 3), (0, 4), (-1, 1), (3, 100)])
def test_windows_with_a_bound_on_the_right(window):
    q, k, v = torch.randn(2, 9, 4, 32), torch.randn(2, 14, 2, 32), torch.randn(2, 14, 2, 32)
    left, right = window
    rows, tokens = torch.arange(5, 14)[:, None], torch.arange(14)[None]
    sees = (tokens <= rows + right) & ((tokens >= rows - left) | torch.tensor(left < 0))
    out = warpweave.flash_attn_func(q, k, v, window_size=window)
    torch.testing.assert_close(out.double(), sdpa(q, k, v, attn_mask=sees), atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kvcache_with_pages(dtype):
    page, lens = 16, torch.tensor([40, 3], dtype=torch.int32)
    table = torch.tensor([[4, 1, 6], [2, 0, 0]], dtype=torch.int32)
    k_cache, v_cache = torch.randn(7, page, 2, 64, dtype=dtype), torch.randn(7, page, 2, 64, dtype=dtype)
    q, k, v = (torch.randn(2, 2, heads, 64, dtype=dtype) for heads in (4, 2, 2))
    out, lse = warpweave.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lens, block_table=table,
                                                 causal=True, return_softmax_lse=True)
    assert lse.shape == (2, 4, 2) and lse.dtype == torch.float32
    for b in range(2):
        n = int(lens[b]) + 2
        keys, values = (c[table[b].long()].reshape(-1, 2, 64)[None, :n] for c in (k_cache, v_cache))
        torch.testing.assert_close(keys[0, -2:], k[b])
        sees = torch.arange(n)[None] <= torch.arange(n - 2, n)[:, None]
        expected = sdpa(q[b : b + 1], keys, values, attn_mask=sees)
        torch.testing.assert_close(out[b : b + 1].double(), expected, atol=TOLERANCE[dtype], rtol=0)


def test_fp8_tensors_say_their_format():
    cache = torch.randn(1, 40, 2, 64).to(torch.float8_e4m3fn)
    q = torch.randn(1, 1, 4, 64, dtype=torch.bfloat16)
    out = warpweave.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=40, causal=True)
    wide = cache.float()
    torch.testing.assert_close(out.double(), sdpa(q, wide, wide), atol=1.6e-2, rtol=0)


def test_bf16_wrappers_take_torch_dtypes():
    wrapper = warpweave.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1), kv_layout="HND")
    cache = torch.randn(5, 2, 2, 16, 64, dtype=torch.bfloat16)
    indptr = torch.tensor([0, 2, 3], dtype=torch.int32)
    wrapper.plan(indptr, torch.tensor([3, 0, 4]), torch.tensor([7, 16]), 4, 2, 64, 16, q_data_type=torch.bfloat16)
    q = torch.randn(2, 4, 64, dtype=torch.bfloat16)
    out = wrapper.run(q, cache)
    for r, (pages, n) in enumerate((([3, 0], 23), ([4], 16))):
        k, v = (torch.cat([cache[p, i].transpose(0, 1) for p in pages])[None, :n] for i in range(2))
        torch.testing.assert_close(out[r][None, None].double(), sdpa(q[r][None, None], k, v), atol=1.6e-2, rtol=0)


def test_threads_do_not_disturb_each_other():
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            q = torch.randn(1, 10 + seed, 4, 32, generator=generator)
            if not torch.allclose(warpweave.flash_attn_func(q, q, q).double(), sdpa(q, q, q), atol=2e-5):
                failed.append(seed)

    failed = []
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_other_devices_are_refused():
    q = torch.empty(1, 4, 2, 32, device="meta")
    with pytest.raises(Exception):
        warpweave.flash_attn_func(q, q, q)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_latent_attention(dtype):
    """A cache whose parts flashinfer's names are views of, and FlashMLA's shape over the same pages."""
    lens, page, rank, rope = [70, 33], 16, 512, 64
    cache = torch.randn(9, page, rank + rope).to(dtype)
    table = torch.tensor([[4, 2, 8, 0, 1], [7, 3, 5, -1, -1]], dtype=torch.int32)
    q = torch.randn(2, 3, 4, rank + rope).to(dtype)
    kv_lens = torch.tensor(lens, dtype=torch.int32)
    out, lse = warpweave.flash_mla_with_kvcache(q, cache[:, :, None], table, kv_lens, rank, softmax_scale=192**-0.5,
                                                causal=True)
    assert out.dtype == dtype and lse.shape == (2, 4, 3)
    wrapper = warpweave.BatchMLAPagedAttentionWrapper()
    wrapper.plan(torch.tensor([0, 3, 6], dtype=torch.int32), torch.tensor([0, 5, 8], dtype=torch.int32),
                 torch.tensor([4, 2, 8, 0, 1, 7, 3, 5], dtype=torch.int32), kv_lens, 4, rank, rope, page, True,
                 192**-0.5, dtype)
    rows = q.reshape(6, 4, rank + rope)
    same = wrapper.run(rows[..., :rank], rows[..., rank:], cache[..., :rank], cache[..., rank:])
    torch.testing.assert_close(same, out.reshape(6, 4, rank), atol=0, rtol=0)
    for r, tokens in enumerate(lens):
        k = cache[table[r, : -(-tokens // page)].long()].reshape(-1, rank + rope)[:tokens].double()
        scores = torch.einsum("rhd,td->rht", q[r].double(), k) * 192**-0.5
        hidden = torch.arange(tokens)[None] > torch.arange(tokens - 3, tokens)[:, None]
        scores = scores.masked_fill(hidden[:, None], float("-inf"))
        torch.testing.assert_close(out[r].double(), scores.softmax(-1) @ k[:, :rank], atol=TOLERANCE[dtype], rtol=0)
        torch.testing.assert_close(lse[r].T.double(), scores.logsumexp(-1), atol=2e-2, rtol=0)
