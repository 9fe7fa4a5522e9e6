"""`bench agents` on a small trace of sessions: its numbers, its folder, its page and its errors."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.api import Outcome
from harness.cli import main
from harness.data.run_json import RunInfo
from harness.errors import BackendError, NotValid
from harness.experiments import pool, trial
from harness.experiments.agents import execute
from harness.experiments.agents.agents_json import AgentTrial, TrialShare
from harness.experiments.agents.execute import CUT, Key, Task, set_up, simulated
from harness.experiments.capacity.search_spec import Bracket, SearchResult, Side
from harness.experiments.capacity.trials import Runs
from harness.metrics.objective import score
from harness.options import Given, run_spec

SIM = ["--backend", "sim", "--model", "llama3-8b", "--hardware", "h100", "--prefix-cache", "on"]
SEARCH = ["--slo", "p95:ttft=1,p90:tpot=7.4ms", "--horizon", "30s", "--tolerance", "40%", "--workers", "1"]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sessions of twelve turns with thinking between them."""
    path = tmp_path_factory.mktemp("chats") / "chats.parquet"
    sessions = ["--sessions", "fixed:turns=12,think=2s", "--requests", "360", "--seed", "3"]
    assert 0 == main(["trace", "generate", "chatbot", *sessions, "-o", str(path)])
    return str(path)


