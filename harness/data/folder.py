"""A run is a folder: rows are flushed while it goes on, so that a killed run still has all it had written.

While a run goes on, rows stand in Arrow streams (`requests.arrows`, `steps.arrows`); when it ends they become
Parquet files, and the streams go away. A simulation writes Parquet at once: a kill takes from it only what its
run.json makes again. Other files are written aside and moved in one step.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import msgspec
import pyarrow as pa

from harness import untrusted
from harness.api import VERSION, ActionEvent, RequestRecord, Step
from harness.data import codec, run_json
from harness.data.held_back import stall_s, with_held_back
from harness.data.lists import pieces
from harness.data.mapped import Mapped
from harness.data.records import (
    ACTIONS,
    HTTP,
    REQUESTS,
    STEPS,
    Recounts,
    actions_table,
    completed,
    corrections,
    http_table,
    since,
    steps_table,
    to_table,
)
from harness.data.run_json import RunInfo
from harness.data.schedule import Schedule
from harness.data.storage import ParquetFile, Stream, batches, write_json
from harness.errors import UsageError

_TABLES = ("requests", "steps", "http", "server_metrics", "actions")
OURS = ("run.json", "schedule.parquet", "journal.parquet",
         *(f"{name}.{end}" for name in _TABLES for end in ("parquet", "arrows")))  # fmt: skip
"""Files of a run."""
_REPORT = re.compile(
    r"report\.(html|md|txt|json|xml|csv|parquet|(perfetto|vllm|guidellm|llm-d)\.json)|report-[a-z0-9_]+\.png"
)
"""Reports, which `bench report` makes again: report.html, report.csv, a picture of each figure."""


class Passes(Protocol):
    """Steps that are not held: read when called, with all columns or those named."""

    def __call__(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in pieces."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """What a run that is read thin does not hold: its requests with all tokens, and its steps."""

    requests: Callable[[], Iterator[pa.Table]]
    steps: Passes | None


class Aggregate:
    """What is gathered of a run in one pass over a table: while it is simulated, else over what is stored."""

    table: ClassVar[Literal["requests", "steps"]] = "requests"
    columns: ClassVar[Sequence[str]] = ()
    """Those that it needs of the steps; requests come with all."""

    def add(self, piece: pa.Table) -> None:
        """Take the next rows."""
        raise NotImplementedError


L = TypeVar("L", bound=Aggregate)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run read back. `complete` is False for a run that was killed or is still going on.

    Runs of clusters whose routers act have `actions`. Runs against a remote server have facts of each exchange
    (`http`) and its metrics (`server_metrics`). A large run may be thin (`harness.data.large`): then `whole` gives
    what `requests` and `steps` leave out. `aggregates` are of its tables; a copy with the same tables has the same.
    `memo` keeps what readers have computed of the run; a copy begins with none.
    """

    path: Path
    info: RunInfo
    requests: pa.Table
    steps: pa.Table | None
    schedule: pa.Table | None
    complete: bool
    http: pa.Table | None = None
    server_metrics: pa.Table | None = None
    actions: pa.Table | None = None
    whole: Whole | None = None
    aggregates: dict[type[Aggregate], Any] = field(default_factory=dict, repr=False)
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def pieces(self) -> Iterator[pa.Table]:
        """The requests with all their token times, in pieces that bound memory."""
        if self.whole is None:
            return pieces(self.requests)
        return self.whole.requests()

    def step_pieces(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The steps, of a large run in pieces, with all columns or at least those named; none where none are known."""
        if self.steps is not None:
            return iter([self.steps])
        return iter(()) if self.whole is None or self.whole.steps is None else self.whole.steps(columns)

    def aggregate(self, kind: type[L]) -> L:
        """What an aggregate of this kind has gathered of all requests, or of all steps."""
        if kind not in self.aggregates:
            gathered = kind()
            for piece in self.pieces() if kind.table == "requests" else self.step_pieces(kind.columns):
                gathered.add(piece)
            self.aggregates[kind] = gathered
        aggregate: L = self.aggregates[kind]
        return aggregate

    @property
    def measured(self) -> pa.Table:
        """The measured requests, those after the warm-up, in a new table."""
        return since(self.requests, self.info.warmup.since_s)


class RunFolder:
    """The writing side of a run folder; one writer at a time."""

    def __init__(
        self,
        path: Path,
        info: RunInfo,
        lock: Stream,
        flush_every: int,
        redact: Callable[[str], str] | None,
    ) -> None:
        self.path = path
        self._redact = redact
        self.info = info
        self._lock = lock
        self._streams: dict[str, Stream | ParquetFile] = {} if info.virtual else {"requests": lock}
        self._flush_every = flush_every
        self._waiting: list[RequestRecord] = []
        self.passing: Callable[[str, pa.Table], None] = lambda *_: None
        """Called with the name and the rows of each table that is added."""
        self._unwritten: list[pa.Table] = []  # of requests; what the disk has not taken

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        info: RunInfo,
        *,
        flush_every: int = 1000,
        redact: Callable[[str], str] | None = None,
    ) -> RunFolder:
        """Start a run folder: `run.json` says "running", and rows reach the disk every `flush_every` of them.

        Every text of `run.json` goes through `redact`.

        An earlier run in the folder is replaced. Raises UsageError, having touched nothing, for a folder that
        holds anything else, or that another process is writing.
        """
        path = Path(path)
        _check_usable(path)
        make_folder(path)
        # A kill between these steps must not leave the rows of an earlier run below a new run.json. Once run.json says
        # "running", readers take the rows from the stream, which is emptied next; tables of the earlier run go last.
        requests = Stream(path / "requests.arrows", REQUESTS)  # takes the lock that keeps other writers out
        started = redacted(info.change(state="running"), redact)
        try:
            write_json(path / "run.json", codec.encode(started))
            requests.start()
            for file in path.iterdir():
                if file.name not in ("run.json", "requests.arrows"):
                    file.unlink()
        except OSError:
            requests.close(remove=False)
            raise
        return cls(path, started, requests, flush_every, redact)

    def add_records(self, records: Iterable[RequestRecord]) -> None:
        """Take the records of requests that have ended; they reach the disk in batches, or with `flush`."""
        self._waiting.extend(records)
        if len(self._waiting) >= self._flush_every:
            self._write_waiting()

    def add_requests(self, table: pa.Table) -> None:
        """Take rows of requests that have ended; measured ones are on disk on return, or in memory where that fails."""
        table = completed(table, REQUESTS)
        if table.num_rows:
            self._unwritten.append(table)
            self.passing("requests", table)
        self._write_tables()

    def add_steps(self, steps: pa.Table | Sequence[Step]) -> None:
        """Take step rows, as `add_table` does."""
        table = steps if isinstance(steps, pa.Table) else steps_table(steps)
        self.add_table("steps", completed(table, STEPS))

    def add_actions(self, actions: Sequence[ActionEvent]) -> None:
        """Take what routers did, as `add_table` does."""
        self.add_table("actions", actions_table(actions))

    def add_table(self, name: str, table: pa.Table) -> None:
        """Append rows to the table of that name (`steps`, `http`, ...); what was measured is on disk on return."""
        if table.num_rows:
            self._stream(name, table.schema).write(table)
            self.passing(name, table)

    def save_schedule(self, schedule: Schedule) -> None:
        """Store what is to be sent."""
        schedule.save(self.path / "schedule.parquet")

    def flush(self) -> None:
        """Bring every row taken so far to the disk: a kill after this loses none that was measured."""
        self._write_tables()
        if self._waiting:
            self._write_waiting()

    def update(self, **changes: object) -> None:
        """Replace parts of `run.json`."""
        self.write(self.info.change(**changes))

    def write(self, info: RunInfo) -> None:
        self.info = redacted(info, self._redact)
        write_json(self.path / "run.json", codec.encode(self.info))

    def finish(self, recounted: Recounts | None = None, *, state: str = "finished", **changes: object) -> None:
        """Turn the streams into Parquet files and say in `run.json` how the run ended.

        The state becomes "finished", or "interrupted". `recounted` corrects the tokens of requests that were counted
        after the run; `changes` are as those of `update`. Memory stays bounded.
        """
        # Tables first, then run.json, which makes readers use them, then the streams are removed: a kill at any point
        # leaves one complete set of rows that run.json points to.
        self.flush()
        self._stream("requests", REQUESTS)
        for name, rows in self._streams.items():
            if isinstance(rows, Stream):
                rows.convert(self.path / f"{name}.parquet", corrections(name, recounted or {}))
            else:
                rows.close()
        self.update(state=state, **changes)
        self.close(remove=True)

    def copy_to(self, path: Path) -> None:
        """Write the run into another folder, with the rows that this one did not take; this one stays as it is."""
        copy = RunFolder.create(path, self.info)
        try:
            if (schedule := self.path / "schedule.parquet").exists():
                shutil.copyfile(schedule, path / schedule.name)
            for name, stream in self._streams.items():
                for batch in batches(stream.path) if isinstance(stream, Stream) else ():
                    copy.add_table(name, pa.Table.from_batches([batch]))
            for table in self._unwritten:
                copy.add_requests(table)
            copy.add_records(self._waiting)
            copy.flush()
        finally:
            copy.close()

    @property
    def written(self) -> int:
        """Requests whose rows are on the disk; of a simulation, or will be once it is closed."""
        return self._stream("requests", REQUESTS).rows

    @property
    def waiting(self) -> int:
        """Requests whose rows are in memory alone."""
        return len(self._waiting) + sum(len(table) for table in self._unwritten)

    def close(self, *, remove: bool = False) -> None:
        """Let go of the files; what was flushed stays readable. Safe to call twice."""
        for rows in self._streams.values():
            if isinstance(rows, ParquetFile) and rows.rows:
                with suppress(OSError):
                    rows.close()
        for stream in (self._lock, *self._streams.values()):
            if isinstance(stream, Stream):
                stream.close(remove=remove or self.info.virtual)

    def _write_tables(self) -> None:
        while self._unwritten:
            self._stream("requests", REQUESTS).write(self._unwritten[0])
            del self._unwritten[0]

    def _write_waiting(self) -> None:
        """Write them; those that cannot be written stay in memory."""
        # requests before http: a kill in between loses details of an exchange, never the request
        rows = self._waiting
        self._stream("requests", REQUESTS).write(to_table(rows))
        self._waiting = []
        if any(record.exchange is not None for record in rows):
            self.add_table("http", http_table(rows))

    def _stream(self, name: str, schema: pa.Schema) -> Stream | ParquetFile:
        if name not in self._streams and self.info.virtual:
            self._streams[name] = ParquetFile(self.path / f"{name}.parquet", schema)
        elif name not in self._streams:
            self._streams[name] = stream = Stream(self.path / f"{name}.arrows", schema)
            stream.start()
        return self._streams[name]

    def __repr__(self) -> str:
        return f"<RunFolder {self.path} {self.info.state}, {self.waiting} records not yet on disk>"


def redacted(info: RunInfo, redact: Callable[[str], str] | None) -> RunInfo:
    """The same with `redact` applied to every text in it."""
    return info if redact is None else run_json.decode(cleaned(codec.encode(info), redact))


def cleaned(value: Any, redact: Callable[[str], str]) -> Any:
    """A JSON value with `redact` applied to every text in it."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: cleaned(item, redact) for key, item in value.items()}
    return [cleaned(item, redact) for item in value] if isinstance(value, list | tuple) else value


def check_free(path: Path, *, force: bool) -> None:
    """Whether a run may be written into `path`: UsageError for a folder in use, unless `force` gives up its run."""
    _check_usable(path)
    if not force and (path / "run.json").exists():
        raise UsageError(f"'{path}' holds a run; give another --out, or --force to replace it.")


def new_folder(path: Path) -> Path:
    """Make a folder of that name, with a number behind it where it exists; safe against other processes."""
    make_folder(path.parent)
    for n in count(1):
        candidate = path if n == 1 else path.with_name(f"{path.name}-{n}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"'{candidate}' cannot be made: {error.strerror}.") from None
        return candidate
    raise AssertionError("numbers have no end")


def load(
    path: str | os.PathLike[str],
    info: RunInfo | None = None,
    known: Mapping[str, pa.Table | Mapped | None] = MappingProxyType({}),
    whole: Whole | None = None,
) -> Run:
    """Read a run folder, finished, interrupted, going on or killed; a batch cut short by a kill is left out.

    Its run.json and tables that are `known` are not read again. Raises UsageError for a folder that holds no run, or
    one that this version cannot read.
    """
    path = Path(path)
    path = path.parent if path.name == "run.json" else path
    info = info or read_info(path)
    running = info.state == "running"

    def rows(name: str, schema: pa.Schema | None = None) -> Any:
        return known[name] if name in known else table(path, name, schema, stream_first=running)

    requests = rows("requests", REQUESTS)
    if requests is None and not running:
        raise UsageError(f"'{path}' holds a run that ended, but its requests.parquet is missing; repeat the run.")
    stored, http = path / "schedule.parquet", rows("http", HTTP)
    drawn = Schedule.load(stored).table if "schedule" not in known and stored.exists() else known.get("schedule")
    return Run(
        path=path,
        info=info,
        requests=with_held_back(REQUESTS.empty_table() if requests is None else requests, http, stall_s(info)),
        steps=rows("steps", STEPS),
        schedule=drawn,
        complete=info.state == "finished",
        http=http,
        server_metrics=rows("server_metrics"),
        actions=rows("actions", ACTIONS),
        whole=whole,
    )


def read_info(path: Path) -> RunInfo:
    """The run.json of a run folder. Raises UsageError where there is none that can be read."""
    file = path / "run.json"
    try:
        parsed = untrusted.parse_json(untrusted.read_text(file), f"'{file}'", msgspec.json.decode)
    except (FileNotFoundError, NotADirectoryError):
        what = "has no run.json" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
        raise UsageError(f"No run in '{path}': it {what}; name the folder that 'bench run' wrote.") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"No run in '{path}': its run.json cannot be read ({error}).") from None
    schema = parsed.get("schema") if isinstance(parsed, dict) else None
    if not isinstance(schema, int):
        raise UsageError(f"No run in '{path}': its run.json was not written by bench (it names no schema).")
    if schema > VERSION:
        raise UsageError(f"'{path}' has schema {schema}, this bench reads up to {VERSION}; use a newer bench.")
    try:
        return run_json.decode(parsed)
    except UsageError as error:
        raise UsageError(f"No run in '{path}': {error}.") from None


def table(path: Path, name: str, schema: pa.Schema | None = None, *, stream_first: bool = False) -> pa.Table | None:
    """The rows of a table, with the columns of `schema` where it is given; None where the run has no such table."""
    stream, parquet = path / f"{name}.arrows", path / f"{name}.parquet"
    for file in (stream, parquet) if stream_first else (parquet, stream):
        if file == stream and file.exists():
            rows = list(batches(file))
            if schema is None:
                return pa.Table.from_batches(rows) if rows else None
            return completed(pa.Table.from_batches(rows), schema) if rows else schema.empty_table()
        if file == parquet and file.exists():
            with untrusted.readable(f"'{file}'"):
                loaded = untrusted.read_parquet(file)
                return loaded if schema is None else completed(loaded, schema)
    return None


def _check_usable(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"'{path}' is a file; --out names a folder.")
    names = {p.name.removesuffix(".part") for p in path.iterdir()} if path.is_dir() else set()
    if names <= {"requests.arrows", "run.json"} and not (path / "run.json").exists():
        return  # empty, or killed while the first run.json was being written
    foreign = sorted(name for name in names.difference(OURS) if not _REPORT.fullmatch(name))
    if foreign:
        raise UsageError(f"'{path}' holds '{foreign[0]}', which is no part of a run; name an empty folder.")
    try:
        read_info(path)
    except UsageError:
        raise UsageError(f"'{path}' holds something that is no run; name an empty folder.") from None


def make_folder(path: Path) -> None:
    """Make a folder, with those above it. Raises UsageError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be made: {error.strerror}.") from None
