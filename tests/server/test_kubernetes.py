"""The manifests of examples/kubernetes against the program: flags it takes, routes it has, times that fit together."""
import pathlib
import subprocess

import pytest
import requests

from running_server import ROOT

yaml = pytest.importorskip("yaml", reason="this Python has no yaml")
FOLDER = pathlib.Path(ROOT) / "examples/kubernetes"


def documents(name):
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / name).read_text())}


def pod(name):
    return documents(name)["Deployment"]["spec"]["template"]


def test_every_file_is_read_and_names_agree():
    for file in FOLDER.glob("*.yaml"):
        for document in yaml.safe_load_all(file.read_text()):
            assert {"apiVersion", "kind", "metadata"} <= document.keys(), file
    worker, router = documents("worker.yaml"), documents("router.yaml")
    labels = pod("worker.yaml")["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget"):
        selector = worker[kind]["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
    command = router["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert "--selector " + ",".join(f"{k}={v}" for k, v in labels.items()) in command
    target = documents("autoscale.yaml")["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target["name"] == worker["Deployment"]["metadata"]["name"]


def test_the_program_takes_the_flags(server):
    args = pod("worker.yaml")["spec"]["containers"][0]["args"]
    assert args[0] == "serve"
    flags = [arg.replace("/models/model", "models/tale-llama") for arg in args[1:]]
    done = subprocess.run([server.process.args[0], "explain", *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    drain = next(int(arg.split("=")[1]) for arg in args if arg.startswith("--drain-timeout="))
    spec = pod("worker.yaml")["spec"]
    pause = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > drain + pause


def test_the_probes_ask_what_is_there(server):
    container = pod("worker.yaml")["spec"]["containers"][0]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert requests.get(server.url + path, timeout=10).status_code == 200, probe
    assert "warpweave:num_queue_reqs" in requests.get(server.url + "/metrics", timeout=10).text
