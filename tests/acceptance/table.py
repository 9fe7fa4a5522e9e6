"""The acceptance table: rows of all or some topics. Topics are independent and run in parallel.

A file in `topics/` is a topic with `rows(place) -> Iterator[Row]`; each public source of measurements in
`topics/_measured.py` is a topic `measured-NAME`. A row that misses its band is shown as a miss.
"""

import dataclasses
import importlib
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from acceptance.rows import Place, Row, Rows
from acceptance.topics import _measured
from harness.data.host import versions
from harness.errors import UsageError, no_such
from harness.experiments import pool

HERE = Path(__file__).parent
MEASURED = {f"measured-{source}": source for source in _measured.PREFIXES}
_ID = re.compile(r'"([SEI]\d{1,2}(?:\.[^"{]*)?)[^"]*"')


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Rows of one topic, and `error` if it failed before its last row."""

    topic: str
    rows: tuple[Row, ...]
    error: str | None = None


def names() -> list[str]:
    """Sorted names of the topics."""
    files = (HERE / "topics").glob("*.py")
    return sorted([f.stem.replace("_", "-") for f in files if not f.stem.startswith("_")] + [*MEASURED])


def rows_of(topic: str) -> Rows:
    """The function `rows` of a topic."""
    if topic in MEASURED:
        return partial(_measured.rows_of, MEASURED[topic])
    found: Rows = importlib.import_module(f"acceptance.topics.{topic.replace('-', '_')}").rows
    return found


def ids_of(topic: str) -> set[str]:
    """Ids in the file of a topic, which is not run: 'S05.a', 'E16', or their beginning ('S28.')."""
    if topic in MEASURED:
        return {f"{_measured.PREFIXES[MEASURED[topic]]}."}
    file = HERE / "topics" / f"{topic.replace('-', '_')}.py"
    return set(_ID.findall(file.read_text(encoding="utf-8")))


def without_row() -> list[dict[str, str]]:
    """Ids of the specification of systems that no topic has a row for, each with a title and why."""
    listed = _specified()["without"]
    return [{"id": name, "title": title, "why": why} for name, (title, why) in listed.items()]


def specified() -> set[str]:
    """Every id of the specification of systems that a row may have: S01 to E23 and I8."""
    known = _specified()["known"]
    return {
        f"{kind}{n:02d}" if kind == "S" else f"{kind}{n}" for kind, last in known.items() for n in range(1, last + 1)
    }


def _specified() -> Mapping[str, Any]:
    return tomllib.loads((HERE / "ids.toml").read_text(encoding="utf-8"))


def chosen(only: Sequence[str], named: Sequence[str]) -> list[str]:
    """The topics of those names, or that have rows for those ids; all without either. Raises UsageError."""
    known = names()
    for name in named:
        if name not in known:
            raise no_such("topic", name, known)
    found = [name for name in known if not named or name in named]
    if not only:
        return found
    ids = {name: ids_of(name) for name in found}
    for wanted in only:
        if not any(_holds(held, wanted) for held in ids.values()):
            known = sorted({base(one) for one in set().union(*ids.values())})
            raise no_such("row of acceptance", wanted, known)
    return [name for name in found if any(_holds(ids[name], wanted) for wanted in only)]


def base(row: str) -> str:
    """The id of the specification that a row belongs to: S05 of S05.a."""
    return row.partition(".")[0]


def _holds(ids: set[str], wanted: str) -> bool:
    """Whether one of the ids or id prefixes may match a requested row."""
    return any(base(one) == base(wanted) and (one.startswith(wanted) or wanted.startswith(one)) for one in ids)


def is_wanted(row: str, only: Sequence[str]) -> bool:
    """Whether a row is requested: S08 selects all its rows, S08.b one."""
    return not only or any(row == wanted or row.startswith(f"{wanted}.") for wanted in only)


def run(topic: str, data: Path | None) -> TopicResult:
    """The rows of a topic, up to its first error."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-acceptance-") as work:
        try:
            rows.extend(rows_of(topic)(Place(data, Path(work))))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # report a failed topic beside the others
            return TopicResult(topic, tuple(rows), f"{type(error).__name__}: {error}")
    return TopicResult(topic, tuple(rows))


def answer(
    topics: Iterable[str], only: Sequence[str], data: Path | None, *, workers: int | None, say: Callable[[str], None],
    command: str = "make systems",
) -> dict[str, object]:  # fmt: skip
    """The table as an answer: rows in order of their ids, topics that failed, the `command` and the exit code.

    The whole table lists the ids of the specification that have no row, too. The code is 0 where every row holds, 1
    where one misses, 3 where a topic failed.
    """
    results: list[TopicResult] = []
    topics = list(topics)
    with pool.of(workers) as several:
        for _, one in several.map(partial(run, data=data), topics):
            kept = tuple(row for row in one.rows if is_wanted(row.id, only))
            results.append(dataclasses.replace(one, rows=kept))
            count = f"{len(kept)} row{'s' * (len(kept) != 1)}"
            say(f"{one.topic}: {count}" + (f", then failed ({one.error})" if one.error else ""))
    rows = [(row, one.topic) for one in results for row in one.rows]
    _refuse_doubles([row.id for row, _ in rows])
    rows.sort(key=lambda pair: order(pair[0].id))
    failed = [{"topic": one.topic, "error": one.error} for one in results if one.error]
    missed = any(row.holds is False for row, _ in rows)
    return {
        "schema": 1,
        "kind": "acceptance",
        "versions": versions(),
        "exit_code": 3 if failed else int(missed),
        "command": command,
        "data": data is not None,
        "rows": [dataclasses.asdict(row) | {"topic": topic} for row, topic in rows],
        "without_row": without_row() if not only and set(topics) == set(names()) else [],
        "failed": sorted(failed, key=lambda one: str(one["topic"])),
    }


def _refuse_doubles(ids: Sequence[str]) -> None:
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise UsageError(f"Two rows of acceptance have the id {', '.join(twice)}; give each its own letter.")


def order(row: str) -> tuple[str, int, str]:
    """Sorts S before E before I, then by number and letter."""
    kind, number = row[:1], re.match(r"\d+", row[1:])
    return {"S": "0", "E": "1", "I": "2"}.get(kind, "3"), int(number[0]) if number else 0, row
