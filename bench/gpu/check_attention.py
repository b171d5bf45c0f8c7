"""Every attention kernel against a float32 reference: shuffled pages, NaN in unused pages and tails,
odd lengths and groups, windows, sinks, softcap, trees, empty requests, LSE, 20 bitwise repeats.
Run: python3 check_attention.py [name part]; exit 1 on a failure."""
import sys
import traceback

import torch

import ww_attention as ww

BF, HF = torch.bfloat16, torch.float16
# Tiles that batches of long and of short requests take, by their longest.
TILES = {"tall": 1 << 20, "usual": 600, "pairs": 256}


def check(lib, name, runner, problem, repeats=20):
    runner.plan()
    runner.run()
    torch.cuda.synchronize()
    out, lse = problem.out.clone(), problem.lse.clone()
    same = True
    for _ in range(repeats):
        problem.out.fill_(float("nan"))
        runner.run()
        same &= torch.equal(problem.out, out) and torch.equal(problem.lse, lse)
    fp8 = getattr(runner, "kind", "") == "sm90" and problem.kv == "e4m3" and problem.page % 8 == 0  # fp8 arithmetic
    ref, ref_lse = problem.reference(rounded_q=fp8)
    err = float((out.float() - ref).norm() / ref.norm().clamp_min(1e-6))
    worst = float((out.float() - ref).abs().max()) if out.numel() else 0.0
    finite = torch.isfinite(ref_lse)
    lse_err = float(((lse - ref_lse).abs() / ref_lse.abs().clamp_min(1))[finite].max()) if finite.any() else 0.0
    empty_ok = bool((lse[~finite] == float("-inf")).all()) and bool((out[~finite] == 0).all())
    limit, lse_limit = (6e-3, 1e-4) if problem.softcap == 0 else (1e-2, 2e-3)
    if fp8:  # the rounding of probabilities, 2.6 % root mean square each; sums of 14 bits
        limit, lse_limit = 4e-2, 1e-2
    good = err < limit and lse_err < lse_limit and same and empty_ok
    print(f"{'ok  ' if good else 'FAIL'} {name}: err {err:.2e} max {worst:.2e} lse {lse_err:.1e} same {same} empty {empty_ok}", flush=True)
    return good


