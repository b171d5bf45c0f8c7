"""One server on models/tale-llama for every client. What must be called is held by a grammar, so that a tiny model does.

    pip install -r tests/clients/requirements.txt && WARPWEAVE_PROGRAM=build/warpweave pytest tests/clients
"""

import os
import pathlib
import sys

import pytest

# Clients that would ask a hub or a list of prices in the network do without.
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
from running_server import Server  # noqa: E402

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def embedding_server():
    running = Server("--served-model-name", "tale", "--is-embedding", "--device", "cpu")
    yield running
    assert running.stop() == 0, "".join(running.lines)


@pytest.fixture(scope="session")
def server():
    running = Server("--served-model-name", "tale", "--tool-call-parser", "qwen25",
                     "--constrained-json-disable-any-whitespace")  # a tiny model would write blanks without end
    yield running
    assert running.stop() == 0, "".join(running.lines)
