"""Compares how many mutants the tests of two checkouts kill, before and after a refactoring.

    python tools/mutants.py draw OLD NEW MUTANTS [N] [SEED]     draw N mutants (300) that exist in both checkouts
    python tools/mutants.py map CHECKOUT COPY MUTANTS MAP       run the tests once and map mutants to tests
    python tools/mutants.py run CHECKOUT COPY MUTANTS MAP RESULTS [CAP_S]   test each mutant
    python tools/mutants.py again CHECKOUT COPY MUTANTS MAP RESULTS         run the tests that failed, without mutants
    python tools/mutants.py table MUTANTS OLD_RESULTS NEW_RESULTS           compare two results

A mutant changes one place of one statement: a comparison, an operator, a constant, a condition, a return value. It is
identified by the bare name of its function, the text of the statement, the place and the change, and must be unique in
each checkout. Five areas are drawn equally often and in turn, so each prefix of MUTANTS is a sample.
Each checkout has its .venv. Mutants are written to COPY, whose own environment imports COPY first, whatever the
environment variables of a process. The fastest tests that cover the mutated place are run, CAP_S (15) in total; a
mutant is killed if they fail or take five times as long. In real-time tests (area client) a failure must repeat to
count. An existing RESULTS is resumed. Use a copy in one process at a time.
"""

import compileall
import contextlib
import json
import os
import py_compile
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutations import PACKAGES, Found, Place, changed, noted, places, rewritten, text_of

AREAS = {
    "serving": ("backends/serving/", "backends/simulator/", "backends/sim.py"),
    "stats": ("harness/stats/",),
    "metrics": ("harness/metrics/",),
    "client": ("backends/client/", "harness/runner/remote/"),
    "data": ("harness/data/",),
}
CLOCKED = "tests/client/"
LEFT_OUT = ("tests/e2e", "tests/engine/test_process.py", "tests/real", "tests/server", "tests/perf")
MEMORY, TIMES, MAPPED_S, FIRST = 8 << 30, 5, 90, 20
"""Memory limit of a process, time limit as a multiple, seconds per test in the map, tests in the first batch."""
NOTE = '''"""Notes which test runs which mutant."""
import json, os
seen = set()
def note(number):
    if number not in seen:
        seen.add(number)
        test = os.environ.get("MUTANTS_FIXTURE") or os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
        if folder := os.environ.get("MUTANTS_LOG"):
            with open(os.path.join(folder, "ran.jsonl"), "a") as file:
                file.write(json.dumps([number, test]) + "\\n")
'''


