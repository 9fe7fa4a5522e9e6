"""Published systems and the results that are published of them: what `backends/systems/NAME.toml` holds.

A row says what is published, where, and how bench obtains the same number: by commands that a user types, or by a test.
`reproduce` runs the commands of rows and compares.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import inspect
import io
import json
import operator
import re
import shlex
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import field

from harness import registry
from harness.data import files
from harness.data.codec import Count, Document, Facts, Number, Part, Positive
from harness.data.host import versions
from harness.errors import FAILED, Interrupted, UsageError, first_of, no_such
from harness.experiments import pool
from harness.version import __version__

Badge = Literal["exact", "real", "simulated", "formula"]
Verdict = Literal["holds", "misses", "informs", "cannot run", "needs a clone", "unavailable"]
Cells: TypeAlias = dict[str, str | float]
"""A row of an answer by the names of its columns; a cell without a value is left out."""
_OPERATORS: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "median": statistics.median,
    "largest_factor": lambda ratios: max(max(ratio, 1 / ratio) for ratio in ratios),
}
_ALLOWED = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.USub, ast.Constant, ast.Attribute, ast.Subscript, ast.Tuple,
            ast.Name, ast.Call, ast.Load, *_OPERATORS)  # fmt: skip
ALLOWED = f"it may hold OUT.COLUMN, OUT['cell'].COLUMN, numbers, + - * / and {', '.join(FUNCTIONS)}"
OptionsOf: TypeAlias = Callable[[Sequence[str]], set[str]]
"""The options that the command of these words takes."""
STORED = "output.json"
_QUIETLY = ("--quiet", "--no-html")

Execute: TypeAlias = "Callable[[tuple[str, ...]], Output]"
"""Runs bench with these words; called in other processes."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published result. `value` is an expression over the outputs of its commands, each named by its `--out`.

    `band` holds the least and the largest value that agree with `published`; without one the row informs. `check` is a
    test instead of `run`, for what needs a clone: another program's numbers, exact replays. With `missed` it proves
    that the published number is missed. `unavailable` says why there is neither.
    """

    id: str
    published: str
    source: str
    badge: Badge
    run: tuple[str, ...] = ()
    value: str | None = None
    seeds: int = 1
    band: tuple[float, float] | None = None
    check: str | None = None
    missed: bool = False
    unavailable: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        runs = bool(self.run or self.value or self.band)
        if runs + (self.check is not None) + (self.unavailable is not None) != 1 or bool(self.run) != bool(self.value):
            raise ValueError(f"{self.id}: a row needs run and value, or a check, or the reason why it is unavailable")
        if self.missed and self.check is None:
            raise ValueError(f"{self.id}: missed is for a row with a check; that of others follows from value and band")
        if self.band is not None and self.band[0] > self.band[1]:
            raise ValueError(f"{self.id}: the band {self.band} ends before it begins")
        commands = [shlex.split(command) for command in self.run]
        if wrong := [command for command, words in zip(self.run, commands, strict=True) if words[:1] != ["bench"]]:
            raise ValueError(f"{self.id}: '{wrong[0]}' does not begin with bench")
        stems = {Path(words[place]).stem for words in commands if (place := _output_at(words)) is not None}
        if missing := (outputs(self.value) if self.value else set()) - stems:
            raise ValueError(f"{self.id}: no command has --out {min(missing)}, which its value names")


@dataclass(frozen=True, slots=True)
class System:
    """A published system: its text, the (kind, name) of its plug-ins, and its rows, which stand under `subject`."""

    name: str
    about: str
    plugins: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    subject: str = "Other systems"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """`NAME.toml`."""

    row: tuple[Row, ...] = ()
    subject: str = "Other systems"


def system(name: str) -> System:
    """Read a published system. Raises UsageError for an unknown name, and for rows that are not valid."""
    module = registry.find("systems", name)
    file = Path(module.__file__).with_name(f"{module.__name__.rpartition('.')[2]}.toml")
    try:
        stored = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}, _File)
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"'{file}': {error}") from None
    return System(name, inspect.getdoc(module) or "", tuple(registry.plugins_of(name)), stored.row, stored.subject)


def chosen(names: Sequence[str]) -> list[tuple[System, Row]]:
    """Return the rows of systems and ids, all without names: S09 are all rows of that number. Raises UsageError."""
    rows = [(published, row) for published in map(system, registry.names("systems")) for row in published.rows]
    for name in names:
        if not any(_is_of(name, *pair) for pair in rows):
            if name in registry.names("systems"):
                raise UsageError(f"'{name}' has no published results here; 'bench explain {name}' shows its plug-ins.")
            ids = {published.name for published, _ in rows} | {row.id for _, row in rows}
            sentence = str(no_such("published system or row", name, ids)).split(" Known: ")[0]  # hundreds of ids
            raise UsageError(f"{sentence} 'bench list systems' shows the systems, 'bench explain SYSTEM' its rows.")
    return [pair for pair in rows if not names or any(_is_of(name, *pair) for name in names)]


def _is_of(name: str, published: System, row: Row) -> bool:
    return name in (published.name, row.id) or row.id.startswith(f"{name}.")


class RowResult(Part, frozen=True, kw_only=True):
    """A row and what was obtained: the median over the seeds, the least and the largest value.

    `reason` says why it cannot run or is unavailable.
    """

    id: str
    system: str
    subject: str
    published: str
    source: str
    badge: Badge
    verdict: Verdict
    value: Number | None = None
    least: Number | None = None
    most: Number | None = None
    seeds: Count = 0
    band: tuple[Number, Number] | None = None
    seconds: Positive = 0
    commands: tuple[str, ...] = ()
    expression: str | None = None
    check: str | None = None
    note: str = ""
    reason: str = ""


class ReproduceAnswer(Document, frozen=True, kw_only=True):
    """reproduce.json: rows in the order of their ids."""

    schema: int = 1
    kind: Literal["reproduce"] = "reproduce"
    versions: Facts = field(default_factory=dict)
    exit_code: int
    quick: bool
    rows: tuple[RowResult, ...]


class Output(Part, frozen=True, kw_only=True):
    """What a command printed; the last line on standard error says why it failed."""

    exit_code: int
    csv: str
    last_line: str
    seconds: Positive

    @property
    def ran(self) -> bool:
        """Whether it has a result; 1 is one, too: a capacity of 0, a bound that was missed."""
        return self.exit_code in (0, 1)


@dataclass(frozen=True, slots=True)
class Call:
    """A command of bench with its own folder, the name of its output, and the calls whose files it reads."""

    words: tuple[str, ...]
    text: str
    folder: Path
    name: str | None
    after: tuple[Path, ...]

    @property
    def in_real_time(self) -> bool:
        """Whether it runs the engine on the clock of the wall."""
        return any(word.startswith("engine") for word in self.words)

    def stored(self) -> Output | None:
        """Return what it printed when it was last run; None where it was not, or was stopped."""
        try:
            return msgspec.json.decode((self.folder / STORED).read_bytes(), type=Output)
        except (OSError, msgspec.DecodeError):
            return None


def reproduce(
    rows: Sequence[tuple[System, Row]], home: Path, execute: Execute, options_of: OptionsOf, *,
    quick: bool = False, again: bool = False, workers: int | None = None, tell: Callable[[str], None],
) -> ReproduceAnswer:  # fmt: skip
    """Run the commands of rows, several at a time, and compare their values with what is published.

    Equal commands run once. What a command printed is stored below `home` under a hash of its words and the version of
    bench, and read from there unless `again`; failures are not stored.
    """
    plans = {
        row.id: [_calls(row, seed, home, options_of) for seed in range(1 if quick else row.seeds)] for _, row in rows
    }
    outputs: dict[Path, Output] = {}
    waiting = {call.folder: call for plan in plans.values() for calls in plan for call in calls}
    if not again:
        outputs = {folder: output for folder, call in waiting.items() if (output := call.stored()) is not None}
    waiting = {folder: call for folder, call in waiting.items() if folder not in outputs}
    total = len(waiting)
    try:
        if total:
            tell(f"Commands to run: {total}; results are stored in {home}.")
        for call, output in _executed(waiting, outputs, execute, workers):
            state = f"{output.seconds:.0f} s" if output.ran else f"exit code {output.exit_code}"
            tell(f"[{total - len(waiting)}/{total}] {state}: {call.text}")
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after {total - len(waiting)} of {total} commands; rerun the command to continue."
        ) from None
    results = tuple(_result(published, row, plans[row.id], outputs) for published, row in rows)
    verdicts = {result.verdict for result in results}
    code = first_of(*[1] * ("misses" in verdicts), *[FAILED] * ("cannot run" in verdicts))
    return ReproduceAnswer(
        versions=dict(versions()), exit_code=code, quick=quick, rows=tuple(sorted(results, key=order))
    )


def order(row: Row | RowResult) -> tuple[object, ...]:
    """Sort by the parts of an id: S9 before S10, S before E."""
    parts = re.findall(r"\d+|[^\d.]+", row.id)
    return "SEI".find(parts[0][0]), *(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts[1:]
    )


def _executed(
    waiting: dict[Path, Call], outputs: dict[Path, Output], execute: Execute, workers: int | None
) -> Iterator[tuple[Call, Output]]:
    """Execute what waits, after the calls whose files it reads, and store each output as it comes.

    Runs of the engine come one by one, when nothing else runs: side by side they would make each other late.
    """
    if not waiting:
        return
    with pool.Processes(workers) as processes:
        while waiting:
            free = [call for call in waiting.values() if not {*call.after} & waiting.keys()]
            simulated = [call for call in free if not call.in_real_time]
            ready = {call.words: call for call in simulated or free[:1]}
            for call in ready.values():
                call.folder.mkdir(exist_ok=True)
            for words, output in processes.map(execute, [*ready]):
                call = ready[words]
                outputs[call.folder] = output
                del waiting[call.folder]
                if output.ran:
                    files.write(call.folder / STORED, json.dumps(msgspec.to_builtins(output)) + "\n")
                yield call, output


def _calls(row: Row, seed: int, home: Path, options_of: OptionsOf) -> list[Call]:
    """Return the calls of a row: each has a folder of its own below `home`, in which it writes its `--out`.

    A later command reads the file of an earlier one as `./NAME`.
    """
    calls: list[Call] = []
    written: dict[str, Path] = {}
    for command in row.run:
        words = shlex.split(command)[1:]
        options = options_of(words)
        if seed and "--seed" in options and "--seed" not in words:
            words += ["--seed", str(seed)]
        text = shlex.join(["bench", *words]).replace("'>'", ">")
        read = [name for name in written if any(f"./{name}" in word for word in words)]
        for name in read:
            words = [re.sub(rf"\./{re.escape(name)}(?![\w.-])", str(written[name]), word) for word in words]
        place = _output_at(words)
        identity = json.dumps([__version__, *(word for number, word in enumerate(words) if number != place)])
        folder = home / hashlib.sha256(identity.encode()).hexdigest()[:16]
        output = None
        if place is not None:  # equal commands share what they write, however each row names it
            output = Path(words[place]).stem
            written[words[place]] = folder / f"out{Path(words[place]).suffix}"
            words[place] = str(written[words[place]])
            if words[place - 1] == ">":  # what it prints is read anyway
                del words[place - 1 : place + 1]
        words += [option for option in _QUIETLY if option in options and option not in words]
        if words[0] == "run":  # what a command left that was stopped
            words += ["--force"]
        for option, value in (("--workers", "1"), ("--format", "csv")):
            if option in options and option not in words:
                words += [option, value]
        calls.append(Call(tuple(words), text, folder, output, tuple(written[name].parent for name in read)))
    return calls


def _output_at(words: Sequence[str]) -> int | None:
    """Return where in a command the name of its output stands, after --out, -o or >."""
    return next((place for place in range(1, len(words)) if words[place - 1] in ("--out", "-o", ">")), None)


def _result(published: System, row: Row, plan: Sequence[Sequence[Call]], outputs: Mapping[Path, Output]) -> RowResult:
    """Compare the median over seeds with the band; a command that failed says why in its last line."""
    facts: dict[str, Any] = {
        "id": row.id, "system": published.name, "subject": published.subject, "published": row.published,
        "source": row.source, "badge": row.badge, "band": row.band, "commands": row.run, "check": row.check,
        "expression": row.value, "note": row.note,
    }  # fmt: skip
    if row.unavailable is not None:
        return RowResult(**facts, verdict="unavailable", reason=row.unavailable)
    if row.value is None:
        return RowResult(**facts, verdict="misses" if row.missed else "needs a clone")
    folders = {call.folder: None for calls in plan for call in calls}
    facts["seconds"] = sum(outputs[folder].seconds for folder in folders)
    failed = next((folder for folder in folders if not outputs[folder].ran), None)
    if failed is not None:
        code, reason = outputs[failed].exit_code, outputs[failed].last_line  # a run that is not valid has no last line
        reason = reason or f"A command ended with exit code {code}; 'bench report {failed / 'out'}' shows why."
        return RowResult(**facts, verdict="cannot run", reason=reason)
    try:
        values = [
            evaluate(
                row.value,
                {call.name: read_csv(outputs[call.folder].csv) for call in calls if call.name is not None},
            )
            for calls in plan
        ]
    except UsageError as error:
        return RowResult(**facts, verdict="cannot run", reason=str(error))
    median = statistics.median(values)
    verdict: Verdict = "informs"
    if row.band is not None:
        verdict = "holds" if row.band[0] <= median <= row.band[1] else "misses"
    return RowResult(**facts, verdict=verdict, value=median, least=min(values), most=max(values), seeds=len(values))


def outputs(text: str) -> set[str]:
    """Return the names of the outputs that an expression is over. Raises UsageError for what it may not hold."""
    try:
        nodes = [*ast.walk(ast.parse(text, mode="eval"))]
    except SyntaxError:
        raise UsageError(f"'{text}' is no expression; {ALLOWED}.") from None
    for node in nodes:
        if not isinstance(node, _ALLOWED):
            raise UsageError(f"'{text}' holds '{ast.unparse(node)}'; {ALLOWED}.")
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if called - FUNCTIONS.keys():
        raise no_such("function of an expression", min(called - FUNCTIONS.keys()), FUNCTIONS)
    return {node.id for node in nodes if isinstance(node, ast.Name)} - called


def read_csv(text: str) -> list[Cells]:
    """Read what a command prints with --format csv.

    A run, which has a line for each statistic, becomes a row for all requests and one for each class: `ttft_p50` is a
    statistic of a metric, `attainment` a metric that has one value alone.
    """
    lines = list(csv.DictReader(io.StringIO(text)))
    rows = [{name: _cell(cell) for name, cell in line.items() if name and cell} for line in lines]
    if not lines or not {"class", "metric", "statistic", "value"} <= lines[0].keys():
        return rows
    classes: dict[str, Cells] = {}
    statistics_of: dict[tuple[str, str], set[str]] = {}
    for line in lines:
        statistics_of.setdefault((line["class"], line["metric"]), set()).add(line["statistic"])
    for line, row in zip(lines, rows, strict=True):
        cells = classes.setdefault(line["class"], {"class": line["class"]} if line["class"] else {})
        single = len(statistics_of[line["class"], line["metric"]]) == 1
        if "value" in row:
            name = line["metric"] if single else f"{line['metric']} {line['statistic']}"
            cells[re.sub(r"\W+", "_", name)] = row["value"]
    return [*classes.values()]


def _cell(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def evaluate(text: str, answers: Mapping[str, Sequence[Cells]]) -> float:
    """Return the value over the rows of each output. Raises UsageError for a name, a row or a value that is not there.

    `OUT.COLUMN` is of an answer with one row, or of all requests of a run; `OUT['cell', 2].COLUMN` is of the row that
    holds these cells. A function of one column alone is over all of its rows.
    """
    outputs(text)
    try:
        return _value(ast.parse(text, mode="eval").body, answers)
    except ZeroDivisionError:
        raise UsageError(f"'{text}' divides by 0.") from None


def _value(node: ast.expr, answers: Mapping[str, Sequence[Cells]]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, answers)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, answers), _value(right, answers))
        case ast.Call(func=ast.Name(id=name), args=[ast.Attribute() as reference], keywords=[]):
            return FUNCTIONS[name](_cells(reference, answers))
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as arguments, keywords=[]):
            return FUNCTIONS[name]([_value(argument, answers) for argument in arguments])
        case ast.Attribute():
            values = _cells(node, answers)
            if len(values) != 1:
                raise UsageError(
                    f"'{ast.unparse(node)}' is in {len(values)} rows; name one by its cells: OUT['cell'].COLUMN."
                )
            return values[0]
    raise UsageError(f"'{ast.unparse(node)}' has no value; {ALLOWED}.")


def _cells(node: ast.Attribute, answers: Mapping[str, Sequence[Cells]]) -> list[float]:
    """Return the cells of a column in the rows that hold the cells in brackets; at least one."""
    match node.value:
        case ast.Name(id=output):
            sought: tuple[Any, ...] = ()
        case ast.Subscript(value=ast.Name(id=output), slice=in_brackets):
            cells = ast.literal_eval(in_brackets)
            sought = cells if isinstance(cells, tuple) else (cells,)
        case _:
            raise UsageError(f"'{ast.unparse(node)}' has no value; {ALLOWED}.")
    if output not in answers:
        raise no_such("output of its commands", output, answers)
    rows = answers[output]
    # a number may stand in a column of results, too: the rows count that have the cells furthest left
    matching = {i: [*row.values()] for i, row in enumerate(rows) if all(cell in row.values() for cell in sought)}
    columns = {i: [line.index(cell) for cell in sought] for i, line in matching.items()}
    leftmost = min(columns.values(), default=[])
    chosen = [rows[i] for i, places in columns.items() if places == leftmost]
    if not sought and rows and "class" not in rows[0] and all("class" in row for row in rows[1:]):
        chosen = [rows[0]]  # all requests of a run, before those of each class
    values = [row[node.attr] for row in chosen if node.attr in row]
    if not values:
        if sought and not chosen:
            raise UsageError(f"No row of '{output}' holds {', '.join(map(str, sought))}.")
        raise no_such(f"column of '{output}' with a value", node.attr, {name for row in chosen for name in row})
    if texts := [value for value in values if isinstance(value, str)]:
        raise UsageError(f"'{ast.unparse(node)}' is the text '{texts[0]}'; name a column of numbers.")
    return [value for value in values if not isinstance(value, str)]
