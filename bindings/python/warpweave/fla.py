"""GDN and KDA in the shape of fla's functions, for inference.

q and k [batch, tokens, k heads, k dim], v [batch, tokens, v heads, v dim]; with cu_seqlens sequences stand end to end in a batch
of 1. Decays g are natural logarithms (<= 0). States are float32 [sequences, v heads, k dim, v dim], with state_v_first [..., v dim,
k dim], and come back where output_final_state asks for them, else None. What follows use_qk_l2norm_in_kernel, which fla's
versions order differently, goes by name.

chunk_... and fused_recurrent_... differ on a GPU alone: prompts by chunks with 16-bit MMA, and token by token in float32.
There, q, k and v in float32 run token by token, too.
"""

import numpy as np

from ._arrays import flat
from ._linear import as_floats, check_dims, compact, filled, float_copy, indptr_of, new_out, run, turned


def _linear(q, k, v, gates, *, kda, scale, initial_state, output_final_state, l2norm, cu_seqlens, state_v_first, exact, deterministic,
            out):
    starts = indptr_of(q, cu_seqlens)
    shape = (len(starts) - 1, v.shape[2], v.shape[3], q.shape[3])
    if initial_state is None:
        state = filled(v, shape, 0)
    else:
        state = float_copy(initial_state if state_v_first else turned(initial_state))
        if tuple(state.shape) != shape:
            raise ValueError(f"initial_state: must hold {shape[0]} states of {shape[1]} heads, {shape[3]} x {shape[2]}")
    out = new_out(v, out)
    run(flat(q), flat(k), flat(v), state, out, q_indptr=starts, kda=kda, scale=scale, l2norm=l2norm, exact=exact,
        deterministic=deterministic, from_zeros=initial_state is None,
        **{name: flat(x) if name in ("g", "beta", "a", "b") else x for name, x in gates.items()})
    if not output_final_state:
        return out, None
    return out, state if state_v_first else compact(turned(state))


def _gates(q, v, g, beta, raw, kda, A_log, dt_bias):
    """Gates as the C interface takes them: both raw, or both made."""
    heads = tuple(v.shape[:3])
    if not raw:
        if A_log is not None or dt_bias is not None:
            raise ValueError("A_log, dt_bias: need use_gate_in_kernel and use_beta_sigmoid_in_kernel")
        g = filled(v, (*heads, q.shape[3]) if kda else heads, 0) if g is None else as_floats(g)
        return dict(g=g, beta=filled(v, heads, 1) if beta is None else as_floats(beta))
    if A_log is None or g is None or beta is None:
        raise ValueError("use_gate_in_kernel: needs g, beta and A_log")
    if dt_bias is not None:
        dt_bias, shape = compact(as_floats(dt_bias)), (v.shape[2], q.shape[3]) if kda else (v.shape[2],)
        if np.prod(dt_bias.shape) != np.prod(shape):
            raise ValueError(f"dt_bias: has the shape {tuple(dt_bias.shape)}, must hold a value for each of {shape}")
        dt_bias = dt_bias.reshape(shape)
    return dict(a=g, b=beta, a_log=compact(as_floats(A_log)).reshape(-1), dt_bias=dt_bias)


def _call(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
          use_beta_sigmoid_in_kernel, A_log, dt_bias, cu_seqlens, state_v_first, out, *, kda, exact, deterministic=False):
    check_dims("batch, tokens, heads, dim", q=q, k=k, v=v)
    for name, gate in (("g", g), ("beta", beta)):
        if gate is not None:
            check_dims("batch, tokens, v heads, k dim" if kda and name == "g" else "batch, tokens, v heads", **{name: gate})
    if use_gate_in_kernel != use_beta_sigmoid_in_kernel:
        raise NotImplementedError("use_gate_in_kernel and use_beta_sigmoid_in_kernel: one without the other does not run here")
    gates = _gates(q, v, g, beta, use_gate_in_kernel, kda, A_log, dt_bias)
    return _linear(q, k, v, gates, kda=kda, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                   l2norm=use_qk_l2norm_in_kernel, cu_seqlens=cu_seqlens, state_v_first=state_v_first, exact=exact,
                   deterministic=deterministic, out=out)


def chunk_gated_delta_rule(q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False,
                           use_qk_l2norm_in_kernel=False, *, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
                           A_log=None, dt_bias=None, cu_seqlens=None, state_v_first=False, out=None, deterministic=False):
    """g and beta [batch, tokens, v heads]; None: no decay, 1. With use_gate_in_kernel and use_beta_sigmoid_in_kernel they
    are raw: the decay is -exp(A_log) softplus(g + dt_bias), beta sigmoid(beta). deterministic: a sequence's bits are the same in
    any batch, which costs time where there are many. Returns (out, final state)."""
    return _call(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                 use_beta_sigmoid_in_kernel, A_log, dt_bias, cu_seqlens, state_v_first, out, kda=False, exact=False,
                 deterministic=deterministic)


def fused_recurrent_gated_delta_rule(q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False,
                                     use_qk_l2norm_in_kernel=False, *, use_gate_in_kernel=False,
                                     use_beta_sigmoid_in_kernel=False, A_log=None, dt_bias=None, cu_seqlens=None,
                                     state_v_first=False, out=None):
    """chunk_gated_delta_rule, token by token in float32."""
    return _call(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                 use_beta_sigmoid_in_kernel, A_log, dt_bias, cu_seqlens, state_v_first, out, kda=False, exact=True)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, *,
              use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, cu_seqlens=None, state_v_first=False, A_log=None,
              dt_bias=None, out=None):
    """chunk_gated_delta_rule with a decay for each channel of k: g [batch, tokens, v heads, k dim], dt_bias [v heads *
    k dim]."""
    return _call(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                 use_beta_sigmoid_in_kernel, A_log, dt_bias, cu_seqlens, state_v_first, out, kda=True, exact=False)


def fused_recurrent_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
                        use_qk_l2norm_in_kernel=False, *, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
                        cu_seqlens=None, state_v_first=False, A_log=None, dt_bias=None, out=None):
    """chunk_kda, token by token in float32."""
    return _call(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                 use_beta_sigmoid_in_kernel, A_log, dt_bias, cu_seqlens, state_v_first, out, kda=True, exact=True)
