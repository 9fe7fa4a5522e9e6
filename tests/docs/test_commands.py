"""Every `bench` command of README and guides has the options that it shows, and so has the one that its result advises;
README's first run, all run nightly."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import click
import pytest

from harness.cli._commands import bench
from reports import _pictures

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", TOP / "docs" / "ci.md", *sorted((TOP / "docs" / "guide").glob("*.md"))]
SERVERS = TOP / "docs" / "guide" / "servers.md"
"""Recipes of servers that are not at hand: `bench serve` stands for them."""
SHORTER = (
    ("--budget 20min", "--budget 40s"), ("--duration 5min", "--duration 2s"), ("--duration 2min", "--duration 2s"),
    ("--metrics-port 9464", "--metrics-port 0"), ("bench quick --wait", "bench quick http://127.0.0.1:8000 --wait"),
    ("bench quick", "bench quick --budget 30s"), ("bench compare", "bench compare --pairs 3 --calibrate off"),
)  # fmt: skip
"""What is shorter in a test of the recipes, and where the usual ports are those of other programs."""
FIRST = 1
"""Console blocks of README that run in `make test`: what a newcomer types first."""
WHOLE_DEMO = "bench run --workload chatbot --slo ttft=0.25,tpot=0.1 --duration 10s"
REAL_TIME = re.compile(r"bench (run|compare --base|capacity --config) (?!.*(--(backend|base) sim|baselines/))")
"""Runs under the wall clock: not valid (exit code 4) where other programs make the client of this machine too late."""


def commands(page: Path, most: int | None = None) -> list[str]:
    """Lines that begin with `$ bench` in the console blocks of a page, of the first ones where `most` says so."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line[2:] for block in blocks[:most] for line in block.splitlines() if line.startswith("$ bench")]


def written(page: Path) -> tuple[list[str], list[str]]:
    """All commands of `bench` on a page: lines of its blocks of any kind, and those in the running text."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    blocks = re.compile(r"^```[a-z]*\n(.*?)^```|((?:^    .*\n)+)", re.DOTALL | re.MULTILINE)
    lines = [line.strip().removeprefix("$ ") for block in blocks.finditer(text) for line in block[0].splitlines()]
    inline = [" ".join(span.split()) for span in re.findall(r"(?<!`)`(bench [a-z][^`]*?)\\?`", blocks.sub("", text))]
    return [line for line in lines if line.startswith("bench ")], inline


def parse(line: str) -> None:
    """Read a line with the options of its command, which checks their values too; commands may be joined by && or |."""
    for part in re.split(r" (?:&&|\|) ", line.partition(" # ")[0].removesuffix("&")):
        words = shlex.split(re.sub(r" --config \S+", "", part))  # a file of the reader
        if not words or words[0] != "bench":
            continue
        command = bench.get_command(click.Context(bench), words[1])
        assert command is not None, line
        with suppress(click.exceptions.Exit):  # --help
            command.make_context(words[1], words[2:])


RUN = [(PAGES[0], FIRST), *(pytest.param(page, None, marks=pytest.mark.nightly) for page in PAGES if commands(page))]


def shortened(line: str) -> str:
    """The command with fewer requests where it would take long: `make demo` runs all of them."""
    if line == WHOLE_DEMO:
        return line.replace("10s", "2s")
    if line.startswith("bench capacity") and "--backend sim" in line:
        return f"{re.sub(' --max-requests [0-9]+', '', line)} --max-requests 2000 --workers 1"
    if not line.startswith("bench sweep"):
        return line
    return f"{re.sub(' --(requests|seeds) [0-9]+', '', line)} --requests 200 --seeds 2 --workers 1"


@contextmanager
def serving(line: str, folder: Path) -> Iterator[tuple[str, str]]:
    """A server in the background, on a free port: where the page says it is, and where it is."""
    arguments = shlex.split(line.removesuffix("&"))[1:]
    at = arguments.index("--port") + 1
    named, arguments[at] = arguments[at], "0"
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as server:  # fmt: skip
        try:
            port = server.stdout.readline().strip()
            assert port.isdigit(), line
            yield f":{named}/", f":{port}/"
            assert server.poll() is None, line
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=240) == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_have_known_options(page: Path) -> None:
    """A guide would show an option that was renamed, until the slow tests run."""
    lines, inline = written(page)
    for line in lines:
        parse(line)
    for line in inline:
        with suppress(click.MissingParameter, click.BadOptionUsage):  # the name of a command or option, without values
            parse(line)


@pytest.mark.nightly
def test_recipes_of_servers_work_against_a_server(tmp_path: Path) -> None:
    """A user of a real server would be the first to try them."""
    recipes = [line for line in written(SERVERS)[0] if line not in commands(SERVERS)]  # those are of the simulator
    ports = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", " ".join(recipes))) | {"8000"})
    with ExitStack() as servers:
        serve = "bench serve --backend null:ttft=0.02,itl=0.002 --port {}"
        moved = [servers.enter_context(serving(serve.format(port), tmp_path)) for port in ports]
        for line in recipes:
            for long, short in SHORTER:
                line = line.replace(long, short)
            for named, real in moved:
                line = re.sub(named[:-1] + r"\b", real[:-1], line)
            words = [sys.executable, "-m", "harness", *shlex.split(line)[1:]]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=400)
            assert done.returncode in (0, 1, 4, 5), f"{line}\n{done.stdout}\n{done.stderr}"


REFERENCES = ("architecture.md", "reports.md", "systems.md")


@pytest.mark.parametrize("page", [TOP / "docs" / name for name in REFERENCES], ids=lambda page: page.name)
def test_commands_of_a_reference_have_known_options(page: Path) -> None:
    """A settings table would name options that are gone."""
    test_commands_of_a_page_have_known_options(page)


@pytest.mark.parametrize(("page", "most"), RUN, ids=lambda page: getattr(page, "name", "some" if page else "all"))
def test_commands_of_a_page_run_in_order_and_so_do_those_they_advise(
    page: Path, most: int | None, tmp_path: Path, advised: Callable[[str], list[str]]
) -> None:
    """A newcomer's first command would fail, or the one that its result names as the next."""
    lines = commands(page, most)
    assert lines
    shutil.copytree(TOP / "baselines", tmp_path / "baselines")
    shutil.copytree(TOP / "docs" / "examples", tmp_path / "docs" / "examples")

    if _pictures.found() is None:  # what draws pictures
        lines = [line.replace(",png", "") for line in lines]

    with ExitStack() as servers:
        moved: dict[str, str] = {}
        for line in lines:
            if line.endswith("&"):
                moved |= dict([servers.enter_context(serving(line, tmp_path))])
                continue
            for named, real in moved.items():
                line = line.replace(named, real)
            done = run(shortened(line), tmp_path)
            for following in advised(done.stdout):
                if not REAL_TIME.match(following) and "trace download" not in following:
                    run(shortened(following), tmp_path)


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command that has ended as it should: a short search may have no answer, and none may be low enough."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", *shlex.split(line)[1:]],
        cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    good = (0, 4) if REAL_TIME.match(line) else (0, 5) if "--max-requests" in line else (0,)
    if line.startswith("bench capacity") and "no rate is low enough" in done.stdout:
        good = (1,)
    assert done.returncode in good, f"{line}\n{done.stdout}\n{done.stderr}"
    return done


def test_readme_shows_the_two_commands() -> None:
    """A newcomer would not know how to begin."""
    text = (TOP / "README.md").read_text(encoding="utf-8")

    assert "make demo" in text
    assert "make test" in text
