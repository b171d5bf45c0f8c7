#!/usr/bin/env python3
"""Next-token log-probabilities of one GGUF file: ours beside llama.cpp's (the xllamacpp package).

    compare_llama_cpp.py MODEL.gguf http://127.0.0.1:30000     (our server runs the same file)

llama.cpp rounds the input of every quantised product to 8 bits a value, so the two agree to about
that, not to f32. Prints the largest and mean difference over the 20 best tokens of each prompt.
"""
import json
import sys
import urllib.request

import xllamacpp

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):\n    ",
           "The three primary colours are red,", "Water boils at a temperature of"]
TOP = 20


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def ours(url, prompt):
    body = {"text": prompt, "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True, "top_logprobs_num": TOP, "logprob_start_len": 0}
    meta = post(url + "/generate", body)["meta_info"]
    ids = [entry[1] for entry in meta["input_token_logprobs"]]
    return ids, {entry[1]: entry[0] for entry in meta["output_top_logprobs"][0]}


def main():
    path, url = sys.argv[1:3]
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.warmup = False
    server = xllamacpp.Server(params)
    worst, total, count, same_best = 0.0, 0.0, 0, 0
    for prompt in PROMPTS:
        ids, mine = ours(url, prompt)
        answer = post(server.listening_address + "/completion",
                      {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": TOP, "cache_prompt": False})
        theirs = {p["id"]: p["logprob"] for p in answer["completion_probabilities"][0]["top_logprobs"]}
        both = mine.keys() & theirs.keys()
        differences = [abs(mine[i] - theirs[i]) for i in both]
        same_best += max(mine, key=mine.get) == max(theirs, key=theirs.get)
        worst = max([worst] + differences)
        total += sum(differences)
        count += len(differences)
        print(f"{prompt!r}: {len(both)} of {TOP} tokens in both, largest difference {max(differences):.4f}")
    print(f"largest {worst:.4f}, mean {total / count:.4f} over {count} log-probabilities; "
          f"same best token in {same_best} of {len(PROMPTS)} prompts")


if __name__ == "__main__":
    main()
