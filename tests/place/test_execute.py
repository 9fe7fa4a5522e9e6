"""Whole placements: the same answer from every pool, searches that go on, and what is recommended."""

import json
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.data.codec import encode
from harness.errors import BackendError, UsageError
from harness.experiments import answers, pool
from harness.experiments.place.answer import stored_options
from harness.experiments.place.execute import run_placement
from harness.experiments.place.place_json import PlaceAnswer
from harness.experiments.place.settings import PlaceOptions, place_options
from harness.experiments.place.store import Store
from harness.options import Given
from reports.answers import place
from reports.document import rendered

OWN: Mapping[str, Any] = {
    "nodes": 1, "gpus": 2, "hardware": "a100-80g", "algorithm": "vllm++", "goal": None, "conditions": "separate",
    "rate": 0.5, "prices": None, "power": None, "seed": None, "max_requests": 2000,
}  # fmt: skip


def placement(run: Mapping[str, object] | None = None, **own: Any) -> PlaceOptions:
    """A small placement of OPT-13B on two A100."""
    return place_options(Given({"slo": "ttft=0.2,tpot=0.1", **(run or {})}), None, {**OWN, **own})


def test_every_pool_gives_the_same_answer() -> None:
    """The machine that runs a search would decide what is built."""
    small = placement()
    here = run_placement(small, Store(None), pool.Here())

    with pool.Processes(1) as processes:  # what two find at any time depends on who is first
        apart = run_placement(small, Store(None), processes)

    assert without_time(here) == without_time(apart)
    assert ["(1,1)"] == [one.name for one in here.candidates]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without Ray would see an import error."""
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'goodput-bench\[ray\]'"):
        pool.of(None, "ray")


def test_a_cluster_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address would end in a traceback."""

    class NoCluster:
        def is_initialized(self) -> bool:
            return False

        def init(self, **_: object) -> None:
            raise ConnectionError("no node answers at 10.0.0.1:6379")

    monkeypatch.setitem(__import__("sys").modules, "ray", NoCluster())
    with pytest.raises(BackendError, match=r"Ray at .10\.0\.0\.1:6379. does not answer: no node answers"):
        pool.of(None, "ray:10.0.0.1:6379")


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
    small = placement({"backend": "sim:link=25Gbps"}, algorithm="high", max_requests=2000)

    assert "25Gbps" in str(run_placement(small, Store(None), pool.Here()).best[0].command)


def test_an_interrupted_search_gives_the_best_so_far() -> None:
    """What was known would be lost, or look like the whole search."""
    info = run_placement(placement(), Store(None), Interrupts())
    printed = rendered.render(info, "text")

    assert (5, "interrupted") == (info.exit_code, info.state)
    assert "Interrupted; best so far: " in printed
    assert "Interrupted: not every question was answered." in printed


def test_a_budget_that_is_over_is_no_verdict(tmp_path: Path) -> None:
    """An SLO would be given up that a deployment meets, or the command be repeated from the start."""
    short = placement(budget=1e-9, max_requests=None)
    info = run_placement(short, Store(tmp_path), pool.Here())

    assert (5, []) == (info.exit_code, info.best)
    assert "No deployment that was run surely meets the SLO at 0.5 req/s" == place.document(info).findings[
        0
    ].text.removesuffix(" in this cluster.")
    assert ["out_of_time"] == [one.code for one in info.warnings if one.code != "no_prices"]
    longer = run_placement(replace(short, budget_s=600.0), Store(tmp_path), pool.Here())
    assert (0, "1 x a100-80g") == (longer.exit_code, f"{longer.best[0].gpus} x {longer.best[0].hardware}")


class Dies(pool.Here):
    """A pool that is gone after the first call."""

    ends: type[BaseException] = RuntimeError

    def map(self, call: Any, items: Any, ends_s: float = math.inf) -> Any:  # noqa: ARG002  # it ends before
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

    with pytest.raises(UsageError, match=r"with conditions 'separate', not 'joint'"):
        run_placement(placement(conditions="joint"), Store(tmp_path), pool.Here())


def without_time(info: PlaceAnswer) -> dict[str, Any]:
    """The answer without how long it took."""
    found = encode(info)
    del found["cost"]["wall_s"]
    return found


QUERY = ["place", "--hardware", "h100", "--model", "llama3-8b", "--workers", "1", "--quiet", "--format", "json",
         "--slo", "ttft=0.3,tpot=0.03"]  # fmt: skip


