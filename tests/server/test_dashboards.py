"""Every series that the Grafana dashboards of SGLang and vLLM ask for is in /metrics under their names.

dashboard_metrics.json holds the names in the queries of each dashboard as its repository has it on 2026-11-23:
SGLang's examples/monitoring/grafana/dashboards/json, and of vLLM's examples/observability prometheus_grafana and all in
dashboards/grafana. not_given: their names for what is not here, each of a part that a flag of vLLM turns on.
"""

import json
import pathlib
import re

import pytest
import requests

from running_server import Server

NAMES = json.loads((pathlib.Path(__file__).parent / "dashboard_metrics.json").read_text())


@pytest.fixture(scope="module", params=["sglang", "vllm"])
def page(request):
    """The compat that was asked for, and the page of a server that has answered two requests with speculation."""
    flags = [] if request.param == "sglang" else ["--metrics-compat", request.param]
    running = Server("--served-model-name", "tale", "--enable-metrics", "--speculative-algorithm", "NGRAM", *flags)
    for _ in range(2):
        body = {"model": "tale", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        assert requests.post(running.url + "/v1/completions", json=body, timeout=60).status_code == 200
    yield request.param, requests.get(running.url + "/metrics", timeout=60).text
    assert running.stop() == 0, "".join(running.lines)


def test_every_name_is_given_with_the_model(page):
    compat, text = page
    for dashboard, names in NAMES[compat].items():
        for name in names:
            labels = r'{[^}]*model_name="tale"' if ":" in name else r"[{ ]"
            assert re.search(f"^{name}{labels}", text, re.MULTILINE), (dashboard, name)


def test_vllms_labels(page):
    """Its dashboards choose by engine, split some names by a label, and look for buckets at the limits they offer."""
    compat, text = page
    if compat != "vllm":
        return
    for line in text.splitlines():
        assert not line.startswith("vllm:") or 'engine="0"' in line, line
    for name, label, values in (("vllm:prompt_tokens_by_source_total", "source", ("local_compute", "local_cache_hit")),
                                ("vllm:num_requests_waiting_by_reason", "reason", ("capacity", "deferred")),
                                ("vllm:engine_sleep_state", "sleep_state", ("awake", "discard_all")),
                                ("vllm:time_to_first_token_seconds_bucket", "le", ("0.1", "0.25", "0.5", "0.75", "1", "2.5", "5", "10")),
                                ("vllm:request_time_per_output_token_seconds_bucket", "le", ("0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5")),
                                ("vllm:iteration_tokens_total_bucket", "le", ("1", "8", "16", "16384", r"\+Inf")),
                                ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", ("0",)),
                                ("http_request_duration_seconds_bucket", "le", ("0.1", "0.5", "1", r"\+Inf")),
                                ("http_request_duration_seconds_sum", "handler", ("/v1/completions",)),
                                ("http_requests_total", "method", ("POST",)),
                                ("http_requests_total", "status", ("2xx",))):
        for value in values:
            assert re.search(f'^{name}{{[^}}]*{label}="{value}"', text, re.MULTILINE), (name, value)
    assert 'handler="/v1/completions"' in text and 'handler="/metrics"' not in text


def values_of(text, name):
    return [float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)", text, re.MULTILINE)]


def test_steps_by_size_and_times_by_handler(page):
    """What percentiles and means are drawn from: buckets that add up, and the time that the requests took."""
    compat, text = page
    prefix = f"{compat}:" if compat == "sglang" else "vllm:"
    steps = prefix + ("iteration_tokens" if compat == "sglang" else "iteration_tokens_total")
    buckets = values_of(text, steps + "_bucket")
    assert len(buckets) == 14 and buckets == sorted(buckets) and [buckets[-1]] == values_of(text, steps + "_count")
    assert buckets[0] < buckets[2] <= buckets[-1]  # steps of one token, and more that check proposals
    durations, label = {"sglang": ("sglang:http_request_duration_seconds", "endpoint"), "vllm": ("http_request_duration_seconds", "handler")}[compat]
    labels = f'{{{label}="/v1/completions",method="POST"}}'
    (count,), (seconds,) = values_of(text, durations + "_count" + labels), values_of(text, durations + "_sum" + labels)
    (generating,) = values_of(text, f"{prefix}e2e_request_latency_seconds_sum")
    assert count == 2 and seconds >= generating > 0


def test_what_only_grows_says_so(page):
    compat, text = page
    for name in {name for names in NAMES[compat].values() for name in names if name.endswith("_total")}:
        assert f"# TYPE {name} counter" in text, name


def test_names_that_are_not_given(page):
    for name in NAMES["not_given"]:
        assert name not in page[1]


def test_series_have_grown(page):
    compat, text = page
    counted = {"sglang": "sglang:e2e_request_latency_seconds_count", "vllm": "vllm:iteration_tokens_total_count"}[compat]
    (value,) = re.findall(rf"^{counted}{{[^}}]*}} (\S+)", text, re.MULTILINE)
    assert float(value) >= 2
