"""A search against a server that wants a key: the key stays out of what is kept and shown."""

import json

from harness.experiments.capacity.conditions import Settings
from harness.experiments.capacity.execute import set_up
from harness.experiments.capacity.store import search_options
from harness.options import RunSpec


def test_a_key_in_a_header_is_not_kept():
    """A reader of capacity.json, or of its page, could use the server of the sender."""
    spec = RunSpec(
        workload="chatbot", backend="openai:url=http://127.0.0.1:9/v1", requests=30, slo="ttft=0.5",
        header="Authorization: Bearer sk-very-secret-key-0123456789",
    )  # fmt: skip
    kept = json.dumps(search_options(set_up(spec, Settings())))

    assert "very-secret" not in kept
    assert "127.0.0.1" in kept