def decode_cases():
    lens = [1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 1023, 2047, 0, 4096]
    ones = [1] * len(lens)
    for d in (64, 128, 256):
        for page in (1, 16, 53, 64, 256):
            yield f"decode d{d} page{page}", dict(q_lens=ones, kv_lens=lens, d=d, page=page)
    for heads in ((8, 8), (20, 4), (28, 4), (64, 8), (32, 2)):
        yield f"decode heads{heads}", dict(q_lens=ones, kv_lens=lens, heads=heads, page=16)
    mixed = [200 + i * 331 % 1700 for i in range(50)]
    for heads in ((32, 8), (40, 20), (11, 11), (24, 24), (16, 1)):  # in lockstep: 8, 5, 1, 8 in three turns, 1
        yield f"decode mixed heads{heads}", dict(q_lens=[1] * 50, kv_lens=mixed, heads=heads, page=16)
    yield "decode f16", dict(q_lens=ones, kv_lens=lens, dtype=HF, page=16)
    for kv in ("e4m3", "e5m2", "e2m1"):
        for d in (64, 128, 256):
            yield f"decode {kv} d{d}", dict(q_lens=ones, kv_lens=lens, kv=kv, d=d, page=16, scales=True)
        yield f"decode f16 {kv}", dict(q_lens=ones, kv_lens=lens, kv=kv, dtype=HF, page=16)
    for window in (0, 1, 100, 1000):
        yield f"decode window{window}", dict(q_lens=ones, kv_lens=lens, window=window, page=16)
    yield "decode sinks", dict(q_lens=ones, kv_lens=lens, sinks=True)
    yield "decode softcap", dict(q_lens=ones, kv_lens=lens, softcap=20.0)
    yield "decode hnd", dict(q_lens=ones, kv_lens=lens, hnd=True)
    yield "decode 1x32768", dict(q_lens=[1], kv_lens=[32768], page=16)
    yield "decode 300 short", dict(q_lens=[1] * 300, kv_lens=[(i * 37) % 200 for i in range(300)], page=16)
    yield "decode 1100 short", dict(q_lens=[1] * 1100, kv_lens=[(i * 37) % 90 for i in range(1100)], page=16, heads=(8, 2))
    yield "decode skew", dict(q_lens=[1] * 16, kv_lens=[20000] + [100] * 15, page=16)
    yield "decode e2m1 hnd", dict(q_lens=ones, kv_lens=lens, kv="e2m1", hnd=True)
    yield "decode e2m1 heads8", dict(q_lens=ones, kv_lens=lens, kv="e2m1", heads=(32, 2), page=1)
    for dtype in (BF, HF):  # so many requests that kv heads go in pairs
        yield f"decode e2m1 pairs {dtype}", dict(q_lens=ones * 2, kv_lens=lens * 2, kv="e2m1", dtype=dtype, page=16, scales=True, window=300)
    for page in (16, 24, 64, 96, 256):  # by TMA, in boxes of 16 to 64 tokens, but for 24
        yield f"decode e2m1 pairs page{page}", dict(q_lens=ones * 2, kv_lens=lens * 2, kv="e2m1", page=page, scales=True)
    for requests in (5, 8, 12):  # by heads, in pairs
        yield f"decode e2m1 {requests} requests", dict(q_lens=[1] * requests, kv_lens=[3000 + 700 * i for i in range(requests)], kv="e2m1")
    yield "decode e2m1 pairs f16 page64", dict(q_lens=ones * 2, kv_lens=lens * 2, kv="e2m1", dtype=HF, sinks=True)
    for group in (1, 3, 4):
        yield f"decode e2m1 pairs group{group}", dict(q_lens=ones * 2, kv_lens=lens * 2, kv="e2m1", heads=(4 * group, 4), page=53, softcap=20.0 if group == 3 else 0.0, sinks=group == 1)
    yield "decode 64 long", dict(q_lens=[1] * 64, kv_lens=[9000 + (i * 37) % 2000 for i in range(64)], page=16)  # equal runs, whatever they cut
    yield "decode e2m1 pairs skew", dict(q_lens=[1] * 16, kv_lens=[20000] + [100] * 15, kv="e2m1", heads=(16, 2), page=1, sinks=True)
    q = [4, 1, 3, 2, 4, 0, 4]
    yield "verify e2m1", dict(q_lens=q, kv_lens=[4, 100, 67, 2, 3000, 5, 513], kv="e2m1", page=16)
    yield "verify e2m1 d64 q8", dict(q_lens=[8, 5, 8], kv_lens=[8, 100, 1000], page=16, d=64, kv="e2m1")
    kv = [4, 100, 67, 2, 3000, 5, 513]
    yield "verify chain", dict(q_lens=q, kv_lens=kv, page=16)
    yield "verify d64 q8", dict(q_lens=[8, 5, 8], kv_lens=[8, 100, 1000], page=16, d=64)
    yield "verify d128 q8", dict(q_lens=[8, 5, 8], kv_lens=[8, 100, 1000], page=16)
    yield "verify d256 q4", dict(q_lens=[4, 3, 1], kv_lens=[8, 100, 1000], page=16, d=256)
    yield "verify tree", dict(q_lens=[8, 5, 8], kv_lens=[8, 100, 1000], page=16, tree=True)
    yield "verify tree window", dict(q_lens=[8, 5, 8], kv_lens=[8, 100, 1000], page=16, tree=True, window=50)
    yield "verify window", dict(q_lens=[8, 5, 8], kv_lens=[8, 100, 1000], page=16, window=50)


