"""Whole placements: published rates, the same answer from every pool, and searches that go on."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness import compose
from harness.api import RequestRecord
from harness.cli import main
from harness.data.codec import encode
from harness.errors import BackendError, UsageError
from harness.experiments import answers, pool
from harness.experiments.place.execute import Candidate, run_placement, scored
from harness.experiments.place.place_json import PlaceAnswer
from harness.experiments.place.search import Ends
from harness.experiments.place.settings import opened, place_options
from harness.experiments.place.store import Store
from harness.experiments.place.systems import Shape, System
from harness.experiments.place.task import TOO_SHORT, Found, Task, _Seen, _Trials, searched, traffic
from harness.options import Given
from reports.answers import place

if TYPE_CHECKING:
    from harness.experiments.place.settings import PlaceOptions

OWN: Mapping[str, Any] = {
    "nodes": 1, "gpus": 2, "hardware": "a100-80g", "algorithm": "vllm++", "goal": None, "conditions": "separate",
    "rate": None, "objective": "gpu", "prices": None, "power": None, "requests": "60", "seeds": 1, "seed": None,
    "max_rate": 8, "width": 0.5,
}  # fmt: skip


def placement(run: Mapping[str, object] | None = None, **own: Any) -> PlaceOptions:
    """A small placement of OPT-13B on two A100."""
    return place_options(Given({"slo": "ttft=0.2,tpot=0.1", **(run or {})}), None, {**OWN, **own})


def rate_per_gpu(options: PlaceOptions, system: System) -> float:
    """The highest rate of one system."""
    sent = traffic(options.spec, options.seeds, released=options.released)
    kind = system.kind
    task = Task(
        "", system, options.of(system), options.bounds(kind), options.wanted(kind), sent, options.seeds, 8.0, 0.0625
    )
    return scored(options, Candidate("low", system), searched(task)).per_gpu.value


@pytest.mark.parametrize(
    ("slo", "system", "published_rps"),
    [
        ("ttft=0.2,tpot=0.1", System("colocated", "a100-80g", Shape(1, 1)), 3.1875),
        ("ttft=0.2,tpot=0.1", System("colocated", "a100-80g", Shape(2, 1)), 3.375),
        ("ttft=0.2,tpot=0.1", System("pair", "a100-80g", Shape(1, 1), Shape(1, 1)), 3.3125),
        ("ttft=0.2,tpot=0.1", System("pair", "a100-80g", Shape(2, 1), Shape(1, 1)), 4.75),
        ("ttft=0.2,tpot=0.1", System("colocated", "a100-80g", Shape(1, 2)), 3.625),
        ("ttft=0.2,tpot=0.1", System("pair", "a100-80g", Shape(1, 2), Shape(1, 1)), 4.6875),
        ("ttft=0.4,tpot=0.04", System("pair", "a100-80g", Shape(1, 2), Shape(2, 1)), 6.25),
        ("ttft=0.4,tpot=0.04", System("colocated", "a100-80g", Shape(1, 1)), 1.5625),
        ("ttft=0.4,tpot=0.04", System("pair", "a100-80g", Shape(1, 1), Shape(1, 1)), 5.8125),
    ],
    ids=lambda value: value.name if isinstance(value, System) else None,
)
def test_rates_of_the_released_planner(slo: str, system: System, published_rps: float) -> None:
    """The planner of DistServe finds these with 300 requests: another would place another system (GN3, S22)."""
    found = rate_per_gpu(placement({"slo": slo}, requests="300"), system)

    assert published_rps == found


def test_every_pool_gives_the_same_answer() -> None:
    """The machine that runs a search would decide what is built."""
    small = placement(seeds=2)
    here = run_placement(small, Store(None), pool.Here())

    with opened("processes", 2) as processes:
        apart = run_placement(small, Store(None), processes)

    assert without_time(here) == without_time(apart)
    assert ["(2,1)", "(1,2)", "(1,1)"] == sorted((one.name for one in here.candidates), reverse=True)


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'bench[ray]'")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_cluster_of_ray_gives_the_same_answer() -> None:
    """A search on a cluster would place another system than a laptop; and an error must come back as itself."""
    small = placement(seeds=2)
    with opened("ray", 2) as cluster:
        apart = run_placement(small, Store(None), cluster)
        with pytest.raises(UsageError, match="is not a number"):
            list(cluster.map(fails, ["one"]))

    assert without_time(run_placement(small, Store(None), pool.Here())) == without_time(apart)


def fails(text: str) -> None:
    raise UsageError(f"'{text}' is not a number.")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without Ray would see an import error."""
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'bench\[ray\]'"):
        opened("ray", None)


