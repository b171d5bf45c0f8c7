#!/usr/bin/env python3
"""Random calls of the C interface against numpy in float64: attention over pages, latent attention, linear attention.

    random_cases.py LIBWARPWEAVE.SO [--device cpu|cuda] [--cases N] [--seed S] [--kind mha|latent|linear]

Needs numpy alone; on a GPU the CUDA runtime, too. Prints every case that is wrong, and how many were right and
refused; exit code 1 if one is wrong or more than half were refused."""
import argparse
import collections
import ctypes
import math
import sys

import numpy as np

I32, I64, F32, VOID = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
UNSUPPORTED = 3
CPU, CUDA = 1, 2
KV = {"f32": 0, "bf16": 1, "f16": 2, "e4m3": 3, "e5m2": 4}
LINEAR = {"gdn": 0, "kda": 1}


class Struct(ctypes.Structure):
    """Sets struct_size, as the INIT values do, and keeps what its pointers point to."""

    def __init__(self, **fields):
        super().__init__(**{name: value for name, value in fields.items() if not hasattr(value, "pointer")})
        self.kept = list(fields.values())
        for name, value in fields.items():
            if hasattr(value, "pointer"):
                setattr(self, name, value.pointer())
        if self._fields_[0][0] == "struct_size":
            self.struct_size = ctypes.sizeof(self)


class DType(Struct):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Device(Struct):
    _fields_ = [("type", I32), ("id", I32)]


class Tensor(Struct):
    _fields_ = [("data", VOID), ("device", Device), ("ndim", I32), ("dtype", DType), ("shape", VOID), ("strides", VOID),
                ("offset", ctypes.c_uint64)]


class Cache(Struct):
    _fields_ = [("struct_size", ctypes.c_uint32), ("format", I32), ("layout", I32), ("k", VOID), ("v", VOID),
                ("k_scales", VOID), ("v_scales", VOID), ("k_block_scales", VOID), ("v_block_scales", VOID)]


class PlanOptions(Struct):
    _fields_ = [("struct_size", ctypes.c_uint32), ("num_q_heads", I32), ("num_kv_heads", I32), ("head_dim", I32),
                ("v_head_dim", I32), ("page_size", I32), ("kv_format", I32), ("q_dtype", DType), ("scale", F32),
                ("logit_softcap", F32), ("causal", I32), ("window_left", I32), ("window_right", I32),
                ("use_sinks", I32), ("use_tree_mask", I32), ("deterministic", I32), ("backend", ctypes.c_char_p),
                ("device", Device),
                ("max_pages_per_request", I32), ("latent", I32)]


class Batch(Struct):
    _fields_ = [("struct_size", ctypes.c_uint32), ("num_requests", I32), ("q_indptr", VOID), ("kv_lens", VOID),
                ("page_table", VOID), ("page_table_stride", I64), ("page_indptr", VOID), ("page_indices", VOID),
                ("kv_indptr", VOID), ("tree_mask", VOID), ("tree_mask_words", I32), ("page_size", I32),
                ("stream", VOID)]


class RunArgs(Struct):
    _fields_ = [("struct_size", ctypes.c_uint32), ("q", VOID), ("kv", VOID), ("sinks", VOID), ("out", VOID),
                ("lse_ln", VOID), ("stream", VOID)]


class LinearArgs(Struct):
    _fields_ = [("struct_size", ctypes.c_uint32), ("kind", I32)] + [
        (name, VOID) for name in ("q", "k", "v", "g", "beta", "a", "b", "a_log", "dt_bias", "state", "out")] + [
        ("num_requests", I32), ("q_indptr", VOID), ("slots", VOID), ("from_zeros", I32), ("l2norm", I32),
        ("l2norm_eps", F32), ("scale", F32), ("exact", I32), ("stream", VOID)]


# ---- Numbers in the types of tensors: (bytes as stored, the same in float64) ----