def extend_cases():
    q = [1, 3, 113, 127, 128, 129, 0, 200, 64]
    kv = [1, 70, 113, 1023, 128, 300, 0, 2047, 65]
    for d in (64, 128, 256):
        for page in (1, 16, 53, 64, 128, 256):
            yield f"extend d{d} page{page}", dict(q_lens=q, kv_lens=kv, d=d, page=page)
    for heads in ((8, 8), (20, 4), (28, 4), (64, 8), (16, 1)):
        yield f"extend heads{heads}", dict(q_lens=q, kv_lens=kv, heads=heads, page=16)
    yield "extend f16", dict(q_lens=q, kv_lens=kv, dtype=HF, page=16)
    for kvt in ("e4m3", "e5m2", "e2m1"):
        for d in (64, 128, 256):
            yield f"extend {kvt} d{d}", dict(q_lens=q, kv_lens=kv, kv=kvt, d=d, page=16, scales=True)
        yield f"extend f16 {kvt}", dict(q_lens=q, kv_lens=kv, kv=kvt, dtype=HF, page=16)
    for page in (8, 53, 64, 256):
        yield f"extend e4m3 page{page}", dict(q_lens=q, kv_lens=kv, kv="e4m3", page=page)
    for name, more in (("full", dict(causal=False)), ("window", dict(window=100)), ("softcap", dict(softcap=20.0)),
                       ("sinks", dict(sinks=True)), ("hnd", dict(hnd=True)), ("heads", dict(heads=(28, 4)))):
        yield f"extend e4m3 {name}", dict(q_lens=q, kv_lens=kv, kv="e4m3", **more)
    yield "extend e4m3 long", dict(q_lens=[1500, 40], kv_lens=[1500, 4000], page=16, kv="e4m3")
    for heads in ((6, 2), (8, 8), (20, 4)):
        yield f"extend e2m1 heads{heads}", dict(q_lens=q, kv_lens=kv, kv="e2m1", d=64, heads=heads)
    for window in (0, 1, 100, 1000):
        yield f"extend window{window}", dict(q_lens=q, kv_lens=kv, window=window, page=16)
    yield "extend sinks", dict(q_lens=q, kv_lens=kv, sinks=True)
    yield "extend softcap", dict(q_lens=q, kv_lens=kv, softcap=20.0)
    yield "extend hnd", dict(q_lens=q, kv_lens=kv, hnd=True)
    yield "extend full", dict(q_lens=q, kv_lens=kv, causal=False)
    yield "extend full window", dict(q_lens=q, kv_lens=kv, causal=False, window=60)
    yield "extend tree", dict(q_lens=[60, 33, 8], kv_lens=[60, 100, 1000], page=16, tree=True)
    yield "extend tree window", dict(q_lens=[60, 33, 8], kv_lens=[60, 100, 1000], page=16, tree=True, window=50)
    yield "extend long", dict(q_lens=[1500, 40], kv_lens=[1500, 4000], page=16)
    for page in (1, 3):
        small = dict(q_lens=q, kv_lens=kv, page=page)
        for name, more in (("f16", dict(dtype=HF)), ("full", dict(causal=False)), ("window", dict(window=100)),
                           ("softcap", dict(softcap=20.0)), ("sinks", dict(sinks=True)), ("hnd", dict(hnd=True)),
                           ("heads", dict(heads=(20, 4)))):
            yield f"extend page{page} {name}", dict(small, **more)
    yield "extend page1 long", dict(q_lens=[1500, 40], kv_lens=[1500, 4000], page=1, window=2000)
    yield "extend page1 many", dict(q_lens=[40] * 1100, kv_lens=[40 + i % 90 for i in range(1100)], page=1, heads=(4, 2))
    yield "extend q7", dict(q_lens=[7] * 40, kv_lens=[50 + 3 * i for i in range(40)], page=16)


