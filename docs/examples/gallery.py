"""Writes a page of every kind of report, from small seeded runs, with an index: `make gallery`.

    python docs/examples/gallery.py FOLDER

FOLDER must not exist; open FOLDER/index.html. Links are relative, so the folder can be copied.
"""

import contextlib
import io
import json
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pyarrow import parquet

from harness.cli import main
from reports.document import Cell, Document, Finding, Section, Table, html

HERE = Path(__file__).resolve().parent
FOREIGN = HERE.parents[1] / "tests" / "golden" / "results" / "vllm-detailed.json"
BEGUN = ("schema", "spec", "command", "versions", "host", "clock", "started", "workload", "backend", "slo", "schedule")
"""Keys of run.json while a run is in progress."""
GOOD = (0, 1, 5)
"""Exit codes: a step in a series and a comparison that finds a loss are results too."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the gallery: what it shows, its file, and the commands that write it, one per line."""

    title: str
    shows: str
    file: str
    commands: str


def make(folder: Path) -> None:
    """Write all pages and their index to a new `folder`. Raises SystemExit if a command fails."""
    described = tomllib.loads((HERE / "gallery.toml").read_text(encoding="utf-8"))["page"]
    found = [Page(**one) for one in described]
    folder.mkdir(parents=True)
    with contextlib.chdir(folder):
        shutil.copy(FOREIGN, "vllm.json")
        for page in found:
            if page.file.startswith("killed/"):
                _kill(Path("run"), Path("killed"))
            for command in page.commands.strip().splitlines():
                _execute(command)
        Path("index.html").write_text(html.render(_index(found)), encoding="utf-8")


def _execute(command: str) -> None:
    sys.argv = shlex.split(command)  # run.json stores it as the command of the run
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as printed:
        code = main(sys.argv[1:])
    if code not in GOOD:
        raise SystemExit(f"{command}: exit code {code}: {printed.getvalue()}")


def _kill(run: Path, killed: Path) -> None:
    """A copy of a run as after a kill: three fifths of the rows, and no results in run.json."""
    shutil.copytree(run, killed)
    (killed / "report.html").unlink()
    requests = parquet.read_table(killed / "requests.parquet")
    parquet.write_table(requests.slice(0, len(requests) * 3 // 5), killed / "requests.parquet")
    info = json.loads((killed / "run.json").read_text(encoding="utf-8"))
    begun = {key: info[key] for key in BEGUN}
    (killed / "run.json").write_text(json.dumps({**begun, "state": "running"}), encoding="utf-8")


def _index(found: list[Page]) -> Document:
    rows = tuple((Cell(page.title, link=page.file), page.shows) for page in found)
    table = Table("Pages", ("page", "what it shows"), rows, left=2)
    return Document(
        title="Reports of bench",
        subtitle="One page of every kind, from small seeded runs of the simulator",
        mark="GALLERY",
        good=None,
        findings=(Finding(f"{len(found)} pages, each one file that opens without a network."),),
        sections=(Section("pages", "Pages", (table,)),),
        commands=tuple(line for page in found for line in page.commands.strip().splitlines()),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        raise SystemExit("usage: python docs/examples/gallery.py FOLDER, a folder that does not exist yet")
    make(Path(sys.argv[1]))
