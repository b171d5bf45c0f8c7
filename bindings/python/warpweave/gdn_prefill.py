"""Prompts of GDN layers in the shape of flashinfer.gdn_prefill."""

import numpy as np

from ._arrays import torch_of
from ._linear import as_floats, check_dims, covering, filled, float_copy, new_out, run


def _logs(alpha):
    """Natural logarithms of decays in (0, 1]; of 0 a number that decays to it."""
    alpha = as_floats(alpha)
    if torch_of(alpha) is not None:
        return alpha.clamp(min=1e-38).log()
    return np.log(np.maximum(alpha, np.float32(1e-38)))


def chunk_gated_delta_rule(q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,
                           use_qk_l2norm_in_kernel=False, output=None, output_state=None, deterministic=False):
    """q and k [tokens, k heads, dim], v [tokens, v heads, dim], sequences end to end by cu_seqlens. Unlike fla's, g is the decay
    itself, exp of fla's: [tokens, v heads] in float32, and states are [sequences, v heads, v dim, k dim]. None: no decay; beta
    None: 1. deterministic: a sequence's bits are the same in any batch. Returns out, or (out, final state)."""
    check_dims("tokens, heads, dim", q=q, k=k, v=v)
    starts = [0, q.shape[0]] if cu_seqlens is None else covering(cu_seqlens, q.shape[0])
    heads, shape = tuple(v.shape[:2]), (len(starts) - 1, v.shape[1], v.shape[2], q.shape[2])
    for name, state in (("initial_state", initial_state), ("output_state", output_state)):
        if state is not None and tuple(state.shape) != shape:
            raise ValueError(f"{name}: is {tuple(state.shape)}, must be {shape}")
    if output_state is not None:
        state = output_state
        if initial_state is not None:
            state[...] = initial_state
    else:
        state = filled(v, shape, 0) if initial_state is None else float_copy(initial_state)
    log_decays = filled(v, heads, 0) if g is None else _logs(g)
    beta = filled(v, heads, 1) if beta is None else as_floats(beta)
    output = new_out(v, output)
    run(q, k, v, state, output, q_indptr=starts, g=log_decays, beta=beta, scale=scale, l2norm=use_qk_l2norm_in_kernel,
        from_zeros=initial_state is None, deterministic=deterministic)
    return (output, state) if output_final_state else output
