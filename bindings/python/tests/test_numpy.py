"""The package with numpy alone."""

import numpy as np
import pytest
import warpweave
from plain import attention, causal, paged

HEADS, KV_HEADS, DIM = 4, 2, 32


def rows(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def test_the_package_says_what_it_is():
    assert warpweave.abi_version == 1
    assert {"intel_amx", "torch_native"} <= set(warpweave.backends())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lens", [(7, 7), (3, 20), (20, 3), (1, 90)])
def test_flash_attn_func(rng, lens, is_causal):
    q_len, kv_len = lens
    q, k, v = rows(rng, 2, q_len, HEADS, DIM), rows(rng, 2, kv_len, KV_HEADS, DIM), rows(rng, 2, kv_len, KV_HEADS, DIM)
    out, lse, _ = warpweave.flash_attn_func(q, k, v, causal=is_causal, return_attn_probs=True)
    assert isinstance(out, np.ndarray) and out.dtype == np.float32 and lse.shape == (2, HEADS, q_len)
    sees = causal(q_len, kv_len) if is_causal else np.ones((q_len, kv_len), bool)
    for b in range(2):
        expected, expected_lse = attention(q[b], k[b], v[b], sees)
        np.testing.assert_allclose(out[b], expected, atol=2e-5)
        np.testing.assert_allclose(lse[b].T, expected_lse, atol=1e-4)


@pytest.mark.parametrize("window", [(-1, -1), (3, 0), (3, 3)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3, 0), (2, 0, 5), (2, 0, 0), (0, 3, 5), (0, 3, 0)])
def test_flash_attn_func_of_nothing(rng, sizes, is_causal, window):
    batch, q_len, kv_len = sizes
    q, k = rows(rng, batch, q_len, HEADS, DIM), rows(rng, batch, kv_len, KV_HEADS, DIM)
    out, lse, _ = warpweave.flash_attn_func(q, k, k, causal=is_causal, window_size=window, return_attn_probs=True)
    np.testing.assert_array_equal(out, np.zeros_like(q))
    np.testing.assert_array_equal(lse, np.full((batch, HEADS, q_len), -np.inf, np.float32))


def test_with_kvcache_of_no_tokens(rng):
    q, cache = rows(rng, 2, 3, HEADS, DIM), rows(rng, 2, 0, KV_HEADS, DIM)
    out, lse = warpweave.flash_attn_with_kvcache(q, cache, cache, causal=True, return_softmax_lse=True)
    assert not out.any() and np.isneginf(lse).all()
    codes, scales = (np.zeros((2, 0, KV_HEADS, DIM // part), np.uint8) for part in (2, 16))
    out = warpweave.flash_attn_with_kvcache(q, codes, codes, kv_format="fp4_e2m1", k_block_scales=scales, v_block_scales=scales)
    assert not out.any()


def test_window_softcap_scale(rng):
    q, k, v = rows(rng, 1, 30, HEADS, DIM), rows(rng, 1, 50, KV_HEADS, DIM), rows(rng, 1, 50, KV_HEADS, DIM)
    out = warpweave.flash_attn_func(q, k, v, softmax_scale=0.3, window_size=(7, 0), softcap=5.0)
    np.testing.assert_allclose(out[0], attention(q[0], k[0], v[0], causal(30, 50, 7), 0.3, 5.0)[0], atol=2e-5)


def test_half_precision_and_given_out(rng):
    q, k, v = (rows(rng, 2, 9, HEADS, DIM).astype(np.float16) for _ in range(3))
    out = np.empty_like(q)
    assert warpweave.flash_attn_func(q, k, v, causal=True, out=out) is out
    expected, _ = attention(q[1], k[1], v[1], causal(9, 9))
    np.testing.assert_allclose(out[1], expected, atol=4e-3)


def test_varlen(rng):
    starts_q, starts_k = np.array([0, 5, 5, 12], np.int32), np.array([0, 9, 30, 37], np.int32)
    q, k, v = rows(rng, 12, HEADS, DIM), rows(rng, 37, KV_HEADS, DIM), rows(rng, 37, KV_HEADS, DIM)
    out = warpweave.flash_attn_varlen_func(q, k, v, starts_q, starts_k, 7, 21, causal=True)
    for r in range(3):
        a, b, c, d = starts_q[r], starts_q[r + 1], starts_k[r], starts_k[r + 1]
        np.testing.assert_allclose(out[a:b], attention(q[a:b], k[c:d], v[c:d], causal(b - a, d - c))[0], atol=2e-5)


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("packed", [False, True])
def test_paged_prefill_and_decode(rng, kv_layout, packed):
    lens, q_lens, page = [40, 17, 16], [5, 17, 1], 16
    k = [rows(rng, n, KV_HEADS, DIM) for n in lens]
    v = [rows(rng, n, KV_HEADS, DIM) for n in lens]
    state = rng.bit_generator.state
    k_pages, indptr, indices, last = paged(k, lens, page, rng)
    rng.bit_generator.state = state
    v_pages, *_ = paged(v, lens, page, rng)
    if kv_layout == "HND":
        k_pages, v_pages = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k_pages, v_pages))
    cache = np.stack([k_pages, v_pages], axis=1) if packed else (k_pages, v_pages)

    q = rows(rng, sum(q_lens), HEADS, DIM)
    starts = np.concatenate(([0], np.cumsum(q_lens)))
    wrapper = warpweave.BatchPrefillWithPagedKVCacheWrapper(kv_layout=kv_layout)
    wrapper.plan(starts, indptr, indices, last, HEADS, KV_HEADS, DIM, page, causal=True, q_data_type="float32")
    for _ in range(2):  # run again under the same plan
        out, lse = wrapper.run(q, cache, return_lse_ln=True)
    for r, (n, rows_) in enumerate(zip(lens, q_lens)):
        a = starts[r]
        expected, expected_lse = attention(q[a : a + rows_], k[r], v[r], causal(rows_, n))
        np.testing.assert_allclose(out[a : a + rows_], expected, atol=2e-5)
        np.testing.assert_allclose(lse[a : a + rows_], expected_lse, atol=1e-4)

    decode = warpweave.BatchDecodeWithPagedKVCacheWrapper(kv_layout=kv_layout)
    decode.plan(indptr, indices, last, HEADS, KV_HEADS, DIM, page, q_data_type="float32", window_left=9)
    q = rows(rng, 3, HEADS, DIM)
    out = decode.run(q, cache)
    for r, n in enumerate(lens):
        np.testing.assert_allclose(out[r : r + 1], attention(q[r : r + 1], k[r], v[r], causal(1, n, 9))[0], atol=2e-5)
    assert "intel_amx" in decode.explain()


def test_tree_mask(rng):
    k, v = rows(rng, 26, KV_HEADS, DIM), rows(rng, 26, KV_HEADS, DIM)
    pages_k, indptr, indices, last = paged([k], [26], 4, np.random.default_rng(2))
    pages_v, *_ = paged([v], [26], 4, np.random.default_rng(2))
    tree = np.eye(6, dtype=bool)
    for node, parent in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2)):
        tree[node] |= tree[parent]
    q = rows(rng, 6, HEADS, DIM)
    wrapper = warpweave.BatchPrefillWithPagedKVCacheWrapper()
    wrapper.plan([0, 6], indptr, indices, last, HEADS, KV_HEADS, DIM, 4, tree_mask=tree, q_data_type="float32")
    sees = np.concatenate([np.ones((6, 20), bool), tree], axis=1)
    np.testing.assert_allclose(wrapper.run(q, (pages_k, pages_v)), attention(q, k, v, sees)[0], atol=2e-5)


