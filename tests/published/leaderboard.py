"""Scores this simulator and every public one that installs on the same rows of public measurements.

    python tests/published/leaderboard.py --rows 150                     a sample, printed
    python tests/published/leaderboard.py --out docs/leaderboard.md      all rows, into the page's tables

Rows are chosen before any error is known: all that `served.rows` yields and those of `--table`, repeated rows of one
setting as one with their median, or `--rows` of them drawn with the same seed, as many of each GPU, engine and model as
their share. A tool is a file in `tools`, with the requirements that are installed into an environment of its own, and a
function from a row to (TTFT, TPOT) in seconds or to the reason why it has none. Answers are stored in `--cache`, but
for those of bench.
"""

import argparse
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.errors import BenchError, UsageError, no_such
from published import served, sources
from published.form import needed
from published.served import Row

TOOLS = Path(__file__).resolve().parent / "tools"
CACHE = Path.home() / ".cache" / "bench-leaderboard"
OURS = "bench"
TIMES = ("ttft_s", "tpot_s")
BEGIN, END = "<!-- measured: {} -->", "<!-- end -->"
Answer = tuple[float, float] | str
FEWEST = 5
"""Rows of a GPU, engine and model from which on its medians are shown."""
REASONS = 6
"""The most frequent reasons of a tool that are shown."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a tool answers for each row by number, or why it does not; `version` as installed, CPU seconds of all."""

    version: str
    released: str
    answers: Mapping[int, Answer]
    cpu_s: float

    def logs(self, rows: Sequence[Row], where: Iterable[int]) -> np.ndarray:
        """(n, 2) ln of answered over measured TTFT and TPOT."""
        return np.array([np.log(np.divide(self.answers[i], (rows[i].ttft_s, rows[i].tpot_s))) for i in where])

    @property
    def answered(self) -> set[int]:
        """Numbers of the settings that it can express."""
        return {i for i, answer in self.answers.items() if not isinstance(answer, str)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="public measurements; default shared/data above this project")
    parser.add_argument("--tools", metavar="NAMES", help="some of them, with commas; default all files of tools")
    parser.add_argument(
        "--table", metavar="FILE.csv", type=Path, help="rows of your own instead: the columns of served.Row"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="so many settings drawn; default all")
    parser.add_argument("--cache", metavar="DIR", type=Path, default=CACHE, help="environments and answers of tools")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the tables into this page")
    given = parser.parse_args(arguments)
    known = sorted(path.stem for path in TOOLS.glob("[!_]*.py"))
    names = known if given.tools is None else given.tools.split(",")
    try:
        for name in set(names) - set(known):
            raise no_such("tool", name, known)
        if given.out is not None and not given.out.is_file():
            raise UsageError(
                f"--out names '{given.out}', which is no page; name one with marks, as docs/leaderboard.md."
            )
        if given.rows is not None and given.rows < 1:
            raise UsageError(f"--rows must be at least 1, got {given.rows}.")
        found, left_out = measured(given.data, given.table)
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    rows = drawn(folded(found), given.rows)
    scored = {name: score(TOOLS / f"{name}.py", rows, given.cache) for name in names}
    written = tables(rows, scored) | {"rows": policy(found, rows, left_out)}
    if given.out is None:
        print("\n\n".join(written.values()))
    else:
        given.out.write_text(filled(given.out.read_text(encoding="utf-8"), written), encoding="utf-8")
    return 0


def measured(folder: str | None, table: Path | None) -> tuple[list[Row], Mapping[str, int]]:
    """The rows, and what is left out of the public sources. Raises UsageError where there is neither."""
    if table is not None:
        return read(table), {}
    data = sources.data_folder(folder)
    if data is None:
        raise UsageError("The public measurements are not here; name their folder with --data DIR.")
    return served.rows(data)


def read(path: Path) -> list[Row]:
    """The rows of a table whose columns are the fields of `served.Row`; formats are `linear=fp8 kv=fp8`."""
    table = pd.read_csv(needed(path), dtype={"precision": str, "formats": str}, keep_default_na=False)
    names = set(Row.__dataclass_fields__) - {"source"}
    if missing := sorted(names - set(table)):
        raise UsageError(f"'{path}' has no column '{missing[0]}'; it needs {', '.join(sorted(names))}.")
    return [
        Row(**{name: line[name] for name in names if name != "formats"}, source=path.stem,
            formats=tuple(tuple(part.split("=")) for part in line["formats"].split()))
        for line in table.to_dict("records")
    ]  # fmt: skip


def folded(rows: Sequence[Row]) -> list[Row]:
    """One row for all of a setting, whose times are their medians."""
    same: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        same.setdefault((*row.setting, row.kind), []).append(row)
    medians = [
        [float(np.median([getattr(row, name) for row in several])) for name in TIMES] for several in same.values()
    ]
    return [
        replace(several[0], **dict(zip(TIMES, times, strict=True)))
        for several, times in zip(same.values(), medians, strict=True)
    ]


