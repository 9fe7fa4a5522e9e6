"""A search against a server that wants a key: the key stays out of what is kept and shown."""

import json

from harness.experiments.capacity.conditions import Settings
from harness.experiments.capacity.execute import set_up
from harness.experiments.capacity.store import asked_of
from harness.options import RunSpec


def test_a_key_in_a_header_is_not_kept():
    """Whoever is sent capacity.json, or its page, could use the server of whoever sent it."""
    spec = RunSpec(
        workload="chatbot", backend="openai:url=http://127.0.0.1:9/v1", requests=30, slo="ttft=0.5",
        header="Authorization: Bearer sk-very-secret-key-0123456789",
    )  # fmt: skip
    kept = json.dumps(asked_of(set_up(spec, Settings())))

    assert "very-secret" not in kept
    assert "127.0.0.1" in kept
