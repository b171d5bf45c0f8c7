"""The project's attention kernels on torch tensors (through kernels_entry.cu), problems with paged
K/V, and a float32 reference. Used by check_attention.py and bench_attention.py."""
import ctypes as ct
import math
import os

import torch

DEV = "cuda"
P, I, L, F, B = ct.c_void_p, ct.c_int, ct.c_int64, ct.c_float, ct.c_bool


def _struct(name, fields):
    return type(name, (ct.Structure,), {"_fields_": fields})


AttentionParams = _struct("AttentionParams", [
    ("q", P), ("q_token_stride", L), ("out", P), ("out_token_stride", L), ("lse", P), ("k", P), ("v", P),
    ("page_stride", L), ("token_stride", L), ("head_stride", L), ("k_head_scales", P),
    ("v_head_scales", P), ("k_block_scales", P), ("v_block_scales", P), ("sinks", P), ("page_table", P), ("page_table_stride", I), ("kv_lens", P),
    ("q_indptr", P), ("positions", P), ("tree_mask", P), ("tree_mask_words", I), ("num_requests", I), ("num_tokens", I),
    ("num_q_heads", I), ("num_kv_heads", I), ("group", I), ("page_size", I), ("page_shift", I),
    ("window_left", I), ("decode_q_len", I), ("causal", B), ("earlier_kv_settled", B), ("scale", F), ("softcap", F)])
ExtendCopies = _struct("ExtendCopies", [("k", P), ("v", P), ("blocks", P), ("first_blocks", P), ("ready", P),
                                        ("max_blocks", I)])
PlanInput = _struct("PlanInput", [("kv_lens", P), ("q_indptr", P), ("num_requests", I),
                                  ("num_kv_heads", I), ("window_left", I), ("decode_q_len", I),
                                  ("head_token_bytes", I), ("section_bytes", I), ("causal", B), ("cut_long_pairs", B),
                                  ("segment_tiles", I), ("merge_tiles", I), ("merged_pieces_a_tile", I),
                                  ("tile_tokens", I), ("arrivals", P), ("whole_tiles", B), ("tiles_in_turn", B),
                                  ("copies", ExtendCopies)])
DecodeWorkspace = _struct("DecodeWorkspace", [("workers", P), ("partial_out", P),
                                              ("partial_max_sum", P), ("counters", P), ("pieces", P),
                                              ("split_tokens", I), ("plan_is_older", B), ("others_beside", B),
                                              ("q_ready", P), ("q_epoch", I)])
ExtendWorklist = _struct("ExtendWorklist", [("items", P), ("header", P), ("copies", ExtendCopies),
                                           ("beside_predecessor", B), ("q_ready", P), ("q_epoch", I)])
ExtendLayout = _struct("ExtendLayout", [("tile_rows", I), ("rows_per_token", I), ("fp8_mma", B), ("pairs", B),
                                        ("tiles_in_turn", B), ("side_by_side", B), ("after_decode", B),
                                        ("copied_tile_rows", I), ("min_copy_reads", I), ("copied_before", B)])
KernelShape = _struct("KernelShape", [("element", I), ("kv", I), ("head_dim", I), ("head_pairs", B)])

KV_TYPES = {"16": 0, "e4m3": 1, "e5m2": 2, "e2m1": 3}
TORCH_KV = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
KV_BYTES = {"16": 2, "e4m3": 1, "e5m2": 1, "e2m1": 0.5 + 1 / 16}  # of an element
FP4_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def to_fp4(x):
    """[..., d] to two values a byte [..., d / 2] and the e4m3 codes of the blocks' scales [..., d / 16]."""
    blocks = x.float().unflatten(-1, (-1, 16))
    scales = (blocks.abs().amax(-1) / 6).to(torch.float8_e4m3fn)
    scales = scales.float().clamp_min(2.0 ** -9).to(torch.float8_e4m3fn)
    values = blocks / scales.float()[..., None]
    ends = torch.tensor([(a + b) / 2 for a, b in zip(FP4_LEVELS, FP4_LEVELS[1:])], device=x.device)
    codes = torch.bucketize(values.abs(), ends) + 8 * (values < 0)
    codes = codes.flatten(-2).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales.view(torch.uint8)


