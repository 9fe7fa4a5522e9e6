"""A run with a prefix cache says what the cache saved."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from harness.data.run_json import RunInfo
from reports._rows import _found


@pytest.mark.parametrize(
    ("backend", "shown"),
    [
        ({"prefix_cache": True}, ["prefix cache found 40.0% of the prompt tokens"]),
        ({"prefix_cache": False}, []),
        ({}, []),
    ],
)
def test_the_share_of_prompt_tokens_found_is_shown(backend, shown):
    """A reader would not know whether the cache did anything; a rejected request has found nothing."""
    table = pa.table({"cached_tokens": pa.array([0, 80, None], pa.int64()), "prompt_tokens": [90, 90, 20]})

    assert shown == list(_found(SimpleNamespace(info=RunInfo.of({"backend": backend}), requests=table)))
