#!/usr/bin/env python3
"""vLLM on a model shape with made-up weights: decode steps, prefill and first token, as serving_bench's rows.

usage: [VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random] vllm_steps.py SHAPE_FOLDER ROW,ROW... [LLM_OPTIONS]
rows, taken in the order given: dN (steps of N requests), ttft, p8k (one prompt of 8,192 tokens), p16 (16 of 1,024).
With the variable experts are drawn by dice, as by serving_bench --moe-routing uniform. CUDA graphs are captured for
1, 8, 64 and 256 rows, which start sooner than vLLM's 51 sizes; all else is as vLLM chooses, but for LLM_OPTIONS, a JSON
object: '{"gdn_prefill_backend": "triton"}' where FlashInfer, its choice for GDN prompts, is missing. Written for vLLM 0.24.
"""
import itertools
import json
import random
import statistics
import sys
import time

ANSWER_TOKENS = 128
PROMPT_TOKENS = 1024
GRAPH_ROWS = [1, 8, 64, 256]
EDGE_STEPS = 4  # at either end of a run of full batches, left out


class Engine:
    """An engine that is asked by whole batches."""

    def __init__(self, folder, options):
        from vllm import LLM
        self.engine = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                          max_model_len=10240, enable_prefix_caching=False, gpu_memory_utilization=0.88,
                          max_num_seqs=max(GRAPH_ROWS), max_num_batched_tokens=16384, seed=0,
                          compilation_config={"cudagraph_capture_sizes": GRAPH_ROWS}, **options).llm_engine
        self.ids = itertools.count()
        self.dice = random.Random(0)

    def batch(self, prompt_lengths, answer_tokens):
        """All prompts at once. -> (seconds to the first token of each, [(time, tokens, requests) of each step])"""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        params = SamplingParams(temperature=0.0, max_tokens=answer_tokens, ignore_eos=True, detokenize=False,
                                output_kind=RequestOutputKind.DELTA)
        prompts = [[self.dice.randrange(1000, 100000) for _ in range(n)] for n in prompt_lengths]
        first, steps, done, begin = {}, [], 0, time.perf_counter()
        for prompt in prompts:
            self.engine.add_request(str(next(self.ids)), {"prompt_token_ids": prompt}, params)
        while done < len(prompts):
            outputs = self.engine.step()
            now, tokens, requests = time.perf_counter(), 0, 0
            for output in outputs:
                count = len(output.outputs[0].token_ids)
                done += output.finished
                if count:
                    tokens, requests = tokens + count, requests + 1
                    first.setdefault(output.request_id, now - begin)
            if tokens:
                steps.append((now, tokens, requests))
        return list(first.values()), steps


def decode(engine, requests):
    """The median of the steps in which all requests decode."""
    _, steps = engine.batch([PROMPT_TOKENS] * requests, ANSWER_TOKENS)
    full = [i for i in range(1, len(steps)) if steps[i][2] == steps[i - 1][2] == requests][EDGE_STEPS:-EDGE_STEPS]
    if not full:
        return f"decode batch {requests}: no steps of {requests} requests"
    times = [steps[i][0] - steps[i - 1][0] for i in full]
    return f"decode batch {requests}: {1e3 * statistics.median(times):.3f} ms a step, {len(times)} steps"


def first_token(engine):
    times = [max(engine.batch([PROMPT_TOKENS], 1)[0]) for _ in range(10)][2:]
    return f"first token, {PROMPT_TOKENS} tokens, idle: {1e3 * statistics.median(times):.2f} ms"


def prefill(engine, lengths):
    times = [max(engine.batch(lengths, 1)[0]) for _ in range(4)][1:]
    return f"prefill {len(lengths)}x{lengths[0]}: {sum(lengths) / statistics.median(times):.0f} tokens/s"


def main():
    folder, rows = sys.argv[1], sys.argv[2].split(",")
    engine = Engine(folder, json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
    for lengths, tokens in (([512] * 8, 16), ([1024] * 64, 8), ([8192], 1), ([1024] * 16, 1)):  # compiles what is left
        engine.batch(lengths, tokens)
    for row in rows:
        if row == "ttft":
            text = first_token(engine)
        elif row in ("p8k", "p16"):
            text = prefill(engine, [8192] if row == "p8k" else [1024] * 16)
        else:
            text = decode(engine, int(row[1:]))
        print(text, flush=True)


if __name__ == "__main__":
    main()