def test_ragged_sinks(rng):
    q, k, v = rows(rng, 6, HEADS, DIM), rows(rng, 30, KV_HEADS, DIM), rows(rng, 30, KV_HEADS, DIM)
    sinks = rows(rng, HEADS)
    wrapper = warpweave.BatchPrefillWithRaggedKVCacheWrapper()
    wrapper.plan([0, 2, 6], [0, 11, 30], HEADS, KV_HEADS, DIM, q_data_type="float32", use_sinks=True)
    out = wrapper.run(q, k, v, sinks=sinks)
    np.testing.assert_allclose(out[:2], attention(q[:2], k[:11], v[:11], causal(2, 11), sinks=sinks)[0], atol=2e-5)
    np.testing.assert_allclose(out[2:], attention(q[2:], k[11:], v[11:], causal(4, 19), sinks=sinks)[0], atol=2e-5)


def test_merge_state(rng):
    q, k, v = rows(rng, 5, HEADS, DIM), rows(rng, 40, KV_HEADS, DIM), rows(rng, 40, KV_HEADS, DIM)

    def part(a, b):
        out, lse, _ = warpweave.flash_attn_func(q[None], k[None, a:b], v[None, a:b], return_attn_probs=True)
        return out[0], np.ascontiguousarray(lse[0].T)

    merged, lse = warpweave.merge_state(*part(0, 13), *part(13, 40))
    whole, whole_lse = part(0, 40)
    np.testing.assert_allclose(merged, whole, atol=1e-5)
    np.testing.assert_allclose(lse, whole_lse, atol=1e-5)


