"""What a run says about itself: the rate that was requested, whether it was overloaded, and what to do next."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import harness
from harness.api import Slo
from harness.cli import _commands, main
from harness.cli._options import BOUNDS
from harness.data.folder import load
from harness.data.run_json import StoredSlo
from harness.errors import UsageError
from harness.metrics.objective import parse_slo, restored_slo
from harness.options import Given, run_spec
from harness.runner.plan import plan
from harness.runner.run import opening
from harness.validity.conclude import completed
from harness.validity.warnings import BEFORE, doubtful_text
from workloads import traces

Sim = Callable[..., tuple[int, dict[str, Any], str]]
TIGHT = ("--slo", "ttft=1ms")
SHORT = ("--lengths", "fixed:prompt=50,output=5")


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sim:
    """`sim(*options)`: exit code, run.json and printed summary of a run of the simulator."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str, backend: str = "sim") -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        code = main(["run", "--backend", backend, "--quiet", "--no-html", "--force", "--out", "out", *options])
        found: dict[str, Any] = json.loads(Path("out/run.json").read_text(encoding="utf-8"))
        return code, found, " ".join(capsys.readouterr().out.split())

    return run


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A trace with 1 request per second for 100 s, then 10 per second for 100 s, in the format of Azure."""
    times = [*range(100), *(100 + i / 10 for i in range(1000))]
    rows = [f"2024-05-10 00:{int(t) // 60:02}:{t % 60:09.6f},100,10" for t in times]
    path = tmp_path / "quiet_then_busy.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_what_a_run_says_about_itself_golden(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Callable[..., None]
) -> None:
    """A quiet minute would pass for a missed rate, an overloaded run for a good one, half a trace for a whole."""
    monkeypatch.chdir(tmp_path)
    text = Path(trace).read_text(encoding="utf-8")
    Path("holes.csv").write_text(text.replace(",100,10\n", ",100,0\n", 3), encoding="utf-8")
    replay = "--trace quiet_then_busy.csv"
    overload, few = "--rate 100 --requests 300", "--requests 40"
    lines = {
        "a quiet part of a trace has its own rate": f"{replay} --duration 60s",
        "and so has a busy one": f"{replay} --start 110s --requests 200",
        "arrivals of a trace, the part that is sent":
            "--arrivals trace:quiet_then_busy.csv --lengths fixed:prompt=10,output=2 --requests 50",
        "a rate that is drawn is the requested one": f"--rate 2 {few}",
        "a list at one instant has no rate": "--workload deck-slots",
        "the system in use": "--requests 5 --replicas 2 --policy vllm-v0",
        "an overloaded run is not called good": f"{overload} --slo ttft=1",
        "nor by a gate with a low bar": f"{overload} --slo ttft=1 --fail-under 0.01",
        "a growing queue where the SLO was met is no overload": f"{overload} --slo ttft=100 --fail-under 0.9",
        "a broken percentile misses the SLO": f"{few} --slo p99:ttft=1ms",
        "and fails a gate": f"{few} --slo p99:ttft=1ms --fail-under 0.9",
        "a percentile that is kept passes it": f"{few} --slo p99:ttft=1h --fail-under 0.9",
        "no advice that a trace refuses": f"{replay} --start 100s --policy static:batch=1",
        "shared prefixes that are computed whole": "--prefixes shared:tokens=64 --requests 20",
        "tasks that the end of the run cut":
            "--sessions fixed:turns=4,think=10s --duration 30s --rate 4 --slo task=60",
        "rows of a trace that are not sent": "--trace holes.csv",
        "rows before the start are none of them": "--trace holes.csv --start 100s",
    }  # fmt: skip
    run = "run --backend sim --latency abc:distserve --quiet --no-html --force --out out"
    transcript("honesty.txt", {reason: f"{run} {options}" for reason, options in lines.items()})


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ((), "capacity"),
        (("--arrivals", "poisson:3"), "capacity"),
        (("--trace", "quiet_then_busy.csv", "--duration", "20s"), "run"),
        (("--trace", "quiet_then_busy.csv", "--duration", "20s", *TIGHT), "capacity"),
        (("--trace", "quiet_then_busy.csv", "--scale", "compress:2", *TIGHT), None),
        (("--workload", "deck-slots"), "run"),
        (("--workload", "deck-slots", *TIGHT), None),
        (("--arrivals", "closed:users=3"), None),
    ],
)
@pytest.mark.usefixtures("trace")
def test_the_next_step_can_be_taken(options: tuple[str, ...], command: str | None, sim: Sim) -> None:
    """A user would be advised a command that is refused, such as a search where no rate can be changed."""
    limited = ("--requests", "20") if not {"--trace", "--workload"} & set(options) else ()
    _, _, text = sim(*options, *limited)
    words = shlex.split(text.rpartition(": bench ")[2] if " next " in text else "")
    if words[:1] == ["capacity"]:
        words += ["--max-requests", "100", "--workers", "1", "--quiet"]

    assert command == (words[0] if words else None)
    assert not words or main(words) in (0, 1, 5)


def test_a_killed_run_is_scored_under_the_slo_of_its_preset(sim: Sim) -> None:
    """The SLO of a preset would be lost with the end of the run: every request would seem to keep it."""
    _, found, _ = sim("--rate", "100", "--requests", "200", "--goal", "0.8")
    path = Path("out/run.json")
    unfinished = {k: found[k] for k in ("schema", "spec", "clock", "workload", "slo", "schedule")}
    path.write_text(json.dumps({**unfinished, "state": "running"}), encoding="utf-8")
    again = completed(load("out")).info.summary

    assert "ttft=0.25,tpot=0.1" == found["slo"]["text"] == again.slo
    assert (found["summary"]["attainment"], 0.8) == (again.attainment, again.goal)
    assert again.attainment < 0.5


def test_a_killed_run_with_sessions_is_not_held_to_the_rate_of_its_requests(sim: Sim) -> None:
    """Sessions begin at a fraction of the rate of requests: a good schedule would be called far from its rate."""
    _, found, _ = sim("--sessions", "fixed:turns=4,think=1s", "--rate", "40", "--requests", "1000")
    path = Path("out/run.json")
    unfinished = {k: found[k] for k in ("schema", "spec", "clock", "workload", "slo", "schedule")}
    path.write_text(json.dumps({**unfinished, "state": "running"}), encoding="utf-8")
    again = completed(load("out")).info

    assert 10.0 == found["fidelity"]["requested_rps"] == again.fidelity.requested_rps
    assert "drawn-rate" not in {w.code for w in again.warnings}


@pytest.mark.parametrize("think", ["400s", "1s"])
def test_a_run_has_the_rate_of_its_requests_whatever_its_sessions_last(sim: Sim, think: str) -> None:
    """Half of the requested rate would be sent: sessions that began go on after the end, and none began before."""
    _, found, _ = sim("--sessions", f"fixed:turns=4,think={think}", "--rate", "4", "--duration", "150s", *SHORT)

    assert pytest.approx(4.0, rel=0.1) == found["fidelity"]["all"]["rps"]
    assert "sessions-cut" not in {w["code"] for w in found["warnings"]}


def test_a_killed_run_whose_rate_changes_is_not_held_to_its_mean(sim: Sim) -> None:
    """What the rate should have been is gone with the workload: a ramp would be reported to have another rate."""
    _, found, _ = sim("--arrivals", "ramp:from_rps=2,to_rps=40,over_s=600", "--requests", "1000")
    path = Path("out/run.json")
    unfinished = {k: found[k] for k in ("schema", "spec", "clock", "workload", "slo", "schedule")}
    path.write_text(json.dumps({**unfinished, "state": "running"}), encoding="utf-8")

    assert "drawn-rate" not in {w.code for w in completed(load("out")).info.warnings}


def test_follow_ups_that_no_answer_set_free_are_counted_as_not_sent(sim: Sim) -> None:
    """An interrupted run of users would say that all but a few of its requests had been sent."""
    _, found, _ = sim("--arrivals", "closed:users=4,think=1s", "--duration", "20s")

    assert 0 < found["fidelity"]["follow_ups"]["not_sent"] == found["outcome"]["not_sent"]


def test_requests_given_up_after_the_drain_are_reported_with_what_helps(sim: Sim, trace: str) -> None:
    """A server that swallows requests would look like a fast one with a few failures."""
    slow = ("--requests", "3", "--drain", "50ms")
    _, drawn, _ = sim("--rate", "1000", *slow, backend="null:ttft=1h")
    _, replayed, _ = sim("--trace", trace, "--start", "100s", *slow, backend="null:ttft=1h")
    warnings = {name: _warning(found, "cut") for name, found in (("drawn", drawn), ("replayed", replayed))}

    assert warnings["drawn"]["message"].startswith("3 requests had no end 0.05 s after the last one had left")
    assert "wait longer with --drain, or lower --rate" == warnings["drawn"]["remedy"]
    assert warnings["replayed"]["remedy"].endswith("replay a quieter part of the trace (--start, --stop)")
    assert {"timeout": 3} == {k: n for k, n in drawn["summary"]["status"].items() if n}


def test_no_advice_tells_users_of_a_closed_loop_to_lower_the_rate(sim: Sim) -> None:
    """--rate is refused with closed arrivals: the advice of the warning would end in an error."""
    users = ("--arrivals", "closed:users=3,think_s=1", "--requests", "3", "--drain", "50ms")
    _, found, _ = sim(*users, backend="null:ttft=1h")

    assert (
        "wait longer with --drain, or take fewer users (--arrivals closed:users=N)" == _warning(found, "cut")["remedy"]
    )
    assert not any("--rate" in warning["remedy"] for warning in found["warnings"])


def test_answered_turns_of_a_trace_without_conversations_are_refused(sim: Sim, trace: str) -> None:
    """A user would believe that turns waited for their answers."""
    with pytest.raises(FileNotFoundError):
        sim("--trace", trace, "--turns", "answered")


def test_requests_longer_than_the_context_are_not_valid_unless_it_is_set(sim: Sim) -> None:
    """OPT-13B knows 2,048 tokens; a simulation of 8,000 would be quoted as its speed."""
    traffic = ("--rate", "0.1", "--requests", "5", "--lengths")
    code, long, text = sim(*traffic, "fixed:prompt=4000,output=10")
    fits, short, _ = sim(*traffic, "fixed:prompt=2000,output=48")
    wanted, same, _ = sim("--backend", "sim:max_model_len=4010", *traffic, "fixed:prompt=4000,output=10")
    reason = (
        "5 of 5 requests are longer than the context of opt-13b (2,048 tokens; the longest has 4,010), and a server "
        "would refuse them. Remedy: limit --lengths, take a --model with a longer context, or ask for it with "
        "--backend sim:max_model_len=4010."
    )

    assert (4, 0, 0) == (code, fits, wanted)
    assert [reason] == long["verdict"]["reasons"]
    assert "longer than the context of opt-13b" in text
    assert [True, True] == [short["verdict"]["valid"], same["verdict"]["valid"]]
    assert 4010 == same["backend"]["max_tokens"]


def test_requests_longer_than_the_context_of_the_engine_are_not_valid(sim: Sim) -> None:
    """They are rejected, and would count as load."""
    code, found, _ = sim("--lengths", "fixed:prompt=16384,output=2", "--requests", "2", "--rate", "5", backend="engine")

    assert 4 == code
    assert ["rejected"] == [status for status, count in found["summary"]["status"].items() if count]
    assert "sim:max_model_len" not in found["verdict"]["reasons"][-1]
    assert any(
        "2 of 2 requests are longer than the context of seeded-llama-0" in r for r in found["verdict"]["reasons"]
    )


def test_a_search_refuses_requests_longer_than_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be the capacity of a model that there is not, and the sweep that checks it would not be valid."""
    lengths = ["--lengths", "fixed:prompt=4000,output=10", "--slo", "ttft=5", "--at", "0.1", "--workers", "1"]

    assert 4 == main(["capacity", "--backend", "sim", *lengths])
    assert "100 of 100 requests are longer than the context of opt-13b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bounds", "remedies"),
    [
        ("ttft=250", ["write ttft=250ms if that was meant"]),
        ("P99:tpot=61,e2e=5000", ["write p99:tpot=61ms if that was meant", "write e2e=5000ms if that was meant"]),
        ("ttft=60,e2e=600,task=7200", []),
        ("tpot=50us", ["write tpot=50ms if that was meant"]),
        ("ttft=0.0005", []),
        ("ttfb=250", []),
    ],
)
def test_a_bound_in_another_unit_is_questioned(bounds: str, remedies: list[str]) -> None:
    """`--slo ttft=250` was meant in milliseconds: everything would be within the SLO."""
    assert remedies == [warning.remedy for warning in doubtful_text(bounds)]


