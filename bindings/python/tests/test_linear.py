"""GDN and KDA in fla's and flashinfer's shapes against the recurrence in float64."""

import numpy as np
import pytest
import warpweave
from warpweave import gdn_decode, gdn_prefill

K_HEADS, V_HEADS, K_DIM, V_DIM = 2, 4, 32, 48


def recurrence(q, k, v, g, beta, state=None, scale=None, l2norm=True):
    """One sequence: q, k [tokens, k heads, k dim], v [tokens, v heads, v dim], g [tokens, v heads] or [..., k dim]; states
    [v heads, k dim, v dim]. (out, final state)."""
    q, k, v, g, beta = (np.asarray(x, np.float64) for x in (q, k, v, g, beta))
    if l2norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    heads, group = v.shape[1], v.shape[1] // q.shape[1]
    state = np.zeros((heads, q.shape[2], v.shape[2])) if state is None else np.array(state, np.float64)
    out = np.zeros(v.shape)
    for t in range(len(q)):
        for h in range(heads):
            decay = np.exp(g[t, h])
            state[h] *= decay[:, None] if np.ndim(decay) else decay
            key = k[t, h // group]
            state[h] += np.outer(key, beta[t, h] * (v[t, h] - key @ state[h]))
            out[t, h] = (q.shape[2] ** -0.5 if scale is None else scale) * (q[t, h // group] @ state[h])
    return out, state


class Inputs:
    def __init__(self, tokens, kda, batch=1, seed=1):
        rng = np.random.default_rng(seed)
        normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        self.q, self.k = normal(batch, tokens, K_HEADS, K_DIM), normal(batch, tokens, K_HEADS, K_DIM)
        self.v = normal(batch, tokens, V_HEADS, V_DIM)
        decays = (batch, tokens, V_HEADS, K_DIM) if kda else (batch, tokens, V_HEADS)
        self.g = -np.abs(normal(*decays)) / 2
        self.beta = 1 / (1 + np.exp(-normal(batch, tokens, V_HEADS)))
        self.state = 0.3 * normal(8, V_HEADS, K_DIM, V_DIM)


FUNCTIONS = {
    "gdn_chunk": (warpweave.chunk_gated_delta_rule, False), "gdn_recurrent": (warpweave.fused_recurrent_gated_delta_rule, False),
    "kda_chunk": (warpweave.chunk_kda, True), "kda_recurrent": (warpweave.fused_recurrent_kda, True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch(name):
    function, kda = FUNCTIONS[name]
    x = Inputs(70, kda, batch=3)
    before = x.state[:3].copy()
    out, state = function(x.q, x.k, x.v, x.g, x.beta, initial_state=x.state[:3], output_final_state=True, use_qk_l2norm_in_kernel=True)
    assert out.dtype == np.float32 and state.shape == (3, V_HEADS, K_DIM, V_DIM)
    for b in range(3):
        expected, final = recurrence(x.q[b], x.k[b], x.v[b], x.g[b], x.beta[b], before[b])
        np.testing.assert_allclose(out[b], expected, atol=2e-5)
        np.testing.assert_allclose(state[b], final, atol=2e-5)
    np.testing.assert_array_equal(x.state[:3], before)  # an input


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sequences_end_to_end(name):
    function, kda = FUNCTIONS[name]
    x, starts = Inputs(90, kda), [0, 65, 65, 66, 90]
    q, k = (y / np.linalg.norm(y, axis=-1, keepdims=True) for y in (x.q, x.k))
    out, state = function(q, k, x.v, x.g, x.beta, scale=0.3, cu_seqlens=np.array(starts), output_final_state=True, state_v_first=True)
    for r, (a, b) in enumerate(zip(starts, starts[1:])):
        expected, final = recurrence(q[0, a:b], k[0, a:b], x.v[0, a:b], x.g[0, a:b], x.beta[0, a:b], scale=0.3, l2norm=False)
        np.testing.assert_allclose(out[0, a:b], expected, atol=2e-5)
        np.testing.assert_allclose(state[r], np.swapaxes(final, -1, -2), atol=2e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_raw_gates(name):
    function, kda = FUNCTIONS[name]
    x, rng = Inputs(20, kda), np.random.default_rng(9)
    raw, a_log = rng.standard_normal(x.g.shape).astype(np.float32), rng.standard_normal(V_HEADS).astype(np.float32)
    bias = rng.standard_normal((V_HEADS, K_DIM) if kda else V_HEADS).astype(np.float32)
    raw_beta = rng.standard_normal(x.beta.shape).astype(np.float32)
    out, state = function(x.q, x.k, x.v, raw, raw_beta, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                          use_beta_sigmoid_in_kernel=True, A_log=a_log, dt_bias=bias.reshape(-1))
    assert state is None
    slope = np.exp(a_log)[:, None] if kda else np.exp(a_log)
    expected, _ = recurrence(x.q[0], x.k[0], x.v[0], -slope * np.log1p(np.exp(raw[0] + bias)), 1 / (1 + np.exp(-raw_beta[0])))
    np.testing.assert_allclose(out[0], expected, atol=2e-5)


# Heads before tokens, every second token, a part of a wider array, elements apart: fla takes all of them.
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_of_any_strides(name):
    function, kda = FUNCTIONS[name]
    x = Inputs(70, kda, batch=2)

    def heads_first(array):
        return np.ascontiguousarray(np.swapaxes(array, 1, 2)).swapaxes(1, 2)

    def apart(array, axis):
        wide = np.full([size * (1 + (i == axis)) for i, size in enumerate(array.shape)], np.nan, np.float32)
        view = wide[tuple(slice(None, None, 2) if i == axis else slice(None) for i in range(array.ndim))]
        view[...] = array
        return view

    wanted, _ = function(x.q, x.k, x.v, x.g, x.beta, use_qk_l2norm_in_kernel=True)
    for change in (heads_first, lambda array: apart(array, 1), lambda array: apart(array, array.ndim - 1), lambda array: apart(array, 2)):
        out, _ = function(*(change(array) for array in (x.q, x.k, x.v, x.g, x.beta)), use_qk_l2norm_in_kernel=True)
        np.testing.assert_array_equal(out, wanted)


def test_shapes_that_are_no_call_are_named():
    x, steps = Inputs(20, False, batch=2), Steps(1)
    gates, state = (x.g, x.beta), np.zeros((3, V_HEADS, V_DIM, K_DIM), np.float32)
    raw = dict(use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, A_log=np.zeros(V_HEADS, np.float32))
    pool = np.zeros((5, V_HEADS, V_DIM, K_DIM), np.float32)
    fla, decode = warpweave.chunk_gated_delta_rule, gdn_decode.gated_delta_rule_decode_pretranspose
    mtp = lambda slots: gdn_decode.gated_delta_rule_mtp(steps.x.q, steps.x.k, steps.x.v, pool, slots, steps.a_log, steps.a,  # noqa: E731
                                                        steps.bias, steps.b)
    calls = {
        "q: has the shape": lambda: fla(x.q[0], x.k, x.v, *gates),
        "g: has the shape": lambda: warpweave.chunk_kda(x.q, x.k, x.v, *gates),
        "dt_bias: has the shape": lambda: fla(x.q, x.k, x.v, *gates, dt_bias=np.zeros(3, np.float32), **raw),
        "scale: is 0": lambda: fla(x.q, x.k, x.v, *gates, scale=0.0),
        "v: has the shape": lambda: gdn_prefill.chunk_gated_delta_rule(x.q[0], x.k[0], x.v, np.exp(x.g[0]), x.beta[0]),
        "output_state: is": lambda: gdn_prefill.chunk_gated_delta_rule(x.q[0], x.k[0], x.v[0], output_state=state),
        "state: has 4 rows, q 3": lambda: decode(steps.x.q, steps.x.k, steps.x.v, pool[:4], steps.a_log, steps.a, steps.bias, steps.b),
        "initial_state_indices: 5": lambda: mtp(np.array([0, 1, 5])),
        "initial_state_indices: must": lambda: mtp(np.array([0, 1])),
    }
    for words, call in calls.items():
        with pytest.raises(ValueError, match=words):
            call()


def test_no_gates_and_half_precision():
    x = Inputs(10, False)
    k = x.k / np.linalg.norm(x.k, axis=-1, keepdims=True)
    q, k, v = (y.astype(np.float16) for y in (x.q, k, x.v))
    out, _ = warpweave.chunk_gated_delta_rule(q, k, v)
    assert out.dtype == np.float16
    expected, _ = recurrence(q[0], k[0], v[0], np.zeros((10, V_HEADS)), np.ones((10, V_HEADS)), l2norm=False)
    np.testing.assert_allclose(out[0], expected, atol=2e-2)


def test_flashinfer_prefill():
    x, starts = Inputs(80, False), [0, 30, 80]
    states = np.ascontiguousarray(np.swapaxes(x.state[:2], -1, -2))
    out, final = gdn_prefill.chunk_gated_delta_rule(x.q[0], x.k[0], x.v[0], np.exp(x.g[0]), x.beta[0], initial_state=states,
                                                    output_final_state=True, cu_seqlens=np.array(starts), use_qk_l2norm_in_kernel=True,
                                                    deterministic=True)
    for r, (a, b) in enumerate(zip(starts, starts[1:])):
        expected, state = recurrence(x.q[0, a:b], x.k[0, a:b], x.v[0, a:b], x.g[0, a:b], x.beta[0, a:b], x.state[r])
        np.testing.assert_allclose(out[a:b], expected, atol=2e-5)
        np.testing.assert_allclose(np.swapaxes(final[r], -1, -2), state, atol=2e-5)
    alone = gdn_prefill.chunk_gated_delta_rule(x.q[0, :30], x.k[0, :30], x.v[0, :30], np.exp(x.g[0, :30]), x.beta[0, :30],
                                               initial_state=states[:1], use_qk_l2norm_in_kernel=True, deterministic=True)
    np.testing.assert_array_equal(alone, out[:30])  # the same bits in any batch


class Steps:
    """Three rows of `tokens`, with raw gates; what each row gives."""

    def __init__(self, tokens):
        self.x, rng = Inputs(tokens, False, batch=3), np.random.default_rng(7)
        self.a, self.b = (rng.standard_normal((3, tokens, V_HEADS)).astype(np.float32) for _ in range(2))
        self.a_log, self.bias = (rng.standard_normal(V_HEADS).astype(np.float32) for _ in range(2))
        self.arguments = (self.x.q, self.x.k, self.x.v)
        self.gates = (self.a_log, self.a, self.bias, self.b)

    def expected(self, row, state):
        g = -np.exp(self.a_log) * np.log1p(np.exp(self.a[row] + self.bias))
        return recurrence(self.x.q[row], self.x.k[row], self.x.v[row], g, 1 / (1 + np.exp(-self.b[row])), state)


def v_first(state):
    return np.ascontiguousarray(np.swapaxes(state, -1, -2))


def test_flashinfer_decode():
    s = Steps(1)
    own, turned = v_first(s.x.state[:3]), s.x.state[:3].copy()
    out, state = gdn_decode.gated_delta_rule_decode_pretranspose(*s.arguments, own, *s.gates)
    other, other_state = gdn_decode.gated_delta_rule_decode(*s.arguments, turned, *s.gates)
    pool, slots = v_first(s.x.state), np.array([5, -1, 0])
    pooled, _ = gdn_decode.gated_delta_rule_decode_pretranspose(*s.arguments, None, *s.gates, initial_state=pool,
                                                                initial_state_indices=slots)
    assert state is own and other_state is turned
    for row in range(3):
        expected, final = s.expected(row, s.x.state[row])
        for result in (out, other):
            np.testing.assert_allclose(result[row], expected, atol=2e-5)
        np.testing.assert_allclose(v_first(own)[row], final, atol=2e-5)
        np.testing.assert_allclose(turned[row], final, atol=2e-5)
        if slots[row] >= 0:
            expected, final = s.expected(row, s.x.state[slots[row]])
            np.testing.assert_allclose(pooled[row], expected, atol=2e-5)
            np.testing.assert_allclose(v_first(pool)[slots[row]], final, atol=2e-5)
    np.testing.assert_array_equal(pooled[1], 0)
    fresh, _ = gdn_decode.gated_delta_rule_decode_pretranspose(*s.arguments, None, *s.gates)
    np.testing.assert_allclose(fresh[2], s.expected(2, None)[0], atol=2e-5)


def test_flashinfer_drafts():
    s, slots = Steps(5), np.array([4, 2, 7])
    pool = v_first(s.x.state)
    before = pool.copy()
    out, _ = gdn_decode.gated_delta_rule_mtp(*s.arguments, pool, slots, *s.gates)
    np.testing.assert_array_equal(pool, before)
    again, advanced = gdn_decode.gated_delta_rule_mtp(*s.arguments, pool, slots, *s.gates, disable_state_update=False)
    assert advanced is pool
    for row in range(3):
        expected, final = s.expected(row, s.x.state[slots[row]])
        np.testing.assert_allclose(out[row], expected, atol=2e-5)
        np.testing.assert_allclose(again[row], expected, atol=2e-5)
        np.testing.assert_allclose(v_first(pool)[slots[row]], final, atol=2e-5)


def test_padded_rows_of_drafts_are_zeros():
    s = Steps(2)
    pool = v_first(s.x.state)
    for update in (False, True):
        out, _ = gdn_decode.gated_delta_rule_mtp(*s.arguments, pool.copy(), np.array([1, -1, 0]), *s.gates,
                                                 disable_state_update=not update)
        assert not np.any(out[1]) and np.all(np.any(out[[0, 2]], axis=(1, 2, 3)))
        with pytest.raises(ValueError, match="-2"):
            gdn_decode.gated_delta_rule_mtp(*s.arguments, pool.copy(), np.array([1, -2, 0]), *s.gates,
                                            disable_state_update=not update)


def test_initial_states_are_inputs_however_they_lie():
    x, before = Inputs(3, False), Inputs(3, False).state[:1]
    held = v_first(before)
    call = dict(output_final_state=True, use_qk_l2norm_in_kernel=True)
    expected, _ = warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, initial_state=before, **call)
    out, _ = warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, initial_state=np.swapaxes(held, -1, -2), **call)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(held, v_first(before))
    out, _ = warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, initial_state=np.swapaxes(before, -1, -2),
                                              state_v_first=True, **call)
    np.testing.assert_array_equal(out, expected)


def test_what_is_written_to_is_never_a_copy():
    x, wide = Inputs(4, False, batch=2), np.zeros((2, 6, V_HEADS, V_DIM), np.float32)
    with pytest.raises(ValueError, match="out"):
        warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, use_qk_l2norm_in_kernel=True, out=wide[:, :4])
    s, wide = Steps(1), np.zeros((3, 2, V_HEADS, V_DIM), np.float32)
    out, _ = gdn_decode.gated_delta_rule_decode_pretranspose(*s.arguments, None, *s.gates, output=wide[:, :1])
    assert np.shares_memory(out, wide)
    for row in range(3):
        np.testing.assert_allclose(wide[row, :1], s.expected(row, None)[0], atol=2e-5)


def test_what_is_refused():
    x = Inputs(4, False, batch=2)
    with pytest.raises(ValueError, match="batch of 1"):
        warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, cu_seqlens=[0, 4, 8])
    with pytest.raises(ValueError, match="initial_state"):
        warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, initial_state=x.state)
    with pytest.raises(NotImplementedError, match="use_beta_sigmoid_in_kernel"):
        warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, use_gate_in_kernel=True, A_log=x.beta[0, 0])
    for name in ("A_log", "dt_bias"):
        with pytest.raises(ValueError, match=name):
            warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, **{name: x.beta[0, 0]})
    with pytest.raises(ValueError, match="beta"):
        warpweave.chunk_gated_delta_rule(x.q, x.k, x.v, x.g, x.beta[:, :3])
    for starts in ([0, 9], [0, 3], [1, 4], np.zeros(0, np.int32), [[0, 4]]):  # rows of no sequence would be left as they were
        with pytest.raises(ValueError, match="cu_seqlens: "):
            warpweave.chunk_gated_delta_rule(x.q[:1], x.k[:1], x.v[:1], x.g[:1], x.beta[:1], cu_seqlens=starts)
        with pytest.raises(ValueError, match="cu_seqlens: "):
            gdn_prefill.chunk_gated_delta_rule(x.q[0], x.k[0], x.v[0], cu_seqlens=starts)
    with pytest.raises(ValueError, match="cu_seqlens: "):
        kda = Inputs(4, True)
        warpweave.fused_recurrent_kda(kda.q, kda.k, kda.v, kda.g, kda.beta, cu_seqlens=[0, 3])
    with pytest.raises(NotImplementedError, match="intermediate_states_buffer"):
        s = Steps(2)
        gdn_decode.gated_delta_rule_mtp(*s.arguments, v_first(s.x.state), np.arange(3), *s.gates, intermediate_states_buffer=1)