def sm90_ok(case):
    if case.get("kv", "16") == "e4m3":
        return case.get("d", 128) in (64, 128) and case.get("page", 16) % 8 == 0
    return case.get("kv", "16") == "16" and not case.get("tree")


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    lib = ww.load(ww.library_path())
    failed = total = 0

    def attempt(name, make):
        nonlocal failed, total
        if part not in name:
            return
        total += 1
        try:
            failed += not make(name)
        except Exception as e:  # report and go on, unless the context is lost
            failed += 1
            print("FAIL", name, repr(e)[:300], flush=True)
            if "CUDA error" in str(e) or "AcceleratorError" in type(e).__name__:
                traceback.print_exc()
                print(f"{failed} of {total} failed, stopped")
                sys.exit(1)

    def replays(name, problem, plain, runners):
        """A graph of `runners` over four copies of K and V: 20 times the bits that `plain` gives, all finite."""
        for runner in plain:
            runner.run(3)
        torch.cuda.synchronize()
        out, lse = problem.out.clone(), problem.lse.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for copy in range(4):
                for runner in runners:
                    runner.run(copy)
        same = bool(torch.isfinite(out).all())
        for _ in range(20):
            problem.out.fill_(float("nan"))
            graph.replay()
            same &= torch.equal(problem.out, out) and torch.equal(problem.lse, lse)
        print(f"{'ok  ' if same else 'FAIL'} {name}", flush=True)
        return same

    def early(name, case):
        """Launched under its predecessor, K and V of earlier tokens read before it ends: the same bits."""
        problem = ww.Problem(copies=4, **case)
        plain, runner = ww.Decode(lib, problem), ww.Decode(lib, problem, early=True)
        plain.plan()
        runner.plan()
        return replays(name, problem, [plain], [runner])

    def mixed(name, case):
        """Decode rows first, launched early, prompts' tiles beside them: the same bits as one after the other."""
        problem = ww.Problem(copies=4, **case)
        runners = [(ww.Decode(lib, problem, q_len=1, early=beside, others_beside=beside),
                    ww.Extend(lib, problem, "sm90", decode_q_len=1, beside=beside, max_q_len=256)) for beside in (False, True)]
        for pair in runners:
            for runner in pair:
                runner.plan()
        return replays(name, problem, *runners)

    def sides(name, case):
        """Side by side, both launched early: the same bits as one after the other on as many SMs."""
        problem = ww.Problem(copies=4, **case)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        side = ww.SideBySide()
        runners = [(ww.Extend(lib, problem, "sm90", decode_q_len=1, max_q_len=256, sms=sms // 3, side=shared),
                    ww.Decode(lib, problem, q_len=1, early=shared is not None, sms=sms - sms // 3, side=shared))
                   for shared in (None, side)]
        for pair in runners:
            for runner in pair:
                runner.plan()
        return replays(name, problem, *runners)

    def one(runner):
        def make(name, case):
            problem = ww.Problem(**case)
            return check(lib, name, runner(problem), problem)
        return make

    for name, case in decode_cases():
        attempt(name, lambda n: one(lambda p: ww.Decode(lib, p))(n, case))
    for kv, requests, tokens in (("16", 1, 4096), ("16", 3, 700), ("16", 40, 1200), ("e4m3", 2, 3000), ("e2m1", 32, 900)):
        case = dict(q_lens=[1] * requests, kv_lens=[tokens] * requests, kv=kv, page=16)
        attempt(f"decode early {kv} {requests}x{tokens}", lambda n: early(n, case))
    for rows, prompts, page in ((3, [1021, 1024], 64), (64, [192], 16), (200, [130, 7, 2], 64)):
        case = dict(q_lens=[1] * rows + prompts, kv_lens=[700 + 3 * i for i in range(rows)] + [2 * x for x in prompts], page=page)
        attempt(f"mixed {rows} + {prompts} page{page}", lambda n: mixed(n, case))
        for page in (page, 1):
            attempt(f"side by side {rows} + {prompts} page{page}", lambda n: sides(n, {**case, "page": page}))
    for name, case in extend_cases():
        attempt(name, lambda n: one(lambda p: ww.Extend(lib, p))(n, case))
        if sm90_ok(case):
            for kind, longest in TILES.items():
                attempt(f"sm90 {kind} {name}",
                        lambda n: one(lambda p: ww.Extend(lib, p, "sm90", copies=False, max_q_len=longest))(n, case))
        if sm90_ok(case) and case.get("page", 64) % 64 != 0:
            for kind, longest in TILES.items():
                attempt(f"sm90 copies {kind} {name}",
                        lambda n: one(lambda p: ww.Extend(lib, p, "sm90", copies=True, max_q_len=longest))(n, case))
    print(f"{failed} of {total} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