def from_fp4(codes, scales):
    levels = torch.tensor(FP4_LEVELS + tuple(-x for x in FP4_LEVELS), device=codes.device)
    values = levels[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()]
    return values * scales.view(torch.float8_e4m3fn).float().repeat_interleave(16, -1)


def load(path):
    lib = ct.CDLL(path)
    structs = (AttentionParams, PlanInput, DecodeWorkspace, ExtendWorklist, ExtendLayout, KernelShape)
    sizes = (ct.c_size_t * len(structs))()
    lib.ww_struct_sizes(sizes)
    if list(sizes) != [ct.sizeof(x) for x in structs]:
        raise RuntimeError(f"structs of the kernels have {list(sizes)} bytes, here {[ct.sizeof(x) for x in structs]}")
    lib.ww_decode_workers.argtypes = [KernelShape, I, B, ct.POINTER(I), ct.POINTER(I)]
    lib.ww_decode_plan.argtypes = [ct.POINTER(PlanInput), P, I, P]
    lib.ww_sm80_decode.argtypes = [KernelShape, I, B, ct.POINTER(AttentionParams), ct.POINTER(DecodeWorkspace), I, P]
    lib.ww_extend_plan.argtypes = [ct.POINTER(PlanInput), I, I, P, P, P]
    lib.ww_sm80_extend.argtypes = [KernelShape, I, ct.POINTER(AttentionParams), ct.POINTER(ExtendWorklist), I, P]
    lib.ww_sm90_layout.argtypes = [KernelShape, ct.POINTER(AttentionParams), I, ct.POINTER(ExtendLayout)]
    lib.ww_sm90_layout.restype = None
    lib.ww_sm90_extend.argtypes = [KernelShape, ct.POINTER(AttentionParams), ct.POINTER(ExtendWorklist),
                                   ct.POINTER(ExtendLayout), I, I, P]
    lib.ww_latent_extend.argtypes = [ct.POINTER(AttentionParams), ct.POINTER(ExtendWorklist), I, P]
    return lib


def stream():
    return torch.cuda.current_stream().cuda_stream


def ok(code):
    if code != 0:
        raise RuntimeError(f"CUDA error {code}")


