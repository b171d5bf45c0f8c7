"""A server on a free port for the tests: models/tale-llama, started once."""

import pytest

from running_server import Server


def pytest_configure(config):
    config.addinivalue_line("markers", "policy(name): how the router of a test chooses workers")


@pytest.fixture(scope="session")
def server():
    running = Server("--served-model-name", "tale", "--enable-metrics")
    yield running
    assert running.stop() == 0, "".join(running.lines)


@pytest.fixture(scope="session")
def client(server):
    import openai

    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
