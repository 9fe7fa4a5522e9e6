"""The options of `bench run` as keywords of the Python API, for editors and type checkers.

They are those of the one table, `harness.options.RunSpec`, with what each may be; a test holds them equal.
"""

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

if TYPE_CHECKING:
    import pandas as pd

Text: TypeAlias = str | float | Path | None
"""A name, a spec ('gamma:cv=2'), a file, or the one number that a spec may be."""

Number: TypeAlias = float | str | None
"""A number, or one with its unit ('250ms', '90%')."""

Trace: TypeAlias = "str | Path | pd.DataFrame | None"
"""A file, or a frame with the columns of one: timestamp, input_length, output_length, or others that are usual."""


class Options(TypedDict, total=False):
    """What all of them take."""

    workload: Text
    trace: Trace
    reader: Text
    start: Number
    stop: Number
    limit: Number
    where: Text
    scale: Text
    jitter: Text
    turns: Text
    max_in_flight: Number
    arrivals: Text
    lengths: Text
    sessions: Text
    prefixes: Text
    content: Text
    history: Text
    requests: Number
    duration: Number
    seed: Number
    backend: Text
    model: Text
    hardware: Text
    latency: Text
    policy: Text
    router: Text
    prefix_cache: Text
    response_cache: Text
    replicas: Number
    tp: Number
    pp: Number
    prefill: Text
    decode: Text
    header: Text
    extra_body: Text
    senders: Text
    calibrate: Number
    priority: Text
    slo: Text
    warmup: Text
    scenario: Text
    percentiles: Text
    fail_under: Number
    max_failed: Number
    drain: Number


class RunOptions(Options, total=False):
    """What a run takes besides, and others in their own way."""

    rate: Number
    goal: Number