def test_a_rate_is_placed_by_deployments_that_were_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The cheapest would be copies of what is best per GPU, without a run that meets the SLO."""
    (tmp_path / "prices.toml").write_text("h100 = 3.5\n")
    code = main([*QUERY, "--gpus", "3", "--workload", "chatbot", "--max-requests", "20000", "--algorithm", "vllm++",
                 "--rate", "30", "--prices", str(tmp_path / "prices.toml"),
                 "--out", str(tmp_path / "out")])  # fmt: skip
    info = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert ["tp 3"] == [one["name"] for one in info["skipped"]][:1]
    best, *others = info["best"]
    assert (30.0, True) == (best["rate_rps"], best["meets"])
    assert 0.9 <= best["attainment_low"] <= best["attainment"] <= best["attainment_high"]
    assert pytest.approx(3.5 * best["gpus"]) == best["taken"]
    assert all(best["gpus"] <= one["gpus"] for one in others)
    assert not [one for one in info["candidates"] if one["meets"] and one["gpus"] < best["gpus"]]
    assert [("operators", "measured here", "Hopper")] == [
        (row["latency"], row["badge"], row["generation"]) for row in info["step_times"]
    ]
    assert best["tpot_error"] == info["step_times"][0]["tpot_error"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "per hour" in page
    assert "does not divide" in page

    assert 0 == main([*shlex.split(best["command"].replace("20000", "2000"))[1:], "--quiet", "--no-html"])


def test_a_rate_that_the_cluster_does_not_carry(capsys: pytest.CaptureFixture[str]) -> None:
    """A fleet larger than the cluster would be recommended."""
    code = main([*QUERY, "--gpus", "1", "--workload", "chatbot", "--max-requests", "20000", "--rate", "500"])

    assert 1 == code
    assert [] == json.loads(capsys.readouterr().out)["best"]


def test_an_slo_that_the_steps_rule_out_says_that_nothing_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty table of deployments that were run stood over a verdict about all deployments."""
    short = ["--gpus", "1", "--slo", "ttft=0.001", "--rate", "5", "--format", "text", "--quiet"]
    code = main(["place", *short])
    printed = " ".join(capsys.readouterr().out.split())

    assert 1 == code
    assert "by step times and KV memory alone none does, so none was run" in printed
    assert "deployments that were run, the cheapest first" not in printed


def test_without_a_rate_the_best_unit_has_a_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    """The rate per GPU would be that of trials shorter than a queue takes to fill."""
    code = main([*QUERY, "--gpus", "1", "--workload", "fixed:prompt=500,output=20", "--algorithm", "vllm++",
                 "--latency", "roofline"])  # fmt: skip
    best = json.loads(capsys.readouterr().out)["best"][0]

    assert 0 == code
    assert best["low_per_gpu_rps"] < best["rate_per_gpu_rps"] < best["high_per_gpu_rps"]
    assert best["command"].startswith("bench capacity ")


def test_a_trace_is_placed_at_its_own_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Users with a recording would have to invent a workload like it."""
    rows = "\n".join(f"{i / 5},300,50" for i in range(400))
    (tmp_path / "trace.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    code = main([*QUERY, "--gpus", "2", "--trace", str(tmp_path / "trace.csv")])
    info = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert pytest.approx(5.0, rel=0.01) == info["target_rps"]
    assert 1 == info["best"][0]["gpus"]
    assert info["best"][0]["attainment_low"] is None


def test_the_report_names_the_best() -> None:
    """The best placement would have to be looked for in a table."""
    info = run_placement(placement(), Store(None), pool.Here())
    document = place.document(info)

    assert "PLACED" == document.mark
    assert document.findings[0].text.startswith("Cheapest: (TP=1 PP=1) on 1 x a100-80g, ")


def test_wrong_usage_is_one_sentence(refusals: Callable[..., None]) -> None:
    """A slip must not cost a search, nor end in a traceback."""
    refusals("wrong-place.txt", "--workers", "1", "--quiet")


@pytest.mark.parametrize("answer", ["low 1 x P(2,1) a100-80g", "rough 1 x (2,1) a100-80g"])
def test_a_folder_of_an_earlier_bench_is_refused(answer: str, tmp_path: Path) -> None:
    """Answers of another kind, or without a part of today's, would end in a traceback."""
    with Store(tmp_path).opened(placement()):
        pass
    stored = {**stored_options(placement()), "state": "running", "searched": {answer: {"ends": {}}}}
    (tmp_path / "place.json").write_text(json.dumps(stored), encoding="utf-8")

    with pytest.raises(UsageError, match=r"made by an earlier bench; name another --out"):
        run_placement(placement(), Store(tmp_path), pool.Here())


def test_what_misses_without_load_is_not_recommended() -> None:
    """A fast deployment may have a TTFT that no user accepts."""
    strict = placement({"policy": "sarathi", "slo": "ttft=0.0001"})
    info = run_placement(strict, Store(None), pool.Here())

    assert [] == info.best
    assert 1 == info.exit_code
    assert "its steps are longer than the SLO allows" in {one.reason for one in info.skipped}


@pytest.mark.nightly
def test_a_large_question_has_its_first_answer_from_few_runs() -> None:
    """It had none after 19 minutes and 381,337 requests: every shape was counted alone, pipelines of 16 stages too."""
    options = placement(
        {"model": "llama3.1-70b", "workload": "chatbot", "slo": "ttft=0.5,tpot=0.05"}, nodes=4, gpus=8,
        hardware="h100,a100-80g,l40s", algorithm="all", conditions="joint", rate=20.0,
        budget=600.0,
    )  # fmt: skip
    lines: list[str] = []
    info = run_placement(options, Store(None), pool.Here(), lines.append)

    assert [line for line in lines[:3] if "none meets" not in line]
    assert info.best[0].gpus <= 12
    assert info.best[0].hardware == "h100"
    assert info.cost is not None
    assert info.cost.requests < 381_337
