"""Latent attention in FlashMLA's and flashinfer's shapes, with numpy alone, against float64."""

import numpy as np
import pytest
import warpweave
from plain import attention, causal, paged

HEADS, RANK, ROPE = 5, 512, 64
DIM = RANK + ROPE
SCALE = 192**-0.5


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def rows(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


class Step:
    """Requests of (rows, tokens) over shuffled pages of latent rows, NaN where nothing stands."""

    def __init__(self, rng, requests, page_size):
        self.requests = requests
        self.latent = [rows(rng, tokens, 1, DIM) for _, tokens in requests]
        self.lens = np.array([tokens for _, tokens in requests], np.int32)
        self.pages, self.indptr, self.indices, _ = paged(self.latent, self.lens, page_size, rng)
        self.q_indptr = np.cumsum([0] + [n for n, _ in requests], dtype=np.int32)
        self.q = rows(rng, self.q_indptr[-1], HEADS, DIM)

    def table(self):
        wide = np.full((len(self.lens), int(np.diff(self.indptr).max()) + 1), -7, np.int32)
        for r in range(len(self.lens)):
            pages = self.indices[self.indptr[r] : self.indptr[r + 1]]
            wide[r, : len(pages)] = pages
        return wide

    def expected(self, is_causal, scale=SCALE):
        parts = []
        for (count, tokens), latent, start in zip(self.requests, self.latent, self.q_indptr):
            sees = causal(count, tokens) if is_causal else np.ones((count, tokens), bool)
            parts.append(attention(self.q[start : start + count], latent, latent[..., :RANK], sees, scale))
        return [np.concatenate(p) for p in zip(*parts)]


@pytest.mark.parametrize("page_size", [1, 16, 53, 64])
def test_flash_mla_decodes(rng, page_size):
    step = Step(rng, [(1, 70), (1, 1), (1, 64), (1, 129)], page_size)
    metadata, splits = warpweave.get_mla_metadata(step.lens, HEADS, 1)
    assert splits.tolist() == [0, 1, 2, 3, 4]
    out, lse = warpweave.flash_mla_with_kvcache(step.q[:, None], step.pages, step.table(), step.lens, RANK, metadata,
                                                splits, SCALE)
    expected, expected_lse = step.expected(True)
    assert out.shape == (4, 1, HEADS, RANK) and lse.shape == (4, HEADS, 1) and lse.dtype == np.float32
    np.testing.assert_allclose(out[:, 0], expected, atol=2e-5)
    np.testing.assert_allclose(lse[..., 0], expected_lse, atol=1e-4)


@pytest.mark.parametrize("is_causal", [True, False])
def test_flash_mla_of_several_rows(rng, is_causal):
    step = Step(rng, [(3, 70), (3, 5), (3, 130)], 16)
    out, lse = warpweave.flash_mla_with_kvcache(step.q.reshape(3, 3, HEADS, DIM), step.pages, step.table(), step.lens,
                                                RANK, softmax_scale=SCALE, causal=is_causal)
    expected, expected_lse = step.expected(is_causal)
    np.testing.assert_allclose(out.reshape(-1, HEADS, RANK), expected, atol=2e-5)
    np.testing.assert_allclose(np.swapaxes(lse, 1, 2).reshape(-1, HEADS), expected_lse, atol=1e-4)


def test_the_scale_is_that_of_the_row_unless_given(rng):
    step = Step(rng, [(1, 40)], 16)
    out, _ = warpweave.flash_mla_with_kvcache(step.q[:, None], step.pages, step.table(), step.lens, RANK)
    np.testing.assert_allclose(out[:, 0], step.expected(True, DIM**-0.5)[0], atol=2e-5)


def test_metadata_serves_all_layers_of_a_step(rng):
    step = Step(rng, [(1, 70), (1, 33)], 16)
    table = step.table()
    metadata, _ = warpweave.get_mla_metadata(step.lens)
    for layer in range(2):
        step.q = rows(rng, 2, HEADS, DIM)
        out, _ = warpweave.flash_mla_with_kvcache(step.q[:, None], step.pages, table, step.lens, RANK, metadata,
                                                  softmax_scale=SCALE)
        np.testing.assert_allclose(out[:, 0], step.expected(True)[0], atol=2e-5)


@pytest.mark.parametrize("together", [True, False], ids=["parts of one array", "arrays of their own"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_flashinfer_wrapper(rng, together, is_causal):
    step = Step(rng, [(5, 70), (1, 33), (2, 2), (1, 300)], 32)
    wrapper = warpweave.BatchMLAPagedAttentionWrapper()
    wrapper.plan(step.q_indptr, step.indptr, step.indices, step.lens, HEADS, RANK, ROPE, 32, is_causal, SCALE,
                 "float32")
    cache = step.pages[:, :, 0]
    parts = [step.q[..., :RANK], step.q[..., RANK:], cache[..., :RANK], cache[..., RANK:]]
    if not together:
        parts = [np.ascontiguousarray(part) for part in parts]
    expected, expected_lse = step.expected(is_causal)
    out, lse = wrapper.run(*parts, return_lse=True, return_lse_base_on_e=True)
    np.testing.assert_allclose(out, expected, atol=2e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-4)
    assert "prefill" in wrapper.explain()


def test_rows_of_half_precision(rng):
    step = Step(rng, [(1, 70), (1, 129)], 64)
    q, pages = step.q[:, None].astype(np.float16), step.pages.astype(np.float16)
    out, _ = warpweave.flash_mla_with_kvcache(q, pages, step.table(), step.lens, RANK, softmax_scale=SCALE)
    assert out.dtype == np.float16
    np.testing.assert_allclose(out[:, 0], step.expected(True)[0], atol=6e-3)


def test_fp8_rows_and_their_scale(rng):
    step = Step(rng, [(1, 70), (1, 40)], 16)
    codes = np.frombuffer(bytes([0x30, 0x38, 0x40, 0xB0, 0xB8, 0x00]), np.uint8)  # 0.5, 1, 2, -0.5, -1, 0
    values = np.array([0.5, 1, 2, -0.5, -1, 0], np.float32)
    pick = rng.integers(0, 6, step.pages.shape)
    scaled = values[pick] * 0.25
    table = step.table()
    step.latent = [scaled[table[r, : -(-n // 16)]].reshape(-1, 1, DIM)[:n] for r, n in enumerate(step.lens)]
    out, _ = warpweave.flash_mla_with_kvcache(step.q[:, None], codes[pick], table, step.lens, RANK, softmax_scale=SCALE,
                                              kv_format="fp8_e4m3", k_scale=np.array([0.25], np.float32))
    np.testing.assert_allclose(out[:, 0], step.expected(True)[0], atol=5e-3)


def packed_tokens(rng, shape, fp8):
    """Tokens of 656 or 416 bytes [..., bytes], and the values [..., 576] that they hold."""
    exponents = rng.integers(-4, 0, (*shape, 4))
    scales = np.exp2(exponents).astype(np.float32)
    rope = (rows(rng, *shape, ROPE).view(np.uint32) & 0xFFFF0000).view(np.float32)
    rope_bytes = (rope.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    if fp8:
        codes = np.array([0x30, 0x38, 0x40, 0xB0, 0xB8, 0x00], np.uint8)  # 0.5, 1, 2, -0.5, -1, 0
        pick = rng.integers(0, 6, (*shape, RANK))
        latent = np.array([0.5, 1, 2, -0.5, -1, 0], np.float32)[pick] * np.repeat(scales, 128, -1)
        parts = [codes[pick], scales.view(np.uint8), rope_bytes]
    else:
        codes = rng.integers(0, 16, (*shape, RANK)).astype(np.uint8)
        magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        values = magnitudes[codes & 7] * np.where(codes & 8, -1, 1).astype(np.float32)
        latent = values * np.repeat(scales, 128, -1)
        blocks = np.repeat(((exponents + 7) << 3).astype(np.uint8), 8, -1)  # e4m3 of powers of two
        parts = [codes[..., ::2] | codes[..., 1::2] << 4, blocks, rope_bytes]
    return np.concatenate(parts, -1), np.concatenate((latent, rope), -1)


@pytest.mark.parametrize("fp8", [True, False])
def test_packed_tokens(rng, fp8):
    step = Step(rng, [(1, 70), (1, 40)], 16)
    tokens, values = packed_tokens(rng, step.pages.shape[:-1], fp8)
    table = step.table()
    step.latent = [values[table[r, : -(-n // 16)]].reshape(-1, 1, DIM)[:n] for r, n in enumerate(step.lens)]
    how = dict(is_fp8_kvcache=True) if fp8 else dict(kv_format="fp4_mla")
    out, _ = warpweave.flash_mla_with_kvcache(step.q[:, None], tokens, table, step.lens, RANK, softmax_scale=SCALE, **how)
    expected = step.expected(True)[0]
    np.testing.assert_allclose(out[:, 0], expected, atol=5e-3 * np.abs(expected).max())


@pytest.mark.parametrize("of_torch", [False, True])
def test_of_no_rows_results_are_empty(rng, of_torch):
    convert = pytest.importorskip("torch").from_numpy if of_torch else np.asarray
    cache = convert(rows(rng, 4, 16, 1, 96))
    for batch, queries in ((0, 1), (2, 0)):
        out, lse = warpweave.flash_mla_with_kvcache(convert(rows(rng, batch, queries, 8, 96)), cache, np.zeros((batch, 2), np.int32),
                                              np.ones(batch, np.int32), 64)
        assert tuple(out.shape) == (batch, queries, 8, 64) and tuple(lse.shape) == (batch, 8, queries)
        wrapper = warpweave.BatchMLAPagedAttentionWrapper()
        starts, one_page_each = np.zeros(batch + 1, np.int32), np.arange(batch + 1, dtype=np.int32)
        wrapper.plan(starts, one_page_each, np.zeros(batch, np.int32), np.ones(batch, np.int32), 8, 64, 32, 16, False, 0.1, "float32")
        q_nope, q_pe = (convert(rows(rng, 0, 8, dim)) for dim in (64, 32))
        assert tuple(wrapper.run(q_nope, q_pe, cache[:, :, 0, :64], cache[:, :, 0, 64:]).shape) == (0, 8, 64)


def test_what_does_not_run_is_refused(rng):
    step = Step(rng, [(1, 40)], 16)
    call = [step.q[:, None], step.pages, step.table(), step.lens, RANK]
    with pytest.raises(ValueError, match="kv_format"):
        warpweave.flash_mla_with_kvcache(*call, is_fp8_kvcache=True, kv_format="fp8_e4m3")
    with pytest.raises(ValueError, match="656"):
        warpweave.flash_mla_with_kvcache(call[0], np.zeros(step.pages.shape, np.uint8), *call[2:], is_fp8_kvcache=True)
    with pytest.raises(NotImplementedError, match="indices"):
        warpweave.flash_mla_with_kvcache(*call, indices=step.table())
    with pytest.raises(NotImplementedError, match="topk"):
        warpweave.get_mla_metadata(step.lens, topk=64)
    with pytest.raises(ValueError, match="k_cache"):
        warpweave.flash_mla_with_kvcache(call[0], step.pages[:, :, 0], *call[2:])
    with pytest.raises(ValueError, match="block_table"):
        warpweave.flash_mla_with_kvcache(*call[:2], step.table()[0], *call[3:])
    with pytest.raises(ValueError, match="v_head_dim"):
        warpweave.flash_mla_with_kvcache(*call[:4], DIM + 1)
    with pytest.raises(ValueError, match="cache_seqlens: is None"):
        warpweave.get_mla_metadata(None)
    with pytest.raises(ValueError, match="cache_seqlens: has the shape"):
        warpweave.flash_mla_with_kvcache(*call[:3], step.lens[None], RANK)
    metadata, _ = warpweave.get_mla_metadata(step.lens)  # of a step before
    with pytest.raises(ValueError, match="cache_seqlens: are not those"):
        warpweave.flash_mla_with_kvcache(*call[:3], step.lens - 1, RANK, metadata)
    with pytest.raises(ValueError, match="tile_scheduler_metadata: is a ndarray"):
        warpweave.flash_mla_with_kvcache(*call, np.zeros(3))
    wrapper = warpweave.BatchMLAPagedAttentionWrapper()
    lengths = [step.q_indptr, step.indptr, step.indices, step.lens, HEADS, RANK, ROPE, 16, True, SCALE]
    with pytest.raises(ValueError, match="q_data_type: is float61"):
        wrapper.plan(*lengths, "float61")
    wrapper.plan(*lengths, "float32")
    cache = step.pages[:, :, 0]
    with pytest.raises(ValueError, match="return_lse_ln"):
        wrapper.run(step.q[..., :RANK], step.q[..., RANK:], cache[..., :RANK], cache[..., RANK:], return_lse=True)
