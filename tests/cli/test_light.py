"""The command line starts fast because it imports late."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.api import Request
from harness.cli import _commands
from harness.data.records import scheduled_table
from harness.data.schedule import Schedule, digest

HEAVY = {"numpy", "pandas", "pyarrow", "plotly", "scipy", "aiohttp", "asyncio", "rich", "workloads", "backends"}
PROBE = """
import json, resource, sys
from harness.cli import main
code = main({arguments})
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, sorted(sys.modules), usage.ru_utime + usage.ru_stime]), file=sys.stderr)
"""


def test_help_loads_nothing_heavy() -> None:
    """Everybody would wait a second for a help text."""
    lines = [[], ["--version"], ["--help"], ["trace"], *([name, "--help"] for name in _commands.COMMANDS)]
    lines += [["trace", name, "--help"] for name in ("info", "check", "convert", "fit", "generate", "download")]
    source = f"""
import json, sys
from harness.cli import main
ends = [(line, main(line), sorted({HEAVY} & set(sys.modules))) for line in {lines}]
print(json.dumps(ends), file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert [[line, 0, []] for line in lines] == json.loads(done.stderr)


LATE = {
    "aiohttp", "asyncio", "jinja2", "multiprocessing", "narwhals", "pandas", "plotly", "prometheus_client", "rich",
    "scipy",
}  # fmt: skip
"""What takes long to load, and is loaded only where it is used."""
SIM = ("--backend", "sim", "--latency", "linear:base_s=0.1", "--workers", "1")
SEARCH = (
    "--lengths",
    "fixed:prompt=8,output=1",
    "--policy",
    "static:batch=1",
    "--slo",
    "ttft=0.3",
    "--tolerance",
    "50%",
)


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        (("run", "--backend", "sim", "--requests", "150"), {"jinja2", "rich"}),
        (("run", "--backend", "null", "--requests", "3", "--rate", "50", "--no-html"), {"asyncio", "rich"}),
        (("sweep", *SIM, "--rate", "1|2", "--requests", "5", "--seeds", "1"), {"jinja2", "multiprocessing", "rich"}),
        pytest.param(("capacity", *SIM, *SEARCH), {"jinja2", "multiprocessing", "rich"}, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_a_command_loads_what_it_uses(command: tuple[str, ...], loaded: set[str], tmp_path: Path) -> None:
    """The rest would take more time than a short run."""
    source = PROBE.format(arguments=[*command, "--out", "o"])
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True)
    code, modules, _ = json.loads(done.stderr.splitlines()[-1])

    assert (0, loaded) == (code, LATE & set(modules))


def test_a_sender_loads_what_it_uses_and_pyarrow_takes_pandas_later(tmp_path: Path) -> None:
    """A run would wait for dozens of senders; but the frame of a plug-in must become a table."""
    table = scheduled_table([Request(0, 0.5, 8, 4)])
    Schedule(table, digest(table)).save(tmp_path / "schedule.parquet")
    source = f"""
import sys
from harness.runner.remote import sender, split
from backends import openai
schedule = sender.Schedule.received({str(tmp_path / "schedule.parquet")!r})
print(*schedule.planned(), split.requests_rps(schedule, 1.0), file=sys.stderr)
print(*sys.modules)
import pandas, pyarrow
assert pyarrow.array(pandas.Series(["a", None])).null_count == 1
assert pandas.__spec__.loader is pandas.__loader__ and "SourceFileLoader" in repr(pandas.__loader__)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert {"asyncio"} == (LATE | {"pyarrow.compute"}) & set(done.stdout.split())


def test_a_run_judges_and_searches_without_scipy() -> None:
    """A command that starts in half a second would take one with a module that it needs at its end alone."""
    top = Path(__file__).parents[2]
    files = [*(top / "harness").rglob("*.py"), *(top / "reports").rglob("*.py")]
    named = {str(f.relative_to(top)) for f in files if re.search(r"^ *(from|import) scipy", f.read_text("utf-8"), re.M)}

    assert {"harness/experiments/fit/solve.py", "harness/stats/paired.py"} == named


def test_help_names_every_command() -> None:
    """A command that the help does not name is never found."""
    done = subprocess.run([sys.executable, "-m", "harness", "--help"], capture_output=True, text=True, check=True)
    headings = [line.removesuffix(":") for line in done.stdout.splitlines() if line.endswith(":") and line[0] != " "]

    assert ["Usage", "Options", *_commands.GROUPS][-len(_commands.GROUPS) :] == headings[-len(_commands.GROUPS) :]
    for command in _commands.COMMANDS:
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize(
    ("command", "shown", "hidden"),
    [
        ("run", {"workload", "slo", "backend", "wait", "out"}, {"jitter", "senders", "turns", "metrics-port"}),
        ("compare", {"gate", "base", "head", "export"}, {"jitter", "senders", "turns"}),
        ("capacity", {"goal", "tolerance", "max-requests"}, {"jitter", "metrics-port"}),
    ],
)
def test_help_shows_what_most_users_need_and_help_all_the_rest(
    command: str, shown: set[str], hidden: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixty options hid the dozen that a newcomer needs."""
    options = []
    for words in ("--help", "--help-all"):
        assert 0 == _commands.run([command, words])
        options.append(set(re.findall(r"^  (?:-h, )?--([a-z-]+)", capsys.readouterr().out, re.MULTILINE)))
    short, every = options

    assert shown <= short
    assert hidden.isdisjoint(short)
    assert shown | hidden <= every
    assert 2 * len(short) < len(every) + 5


@pytest.mark.parametrize(
    ("line", "completions"),
    [("bench sw", ["sweep"]), ("bench run --metrics", ["--metrics-port"]), ("bench nothing --a", [])],
)
def test_a_shell_completes_commands_and_options(
    line: str, completions: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Tab key wrote nothing: click answers a shell in its own `main`, which is not called."""
    words = {"_BENCH_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/bench"])
    code = _commands.run(None)

    assert (0, [f"plain,{word}" for word in completions]) == (code, capsys.readouterr().out.split())
