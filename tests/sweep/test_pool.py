"""The pool of trials: every item has its answer, and no worker outlives the command."""

import importlib.util
import os
import resource
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

import harness
from harness.cli import main
from harness.errors import Crashed, UsageError
from harness.experiments import pool


def squared(number: int) -> int:
    return number * number


def refused(number: int) -> int:
    raise UsageError(f"{number} is refused.")


def killed(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def ended_with_1(_: int) -> int:
    os._exit(1)


def killed_once(file: str) -> str:
    if not Path(file).exists():
        Path(file).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return file


def endless(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


@pytest.mark.nightly
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'goodput-bench[ray]'"
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_search_on_ray_is_that_of_this_machine_and_survives_a_worker(tmp_path: Path) -> None:
    """A node that is lost would change the capacity, or end the search."""
    options = {"backend": "sim", "latency": "abc:distserve", "tolerance": "30%", "max_requests": 9000, "horizon": "60s"}
    with pool.of(2, "ray") as cluster:
        assert [str(tmp_path / "mark")] == [answer for _, answer in cluster.map(killed_once, [str(tmp_path / "mark")])]
        found = [harness.capacity(**options, workers=2, pool=name).answer.answers for name in ("ray", "processes")]

    assert found[0] == found[1]


@pytest.mark.parametrize("command", ["capacity", "sweep --rate 1", "agents --workload coding-agent"])
def test_a_pool_is_for_simulated_trials(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server would be measured from another machine than the one that asks."""
    line = [*command.split(), "--backend", "null", "--pool", "ray", "--quiet", "--out", str(tmp_path / "out")]

    assert 2 == main(line)
    assert "--pool ray is for simulated trials" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_has_its_answer(workers: int) -> None:
    """A trial would be counted under another rate."""
    with pool.of(workers) as made:
        found = dict(made.map(squared, range(10)))

    assert {number: number**2 for number in range(10)} == found


def test_error_of_a_trial_comes_through_as_it_is() -> None:
    """A wrong option would end in a traceback with exit code 1 instead of one sentence with 2."""
    with pytest.raises(UsageError, match=r"^3 is refused\.$"), pool.Processes(2) as made:
        list(made.map(refused, [3]))


def test_killed_worker_is_reported() -> None:
    """A worker that ran out of memory would leave the command waiting for ever."""
    with pytest.raises(Crashed, match="fewer --workers"), pool.Processes(2) as made:
        list(made.map(killed, [1]))


def test_worker_that_ends_with_1_does_not_end_the_command_with_1() -> None:
    """A library of C that calls exit(1) would pass for a bound that failed."""
    with pytest.raises(Crashed) as caught, pool.Processes(2) as made:
        list(made.map(ended_with_1, [1]))

    assert 70 == caught.value.exit_code


def test_server_of_the_workers_is_deaf_to_ctrl_c() -> None:
    """Ctrl-C in the first second would print the traceback of a process that the user never started."""
    with pool.Processes(2):
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # there is no other way to it
        status = Path(f"/proc/{server}/status").read_text()

    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) & 1 << signal.SIGINT - 1


def test_ctrl_c_does_not_tear_the_start_of_a_worker() -> None:
    """A worker that cannot be started would end in a traceback, long after the command."""
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        started(done)

    assert ["started"] == done


def started(done: list[str]) -> None:
    """Ctrl-C while a worker is started."""
    with pool._signals_later():
        signal.raise_signal(signal.SIGINT)
        done.append("started")


def interrupted(file: Path) -> None:
    """Ctrl-C while a trial is under way."""
    with pool.Processes(2) as made:
        made._executor.submit(endless, str(file))
        while not file.exists() or not file.read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt


def test_error_ends_trials_under_way(tmp_path: Path) -> None:
    """Ctrl-C would wait for the longest trial."""
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "pid")

    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_what_runs_at_the_end_of_the_budget_is_cut(tmp_path: Path) -> None:
    """A placement with --budget 5s waited 57 s for what had begun."""
    with pool.Processes(2) as made:
        assert [] == list(made.map(endless, [str(tmp_path / "pid")], time.monotonic() + 1.0))

    pid = tmp_path / "pid"
    assert not pid.exists() or not Path(f"/proc/{pid.read_text()}").exists()


def test_too_few_files_are_a_sentence(tmp_path: Path) -> None:
    """Python's own server of processes would print a traceback when the connection to it cannot be made."""
    command = [sys.executable, "-m", "harness", "capacity", "--backend", "sim", "--latency", "abc:distserve", "--slo",
               "ttft=0.2", "--workers", "2", "--out", str(tmp_path / "out")]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)),
    )  # fmt: skip

    assert 3 == done.returncode
    assert "bench: the operating system refused: Too many open files.\n" == done.stderr[-58:]
    assert "Traceback" not in done.stderr


def test_one_worker_is_a_process_where_calls_are_cut(tmp_path: Path) -> None:
    """A placement with one worker went on for as long as its last deployment took, whatever its budget."""
    with pool.of(1, cuts=True) as processes:
        assert [] == [*processes.map(endless, [str(tmp_path / "pid")], time.monotonic() + 1)]
