"""A sweep that is killed, stopped or resumed: nothing is lost, nothing is mixed."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from harness.data.storage import write_json

Bench = Callable[..., "Popen[str]"]
WaitFor = Callable[[Callable[[], bool]], None]
Sweep = Callable[..., dict[str, Any]]
Refused = Callable[..., str]

TWO = ("--rate", "1,3", "--requests", "100")
MANY = (
    "sweep", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--rate", "1,2,3",
    "--requests", "300", "--seeds", "2", "--workers", "2",
)  # fmt: skip


def ended(out: Path) -> list[Path]:
    """The runs of a sweep that have their verdict."""
    return [file for file in out.glob("points/*/*/run.json") if '"verdict"' in file.read_text()]


def changed(files: list[Path]) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in files}


@pytest.mark.nightly
def test_killed_sweep_goes_on_to_the_same_bytes(bench: Bench, tmp_path: Path, wait_for: WaitFor) -> None:
    """A night of runs would be lost to a kill, or its answer would depend on where the kill fell."""
    undisturbed = bench(*MANY, "--out", "whole")
    printed = undisturbed.communicate()[0]
    out = tmp_path / "killed"
    victim = bench(*MANY, "--out", "killed")
    wait_for(lambda: len(ended(out)) >= 3)
    victim.kill()
    victim.communicate()
    kept = changed(ended(out))

    again = bench(*MANY, "--out", "killed")

    assert printed == again.communicate()[0]
    assert 0 == undisturbed.returncode == again.returncode
    assert kept.items() <= changed(ended(out)).items()  # what had ended was not made again
    assert (tmp_path / "whole" / "sweep.json").read_bytes() == (out / "sweep.json").read_bytes()


def test_workers_end_with_a_killed_sweep(bench: Bench, tmp_path: Path, wait_for: WaitFor) -> None:
    """Orphans would still write into the folder of the resumed sweep."""
    endless = ("--rate", "1,2", "--requests", "300000", "--seeds", "1", "--workers", "2", "--out", "s")
    victim = bench("sweep", "--backend", "sim", *endless)
    wait_for(lambda: len(list((tmp_path / "s").glob("points/*/*/requests.arrows"))) == 2)
    workers = children(victim.pid)

    victim.kill()
    victim.communicate()

    assert workers
    wait_for(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.nightly
def test_ctrl_c_answers_with_what_is_there(bench: Bench, tmp_path: Path, wait_for: WaitFor) -> None:
    """Who has seen enough would get nothing."""
    process = bench(*MANY, "--seeds", "40", "--out", "s")  # far more than can end before the signal comes
    wait_for(lambda: len(ended(tmp_path / "s")) >= 3)
    process.send_signal(signal.SIGINT)
    printed = process.communicate()[0]
    info = json.loads((tmp_path / "s" / "sweep.json").read_text())

    assert 5 == process.returncode == info["exit_code"]
    assert "interrupted" == info["state"]
    assert 3 <= info["runs"]["done"] < info["runs"]["planned"]
    assert "goes on from there" in printed


def test_ctrl_c_in_real_time_keeps_the_runs_before(bench: Bench, tmp_path: Path, wait_for: WaitFor) -> None:
    """The run under way would count although half of it was never sent."""
    process = bench("sweep", "--backend", "null", "--rate", "50,2", "--requests", "60", "--seeds", "1", "--out", "s")
    wait_for(lambda: (tmp_path / "s" / "points" / "rate=2" / "seed-0" / "requests.arrows").exists())
    process.send_signal(signal.SIGINT)
    process.communicate()
    info = json.loads((tmp_path / "s" / "sweep.json").read_text())

    assert "interrupted" == info["state"]
    assert process.returncode in (4, 5)  # 4: a busy machine sent late, so that the run before is not valid
    assert [{"rate": 50}] == [point["values"] for point in info["points"]]


def test_half_written_runs_are_made_again(sweep: Sweep, tmp_path: Path) -> None:
    """A kill at an unlucky moment would leave a folder that no command gets past."""
    whole = sweep(*TWO, "--seeds", "2")
    runs = sorted((tmp_path / "sweep").glob("points/*/*"))
    for run in runs[:2]:
        shutil.rmtree(run)
    runs[0].mkdir()
    (runs[0] / "requests.arrows").touch()
    (runs[0] / "run.json.part").write_text("{")
    running, unconcluded = (json.loads((run / "run.json").read_text()) for run in runs[2:])
    write_json(runs[2] / "run.json", running | {"state": "running"})
    del unconcluded["verdict"]
    write_json(runs[3] / "run.json", unconcluded)

    again = sweep(*TWO, "--seeds", "2")

    assert whole == again


def test_values_and_seeds_may_be_added(sweep: Sweep, tmp_path: Path) -> None:
    """More certainty, or one more point, would cost the whole sweep again."""
    sweep(*TWO, "--seeds", "1")
    before = changed(ended(tmp_path / "sweep"))

    info = sweep("--rate", "1,2,3", "--requests", "100", "--seeds", "2")

    assert before.items() <= changed(ended(tmp_path / "sweep")).items()
    assert (6, 6) == (info["runs"]["planned"], info["runs"]["done"])


def test_goal_may_change(sweep: Sweep) -> None:
    """A question about stored runs would need new ones."""
    sweep(*TWO, "--seeds", "1")

    assert [0.5] == sweep(*TWO, "--seeds", "1", "--goal", "0.5")["goals"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "1,3", "--requests", "150", "--seeds", "1"), "with --requests '100', not '150'"),
        (
            ("--rate", "1,3", "--requests", "100", "--seeds", "1", "--replicas", "2"),
            "with --replicas not given, not '2'",
        ),
        (("--rate", "1,2", "--requests", "100", "--seeds", "1"), "with rate 3 too"),
        (("--rate", "1,3", "--requests", "100", "--seeds", "1,2"), "with seeds 0 too"),
        ((*TWO, "--seeds", "1", "--over", "tp=1,2"), "with axes 'rate', not 'rate, tp'"),
    ],
)
def test_another_sweep_in_the_folder_is_refused(
    sweep: Sweep, refused: Refused, arguments: tuple[str, ...], message: str
) -> None:
    """Points of two different systems would stand in one curve."""
    sweep(*TWO, "--seeds", "1")

    assert message in refused("--latency", "abc:distserve", "--policy", "vllm-v0", *arguments)


def test_other_versions_are_refused(sweep: Sweep, refused: Refused, tmp_path: Path) -> None:
    """A curve would be half of one simulator and half of another."""
    sweep(*TWO, "--seeds", "1")
    file = tmp_path / "sweep" / "sweep.json"
    info = json.loads(file.read_text())
    write_json(file, info | {"versions": {**info["versions"], "numpy": "1.0"}})

    message = refused("--latency", "abc:distserve", "--policy", "vllm-v0", *TWO, "--seeds", "1")

    assert "with the version of numpy '1.0', not" in message


@pytest.mark.parametrize(("text", "message"), [("{", "cannot be read"), ("{}", "was not written by 'bench sweep'")])
def test_broken_plan_is_an_error(refused: Refused, tmp_path: Path, text: str, message: str) -> None:
    """Runs would be added to an unknown sweep."""
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text(text)

    assert message in refused(*TWO)


def test_file_is_no_folder(refused: Refused, tmp_path: Path) -> None:
    """A sweep would end in a traceback after it was planned."""
    (tmp_path / "sweep").touch()

    assert "is a file; --out names a folder" in refused(*TWO)
    assert "cannot be made" in refused(*TWO, out="sweep/below")


def test_foreign_folder_is_left_alone(refused: Refused, tmp_path: Path) -> None:
    """Other files of the user would be mixed with runs."""
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "thesis.tex").touch()

    assert "holds 'thesis.tex', which is no part of a sweep" in refused(*TWO)
    assert ["thesis.tex"] == [file.name for file in (tmp_path / "sweep").iterdir()]


def test_two_sweeps_do_not_share_a_folder(refused: Refused, tmp_path: Path) -> None:
    """Each would take the half-written runs of the other for its own."""
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "sweep").mkdir()
    handle = os.open(tmp_path / "sweep", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)

    message = refused(*TWO)
    os.close(handle)

    assert "is being written by another sweep" in message


def children(pid: int) -> list[int]:
    """Processes below `pid`, through those in between (the server that forks workers)."""
    table = {int(p.name): parent(p) for p in Path("/proc").iterdir() if p.name.isdecimal()}
    found = [pid]
    for one in found:
        found += [child for child, above in table.items() if above == one]
    return found[1:]


def parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
