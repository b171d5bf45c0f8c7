"""What the server keeps in memory beside weights, K and V, with default flags. docs/benchmarks.md has the figures."""

import json
import pathlib
import re
import urllib.request

import pytest

from running_server import Server

# SmolLM2-135M's shape, with two of its layers.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}
HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
MOST_MB = 50  # a tokenizer, which is left out here, takes up to 10 more


def resident_kb(pid):
    """All of it, and that of K and V: of what is reserved and not committed."""
    with open(f"/proc/{pid}/smaps") as smaps:
        text = smaps.read()
    if "libasan" in text:
        pytest.skip("a sanitizer's own memory counts, too")
    if "VmFlags:" not in text:
        pytest.skip("this kernel does not say what a mapping is")
    if HUGE_PAGES.exists() and "[always]" in HUGE_PAGES.read_text():
        pytest.skip("each mapping takes huge pages here")
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)[1:]
    rss = [int(re.search(r"^Rss: +(\d+) kB", mapping, re.MULTILINE)[1]) for mapping in mappings]
    reserved = [bool(re.search(r"^VmFlags:.* nr\b", mapping, re.MULTILINE)) for mapping in mappings]
    return sum(rss), sum(kb for kb, is_reserved in zip(rss, reserved) if is_reserved)


def ask(url, path, body=None):
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_memory_beside_weights_and_kv_is_bounded(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    server = Server("--load-format", "dummy", "--skip-tokenizer-init", "--device", "cpu", "--threads", "2",
                    model=str(tmp_path))
    try:
        for prompt_tokens in (5, 500, 60):
            ids = [3 + (7919 * i + prompt_tokens) % 49000 for i in range(prompt_tokens)]
            ask(server.url, "/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}})
        weights = ask(server.url, "/get_server_info")["weight_bytes"]
        everything_kb, kv_kb = resident_kb(server.process.pid)
        assert kv_kb > 0
        beside_mb = (everything_kb - kv_kb) / 1024 - weights / 2**20
        assert beside_mb < MOST_MB, f"{everything_kb / 1024:.1f} MB, of them {kv_kb / 1024:.1f} of K and V"
    finally:
        server.stop()