def float8(exponent_bits):
    """The values of all 256 codes; NaN where a code is none."""
    mantissa_bits = 7 - exponent_bits
    bias, out = 2 ** (exponent_bits - 1) - 1, np.zeros(256)
    for code in range(256):
        exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
        size = math.ldexp(mantissa + (1 << mantissa_bits if exponent else 0), max(exponent, 1) - bias - mantissa_bits)
        last = exponent == (1 << exponent_bits) - 1
        if last and (exponent_bits == 5 or mantissa == (1 << mantissa_bits) - 1):
            size = math.nan
        out[code] = -size if code & 128 else size
    return out


CODES = {"e4m3": float8(4), "e5m2": float8(5)}


def stored(values, dtype):
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "f32":
        return values, values.astype(np.float64)
    if dtype == "f16":
        return values.astype(np.float16), values.astype(np.float16).astype(np.float64)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return bits.astype(np.uint16), widened_bf16(bits.astype(np.uint16))
    table = CODES[dtype]
    finite = np.flatnonzero(np.isfinite(table))
    order = finite[np.argsort(table[finite], kind="stable")]
    middle = (table[order][1:] + table[order][:-1]) / 2
    codes = order[np.searchsorted(middle, values)].astype(np.uint8)
    return codes, table[codes]


def widened_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def nothing(shape, dtype):
    """What must not be read: NaN in every type."""
    if dtype in ("f32", "f16"):
        return np.full(shape, np.nan, np.float32 if dtype == "f32" else np.float16)
    return np.full(shape, 0x7FC0 if dtype == "bf16" else 0x7F, np.uint16 if dtype == "bf16" else np.uint8)


# ---- Memory of a device ----

class Array:
    """A tensor of the device with the bytes of a numpy array, and its ww_tensor."""

    def __init__(self, machine, values, dtype):
        self.machine, self.values, self.dtype = machine, np.ascontiguousarray(values), dtype
        code, bits = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "e4m3": (10, 8), "e5m2": (12, 8)}[dtype]
        self.data = machine.upload(self.values)
        self.shape = (I64 * self.values.ndim)(*self.values.shape)
        self.tensor = Tensor(data=self.data, device=Device(type=machine.type, id=0), ndim=self.values.ndim,
                             dtype=DType(code=code, bits=bits, lanes=1), shape=ctypes.addressof(self.shape))

    def pointer(self):
        return ctypes.addressof(self.tensor)

    def read(self):
        values = self.machine.download(self.data, self.values)
        return widened_bf16(values) if self.dtype == "bf16" else values.astype(np.float64)


class HostMachine:
    type = CPU

    def upload(self, values):
        return values.ctypes.data

    def download(self, _, values):
        return values

    def clear(self):
        pass


class CudaMachine:
    type = CUDA

    def __init__(self):
        for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
            try:
                self.runtime = ctypes.CDLL(name)
                break
            except OSError:
                continue
        self.taken = []

    def upload(self, values):
        memory = VOID()
        size = max(values.nbytes, 16)
        assert self.runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
        self.taken.append(memory)
        assert self.runtime.cudaMemcpy(memory, VOID(values.ctypes.data), ctypes.c_size_t(values.nbytes), 1) == 0
        return memory.value

    def download(self, data, values):
        out = np.empty_like(values)
        status = self.runtime.cudaMemcpy(VOID(out.ctypes.data), VOID(data), ctypes.c_size_t(out.nbytes), 2)
        assert status == 0, f"the GPU is in error {status}"
        return out

    def clear(self):
        for memory in self.taken:
            self.runtime.cudaFree(memory)
        self.taken = []


class Refused(Exception):
    pass


class Library:
    def __init__(self, path, machine):
        self.c, self.machine = ctypes.CDLL(path), machine
        self.c.ww_last_error.restype = ctypes.c_char_p
        self.c.ww_plan_explain.restype = ctypes.c_char_p
        self.context, self.workspace = VOID(), VOID()
        self.call("ww_context_create", None, ctypes.byref(self.context))
        self.call("ww_workspace_create", self.context, ctypes.c_size_t(0), ctypes.byref(self.workspace))

    def call(self, name, *args):
        status = getattr(self.c, name)(*args)
        if status == UNSUPPORTED:
            raise Refused(self.c.ww_last_error().decode())
        if status != 0:
            raise RuntimeError(f"{name}: {status}: {self.c.ww_last_error().decode()}")