def group(row: Row) -> tuple[str, str, str, str]:
    """What rows are drawn by, and what medians are shown of; rows that name no precision are in BF16."""
    return row.gpu, row.engine, row.model, row.precision.replace("nan", "bf16")


def drawn(rows: Sequence[Row], count: int | None) -> list[Row]:
    """So many rows, spread over the groups by their share: every nth of all in order of group, shuffled within."""
    if count is None or count >= len(rows):
        return list(rows)
    shuffled = np.random.default_rng(0).permutation(len(rows))
    ordered = sorted(shuffled, key=lambda i: group(rows[i]))
    return [rows[ordered[int((i + 0.5) * len(rows) / count)]] for i in range(count)]


def score(path: Path, rows: Sequence[Row], cache: Path) -> Scored:
    """What the tool in a file answers for all rows; a tool that cannot be installed refuses all for that reason."""
    tool = _loaded(path)
    try:
        python, version = installed(path.stem, tool.REQUIREMENTS, cache)
    except subprocess.CalledProcessError as error:
        reason = f"is not installed: {str(error.stderr).strip().splitlines()[-1]}"
        return Scored("not installed", tool.RELEASED, dict.fromkeys(range(len(rows)), reason), 0.0)
    code = b"".join(file.read_bytes() for file in (path, *sorted(TOOLS.glob("_*.py"))))
    store = cache / f"{path.stem}-{hashlib.sha256(code + version.encode()).hexdigest()[:12]}.json"
    known: dict[str, list[Any]] = json.loads(store.read_text()) if store.exists() else {}
    queries = [json.dumps(described(row), sort_keys=True) for row in rows]
    missing = sorted({text for text in queries if text not in known})
    for text, answer in _answers(python, path, missing):
        known[text] = answer
        if tool.REQUIREMENTS and (len(known) % 20 == 0 or text == missing[-1]):
            store.parent.mkdir(parents=True, exist_ok=True)
            store.write_text(json.dumps(known))
    answers = {i: _checked(known[text][0]) for i, text in enumerate(queries)}
    return Scored(version, tool.RELEASED, answers, float(sum(known[text][1] for text in set(queries))))


def _checked(answer: Any) -> Answer:
    """The answer, which is a refusal too where it is no pair of positive numbers."""
    if isinstance(answer, str):
        return answer
    ttft_s, tpot_s = answer
    return (ttft_s, tpot_s) if ttft_s > 0 and tpot_s > 0 and np.isfinite([ttft_s, tpot_s]).all() else "no finite times"


def described(row: Row) -> dict[str, Any]:
    """What a tool may know of a row: all but its times; `step_tokens` is the limit of its server."""
    known = {name: value for name, value in asdict(row).items() if name not in TIMES}
    limit = re.search(r"(?:budget|chunk)=(\d+)", row.policy)
    assert limit is not None
    return known | {"step_tokens": int(limit[1])}


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_leaderboard_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(name: str, requirements: Sequence[str], cache: Path) -> tuple[str, str]:
    """The Python that has a tool, and its version. Raises CalledProcessError where pip cannot install it."""
    if not requirements:
        return sys.executable, "-"
    folder = cache / f"venv-{name}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / "installed").write_text("\n".join(requirements))
    return str(python), requirements[0].partition("==")[2]