def test_every_command_that_takes_an_slo_questions_its_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search of an hour would end in a rate that no server limits."""
    ctx = click.Context(_commands.bench)
    commands = {name: _commands.bench.get_command(ctx, name) for name in _commands.COMMANDS}
    taking = {n: p.type for n, c in commands.items() for p in (c.params if c else ()) if "--slo" in p.opts}
    (tmp_path / "bench.toml").write_text('slo = "ttft=250"\nbackend = "sim"\nrequests = 5\n')
    line = ["run", "--config", str(tmp_path / "bench.toml"), "--out", str(tmp_path / "run"), "--no-html"]
    main(line)

    assert {"run", "sweep", "capacity", "compare", "slo", "quick", "place", "agents", "validate"} == set(taking)
    assert {BOUNDS} == set(taking.values())
    assert 1 == capsys.readouterr().err.count("the bound ttft=250 is 250 s; write ttft=250ms if that was meant")
    with pytest.warns(UserWarning, match="write ttft=250ms if that was meant"):
        harness.run(backend="sim", requests=5, slo="ttft=250", out=tmp_path / "api")


def test_rows_before_the_start_are_no_loss() -> None:
    """Users of the second hour of a trace would be warned about the first."""
    assert traces.BEFORE == BEFORE


def _warning(found: dict[str, Any], code: str) -> dict[str, str]:
    one: dict[str, str] = next(w for w in found["warnings"] if w["code"] == code)
    return one


def test_a_trace_in_real_time_is_not_replayed_for_a_day(trace: str) -> None:
    """`bench run --trace FILE` would run as long as the recording, without stating it."""
    wall = plan(run_spec(Given({"trace": trace, "backend": "null"})))
    virtual = plan(run_spec(Given({"trace": trace, "backend": "sim"})))

    assert (60.0, 60) == (wall.spec.duration, len(wall.schedule))
    assert (None, 1100) == (virtual.spec.duration, len(virtual.schedule))
    assert "the first 60 s of the trace (--duration changes that)" in opening(wall)


@pytest.mark.parametrize("form", ["--trace quiet.csv", "--arrivals trace:quiet.csv", "--arrivals trace:path=quiet.csv"])
def test_a_replay_is_repeated_from_another_folder(
    form: str, sim: Sim, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bench run --config /elsewhere/run.json` would look for the trace where the shell stands."""
    Path(trace).rename(tmp_path / "quiet.csv")
    _, first, _ = sim(*form.split(), "--requests", "10")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    code, again, _ = sim("--config", "../out/run.json")

    assert 0 == code
    assert first["schedule"]["sha256"] == again["schedule"]["sha256"]


def test_a_bound_for_a_class_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """`ttft@chat=2` of a trace of conversations would hold, whatever the system did."""
    trace = tmp_path / "burst.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    trace.write_text(f"{head}\n1,ChatGPT,10,5,15,Conversation log\n2,ChatGPT,10,5,15,API log\n", encoding="utf-8")
    given = {"trace": str(trace), "backend": "sim"}

    with pytest.raises(UsageError, match="no request to send is of class 'chat'; classes there: api, conversation"):
        plan(run_spec(Given({**given, "slo": "ttft@chat=2"})))
    assert 2 == len(plan(run_spec(Given({**given, "slo": "ttft@api=2"}))).schedule)


def test_a_run_json_without_bounds_falls_back_to_its_text() -> None:
    """A run of another tool that writes only the text would be scored without an SLO."""
    assert parse_slo("ttft=0.25", goal=0.8) == restored_slo(StoredSlo(text="ttft=0.25", goal=0.8))
    assert Slo() == restored_slo(StoredSlo())