@pytest.mark.parametrize("of_torch", [False, True])
def test_of_no_tokens_results_are_empty(of_torch):
    convert = pytest.importorskip("torch").from_numpy if of_torch else np.asarray
    for name, (function, kda) in FUNCTIONS.items():
        for batch, tokens, starts, sequences in ((1, 0, None, 1), (0, 5, None, 0), (1, 0, [0], 0), (1, 0, [0, 0], 1)):
            x = Inputs(tokens, kda, batch=batch)
            q, k, v, g, beta = (convert(y) for y in (x.q, x.k, x.v, x.g, x.beta))
            out, state = function(q, k, v, g, beta, cu_seqlens=starts, output_final_state=True)
            assert tuple(out.shape) == (batch, tokens, V_HEADS, V_DIM), name
            assert tuple(state.shape) == (sequences, V_HEADS, K_DIM, V_DIM) and not state.any()
    x = Inputs(0, False)
    q, k, v = (convert(y[0]) for y in (x.q, x.k, x.v))
    held = convert(np.ones((2, V_HEADS, V_DIM, K_DIM), np.float32))
    out, state = gdn_prefill.chunk_gated_delta_rule(q, k, v, cu_seqlens=[0, 0, 0], output_state=held, output_final_state=True)
    assert tuple(out.shape) == (0, V_HEADS, V_DIM) and state is held and not held.any()  # from zeros
    s, pool = Steps(2), np.ones((3, V_HEADS, V_DIM, K_DIM), np.float32)
    q, k, v = (convert(y[:0]) for y in s.arguments)
    a_log, a, bias, b = (convert(y if y is s.a_log or y is s.bias else y[:0]) for y in s.gates)
    for update in (False, True):
        out, _ = gdn_decode.gated_delta_rule_mtp(q, k, v, convert(pool), np.zeros(0, np.int32), a_log, a, bias, b,
                                                 disable_state_update=not update)
        assert tuple(out.shape) == (0, 2, V_HEADS, V_DIM) and (pool == 1).all()
    one = [y[:, :1] for y in (q, k, v)]
    out, state = gdn_decode.gated_delta_rule_decode_pretranspose(*one, None, a_log, a[:, :1], bias, b[:, :1])
    assert tuple(out.shape) == (0, 1, V_HEADS, V_DIM) and len(state) == 0


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = Inputs(70, False)
    q, k, v, g, beta = (torch.from_numpy(y).to(torch.bfloat16) for y in (x.q, x.k, x.v, x.g, x.beta))
    out, state = warpweave.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=torch.from_numpy(x.state[:1]), output_final_state=True,
                                                  use_qk_l2norm_in_kernel=True)
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    expected, final = recurrence(*(y[0].float().numpy() for y in (q, k, v, g, beta)), x.state[0])
    np.testing.assert_allclose(out[0].float().numpy(), expected, atol=2e-2)
    np.testing.assert_allclose(state[0].numpy(), final, atol=1e-4)
    with pytest.raises(NotImplementedError, match="gradients"):
        warpweave.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state.requires_grad_())
    with pytest.raises(NotImplementedError, match="gradients"):
        warpweave.chunk_gated_delta_rule(q.requires_grad_(), k, v, g, beta)
