"""What figures ask of a run: the same of one that is held whole and of a large one that is read thin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data import large as data_large
from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.storage import write_json, write_parquet
from harness.experiments import imports
from reports import _counted, _data, figures
from reports.builtin import Html

MakeRun = Callable[..., Run]
Stored = Callable[..., tuple[Run, Run]]


@pytest.fixture
def stored(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """Stores a run in several row groups; reads it back whole and thin."""

    def store(*given: Any, **more: Any) -> tuple[Run, Run]:
        run = make_run(*given, **more)
        monkeypatch.setattr("harness.data.storage.ROW_GROUP_BYTES", 5000)
        monkeypatch.setattr(data_large, "PART", 50)
        monkeypatch.setattr(_counted, "_ROWS", 16)
        write_json(tmp_path / "run.json", encode(run.info))
        for name in ("requests", "steps"):
            table = getattr(run, name)
            write_parquet(tmp_path / f"{name}.parquet", table.schema, iter(table.to_batches(max_chunksize=100)))
        return imports.open(tmp_path)[0], data_large.load(tmp_path, large=1)

    return store


@pytest.mark.parametrize("cut", [None, {"rule": "60", "at_s": 5.0, "requests": 60, "stationary": True}])
def test_a_large_run_has_the_same_values(cut: dict[str, Any] | None, stored: Stored) -> None:
    """The report of a run of a million requests would tell other numbers than one of ten thousand."""
    whole, large = map(_data.measured, stored(300, failed=4, warmup=cut))

    assert large.whole is not None
    assert len(whole.requests) == len(large.requests)
    for name in ("ttft", "tpot", "e2e", "lateness", "itl", "itl_p99"):
        np.testing.assert_array_equal(_data.metric(whole, name), _data.metric(large, name))
    assert _data.stages(whole) == _data.stages(large)
    np.testing.assert_array_equal(_data.sample(whole, "ttft"), _data.sample(large, "ttft"))
    np.testing.assert_array_equal(_data.gaps(whole).counts, _data.gaps(large).counts)
    assert _data.metric(large, "ttft") is _data.metric(large, "ttft")


def test_every_gap_is_counted_in_its_bin(stored: Stored) -> None:
    """The picture of the gaps would lose some, or show them longer or shorter than they were."""
    whole, large = stored(200, failed=5)
    counted, every = _data.gaps(large), _data.sample(whole, "itl")

    assert len(every) == counted.total
    np.testing.assert_array_equal(np.histogram(every, counted.bins_s)[0], counted.counts.sum(axis=0))
    assert float(np.max(counted.bins_s[2:] / counted.bins_s[1:-1])) <= 1.032
    assert counted.edges_s[-1] >= _data.end_s(whole)


def test_stretches_hold_all_steps(stored: Stored) -> None:
    """The batches of a large run would be shown smaller than they were, or for a shorter time."""
    whole, large = stored(300)
    assert whole.steps is not None
    span_s = whole.steps["end_s"].to_numpy() - whole.steps["start_s"].to_numpy()

    for found in (_data.stretches(whole), _data.stretches(large)):
        assert found is not None
        assert whole.steps.num_rows == found.steps
        assert float(span_s.sum()) == pytest.approx(found.busy_s)
        assert float(np.average(whole.steps["decode_seqs"], weights=span_s)) == pytest.approx(
            float(found.total["decode_seqs"].sum()) / found.busy_s
        )
        assert int(np.max(whole.steps["decode_seqs"])) == found.greatest["decode_seqs"].max()
        assert int(np.min(whole.steps["free_blocks"])) == found.least["free_blocks"].min()
        assert float(span_s[whole.steps["waiting"].to_numpy() > 0].sum()) == pytest.approx(found.waited_s)


def test_stretches_are_the_same_in_whatever_pieces_steps_come(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that a run ends with would draw other stretches than the page that is made of its files."""
    monkeypatch.setattr(_counted, "_ROWS", 16)
    steps = make_run(300).steps
    found = []
    for rows in (7, 50, len(steps)):
        stretches = _counted.StepStretches()
        for start in range(0, len(steps), rows):
            stretches.add(steps[start : start + rows])
        found.append([(part.steps, part.start_s.tolist(), part.time_s.tolist()) for part in stretches.parts()])

    assert found[0] == found[1] == found[2]
    assert len(steps) == sum(part[0] for part in found[0])


def test_quantiles_of_all_gaps_are_those_of_the_run(stored: Stored) -> None:
    """A large run would print an ITL that was read off a picture."""
    whole, large = stored(200)

    assert _data.quantiles(whole, "itl") == pytest.approx(_data.quantiles(large, "itl"))
    with pytest.raises(ValueError, match="do not fit into memory"):
        _data.sample(large, "itl")


@pytest.mark.nightly
def test_a_large_run_has_a_whole_page(stored: Stored) -> None:
    """The run that took longest would have a report with holes in it, or none."""
    whole, large = stored(300, tags=("chat", "code"), slo="ttft=0.25,tpot=0.1,itl=0.2")
    rows = figures.of("run").values()

    missing = [row.key for row in rows if isinstance(row.draw(large), str)]
    assert [row.key for row in rows if isinstance(row.draw(whole), str)] == missing
    assert "150 requests of class chat" in Html().render(large)


def test_small_runs_are_held_whole(stored: Stored, tmp_path: Path) -> None:
    """A run of a few requests would be read twice."""
    stored(30)

    [run] = imports.open(tmp_path, thin=True)
    assert run.whole is None
