"""Fixtures of the comparisons of engine and simulator."""

import pytest

from harness.registry import names

LIMITS = {"sarathi": "budget=64,max_seqs=16", "chunk-only": "budget=48,max_seqs=16", "fastgen": "budget=64,max_seqs=16",
          "static": "batch=4", "orca": "max_batch=4", "vllm-v1": "budget=32,max_seqs=16,long_prefill=20",
          "sglang": "chunk=64,overlap=false"}  # fmt: skip
"""Limits under which small traffic is cut and queues; a policy that is not named here runs with its own."""
HALVES = ("distserve-prefill", "distserve-decode")
"""They are half of a system: the other half is on another replica."""


@pytest.fixture(params=[f"{n}:{LIMITS[n]}" if n in LIMITS else n for n in names("policies") if n not in HALVES])
def each_policy(request):
    """The spec of a policy: every one that runs by itself."""
    return request.param