def draw(old: Path, new: Path, mutants: Path, number: int = 300, seed: int = 0) -> None:
    """Write the mutants, one per line, the areas in turn; print the size of the population."""
    before, after = list(places(old)), list(places(new))
    once = [{place for place, n in Counter(p for p, _ in found).items() if n == 1} for found in (before, after)]
    where, rng = dict(before), random.Random(seed)
    drawn: list[list[tuple[str, Place, Found]]] = []
    for area, prefixes in AREAS.items():
        own = [(area, place, found) for place, found in after if found.path.startswith(prefixes)]
        both = [row for row in own if row[1] in once[0] and row[1] in once[1]]
        unique = sum(place in once[1] for _, place, _ in own)
        print(
            f"{area:8} {len(own):5} places, {unique:5} occur once, {len(both):5} of them once in the old checkout too"
        )
        drawn.append(rng.sample(both, number // len(AREAS)))
    rows: list[dict[str, Any]] = []
    for area, place, found in (row for turn in zip(*drawn, strict=True) for row in turn):
        change = f"{text_of(found.node)}  ->  {text_of(changed(found.node, place.change))}"
        paths = {"old": where[place].path, "new": found.path}
        rows.append({"id": len(rows), "area": area, "name": found.name, "place": place, "was": change, **paths})
    mutants.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _write(checkout: Path, top: Path, mutants: list[Any], *, note: bool = False) -> list[str]:
    """Write the files of some mutants into the copy, mutated or with notes; returns their paths."""
    numbers = {Place(*m["place"]): m["id"] for m in mutants}

    def make(place: Place, node: Any) -> Any:
        if place in numbers and note:
            return noted(node, f"__import__('mutants_note').note({numbers[place]})")
        return changed(node, place.change) if place in numbers else None

    paths = sorted({m[side] for m in mutants for side in ("old", "new") if (checkout / m[side]).exists()})
    for path in paths:
        (top / path).write_text(rewritten(checkout / path, make), encoding="utf-8")
    return paths


def _copy(checkout: Path, top: Path) -> None:
    """Make the copy, if it is not there, with an environment that imports it before what the checkout installed."""
    if not top.exists():
        shutil.copytree(checkout, top, ignore=shutil.ignore_patterns(".*", "__pycache__"), symlinks=True)
        shutil.copy(checkout / ".gitignore", top)
        subprocess.run([checkout / ".venv/bin/python", "-m", "venv", "--without-pip", top / ".venv"], check=True)
        (site,) = top.glob(".venv/lib/python*/site-packages")
        (site / "mutants.pth").write_text(f"{top}\n{checkout / site.relative_to(top)}\n", encoding="utf-8")
        (site / "mutants_note.py").write_text(NOTE, encoding="utf-8")
        shutil.copy(Path(__file__).with_name("mutants_plugin.py"), site)
        for script in ("bench", "pytest"):
            text = (checkout / ".venv/bin" / script).read_text(encoding="utf-8").replace(str(checkout), str(top))
            (top / ".venv/bin" / script).write_text(text, encoding="utf-8")
            (top / ".venv/bin" / script).chmod(0o755)
    for name in PACKAGES:  # validate by hash: mutants may have the same times and sizes
        shutil.copytree(checkout / name, top / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(top / name, quiet=1, invalidation_mode=mode)
    code = "import harness, backends; print(harness.__file__, backends.__path__)"
    done = subprocess.run([top / ".venv/bin/python", "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.count(f"{top}/") == 2, done.stdout


def _pytest(top: Path, log: Path, options: list[str], limit_s: float | None, **environment: str) -> int:
    """Run pytest in the copy; its exit code, or 124 when it takes too long. Its tests are then in log/tests.jsonl."""
    shutil.rmtree(log, ignore_errors=True)
    shutil.rmtree(top / ".hypothesis" / "examples", ignore_errors=True)
    log.mkdir(parents=True)
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    command = [str(top / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants_plugin"]
    with (log / "printed.txt").open("w") as printed:
        process = subprocess.Popen(
            [*command, "--hypothesis-seed=0", *options], cwd=top, stdout=printed, stderr=printed,
            env={**inherited, "OPENBLAS_NUM_THREADS": "1", "MUTANTS_LOG": str(log), **environment},
            start_new_session=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)),
        )  # fmt: skip
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def make_map(checkout: Path, top: Path, mutants: Path, out: Path) -> None:
    """Run all tests instrumented at the places of the mutants; write the duration and coverage of each test."""
    _copy(checkout, top)
    rows, log = _rows(mutants), out.with_suffix(".log").absolute()
    paths = _write(checkout, top, rows, note=True)
    ignored = [f"--ignore={path}" for path in LEFT_OUT]
    code = _pytest(top, log, ["tests", *ignored, f"--timeout={MAPPED_S}"], None, MUTANTS_MAP="1")
    for path in paths:
        shutil.copy(checkout / path, top / path)
    found = read_map(log, [row["id"] for row in rows])
    print(f"exit code {code}, {len(found['tests'])} tests passed, {sum(found['tests'].values()):.0f} s")
    out.write_text(json.dumps(found), encoding="utf-8")


def read_map(log: Path, numbers: list[int]) -> dict[str, Any]:
    """The seconds that each test takes alone, with the fixtures that it shares, and the tests that run each mutant."""
    own, shared = defaultdict[str, float](float), defaultdict[str, float](float)
    failed, uses = set[str](), defaultdict[str, set[str]](set)
    for name, seconds, outcome, fixtures in _rows(log / "tests.jsonl"):
        for fixture in fixtures if name not in own else ():  # the first test that uses a fixture waits for it
            uses[fixture].add(name)
            shared[fixture] = max(shared[fixture], seconds)
        own[name] += seconds
        failed |= {name} if outcome != "passed" else set()
    tests = {name: round(seconds, 4) for name, seconds in own.items() if name not in failed}
    for fixture, names in uses.items():
        for name in names & tests.keys():
            tests[name] = max(tests[name], round(own[name] + shared[fixture], 4))
    ran = {number: set[str]() for number in numbers}
    for number, name in _rows(log / "ran.jsonl"):
        ran[number] |= (uses.get(name, set()) | {name}) & tests.keys()
    return {"tests": tests, "ran": {number: sorted(names) for number, names in ran.items()}}


def _try(top: Path, log: Path, chosen: dict[str, float], *options: str) -> tuple[int, list[str]]:
    """Run some tests in this order; the exit code and those that failed."""
    if not chosen:
        return 0, []
    (file := log.with_suffix(".json")).write_text(json.dumps(chosen), encoding="utf-8")
    files = sorted({name.split("::")[0] for name in chosen})
    limit_s = TIMES * sum(chosen.values()) + 60
    code = _pytest(top, log, [*options, *files], limit_s, MUTANTS_CHOSEN=str(file))
    return code, [name for name, _, outcome, _ in _rows(log / "tests.jsonl") if outcome == "failed"]


def _chosen(tests: dict[str, float], cap_s: float) -> dict[str, float]:
    """The shortest tests, one at least; those of a file together, the file with the shortest one first."""
    kept, first = dict[str, float](), dict[str, float]()
    for name in sorted(tests, key=lambda name: (tests[name], name)):
        if not kept or sum(kept.values()) + tests[name] <= cap_s:
            kept[name] = tests[name]
            first.setdefault(name.split("::")[0], tests[name])
    return dict(sorted(kept.items(), key=lambda item: (first[file := item[0].split("::")[0]], file, item[1])))


def _killed(top: Path, log: Path, chosen: dict[str, float], *, again: bool) -> tuple[int, list[str]]:
    """Run some tests until one fails, twice with `again`; a few first, to avoid collecting all files."""
    names, result = list(chosen), (0, list[str]())
    for part in (names[:FIRST], names[FIRST:]):
        left = {name: chosen[name] for name in part}
        while (result := _try(top, log, left, "-x"))[0]:
            code, failed = result
            if not (again and failed) or _try(top, log, {failed[0]: left.pop(failed[0])})[0]:
                return code, failed
    return result


def run(checkout: Path, top: Path, mutants: Path, known: Path, results: Path, cap_s: float = 15) -> None:
    """Test the mutants that RESULTS does not have yet."""
    _copy(checkout, top)
    mapped, log = json.loads(known.read_text(encoding="utf-8")), results.with_suffix(".log").absolute()
    done = {row["id"] for row in _rows(results)}
    for mutant in (row for row in _rows(mutants) if row["id"] not in done):
        began, client = time.monotonic(), mutant["area"] == "client"
        of_it = [name for name in mapped["ran"][str(mutant["id"])] if client or not name.startswith(CLOCKED)]
        chosen = _chosen({name: mapped["tests"][name] for name in of_it}, cap_s)
        paths = _write(checkout, top, [mutant])
        try:
            code, failed = _killed(top, log, chosen, again=client)
        finally:
            for path in paths:
                shutil.copy(checkout / path, top / path)
        row = {"id": mutant["id"], "killed": code != 0, "code": code, "by": failed[:1], "tests": len(chosen)}
        row |= {"left_out": len(of_it) - len(chosen), "seconds": round(time.monotonic() - began, 1)}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def again(checkout: Path, top: Path, _: Path, known: Path, results: Path) -> None:
    """Print which of the tests that killed a mutant fail without one too."""
    _copy(checkout, top)
    tests = json.loads(known.read_text(encoding="utf-8"))["tests"]
    chosen = {name: tests[name] for row in _rows(results) for name in row["by"] if name in tests}
    print(len(chosen), "tests; exit code and failures:", *_try(top, results.with_suffix(".log").absolute(), chosen))


def table(mutants: Path, old: Path, new: Path) -> None:
    """Print per area how many of the mutants that both tried were killed, and those that only one of the two killed."""
    rows, found = _rows(mutants), [{row["id"]: row for row in _rows(path)} for path in (old, new)]
    rows = [row for row in rows if row["id"] in found[0] and row["id"] in found[1]]
    print("area      mutants  killed old  killed new")
    for area in (*AREAS, ""):
        own = [row["id"] for row in rows if area in ("", row["area"])]
        print(
            f"{area or 'all':8} {len(own):8} {'':4}", *(f"{sum(f[i]['killed'] for i in own):6} {'':4}" for f in found)
        )
    for title, kept in (("only old", (True, False)), ("only new", (False, True)), ("neither", (False, False))):
        print(f"\nkilled by {title}")
        for row in rows:
            both = [f[row["id"]] for f in found]
            if tuple(one["killed"] for one in both) == kept:
                by = [one["by"] or f"{one['tests']} tests" for one in both]
                print(f"{row['id']:4} {row['area']:8} {row['new']} {row['name']}: {row['was']}   {by}")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {
        "draw": draw, "map": make_map, "run": run, "again": again, "table": table,
    }  # fmt: skip
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*(int(a) if a.isdigit() else Path(a).absolute() for a in sys.argv[2:]))
