"""Tables of any mixture, and runs made of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.api import RequestRecord
from harness.data.folder import Run, RunFolder
from harness.data.records import to_table
from harness.data.run_json import RunInfo


def _records(n: int, seed: int = 0) -> list[RequestRecord]:
    """Requests of two classes, some in sessions, with 0 to 40 events of 1 to 3 tokens, every seventh failed."""
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(0.1, n)).tolist()
    found = []
    for i in range(n):
        events = int(rng.integers(0, 40)) if i % 11 else 1
        token_s = (due_s[i] + 0.05 + rng.exponential(0.2) + np.cumsum(rng.exponential(0.04, events))).tolist()
        token_n = rng.integers(1, 4, events).tolist() if i % 3 == 0 else None
        made = events if token_n is None else sum(token_n)
        status = "ok" if events and i % 7 else ("error" if i % 2 else "rejected")
        found.append(
            RequestRecord(
                request_id=i, scheduled_s=due_s[i], sent_s=due_s[i] + 0.001 * (i % 5), token_s=token_s,
                token_n=token_n, prompt_tokens=int(rng.integers(1, 400)), output_tokens=made,
                output_tokens_asked=max(made, 1), status=status, session=i // 4 if i % 8 < 4 else None,
                turn=i % 4 if i % 8 < 4 else 0, tag="long" if i % 2 else None, replica=i % 2,
                slo_ttft_s=0.3 if i % 5 == 0 else None, slo_task_s=6.0 if i % 16 < 4 else None,
            )
        )  # fmt: skip
    return found


@pytest.fixture(scope="session")
def mixture() -> Callable[..., pa.Table]:
    """`mixture(n, seed)`: a requests table with everything in it that a score must tell apart."""
    return lambda n=400, seed=0: to_table(_records(n, seed))


@pytest.fixture(scope="session")
def foreign() -> Path:
    """The folder with result files of other tools."""
    return Path(__file__).resolve().parents[1] / "golden" / "results"


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., Path]:
    """`stored(name, records or number, **info)`: the folder of a finished run with these requests."""

    def make(name: str, records: list[RequestRecord] | int = 400, **info: Any) -> Path:
        rows = _records(records) if isinstance(records, int) else records
        spec = {"workload": "chatbot", "backend": "sim", "seed": 0, "rate": 10.0}
        slo = {"text": "ttft=0.25,tpot=0.1", "goal": 0.9}
        facts = {
            "spec": spec, "slo": slo, "clock": "virtual", "workload": {"name": "chatbot", "rate_rps": 10.0},
            "summary": {}, "verdict": {"valid": True, "overloaded": False, "reasons": []}, **info,
        }  # fmt: skip
        folder = RunFolder.create(tmp_path / name, RunInfo.of(facts), flush_every=50)
        for at in range(0, len(rows), 50):
            folder.add_records(rows[at : at + 50])
        folder.finish()
        return tmp_path / name

    return make


@pytest.fixture
def run() -> Callable[..., Run]:
    """`run(table, **info)`: a run in memory."""

    def make(table: pa.Table, **info: Any) -> Run:
        facts = {"summary": {}, "verdict": {"valid": True}, "state": "finished", **info}
        return Run(Path("run"), RunInfo.of(facts), table, None, None, True)

    return make