def test_a_cluster_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address would end in a traceback."""

    class NoCluster:
        def is_initialized(self) -> bool:
            return False

        def init(self, **_: object) -> None:
            raise ConnectionError("no node answers at 10.0.0.1:6379")

    monkeypatch.setitem(__import__("sys").modules, "ray", NoCluster())
    with pytest.raises(BackendError, match=r"Ray at .10\.0\.0\.1:6379. does not answer: no node answers"):
        opened("ray:10.0.0.1:6379", None)


def test_a_rerun_resumes_a_search(tmp_path: Path) -> None:
    """After a kill hours of a large search would be lost."""
    small = placement()
    whole = run_placement(small, Store(tmp_path / "whole"), pool.Here())
    store = Store(tmp_path / "killed")
    lines: list[str] = []
    with pytest.raises(RuntimeError):
        run_placement(small, store, Dies())

    going = Store(tmp_path / "killed")
    again = run_placement(small, going, pool.Here(), lines.append)

    assert len(whole.candidates) - 1 == len(lines)
    assert without_time(whole) == without_time(again)
    stored = answers.of(tmp_path / "killed")
    assert isinstance(stored, PlaceAnswer)
    assert whole.best == stored.best


def test_a_side_that_is_searched_alone_has_the_link_of_the_cluster() -> None:
    """No cluster with a link of its own could be planned."""
    small = placement({"link": "25Gbps"}, algorithm="high", requests="20", width=4)

    assert 1 == len(run_placement(small, Store(None), pool.Here()).best)


@pytest.mark.parametrize(("slo", "known"), [("ttft=0.2,tpot=0.1", True), ("ttft=1ms,tpot=1ms", False)])
def test_an_interrupted_search_does_not_look_finished(slo: str, known: bool) -> None:
    """The best of what was searched would be built, or an SLO be given up that another candidate keeps."""
    info = run_placement(placement({"slo": slo}), Store(None), Interrupts())
    printed = compose.render_answer(info, "text")

    assert (5, "interrupted") == (info.exit_code, info.state)
    assert ("Interrupted with 2 candidates left; best so far" in printed) is known
    assert ("Interrupted before any placement was known" in printed) is not known
    assert "at any rate" not in printed


class Dies(pool.Here):
    """A pool that is gone after the first call."""

    ends: type[BaseException] = RuntimeError

    def map(self, call: Any, items: Any) -> Any:
        items = iter(items)
        item = next(items)
        yield item, call(item)
        raise self.ends


class Interrupts(Dies):
    """A pool that is interrupted after the first call."""

    ends = KeyboardInterrupt


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    """Rates of one SLO would be reported as those of another."""
    run_placement(placement(), Store(tmp_path), pool.Here())

    with pytest.raises(UsageError, match=r"with other options .conditions 'separate', not 'joint'"):
        run_placement(placement(conditions="joint"), Store(tmp_path), pool.Here())


def without_time(info: PlaceAnswer) -> dict[str, Any]:
    """The answer without how long it took."""
    found = encode(info)
    del found["cost"]["wall_s"]
    return found


def test_the_command_shows_rates_skips_and_replicas(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A user must see what was tried, what was not and why, and how many GPUs the target takes."""
    code = main(["place", "--gpus", "3", "--algorithm", "vllm++", "--slo", "ttft=0.2,tpot=0.1", "--requests", "60",
                 "--width", "0.5", "--rate", "20", "--seeds", "2", "--workers", "1", "--quiet", "--format", "json",
                 "--out", str(tmp_path)])  # fmt: skip
    info = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert {"tp 3": "3 does not divide the 40 attention heads of opt-13b"}.items() <= {
        one["name"]: one["reason"] for one in info["skipped"]
    }.items()
    best = info["best"][0]
    intervals = [(one["low_per_gpu_rps"], one["high_per_gpu_rps"]) for one in info["candidates"]]
    assert all(low is high is None or low < high for low, high in intervals)
    assert best["replicated"]["rate_rps"] >= 20
    assert best["replicated"]["gpus"] == best["gpus"] * best["replicated"]["members"][0]["count"]
    page = (tmp_path / "report.html").read_text()
    assert "Rate per GPU of each placement" in page
    assert "does not divide the 40 attention heads" in page