def _answers(python: str, path: Path, texts: Sequence[str]) -> Iterable[tuple[str, list[Any]]]:
    """Each row with its answer and CPU seconds; a worker that ends is started anew for the next row."""
    command = [python, "-I", "-W", "ignore", str(TOOLS / "_worker.py"), str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    left, began_s = list(reversed(texts)), time.monotonic()
    while left:
        with subprocess.Popen(command, text=True, **pipes) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            line = "first"
            while line and left:
                text = left.pop()
                worker.stdin.write(text + "\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
                yield text, json.loads(line) if line else ["ended without an answer", 0.0]
                if len(left) % 100 == 0:
                    print(f"{path.stem}: {len(left)} rows left, {time.monotonic() - began_s:.0f} s", file=sys.stderr)


def errors(logs: np.ndarray) -> list[str]:
    """MAPE in percent, then median, 90th percentile and bias of ln, of TTFT and of TPOT."""
    cells = []
    for column in logs.T:
        mape = float(np.mean(np.abs(np.exp(column) - 1)))
        spread = np.abs(column)
        cells += [
            f"{mape:.1%}",
            f"{np.median(spread):.3f}",
            f"{np.quantile(spread, 0.9):.2f}",
            f"{np.median(column):+.2f}",
        ]
    return cells


ERRORS = ["TTFT: MAPE", "median", "p90", "bias", "TPOT: MAPE", "median", "p90", "bias"]


def markdown(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table; cells are cut of what would end them."""
    cells = [
        [str(cell).replace("|", "/").replace("\n", " ") for cell in line]
        for line in [head, ["---"] * len(head), *lines]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def tables(rows: Sequence[Row], scored: Mapping[str, Scored]) -> dict[str, str]:
    """The tables by name, in each the worst first."""
    able = {name: one for name, one in scored.items() if one.answered}
    counts = [(len(one.answered), len(rows) - len(one.answered), f"{one.cpu_s:.0f}") for one in scored.values()]
    lines = [
        [name, one.version, one.released, *count] for (name, one), count in zip(scored.items(), counts, strict=True)
    ]
    written = {"tools": markdown(["tool", "version", "released", "answered", "refused", "CPU seconds"], lines)}
    common = sorted(set.intersection(*(one.answered for one in able.values()))) if able else []
    if common:
        lines = [[name, *errors(logs)] for name, logs in worst({n: one.logs(rows, common) for n, one in able.items()})]
        written["all"] = f"Rows that {', '.join(able)} answer: {len(common)}.\n\n" + markdown(["tool", *ERRORS], lines)
    own = worst({name: one.logs(rows, sorted(one.answered)) for name, one in able.items()})
    written["own"] = markdown(["tool", "rows", *ERRORS], [[name, len(logs), *errors(logs)] for name, logs in own])
    if OURS in able:
        ours = scored[OURS]
        both = {name: sorted(one.answered & ours.answered) for name, one in able.items() if name != OURS}
        pairs = worst({name: able[name].logs(rows, where) for name, where in both.items() if where})
        lines, nearer = [], []
        for name, theirs in pairs:
            mine = ours.logs(rows, both[name])
            lines += [[f"{name}, {len(mine)} rows", *errors(theirs)], [f"{OURS}, the same rows", *errors(mine)]]
            nearer += _nearer(name, [rows[i] for i in both[name]], theirs, mine)
        written["pairs"] = markdown(["tool", *ERRORS], lines)
        head = ["GPU, engine, model, format", "rows", "what", "tool", "its median", f"median of {OURS}"]
        written["nearer"] = markdown(head, [line for _, line in sorted(nearer, key=lambda found: -found[0])])
    refused = {n: Counter(_short(a) for a in one.answers.values() if isinstance(a, str)) for n, one in scored.items()}
    lines = [[name, count, why] for name, reasons in refused.items() for why, count in reasons.most_common(REASONS)]
    written["refused"] = markdown(["tool", "rows", "reason"], lines)
    return written


def worst(logs: Mapping[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Tools by the sum of their median errors of TTFT and TPOT, the largest first."""
    return sorted(logs.items(), key=lambda one: -float(np.median(np.abs(one[1]), axis=0).sum()))


def _nearer(name: str, rows: Sequence[Row], theirs: np.ndarray, ours: np.ndarray) -> list[tuple[float, list[object]]]:
    """Groups of rows in which a tool's median error is the smaller one, with by how much."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(group(row), []).append(i)
    lines: list[tuple[float, list[object]]] = []
    for key, where in groups.items():
        if len(where) < FEWEST:
            continue
        for column, metric in enumerate(("TTFT", "TPOT")):
            other, own = (float(np.median(np.abs(logs[where, column]))) for logs in (theirs, ours))
            if other < own:
                lines.append((own - other, [", ".join(key), len(where), metric, name, f"{other:.3f}", f"{own:.3f}"]))
    return lines


def _short(reason: str) -> str:
    """A reason without the numbers and paths of a single row, and without its middle."""
    text = re.sub(r"/\S+|\[[^]]*\]|\{[^}]*\}", "...", " ".join(reason.split()))
    text = re.sub(r"[\d.]*\d", "N", text) if len(text) > 100 else text
    return text if len(text) <= 170 else f"{text[:60]} ... {text[-100:]}"


def policy(found: Sequence[Row], rows: Sequence[Row], left_out: Mapping[str, int]) -> str:
    """When this was measured, how many rows there were, how far repeated ones differ, and what was left out."""
    same: dict[object, list[Row]] = {}
    for row in found:
        same.setdefault((row.setting, row.kind), []).append(row)
    pairs = [(a, b) for several in same.values() for a, b in zip(several, several[1:], strict=False)]
    apart = [np.median([abs(np.log(getattr(a, name) / getattr(b, name))) for a, b in pairs] or 0) for name in TIMES]
    lines = [[count, reason] for reason, count in sorted(left_out.items(), key=lambda pair: -pair[1])]
    return (
        f"Measured on {datetime.now(UTC).date()}: {len(found)} rows of {len(same)} settings, of which {len(rows)} are "
        f"scored. Two runs of a setting differ by a median |ln| of {apart[0]:.3f} for TTFT and {apart[1]:.3f} for TPOT "
        f"({len(pairs)} pairs): nothing can be nearer.\n\n" + markdown(["left out", "why"], lines)
    )


def filled(page: str, written: Mapping[str, str]) -> str:
    """The page with these tables between its marks."""
    for name, text in written.items():
        begin = BEGIN.format(name)
        if begin in page:
            before, _, rest = page.partition(begin)
            page = f"{before}{begin}\n\n{text}\n\n{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    sys.exit(main())
