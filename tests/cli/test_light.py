"""The command line starts fast because it imports late."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import _commands

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


def test_a_short_run_loads_neither_pandas_nor_plotly_nor_scipy_and_pyarrow_takes_pandas_later(tmp_path: Path) -> None:
    """They took more time than the run; but a plug-in's frame must become a table."""
    source = (
        PROBE.format(arguments=["run", "--backend", "sim", "--requests", "5", "--no-html"])
        + """
import pandas, pyarrow
assert pyarrow.array(pandas.Series(["a", None])).null_count == 1
assert pandas.__spec__.loader is pandas.__loader__ and "SourceFileLoader" in repr(pandas.__loader__)
"""
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True)
    code, modules, _ = json.loads(done.stderr.splitlines()[-1])

    assert code == 0
    assert {"pandas", "plotly", "scipy"}.isdisjoint(modules)


def test_a_sender_loads_nothing_that_it_does_not_need() -> None:
    """A run waits for its senders, and each pays for its imports again."""
    source = """
import sys, harness.runner.remote.sender as sender, backends.openai, workloads.content.text
from harness.data.schedule import SCHEDULE, Schedule
list(sender.share(Schedule(SCHEDULE.empty_table(), ""), 1, 2))
print(*sys.modules)"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert {"pandas", "plotly", "scipy", "rich", "aiohttp", "reports"}.isdisjoint(done.stdout.split())


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
