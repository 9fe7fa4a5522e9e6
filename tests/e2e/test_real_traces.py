"""Real traces from end to end: read, changed, replayed on the simulator and on the engine."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.cli import main
from workloads import traces

MOONCAKE = "traces/mooncake/conversation_trace.jsonl"


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["sim:model=llama3-8b,hardware=h100", "engine"])
def test_a_part_of_mooncake_runs_with_its_blocks(backend: str, shared_data: Path, tmp_path: Path) -> None:
    """The trace with which caches are compared could be read and not run, or would lose what its prompts share."""
    file, out = shared_data / MOONCAKE, tmp_path / "run"
    part = ["--where", "prompt_tokens<=900", "--limit", "25", "--scale", "compress:40", "--drain", "100s"]
    code = main(["run", "--trace", str(file), *part, "--backend", backend, "--quiet", "--no-html", "--out", str(out)])
    info = json.loads((out / "run.json").read_text(encoding="utf-8"))
    sent = pq.read_table(out / "schedule.parquet")
    wanted = traces.read(str(file), None, traces.Slice()).table.to_pylist()
    short = [row for row in wanted if row["prompt_tokens"] <= 900][:25]

    assert 0 == code
    assert {"ok": 25} == {k: n for k, n in info["summary"]["status"].items() if n}
    assert [row["prefix_ids"] for row in short] == sent["prefix_ids"].to_pylist()
    assert [row["at_s"] / 40 for row in short] == pytest.approx(sent["scheduled_s"].to_pylist(), abs=1e-6)
    assert "no-prefix-cache" in {warning["code"] for warning in info["warnings"]}