def test_a_search_finds_agents_with_an_interval_and_stores_them(
    chats: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user could not see what was tried, or go on later."""
    line = ["agents", "--trace", chats, *SIM, *SEARCH, "--out", str(tmp_path / "found"), "--quiet"]

    assert main(line) in (0, 5)

    printed = capsys.readouterr().out
    stored = json.loads((tmp_path / "found" / "agents.json").read_text(encoding="utf-8"))
    (tier,) = stored["answers"]
    assert "resolved" == tier["state"]
    assert tier["low"] < tier["agents"] < tier["high"]
    whole = math.floor(tier["agents"])
    assert (whole, pytest.approx(whole / 0.7)) == (tier["per_gpu"], tier["per_kw"])
    assert f"{whole} agents over 30 s" in printed
    assert 4 == len(tier["near"]["quarters"])
    assert tier["binding"] in printed
    assert "per kW" in (tmp_path / "found" / "report.html").read_text(encoding="utf-8")
    made = len(stored["trials"])
    assert made > 16
    assert main(line) in (0, 5)
    assert made == len(json.loads((tmp_path / "found" / "agents.json").read_text(encoding="utf-8"))["trials"])


def test_a_limit_of_requests_ends_a_search(chats: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A search of a paid service would have no limit but of time, and a resumed one would begin to count anew."""
    line = ["agents", "--trace", chats, *SIM, *SEARCH, "--out", str(tmp_path / "found"), "--max-requests", "200"]

    for _ in range(2):
        assert 5 == main(line)
        assert "requests; --max-requests is 200." in capsys.readouterr().err
        stored = json.loads((tmp_path / "found" / "agents.json").read_text(encoding="utf-8"))
        assert 0 < stored["requests"] <= 200
        assert "the limit of 200 requests was reached (--max-requests)." == stored["answers"][0]["why"]


def test_what_met_and_what_missed_a_tier_are_not_the_same_number_of_agents(chats: str) -> None:
    """Of runs with 2.2 agents on average that met and with 2.4 that missed both were called 2."""
    spec = run_spec(Given({"trace": chats, "backend": "sim", "model": "llama3-8b", "hardware": "h100"}))
    setup = set_up(spec, ["ttft=1"])
    sides = Bracket(Side(2.2, 4, 400, sure=False), Side(2.4, 4, 400, sure=False))

    with pool.of(1, "processes") as processes:
        search = execute._Search(setup, None, processes, Runs(Path(), print), print)
        tier = search._tier(setup.tiers[0], SearchResult(None, resolved=False, bracket=sides))

    assert (2, 3) == (tier.met, tier.missed)


def test_a_trial_is_the_run_of_so_many_users(chats: str) -> None:
    """Its shares would be of other requests than those that a run of the same users has."""
    given = {"trace": chats, "backend": "sim", "model": "llama3-8b", "hardware": "h100", "prefix-cache": "on"}
    tiers = ("p95:ttft=1,p90:tpot=12ms",)
    setup = set_up(run_spec(Given(given)), tiers, 120.0)
    task = Task(setup.spec, setup.tiers, Key(6, 1, 120.0), CUT * 120.0)

    one = simulated(task)

    made = trial.simulate(task.run)
    due_s = np.asarray(made.table["scheduled_s"])
    late = made.table.filter(due_s >= CUT * 120.0)
    scored = score(late, replace(setup.tiers[0].slo, goal=0.9))
    assert len(late) == one.requests
    assert [int(bound.met.sum()) for bound in scored.bounds] == [share.met for share in one.shares[1:]]
    assert 1.0 == one.settled
    tokens = np.asarray(late["token_s"].to_pylist(), object)
    speeds = sorted((len(t) - 1) / (t[-1] - t[0]) for t in tokens if len(t) > 1)
    assert one.speed_p10 == pytest.approx(np.quantile(speeds, 0.1), rel=0.02)
    assert math.isclose(one.requests_rps, len(late) / 120.0)


@pytest.mark.parametrize("named", [[], ["--workload", "chatbot", "--sessions", "fixed:turns=9,think=2s"]])
def test_sessions_are_drawn_where_there_is_no_trace(
    named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Who has no recording could not find out how many agents a system serves."""
    line = ["agents", *named, *SIM, "--slo", "p90:tpot=0.0001", "--horizon", "2min", "--workers", "1", "--quiet"]

    assert 1 == main([*line, "--no-html", "--out", str(tmp_path / "found")])

    printed = capsys.readouterr().out
    stored = json.loads((tmp_path / "found" / "agents.json").read_text(encoding="utf-8"))
    assert {1} == {made["users"] for made in stored["trials"]}
    assert (named[1] if named else "coding-agent") == stored["workload"]
    assert min(made["requests"] for made in stored["trials"]) >= 3
    assert "even one agent alone misses it." in printed
    assert "longer than the context of llama3-8b" in printed, "a server would refuse its prompts"
    assert "Think times" not in printed


def test_what_has_no_agents_is_refused(chats: str, refusals: Callable[..., None]) -> None:
    """A search would run for minutes, and answer another question."""
    refusals("wrong-agents.txt", "--trace", chats, *SIM)


def test_another_search_is_kept_out_of_the_folder(
    chats: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trials of two systems would make one answer."""
    line = ["agents", "--trace", chats, *SIM, "--slo", "p90:tpot=0.0001", "--horizon", "30s", "--workers", "1"]
    assert 1 == main([*line, "--out", str(tmp_path / "one"), "--no-html"])
    capsys.readouterr()

    assert 2 == main([*line, "--tp", "2", "--out", str(tmp_path / "one")])

    assert "a search with --tp not given, not '2'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "times", "code", "left_out"),
    [(NotValid, 1, 5, 1), (NotValid, 2, 4, 2), (BackendError, 1, 3, 0)],
)
def test_a_trial_that_fails_loses_none_of_the_others(
    error: type[Exception], times: int, code: int, left_out: int, chats: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Ten minutes of trials on a server ended with an error and no answer."""
    calls: list[int] = []

    def run(_: Runs, task: Task, __: None) -> SimpleNamespace:
        calls.append(task.key.users)
        fails = 3 <= len(calls) < 3 + times
        if fails and error is BackendError:
            raise BackendError("the server answers no.")
        if len(calls) > 6:
            raise KeyboardInterrupt
        verdict = {"valid": not fails, "reasons": ["the server answers no."]}
        stored = SimpleNamespace(info=RunInfo.of({"verdict": verdict}), requests=None, path=tmp_path)
        return SimpleNamespace(run=stored, outcome=Outcome("finished", 60, 0, 0))

    def measured(task: Task, *_: object) -> AgentTrial:
        met = 90 if task.key.users < 10 else 10
        return AgentTrial(
            users=task.key.users, seed=task.key.seed, span_s=task.key.span_s, seconds=9.0, requests=100, sessions=9,
            wall_s=0.0,
            shares=[TrialShare(text=text, met=met, of=100) for text in ("joint: p80:e2e=9", "p80:e2e=9")],
        )  # fmt: skip

    monkeypatch.setattr(Runs, "_run", run)
    monkeypatch.setattr(execute, "measured", measured)
    monkeypatch.setattr(execute, "exceeded", lambda _: None)
    line = [
        "agents",
        "--trace",
        chats,
        "--backend",
        "null",
        "--slo",
        "p80:e2e=9",
        "--tolerance",
        "1%",
        "--quiet",
        "--no-html",
    ]

    assert code == main([*line, "--no-html", "--out", str(tmp_path / "found")])

    printed = " ".join(capsys.readouterr().out.split())
    stored = json.loads((tmp_path / "found" / "agents.json").read_text(encoding="utf-8"))
    assert [1, 4] == [one["users"] for one in stored["trials"]][:2]
    assert ["of 16 agents (seed 2): the server answers no."] * left_out == stored["invalid"]
    assert "the server answers no." in printed
    assert calls[2:4] == [16, 16] or error is BackendError
    assert code == stored["exit_code"]


def test_facts_of_the_deployment_give_output_per_gpu_and_dollar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user would have to divide the price by hand."""
    sim = ["--backend", "sim:usd_per_hour=3", "--hardware", "h100", "--requests", "100", "--no-html"]
    assert 0 == main(["run", *sim, "--slo", "e2e=9", "--out", str(tmp_path / "run")])

    printed = " ".join(capsys.readouterr().out.split())
    stored = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    output = stored["summary"]["output_tps"]
    assert f"{output:.3g} output tokens/s per GPU (1 GPU)" in printed
    assert f"{3 / 3600 / output * 1e6:.3g} USD per million output tokens" in printed
