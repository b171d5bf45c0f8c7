"""Decode steps of GDN layers in the shape of flashinfer.gdn_decode: raw gates of the layer come in, the decay is -exp(A_log)
softplus(a + dt_bias), the step size sigmoid(b)."""

import numpy as np

from ._arrays import flat, host_ints
from ._linear import as_floats, check_dims, compact, filled, float_copy, indptr_of, new_out, run, turned


def _step(q, k, v, state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, q_indptr=None, slots=None, from_zeros=False):
    output = new_out(v, output)
    run(flat(q), flat(k), flat(v), state, output, q_indptr=q_indptr, slots=slots, a=flat(a), b=flat(b),
        a_log=compact(as_floats(A_log)), dt_bias=compact(as_floats(dt_bias)), scale=scale, l2norm=use_qk_l2norm, from_zeros=from_zeros)
    return output


def _check_one_token(q, k, v):
    check_dims("batch, 1, heads, dim", q=q, k=k, v=v)
    if q.shape[1] != 1:
        raise ValueError(f"q: a decode step has one token, this has {q.shape[1]}; use gated_delta_rule_mtp")


def _check_rows(state, q):
    if state.shape[0] != q.shape[0]:
        raise ValueError(f"state: has {state.shape[0]} rows, q {q.shape[0]}; of a pool of states pass initial_state and "
                         "initial_state_indices to gated_delta_rule_decode_pretranspose")


def gated_delta_rule_decode_pretranspose(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True,
                                         initial_state=None, initial_state_indices=None):
    """q and k [batch, 1, k heads, dim], v [batch, 1, v heads, dim], a and b [batch, 1, v heads]. state [batch, v heads, v dim, k
    dim], float32 (or bfloat16), is advanced in place; None: zeros. Or initial_state, a pool of such states, and
    initial_state_indices [batch], where each row's is (-1: a padded row). Returns (output, state)."""
    _check_one_token(q, k, v)
    if (initial_state is None) != (initial_state_indices is None):
        raise ValueError("initial_state: is given with initial_state_indices, or both are not")
    if initial_state is not None:
        if state is not None:
            raise ValueError("state: must be None beside initial_state")
        return _step(q, k, v, initial_state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, slots=initial_state_indices), initial_state
    fresh = state is None
    if not fresh:
        _check_rows(state, q)
    else:
        state = filled(v, (q.shape[0], v.shape[2], v.shape[3], q.shape[3]), 0)
    return _step(q, k, v, state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, from_zeros=fresh), state


def gated_delta_rule_decode(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True):
    """The same with states [batch, v heads, k dim, v dim], which are turned round and back: gated_delta_rule_decode_pretranspose is
    the fast one."""
    _check_one_token(q, k, v)
    _check_rows(state, q)
    v_first = float_copy(turned(state))
    output = _step(q, k, v, v_first, A_log, a, dt_bias, b, scale, output, use_qk_l2norm)
    state[...] = turned(v_first)
    return output, state


def gated_delta_rule_mtp(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None,
                         intermediate_states_buffer=None, disable_state_update=True, use_qk_l2norm=True):
    """Several drafted tokens a row: q [batch, tokens, k heads, dim] and so on, states from a pool [slots, v heads, v dim, k dim]
    (-1: a padded row, whose output is zeros). The pool is advanced unless disable_state_update. Returns (output, pool)."""
    if intermediate_states_buffer is not None:
        raise NotImplementedError("intermediate_states_buffer: states after every token do not run here; verify, then advance the "
                                  "accepted tokens in a second call with disable_state_update=False")
    check_dims("batch, tokens, heads, dim", q=q, k=k, v=v)
    starts = indptr_of(q, None)
    if not disable_state_update:
        return _step(q, k, v, initial_state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, starts, initial_state_indices), initial_state
    slots = host_ints(initial_state_indices)
    if slots is None or slots.shape != (q.shape[0],):
        raise ValueError(f"initial_state_indices: must hold a row of initial_state, or -1, for each of q's {q.shape[0]}")
    if slots.min(initial=0) < -1 or slots.max(initial=-1) >= initial_state.shape[0]:
        wrong = slots.min() if slots.min() < -1 else slots.max()
        raise ValueError(f"initial_state_indices: {wrong} is none of the {initial_state.shape[0]} rows of initial_state, nor -1")
    states = compact(as_floats(initial_state[np.maximum(slots, 0)]))  # a copy
    rows = np.where(slots < 0, -1, np.arange(len(slots)))
    return _step(q, k, v, states, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, starts, rows), initial_state