@pytest.mark.parametrize("with_pages", [False, True])
def test_with_kvcache_appends_in_place(rng, with_pages):
    lens = np.array([5, 30], np.int32)
    k_all, v_all = rows(rng, 2, 33, KV_HEADS, DIM), rows(rng, 2, 33, KV_HEADS, DIM)
    if with_pages:
        table = np.array([[6, 1, 3], [0, 5, 2]], np.int32)
        k_cache = np.zeros((7, 16, KV_HEADS, DIM), np.float32)
    else:
        table = None
        k_cache = np.zeros((2, 40, KV_HEADS, DIM), np.float32)
    v_cache = np.zeros_like(k_cache)

    def place(b, t):
        return (table[b, t // 16], t % 16) if with_pages else (b, t)

    for b in range(2):
        for t in range(lens[b]):
            k_cache[place(b, t)], v_cache[place(b, t)] = k_all[b, t], v_all[b, t]
    new_k = np.stack([k_all[b, lens[b] : lens[b] + 3] for b in range(2)])
    new_v = np.stack([v_all[b, lens[b] : lens[b] + 3] for b in range(2)])
    q = rows(rng, 2, 3, HEADS, DIM)
    out = warpweave.flash_attn_with_kvcache(q, k_cache, v_cache, new_k, new_v, cache_seqlens=lens, block_table=table,
                                            causal=True)
    for b in range(2):
        n = lens[b] + 3
        np.testing.assert_array_equal(k_cache[place(b, n - 1)], k_all[b, n - 1])
        expected, _ = attention(q[b], k_all[b, :n], v_all[b, :n], causal(3, n))
        np.testing.assert_allclose(out[b], expected, atol=2e-5)


@pytest.mark.parametrize("kv_format, tolerance", [("fp8_e4m3", 0.15), ("fp8_e5m2", 0.3), ("fp4_e2m1", 0.9)])
def test_quantised_cache(rng, kv_format, tolerance):
    fp4 = kv_format == "fp4_e2m1"
    cache = [np.zeros((1, 64, KV_HEADS, DIM // (2 if fp4 else 1)), np.uint8) for _ in range(2)]
    extra = {"k_scales": np.array([0.5], np.float32), "v_scales": np.array([0.5, 0.25], np.float32)}
    if fp4:
        extra |= {name: np.zeros((1, 64, KV_HEADS, DIM // 16), np.uint8) for name in ("k_block_scales", "v_block_scales")}
    k, v, q = rows(rng, 1, 50, KV_HEADS, DIM), rows(rng, 1, 50, KV_HEADS, DIM), rows(rng, 1, 4, HEADS, DIM)
    out = warpweave.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=0, causal=True, kv_format=kv_format, **extra)
    expected, _ = attention(q[0], k[0], v[0], causal(4, 50))
    assert 1e-4 < np.abs(out[0] - expected).max() < tolerance


def test_refusals_name_the_argument(rng):
    q = rows(rng, 1, 4, HEADS, DIM)
    cases = [
        (NotImplementedError, "alibi_slopes", lambda: warpweave.flash_attn_func(q, q, q, alibi_slopes=[1])),
        (NotImplementedError, "dropout_p", lambda: warpweave.flash_attn_func(q, q, q, dropout_p=0.1)),
        (NotImplementedError, "window_size", lambda: warpweave.flash_attn_with_kvcache(q, q, q, window_size=(3, 3))),
        (NotImplementedError, "rotary_cos", lambda: warpweave.flash_attn_with_kvcache(q, q, q, rotary_cos=q)),
        (ValueError, "dtype is int32", lambda: warpweave.flash_attn_func(q.astype(np.int32), q, q)),
        (ValueError, "num_q_heads", lambda: warpweave.flash_attn_func(q[:, :, :3], q[:, :, :2], q[:, :, :2])),
        (ValueError, "num_kv_heads: is 0", lambda: warpweave.flash_attn_func(q, q[:, :, :0], q[:, :, :0], window_size=(1, 1))),
        (ValueError, "q: has 3 dimensions", lambda: warpweave.flash_attn_func(q[0], q, q)),
        (ValueError, "k: has a batch of 2, q has 1", lambda: warpweave.flash_attn_func(q, np.repeat(q, 2, 0), q)),
        (ValueError, "v: has 0 tokens, k has 4", lambda: warpweave.flash_attn_func(q, q, q[:, :0])),
        (ValueError, "do not fit", lambda: warpweave.flash_attn_with_kvcache(q, q, q, q, q, cache_seqlens=2)),
        (ValueError, "do not fit", lambda: warpweave.flash_attn_with_kvcache(q, q[:, :0], q[:, :0], q, q)),
        (ValueError, "sees 2 tokens", lambda: warpweave.flash_attn_with_kvcache(q, q[:, :0], q[:, :0], cache_seqlens=2)),
        (FileNotFoundError, "no such file", lambda: warpweave.load_backend_plugin("/nowhere.so")),
        (ValueError, "call plan", lambda: warpweave.BatchPrefillWithRaggedKVCacheWrapper().run(q[0], q[0], q[0])),
        (ValueError, "kv_layout", lambda: warpweave.BatchPrefillWithPagedKVCacheWrapper(kv_layout="DHN")),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
    wrapper = warpweave.BatchPrefillWithRaggedKVCacheWrapper()
    wrapper.plan([0, 4], [0, 4], HEADS, HEADS, DIM, q_data_type="float32")
    with pytest.raises(ValueError, match="base-2"):
        wrapper.run(q[0], q[0], q[0], return_lse=True)
    with pytest.raises(ValueError, match="kv.k: has 3 tokens"):
        wrapper.run(q[0], q[0, :3], q[0, :3])


def test_other_numbers_of_threads(rng):
    q = rows(rng, 2, 40, HEADS, DIM)
    before = warpweave.flash_attn_func(q, q, q, deterministic=True)
    warpweave.set_num_threads(1)
    try:
        np.testing.assert_array_equal(warpweave.flash_attn_func(q, q, q, deterministic=True), before)
    finally:
        warpweave.set_num_threads(0)
