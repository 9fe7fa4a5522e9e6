"""Runs of a simulator, and what a real system with the same times would have left."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.experiments.trial import simulate
from harness.metrics.objective import stored_slo
from harness.metrics.summary import summarize
from harness.options import Given, run_spec

MakeRun = Callable[..., Run]


@cache
def _simulated(seed: int, rate: float) -> Run:
    given = {"workload": "chatbot", "rate": rate, "requests": 60, "seed": seed, "backend": "sim", "policy": "vllm-v0"}
    trial = simulate(run_spec(Given({**given, "latency": "abc:distserve"})))
    plan = trial.plan
    info = {
        "schema": 2,
        "spec": plan.spec.options(),
        "clock": "virtual",
        "state": "finished",
        "workload": {"name": "chatbot", "lengths": "sharegpt"},
        "backend": dict(plan.backend.describe()),
        "slo": encode(stored_slo(plan.slo)),
        "schedule": {"sha256": plan.schedule.sha256, "requests": len(plan.schedule)},
        "host": {"cpu": "one", "cores": 2, "machine": "x86_64"},
        "versions": {"bench": "0.1.0"},
        "verdict": {"valid": True, "overloaded": False, "reasons": []},
        "summary": encode(summarize(trial.table, plan.slo)),
    }
    return Run(Path(f"run-{seed}"), RunInfo.of(info), trial.table, None, None, complete=True)


def _slowed(table: pa.Table, factor: float) -> pa.Table:
    """All times from the scheduled one on, longer by a factor."""
    lists = table["token_s"].combine_chunks()
    starts = table["scheduled_s"].to_numpy().repeat(lists.value_lengths().to_numpy())
    times = starts + (lists.flatten().to_numpy() - starts) * factor
    slow = pa.ListArray.from_arrays(lists.offsets, pa.array(times)).cast(table.schema.field("token_s").type)
    return table.set_column(table.schema.get_field_index("token_s"), table.schema.field("token_s"), slow)


@pytest.fixture
def stored() -> MakeRun:
    """A factory of runs: `stored(seed, slower=1.05, name="a", clock="wall", rate=2.0, **keys of run.json)`.

    The first two of a seed are a pair of runs made in turns: the base began first where the seed is even.
    """
    made_of: Counter[int] = Counter()

    def made(seed: int = 0, *, slower: float = 1.0, name: str = "", rate: float = 2.0, **changed: Any) -> Run:
        run = _simulated(seed, rate)
        place, made_of[seed] = (made_of[seed] + seed) % 2, made_of[seed] + 1
        info = {**encode(run.info), "started": f"2026-01-05T{seed:02d}:{30 * place:02d}:00+00:00", **changed}
        if info["clock"] == "wall":
            info["backend"] = {"backend": "engine", "model": "tiny", **changed.get("backend", {})}
        table = run.requests if slower == 1.0 else _slowed(run.requests, slower)
        return replace(run, path=Path(name or f"run-{seed}"), info=RunInfo.of(info), requests=table)

    return made
