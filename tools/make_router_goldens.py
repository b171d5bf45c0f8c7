#!/usr/bin/env python3
"""What transformers' own routers choose, for random logits with ties: tests/golden/router/routers.json.

The router's weight is the identity, so that its input is its logits. Ties are copies within a group of experts (with
the same correction), which leaves the scores of groups apart: which of two equal experts torch.topk gives is its
secret, so the test compares their values. Needs: torch, transformers.

    python3 tools/make_router_goldens.py
"""
import json
import pathlib
import types

import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "router" / "routers.json"
ROWS = 24

# name -> router, experts, k, spread of the logits, the fields of RouterRule that differ from a plain softmax
CASES = {
    "mixtral": (MixtralTopKRouter, 8, 2, 1.0, dict(renormalise=True)),
    "qwen3_moe_renormalised": (Qwen3MoeTopKRouter, 128, 8, 1.0, dict(renormalise=True)),
    "qwen3_moe": (Qwen3MoeTopKRouter, 32, 4, 3.0, dict(renormalise=False)),
    "qwen2_moe": (Qwen2MoeTopKRouter, 60, 4, 1.0, dict(renormalise=False)),
    "olmoe": (OlmoeTopKRouter, 64, 8, 1.0, dict(renormalise=False)),
    "gpt_oss": (GptOssTopKRouter, 32, 4, 2.0, dict(renormalise=True)),
    "phimoe": (PhimoeTopKRouter, 16, 2, 1.0, dict(score="sparse_mixer", jitter=0.01)),
    "phimoe_wide": (PhimoeTopKRouter, 16, 2, 0.5, dict(score="sparse_mixer", jitter=0.3)),
    "glm4_moe": (Glm4MoeTopkRouter, 128, 8, 1.0, dict(score="sigmoid", renormalise=True, scale=2.5, sum_epsilon=1e-20)),
    "glm4_moe_groups": (Glm4MoeTopkRouter, 64, 6, 2.0, dict(score="sigmoid", renormalise=True, scale=1.5, groups=8,
                                                            kept_groups=3, group_score="best_two", sum_epsilon=1e-20)),
    "glm4_moe_as_they_are": (Glm4MoeTopkRouter, 16, 16, 1.0, dict(score="sigmoid", renormalise=False)),
    "deepseek_v2_groups": (DeepseekV2TopkRouter, 64, 6, 1.0, dict(renormalise=False, scale=16.0, groups=8, kept_groups=3,
                                                                  group_score="best")),
}


def random_logits(experts, spread, groups, generator):
    logits = torch.round(torch.randn(ROWS, experts, generator=generator) * spread * 1024) / 1024
    size = experts // groups
    copies = []  # the same in all rows, so that they can share a correction
    for g in range(groups):
        order = torch.randperm(size, generator=generator)[:4] + g * size
        copies += [(int(order[0]), int(order[1])), (int(order[2]), int(order[3]))] if size >= 4 else []
    for row in range(ROWS):
        for a, b in copies:
            if torch.rand(1, generator=generator) < 0.7:
                logits[row, b] = logits[row, a]
    return logits, copies


def make_case(name, seed):
    router_class, experts, k, spread, rule = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    rule = dict(num_experts=experts, k=k, **rule)
    config = types.SimpleNamespace(
        num_experts=experts, num_local_experts=experts, num_experts_per_tok=k, hidden_size=experts,
        norm_topk_prob=rule.get("renormalise", True), router_jitter_noise=rule.get("jitter", 0.01), input_jitter_noise=0.0,
        routed_scaling_factor=rule.get("scale", 1.0), n_group=rule.get("groups", 1), topk_group=rule.get("kept_groups", 1),
        topk_method="group_limited_greedy" if rule.get("groups", 1) > 1 else "greedy")
    router = router_class(config).float().eval()
    router.weight.data.copy_(torch.eye(experts))
    logits, copies = random_logits(experts, spread, rule.get("groups", 1), generator)
    case = {"name": name, "rule": rule}
    if hasattr(router, "e_score_correction_bias"):
        correction = torch.round(torch.randn(experts, generator=generator) * 0.2 * 1024) / 1024
        for a, b in copies:
            correction[b] = correction[a]
        router.e_score_correction_bias.copy_(correction)
        case["correction"] = correction.tolist()
    with torch.no_grad():
        got, weights, chosen = router(logits)
    assert torch.equal(got, logits), name
    return case | {"logits": logits.tolist(), "chosen": chosen.tolist(),
                   "weights": [[round(float(w), 8) for w in row] for row in weights]}


def main():
    OUT.parent.mkdir(parents=True, exist_ok=True)
    cases = [make_case(name, seed) for seed, name in enumerate(CASES, 1)]
    OUT.write_text("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
    print(OUT, OUT.stat().st_size, "bytes,", len(cases), "routers")


if __name__ == "__main__":
    main()