class Problem:
    """Paged K/V with shuffled pages and NaN wherever no visible token stands, and its queries."""

    def __init__(self, q_lens, kv_lens, heads=(32, 8), d=128, page=64, dtype=torch.bfloat16, kv="16",
                 window=-1, softcap=0.0, sinks=False, causal=True, tree=False, hnd=False, seed=0,
                 poison=True, scales=False, copies=1):
        g = torch.Generator(device=DEV)
        g.manual_seed(seed)
        self.q_lens, self.kv_lens_list = list(q_lens), list(kv_lens)
        self.hq, self.hkv, self.d, self.page, self.dtype, self.kv = heads[0], heads[1], d, page, dtype, kv
        self.window, self.softcap, self.causal = window, softcap, causal
        self.scale = d ** -0.5
        n = sum(q_lens)
        self.n = n
        self.q = torch.randn(n, self.hq, d, device=DEV, generator=g).to(dtype)
        self.out = torch.full((n, self.hq, d), float("nan"), device=DEV, dtype=dtype)
        self.lse = torch.full((n, self.hq), float("nan"), device=DEV)
        per = [(x + page - 1) // page for x in kv_lens]
        pages = max(1, sum(per)) + (3 if poison else 0)
        order = torch.randperm(pages, device=DEV, generator=g).to(torch.int32)
        self.table = torch.full((len(per), max(1, max(per))), pages + 7 if poison else 0, device=DEV, dtype=torch.int32)
        at = 0
        for r, c in enumerate(per):
            self.table[r, :c] = order[at:at + c]
            at += c
        shape = (pages, self.hkv, page, d) if hnd else (pages, page, self.hkv, d)
        store = dtype if kv == "16" else TORCH_KV.get(kv)
        self.pools, self.block_scales = [], []
        for _ in range(copies):
            pair, block_scales = [], []
            for _ in range(2):
                if kv == "e2m1":
                    if poison:
                        t, s = to_fp4(torch.randn(shape, device=DEV, generator=g))
                    else:
                        t = torch.randint(0, 256, shape[:-1] + (d // 2,), device=DEV, generator=g, dtype=torch.uint8)
                        s = torch.randint(40, 56, shape[:-1] + (d // 16,), device=DEV, generator=g, dtype=torch.uint8)
                    block_scales.append(s.transpose(1, 2) if hnd else s)
                elif poison:
                    t = torch.randn(shape, device=DEV, generator=g).to(store)
                else:
                    t = torch.empty(shape, device=DEV, dtype=store)
                    for i in range(0, pages, 4096):
                        part = torch.randn((min(4096, pages - i),) + shape[1:], device=DEV, generator=g, dtype=torch.bfloat16)
                        t[i:i + 4096] = part.to(store)
                pair.append(t.transpose(1, 2) if hnd else t)
            self.pools.append(pair)
            self.block_scales.append(block_scales)
        if poison:
            seen = torch.zeros(pages * page, dtype=torch.bool, device=DEV)
            for r, x in enumerate(kv_lens):
                seen[self.slots(r)] = True
            for pair, block_scales in zip(self.pools, self.block_scales):
                for t in block_scales:
                    t.masked_fill_(~seen.view(pages, page, 1, 1), 0x7f)
                for t in pair if kv != "e2m1" else ():
                    flat = t.float()
                    flat.masked_fill_(~seen.view(pages, page, 1, 1), float("nan"))
                    t.copy_(flat.to(store))
        self.kv_lens = torch.tensor(kv_lens, device=DEV, dtype=torch.int32)
        indptr = [0]
        for x in q_lens:
            indptr.append(indptr[-1] + x)
        self.indptr_list = indptr
        self.q_indptr = torch.tensor(indptr, device=DEV, dtype=torch.int32)
        self.sinks = torch.randn(self.hq, device=DEV, generator=g) * 2 if sinks else None
        self.k_scales = torch.rand(self.hkv, device=DEV, generator=g) + 0.5 if scales else None
        self.v_scales = torch.rand(self.hkv, device=DEV, generator=g) + 0.5 if scales else None
        self.tree = self.positions = None
        self.words = 0
        if tree:
            self.words = (max(q_lens) + 31) // 32
            mask = torch.zeros(n, self.words * 32, dtype=torch.bool)
            pos = torch.zeros(n, dtype=torch.int32)
            cg = torch.Generator().manual_seed(seed)
            for r, x in enumerate(q_lens):
                for i in range(x):
                    row = indptr[r] + i
                    if i > 0:
                        parent = int(torch.randint(0, i, (1,), generator=cg))
                        mask[row] = mask[indptr[r] + parent]
                        pos[row] = pos[indptr[r] + parent] + 1
                    else:
                        pos[row] = kv_lens[r] - x
                    mask[row, i] = True
            bits = (mask.view(n, self.words, 32).to(torch.int64) << torch.arange(32)).sum(-1)
            self.tree_bool = mask.to(DEV)
            self.tree = bits.to(torch.int64).to(DEV).to(torch.uint32) if hasattr(torch, "uint32") else bits.to(torch.int32).to(DEV)
            self.positions = pos.to(DEV)

    def slots(self, r):
        t = torch.arange(self.kv_lens_list[r], device=DEV)
        return self.table[r, t // self.page].long() * self.page + t % self.page

    def params(self, copy=0):
        k, v = self.pools[copy]
        p = AttentionParams()
        p.q, p.q_token_stride = self.q.data_ptr(), self.q.stride(0)
        p.out, p.out_token_stride = self.out.data_ptr(), self.out.stride(0)
        p.lse, p.k, p.v = self.lse.data_ptr(), k.data_ptr(), v.data_ptr()
        per = 2 if self.kv == "e2m1" else 1
        p.page_stride, p.token_stride, p.head_stride = (k.stride(i) * per for i in range(3))
        if self.kv == "e2m1":
            p.k_block_scales, p.v_block_scales = (s.data_ptr() for s in self.block_scales[copy])
        p.page_table, p.page_table_stride = self.table.data_ptr(), self.table.stride(0)
        p.kv_lens, p.q_indptr = self.kv_lens.data_ptr(), self.q_indptr.data_ptr()
        for name, t in (("sinks", self.sinks), ("k_head_scales", self.k_scales), ("v_head_scales", self.v_scales),
                        ("positions", self.positions), ("tree_mask", self.tree)):
            setattr(p, name, t.data_ptr() if t is not None else None)
        p.tree_mask_words = self.words
        p.num_tokens = self.n
        p.num_requests, p.num_q_heads, p.num_kv_heads = len(self.q_lens), self.hq, self.hkv
        p.group = self.hq // self.hkv
        p.page_size = self.page
        p.page_shift = int(math.log2(self.page)) if self.page & (self.page - 1) == 0 else -1
        p.window_left, p.causal, p.scale, p.softcap = self.window, self.causal, self.scale, self.softcap
        return p

    def plan_input(self):
        i = PlanInput()
        i.kv_lens, i.q_indptr = self.kv_lens.data_ptr(), self.q_indptr.data_ptr()
        i.num_requests, i.num_kv_heads = len(self.q_lens), self.hkv
        i.window_left, i.causal = self.window, self.causal
        i.merged_pieces_a_tile, i.tile_tokens, i.section_bytes = 1, 64, 24 << 20
        i.head_token_bytes = 2 * self.d // 2 if self.kv == "e2m1" else 2 * self.d * self.pools[0][0].element_size()
        return i

    def shape(self):
        boxed = self.page % 16 == 0 and self.window < 0 and max(self.q_lens) == 1 and self.hq <= 4 * self.hkv
        return KernelShape(0 if self.dtype == torch.bfloat16 else 1, KV_TYPES[self.kv], self.d,
                           self.hkv % 2 == 0 and len(self.q_lens) >= (8 if boxed else 16) and self.pools[0][0].stride(2) * (2 if self.kv == "e2m1" else 1) == self.d)

    def reference(self, rounded_q=False):
        """float32; returns out and LSE. rounded_q: of q in e4m3 times a power of two a row, as fp8 kernels take it."""
        q = round_rows_to_e4m3(self.q.float()) if rounded_q else self.q.float()
        out = torch.zeros(self.n, self.hq, self.d, device=DEV)
        lse = torch.full((self.n, self.hq), -math.inf, device=DEV)
        g = self.hq // self.hkv
        k, v = self.pools[0]
        pages = k.shape[0]
        for r, (ql, kl) in enumerate(zip(self.q_lens, self.kv_lens_list)):
            if ql == 0 or kl == 0:
                continue
            t = torch.arange(kl, device=DEV)
            page, off = self.table[r, t // self.page].long(), t % self.page
            if self.kv == "e2m1":
                ks, vs = self.block_scales[0]
                kf, vf = from_fp4(k[page, off], ks[page, off]), from_fp4(v[page, off], vs[page, off])
            else:
                kf, vf = k[page, off].float(), v[page, off].float()
            if self.k_scales is not None:
                kf, vf = kf * self.k_scales[None, :, None], vf * self.v_scales[None, :, None]
            a, b = self.indptr_list[r], self.indptr_list[r + 1]
            pos = torch.arange(ql, device=DEV) + kl - ql
            see = torch.ones(ql, kl, dtype=torch.bool, device=DEV)
            if self.tree is not None:
                see[:, kl - ql:] = self.tree_bool[a:b, :ql]
                pos = self.positions[a:b]
            elif self.causal:
                see &= t[None] <= pos[:, None]
            if self.window >= 0:
                left = t[None] >= pos[:, None] - self.window
                if self.tree is not None:
                    left[:, kl - ql:] = True
                see &= left
            for h in range(self.hq):
                s = q[a:b, h] @ kf[:, h // g].T * self.scale
                if self.softcap > 0:
                    s = self.softcap * torch.tanh(s / self.softcap)
                s = s.masked_fill(~see, -math.inf)
                if self.sinks is not None:
                    s = torch.cat([s, self.sinks[h].expand(ql, 1)], 1)
                empty = ~see.any(1)
                l = torch.logsumexp(s, 1).masked_fill(empty, -math.inf)
                p = torch.exp(s - l[:, None]).masked_fill(empty[:, None], 0)
                out[a:b, h] = p[:, :kl] @ vf[:, h // g]
                lse[a:b, h] = l
        return out, lse


def round_rows_to_e4m3(x):
    top = x.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    scale = torch.exp2(torch.ceil(torch.log2(top * (1.0 / 448.0))))
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


class Decode:
    """sm80 decode with its device plan and workspace. early: launched under its predecessor, as in a forward pass.
    q_len: only requests of up to this many query tokens. others_beside: an Extend follows that is `beside`. sms: so many
    are its. side: the SideBySide that it shares with an Extend before it."""

    def __init__(self, lib, problem, multi_row=None, early=False, q_len=None, others_beside=False, sms=None, side=None):
        self.lib, self.p = lib, problem
        q_len = q_len or max(problem.q_lens)
        self.multi = q_len > 1 if multi_row is None else multi_row
        self.rows = q_len * (problem.hq // problem.hkv)
        partial, heads = I(0), I(1)
        self.workers = lib.ww_decode_workers(problem.shape(), self.rows, self.multi, ct.byref(partial), ct.byref(heads))
        if sms:
            self.workers = self.workers // torch.cuda.get_device_properties(0).multi_processor_count * sms
        if partial.value == 0:
            raise ValueError("no decode kernel of this shape")
        self.plan_buffer = torch.zeros(self.workers, 12, dtype=torch.int32, device=DEV)
        self.partial = torch.full((2 * self.workers, partial.value, problem.d), float("nan"), device=DEV)
        self.max_sum = torch.full((2 * self.workers, partial.value, 2), float("nan"), device=DEV)
        self.counters = torch.zeros(self.workers, dtype=torch.int32, device=DEV)
        self.ws = DecodeWorkspace(self.plan_buffer.data_ptr(), self.partial.data_ptr(),
                                  self.max_sum.data_ptr(), self.counters.data_ptr())
        self.shape, self.input = problem.shape(), problem.plan_input()
        self.input.decode_q_len = q_len
        self.input.num_kv_heads //= heads.value
        self.args = [problem.params(c) for c in range(len(problem.pools))]
        self.ws.plan_is_older, self.ws.others_beside = early, others_beside
        self.side = side
        if side:
            self.ws.q_ready = side.word.data_ptr()
        for a in self.args:
            a.decode_q_len = q_len
            a.earlier_kv_settled = early

    def plan(self):
        ok(self.lib.ww_decode_plan(self.input, self.ws.workers, self.workers, stream()))

    def run(self, copy=0):
        if self.side:
            self.ws.q_epoch = self.side.epoch
        ok(self.lib.ww_sm80_decode(self.shape, self.rows, self.multi, self.args[copy], self.ws, self.workers, stream()))


class SideBySide:
    """The word by which an Extend tells the Decode launched after it that Q is there; a value of its own each time."""

    def __init__(self):
        self.word, self.epoch = torch.zeros(1, dtype=torch.int32, device=DEV), 0


class Extend:
    """Tiled kernels with their device worklist; kind sm80 or sm90. copies: of K and V on pages of a few tokens, where
    the kernel can take them; None: where PagedCudaBackend would. decode_q_len: requests of no more query tokens are left
    to a Decode; beside: it runs beside that one, launched before it. max_q_len: tiles as for such a longest request. sms, side:
    as Decode's, which follows it then."""

    def __init__(self, lib, problem, kind="sm80", tile_rows=None, copies=None, decode_q_len=0, beside=False,
                 max_q_len=None, sms=0, side=None):
        self.lib, self.p, self.kind = lib, problem, kind
        group = problem.hq // problem.hkv
        self.per_token = group if kind == "sm80" else 1
        self.layout = layout = ExtendLayout()
        if kind == "sm90":
            lib.ww_sm90_layout(problem.shape(), problem.params(), max_q_len or max(problem.q_lens), layout)
            tile_rows = layout.tile_rows
        self.tile_rows = tile_rows or (128 if max(problem.q_lens) * group > 64 else 64)
        self.copies = False
        if layout.copied_tile_rows:
            self.copies = self.worth_copies(layout.copied_tile_rows, layout.min_copy_reads) if copies is None else copies
        if self.copies:
            layout.tile_rows = self.tile_rows = layout.copied_tile_rows
        self.max_items = sum((x * self.per_token + self.tile_rows - 1) // self.tile_rows for x in problem.q_lens)
        self.items = torch.zeros(max(1, self.max_items), 2, dtype=torch.int32, device=DEV)
        self.count = torch.zeros(6, dtype=torch.int32, device=DEV)
        self.work = ExtendWorklist(self.items.data_ptr(), self.count.data_ptr())
        self.shape, self.input = problem.shape(), problem.plan_input()
        if self.copies:
            self.make_copies()
        self.input.tiles_in_turn = layout.tiles_in_turn and not self.copies
        self.work.beside_predecessor = beside
        self.sms, self.side = sms, side
        if side:
            self.work.q_ready = side.word.data_ptr()
        self.input.decode_q_len = decode_q_len
        self.args = [problem.params(c) for c in range(len(problem.pools))]
        for a in self.args:
            a.decode_q_len = decode_q_len

    def blocks_of(self, r):
        p = self.p
        seen_from = max(0, p.kv_lens_list[r] - p.q_lens[r] - p.window) if p.window >= 0 else 0
        return (p.kv_lens_list[r] + 127) // 128 - seen_from // 128

    def worth_copies(self, tile_rows, min_reads):
        p, requests = self.p, [r for r, x in enumerate(self.p.q_lens) if x > 0]
        seen = [p.kv_lens_list[r] - (p.q_lens[r] / 2 if p.causal else 0) for r in requests]
        most = [p.window + tile_rows if p.window >= 0 else p.kv_lens_list[r] for r in requests]
        reads = sum(-(-p.q_lens[r] // tile_rows) * min(a, b) / 128 for r, a, b in zip(requests, seen, most)) * (p.hq // p.hkv)
        return reads >= min_reads * sum(self.blocks_of(r) for r in requests)

    def make_copies(self):
        p = self.p
        blocks = sum(self.blocks_of(r) for r, x in enumerate(p.q_lens) if x > 0)
        self.copied = [torch.full((p.hkv, blocks, 128, p.d), math.nan, device=DEV, dtype=p.dtype) for _ in range(2)]
        self.lists = [torch.zeros(n, dtype=torch.int32, device=DEV) for n in (2 * blocks, len(p.q_lens), p.hkv)]
        self.work.copies = ExtendCopies(*(t.data_ptr() for t in self.copied + self.lists), blocks)
        if self.layout.copied_before:
            self.work.copies.ready = None
        self.input.copies = self.work.copies

    def plan(self):
        ok(self.lib.ww_extend_plan(self.input, self.tile_rows, self.per_token, self.work.items, self.work.header, stream()))

    def run(self, copy=0):
        if self.kind == "sm80":
            ok(self.lib.ww_sm80_extend(self.shape, self.tile_rows, self.args[copy], self.work, max(1, self.max_items), stream()))
        else:
            if self.side:
                self.side.epoch += 1
                self.work.q_epoch = self.side.epoch
            ok(self.lib.ww_sm90_extend(self.shape, self.args[copy], self.work, self.layout, self.max_items, self.sms, stream()))


def library_path():
    return os.environ.get("WW_KERNELS", os.path.join(os.path.dirname(__file__), "ww_kernels.so"))