def test_the_report_names_the_best() -> None:
    """The best placement would have to be looked for in a table."""
    info = run_placement(placement(), Store(None), pool.Here())
    document = place.document(info)

    assert "PLACED" == document.mark
    assert document.findings[0].text.startswith(f"Best: {info.best[0].name} on ")
    assert "one seed gives no interval; --seeds 5 would." in [one.message for one in document.warnings]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "hihg"], "No placement algorithm named 'hihg'. Did you mean 'high'?"),
        (["--conditions", "sarathi"], "No condition named 'sarathi'."),
        (["--objective", "cost"], "--objective cost needs --prices FILE"),
        (["--prices", "p.toml"], "--prices belongs to --objective cost; give both."),
        (["--pool", "slurm"], "No pool named 'slurm'."),
        (["--seeds", "99"], "--seeds must be at most 30, got 99."),
        (["--gpus", "0"], "--gpus must be a whole number from 1 on, got '0'."),
        (["--width", "9"], "--width must be below --max-rate, got 9 and 8."),
        (["--hardware", "a200"], "No hardware named 'a200'."),
        (["--model", "opt-175b", "--gpus", "1"], "There is nothing to place: "),
        (["--slo", "e2e=3"], "--algorithm high searches both sides apart, and 'e2e' belongs to both sides;"),
        (["--workload", "nothing"], "No workload named 'nothing'."),
        (["--backend", "null"], "bench place simulates its candidates; leave out --backend 'null'"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slip must not cost a search, nor end in a traceback."""
    monkeypatch.chdir(tmp_path)
    code = main(["place", "--workers", "1", "--quiet", *arguments])

    printed = capsys.readouterr().err
    assert 2 == code
    assert message in printed
    assert 1 == printed.count("bench: ")


@pytest.mark.parametrize(
    ("e2e_s", "found", "made"), [(0.5, None, [300]), (5.0, None, [300, 2500]), (20.0, TOO_SHORT, [300, 4800])]
)
def test_a_trial_that_passes_is_as_long_as_a_queue_takes(e2e_s: float, found: str | None, made: list[int]) -> None:
    """300 requests pass at four times the capacity when they are sent before one of them has ended."""
    planned: list[int] = []
    trials: Any = object.__new__(_Trials)
    trials._task = SimpleNamespace(traffic=SimpleNamespace(requests=300), most_requests=4800)
    trials._made = lambda _seed, _rate, requests: (planned.append(requests), (None, requests / 100, e2e_s))[1]

    assert found == trials.missed(0, 100.0)
    assert made == planned


def test_a_queue_that_grows_is_seen_by_its_records() -> None:
    """An SLO that is loose would be kept for as long as a trial lasts."""
    seen = {keeps_up: _Seen() for keeps_up in (True, False)}
    for keeps_up, times in seen.items():
        served_s = 0.9 if keeps_up else 1.5
        end_s = 0.0
        for due_s in range(300):
            end_s = max(end_s, float(due_s)) + served_s
            list(times.of(iter([RequestRecord(due_s, float(due_s), None, [end_s], None, 1, 1, 1, "ok")])))

    assert (False, True) == (seen[True].grew, seen[False].grew)


def test_a_trial_that_is_sure_early_is_seen_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that grows would be looked for in half of the records, and the rate come out too high."""
    seen: list[int] = []
    monkeypatch.setattr("harness.experiments.place.task.grown", lambda due_s, *_, **__: seen.append(len(due_s)))
    loose = placement({"slo": "ttft=5,tpot=0.5", "latency": "roofline"}, goal="0.5", requests="300")
    sent = traffic(loose.spec, loose.seeds, released=loose.released)
    system = System("colocated", "a100-80g", Shape(1, 1))
    task = Task("", system, loose.of(system), loose.bounds("colocated"), loose.wanted("colocated"), sent,
                loose.seeds, 8.0, 0.5, loose.most_requests)  # fmt: skip
    trials = _Trials(task)

    found, _, _ = trials._made(loose.seeds[0], 1.0, 300)

    assert (None, [300]) == (found, seen)


def test_a_folder_of_an_earlier_bench_is_refused(tmp_path: Path) -> None:
    """A folder without the rates that were tried would end in a KeyError."""
    store = Store(tmp_path)
    with store.opened(placement()):
        store.add("low", Found({0: Ends(4.0, 4.5, "ttft=0.2", 5)}, 5, 300))
    info = json.loads((tmp_path / "place.json").read_text())
    del info["searched"]["low"]["ends"]["0"]["tried_rps"]
    (tmp_path / "place.json").write_text(json.dumps(info), encoding="utf-8")

    with pytest.raises(UsageError, match=r"made by an earlier bench; name another --out"):
        run_placement(placement(), Store(tmp_path), pool.Here())


@pytest.mark.parametrize(
    ("binding", "tried_rps", "at_least", "interval"),
    [
        ("ttft=0.2", (1.0, 9.0), False, True),
        ("ttft=0.2", (4.2, 9.0), False, False),
        (TOO_SHORT, (1.0, 9.0), True, False),
        (None, (1.0, None), True, False),
    ],
)
def test_a_rate_that_nothing_showed_to_be_too_high_is_no_more_than_a_bound(
    binding: str | None, tried_rps: tuple[float | None, float | None], at_least: bool, interval: bool
) -> None:
    """The highest rate that was tried would be printed as what a placement sustains."""
    options = placement({"policy": "sarathi"}, seeds=3)
    ends = {seed: Ends(rate, rate + 0.1, binding, 5, tried_rps) for seed, rate in enumerate((4.0, 4.5, 5.0))}
    found = scored(options, Candidate("low", System("colocated", "a100-80g", Shape(1, 1))), Found(ends, 15, 900))

    assert at_least == found.at_least
    assert interval == (found.per_gpu.low is not None)