def address(values):
    return None if values is None else values.ctypes.data


# ---- Cases ----

def attention(q, k, v, sees, scale, softcap, sinks):
    """(out, lse) of one request: q [rows, heads, dim], k and v [tokens, kv heads, dim], sees [rows, tokens]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("rhd,thd->rht", q, k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(sees[:, None], scores, -np.inf)
    if sinks is not None:
        column = np.where(sees.any(1)[:, None], sinks[None], -np.inf)
        scores = np.concatenate([scores, column[..., None]], -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = scores.max(-1, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0)[..., None])
        lse = top + np.log(weights.sum(-1))
        weights = weights / weights.sum(-1, keepdims=True)
    weights = np.nan_to_num(weights)[..., : k.shape[0]]
    return np.einsum("rht,thd->rhd", weights, v), np.where(np.isfinite(top), lse, -np.inf)


def seen(rows, tokens, rules):
    position, token = np.arange(rows)[:, None] + tokens - rows, np.arange(tokens)[None]
    sees = np.ones((rows, tokens), bool) if not rules["causal"] else token <= position
    if rules["window_left"] >= 0:
        sees &= token >= position - rules["window_left"]
    return sees


def choose_lengths(random):
    requests = int(random.integers(1, 6))
    if random.random() < 0.4:
        rows = np.ones(requests, np.int32)
    else:
        rows = random.integers(1, 100, requests).astype(np.int32)
    more = random.choice([0, 3, 40, 700], requests) * random.random(requests)
    return rows, (rows + more.astype(np.int32)).astype(np.int32)


def paged(random, sequences, page_size, dtype):
    """Their tokens in shuffled pages, everything else NaN; and the page table, padded with page 0."""
    counts = [-(-len(s) // page_size) for s in sequences]
    order = random.permutation(sum(counts) + 2)
    pages = nothing((len(order), page_size, *sequences[0].shape[1:]), dtype)
    table = np.zeros((len(sequences), max(counts)), np.int32)
    taken = 0
    for r, (sequence, count) in enumerate(zip(sequences, counts)):
        table[r, :count] = order[taken : taken + count]
        taken += count
        for p in range(count):
            part = sequence[p * page_size : (p + 1) * page_size]
            pages[table[r, p], : len(part)] = part
    return pages, table


def attention_case(random, machine, latent):
    q_dtype = str(random.choice(["bf16", "f16"] if machine.type == CUDA else ["bf16", "f16", "f32"]))
    kv_dtype = str(random.choice([q_dtype, q_dtype, "e4m3", "e5m2"]))
    if latent:
        v_dim, rope = (512, 64) if random.random() < 0.7 else (int(random.choice([64, 128, 256])), 32)
        dims = (v_dim + rope, v_dim)
        kv_heads, heads = 1, int(random.choice([1, 2, 8, 16, 20, 64, 128]))
    else:
        dims = [(32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256)][random.integers(7)]
        if machine.type == CUDA and dims[0] != dims[1]:  # K and V have equal strides there
            dims = (128, 128)
        kv_heads = int(random.choice([1, 2, 3, 4]))
        heads = kv_heads * int(random.choice([1, 2, 3, 4, 5, 7, 8, 16]))
    plain = latent or random.random() < 0.4
    rules = {"causal": int(latent or random.random() < 0.85), "window_left": -1, "softcap": 0.0, "sinks": False}
    if not plain:
        rules["window_left"] = int(random.choice([-1, 0, 5, 64, 127])) if rules["causal"] else -1
        rules["softcap"] = float(random.choice([0, 20, 50]))
        rules["sinks"] = bool(random.random() < 0.3)
    return {"q_dtype": q_dtype, "kv_dtype": kv_dtype, "dims": dims, "heads": heads, "kv_heads": kv_heads, **rules,
            "page_size": int(random.choice([1, 2, 3, 8, 16, 64, 128])),
            "hnd": int(not latent and random.random() < 0.3),
            "deterministic": int(random.random() < 0.1), "lengths": choose_lengths(random), "latent": int(latent)}


def run_attention(library, random, case):
    dim, v_dim = case["dims"]
    rows, tokens = case["lengths"]
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    scales = [0.5, 2.0] if case["kv_dtype"].startswith("e") else [1.0, 1.0]
    q, q_wide = stored(random.normal(size=(starts[-1], case["heads"], dim)) * 1.5, case["q_dtype"])
    keys = [stored(random.normal(size=(n, case["kv_heads"], dim)), case["kv_dtype"]) for n in tokens]
    values = [stored(random.normal(size=(n, case["kv_heads"], v_dim)), case["kv_dtype"]) for n in tokens]
    machine, state = library.machine, random.bit_generator.state
    tensors = []
    for sequences in [keys] + ([] if case["latent"] else [values]):
        random.bit_generator.state = state  # K and V stand on the same pages
        pages, table = paged(random, [s for s, _ in sequences], case["page_size"], case["kv_dtype"])
        tensors.append(Array(machine, pages.swapaxes(1, 2) if case["hnd"] else pages, case["kv_dtype"]))
    heads_scales = [Array(machine, np.full(case["kv_heads"], s, np.float32), "f32") for s in scales]
    sinks = random.normal(size=case["heads"]).astype(np.float32) if case["sinks"] else None
    if case["latent"]:
        cache = Cache(format=KV[case["kv_dtype"]], k=tensors[0])
    else:
        cache = Cache(format=KV[case["kv_dtype"]], layout=case["hnd"], k=tensors[0], v=tensors[1])
    if case["kv_dtype"] in CODES:
        cache.k_scales = heads_scales[0].pointer()
        cache.v_scales = None if case["latent"] else heads_scales[1].pointer()
    scale = float(np.float32(dim**-0.5))
    q_tensor = Array(machine, q, case["q_dtype"])
    out = Array(machine, nothing((*q.shape[:2], v_dim), case["q_dtype"]), case["q_dtype"])
    lse = Array(machine, np.full(q.shape[:2], np.nan, np.float32), "f32")
    options = PlanOptions(
        num_q_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=dim, v_head_dim=v_dim,
        page_size=case["page_size"], kv_format=KV[case["kv_dtype"]], q_dtype=q_tensor.tensor.dtype, scale=scale,
        logit_softcap=case["softcap"], causal=case["causal"], window_left=case["window_left"], window_right=-1,
        use_sinks=int(sinks is not None), deterministic=case["deterministic"], device=Device(type=machine.type, id=0),
        latent=case["latent"])
    batch = Batch(num_requests=len(rows), q_indptr=address(starts), kv_lens=address(tokens), page_table=address(table),
                  page_table_stride=table.shape[1])
    arguments = RunArgs(q=q_tensor, out=out, lse_ln=lse, kv=ctypes.addressof(cache),
                        **({} if sinks is None else {"sinks": Array(machine, sinks, "f32")}))
    plan = VOID()
    library.call("ww_plan_create", library.workspace, ctypes.byref(options), ctypes.byref(plan))
    try:
        library.call("ww_plan_batch", plan, ctypes.byref(batch))
        library.call("ww_plan_run", plan, ctypes.byref(arguments))
        got, got_lse = out.read(), lse.read()
        case["backend"] = library.c.ww_plan_explain(plan).decode().splitlines()[0]
    finally:
        library.c.ww_plan_destroy(plan)
    complaints = []
    for r, n in enumerate(tokens):
        own = slice(starts[r], starts[r + 1])
        k = keys[r][1] * scales[0]
        v = k[..., :v_dim] if case["latent"] else values[r][1] * scales[1]
        wanted, wanted_lse = attention(q_wide[own], k, v, seen(rows[r], n, case), scale, case["softcap"], sinks)
        complaints += compare(f"request {r}", got[own], wanted, tolerance(case, machine))
        complaints += compare(f"lse of request {r}", got_lse[own], wanted_lse, 2 * tolerance(case, machine))
    return complaints


def tolerance(case, machine):
    """Of the error's size beside the result's."""
    own = {"f32": 2e-5, "f16": 2e-3, "bf16": 1.2e-2}[case["q_dtype"]]
    # Beside K and V of 8 bits q and weights may be rounded: to 16 bits, on a GPU to 8, too.
    return own if case["kv_dtype"] not in CODES else 0.08 if machine.type == CUDA else max(own, 5e-3)


def compare(what, got, wanted, bound):
    if not np.array_equal(np.isfinite(got), np.isfinite(wanted)):
        counts = np.isfinite(got).sum(), np.isfinite(wanted).sum()
        return [f"{what}: {counts[0]} of {got.size} are finite, and should be {counts[1]}"]
    finite = np.isfinite(wanted)
    difference = (got - np.where(finite, wanted, got))[finite]
    size = math.sqrt(np.mean(wanted[finite] ** 2)) + 1e-2 if finite.any() else 1.0
    error = math.sqrt(np.mean(difference**2)) / size if difference.size else 0.0
    worst = np.abs(difference).max(initial=0) / size
    if error <= bound and worst <= 12 * bound:
        return []
    return [f"{what}: error {error:.2e}, at most {worst:.2e}, bound {bound:.0e}"]


def linear_case(random):
    kind, dtype = str(random.choice(list(LINEAR))), str(random.choice(["f32", "bf16", "f16"]))
    k_heads = int(random.choice([1, 2, 4]))
    rows = np.ones(random.integers(1, 9))
    if random.random() < 0.6:
        rows = random.integers(1, 200, int(random.integers(1, 5)))
    return {"kind": kind, "dtype": dtype, "k_heads": k_heads,
            "v_heads": k_heads * (1 if kind == "kda" else int(random.choice([1, 2, 4]))),
            "dims": [int(d) for d in random.choice([16, 32, 64, 128, 256], 2)],
            "layer_gates": int(random.random() < 0.4), "l2norm": int(random.random() < 0.7),
            "from_zeros": int(random.random() < 0.3),
            "exact": int(random.random() < 0.5), "rows": rows.astype(np.int32)}


def linear_inputs(random, case):
    """name -> (stored, wide, dtype) of everything but the state."""
    rows, dtype = int(case["rows"].sum()), case["dtype"]
    k_dim, v_dim = case["dims"]
    channels = (k_dim,) if case["kind"] == "kda" else ()
    size = 1.0 if case["l2norm"] else k_dim**-0.5
    made = {"q": (random.normal(size=(rows, case["k_heads"], k_dim)) * size, dtype),
            "k": (random.normal(size=(rows, case["k_heads"], k_dim)) * size, dtype),
            "v": (random.normal(size=(rows, case["v_heads"], v_dim)), dtype)}
    if case["layer_gates"]:
        made |= {"a": (random.normal(size=(rows, case["v_heads"], *channels)), dtype),
                 "b": (random.normal(size=(rows, case["v_heads"])), dtype),
                 "a_log": (random.normal(size=case["v_heads"]) * 0.5, "f32"),
                 "dt_bias": (random.normal(size=(case["v_heads"], *channels)), "f32")}
    else:
        made |= {"g": (-np.exp(random.normal(size=(rows, case["v_heads"], *channels)) - 2), "f32"),
                 "beta": (random.random((rows, case["v_heads"])), "f32")}
    return {name: (*stored(values, kind), kind) for name, (values, kind) in made.items()}


def delta_rule(wide, state, case, first, last):
    """(out, state) of tokens [first, last) of one request."""
    group, k_dim = case["v_heads"] // case["k_heads"], case["dims"][0]
    q, k = (np.repeat(wide[name], group, 1) for name in ("q", "k"))
    if case["l2norm"]:
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    if case["layer_gates"]:
        shape = (1, -1, 1) if case["kind"] == "kda" else (1, -1)
        g = -np.exp(wide["a_log"]).reshape(shape) * np.logaddexp(0, wide["a"] + wide["dt_bias"][None])
        beta = 1 / (1 + np.exp(-wide["b"]))
    else:
        g, beta = wide["g"], wide["beta"]
    out = []
    for t in range(first, last):
        decay = np.exp(g[t])
        state = state * (decay[:, None] if case["kind"] == "kda" else decay[:, None, None])
        change = beta[t][:, None] * (wide["v"][t] - np.einsum("hvk,hk->hv", state, k[t]))
        state = state + change[:, :, None] * k[t][:, None]
        out.append(np.einsum("hvk,hk->hv", state, q[t]) * k_dim**-0.5)
    return np.array(out), state


def run_linear(library, random, case):
    machine, rows = library.machine, case["rows"]
    k_dim, v_dim = case["dims"]
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    slots = random.permutation(len(rows) + 2)[: len(rows)].astype(np.int32)
    inputs = linear_inputs(random, case)
    begin = random.normal(size=(len(rows) + 2, case["v_heads"], v_dim, k_dim)).astype(np.float32) * 0.3
    tensors = {name: Array(machine, values, dtype) for name, (values, _, dtype) in inputs.items()}
    state = Array(machine, begin.copy(), "f32")
    out = Array(machine, nothing((starts[-1], case["v_heads"], v_dim), case["dtype"]), case["dtype"])
    arguments = LinearArgs(kind=LINEAR[case["kind"]], **tensors, state=state, out=out, num_requests=len(rows),
                           q_indptr=address(starts), slots=address(slots), from_zeros=case["from_zeros"],
                           l2norm=case["l2norm"], exact=case["exact"])
    library.call("ww_linear_attention", library.context, ctypes.byref(arguments))
    got, got_state = out.read(), state.read()
    wide = {name: values for name, (_, values, _) in inputs.items()}
    bound = {"f32": 5e-5, "f16": 4e-3, "bf16": 2e-2}[case["dtype"]]
    complaints, idle = [], np.setdiff1d(np.arange(len(begin)), slots)
    if not np.array_equal(got_state[idle], begin[idle].astype(np.float64)):
        complaints.append("the state of another slot was written")
    for r, slot in enumerate(slots):
        first = np.zeros_like(begin[slot]) if case["from_zeros"] else begin[slot]
        wanted, wanted_state = delta_rule(wide, first.astype(np.float64), case, starts[r], starts[r + 1])
        complaints += compare(f"request {r}", got[starts[r] : starts[r + 1]], wanted, bound)
        complaints += compare(f"state of request {r}", got_state[slot], wanted_state, bound)
    return complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cases", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=["mha", "latent", "linear"])
    args = parser.parse_args()
    library = Library(args.library, CudaMachine() if args.device == "cuda" else HostMachine())
    right, wrong, refusals = collections.Counter(), 0, collections.Counter()
    for index in range(args.cases):
        random = np.random.default_rng([args.seed, index])
        kind = args.kind or ["mha", "mha", "latent", "linear"][index % 4]
        if kind == "linear":
            case = linear_case(random)
        else:
            case = attention_case(random, library.machine, kind == "latent")
        try:
            complaints = (run_linear if kind == "linear" else run_attention)(library, random, case)
        except Refused as refusal:
            refusals[str(refusal)] += 1
            complaints = None
        except RuntimeError as error:
            complaints = [str(error)]
        library.machine.clear()
        if complaints:
            wrong += 1
            print(f"seed {args.seed}, case {index}, {kind}: {case}\n  " + "\n  ".join(complaints[:4]), flush=True)
        elif complaints is not None:
            right[kind] += 1
    for text, count in refusals.most_common():
        print(f"refused {count} times: {text}")
    print(f"{dict(right)} right, {wrong} wrong, {refusals.total()} refused of {args.cases}")
    return 1 if wrong or 2 * refusals.total() > args.cases else 0


if __name__ == "__main__":
    sys.exit(main())
