"""The answer of a closed form, as bench theory stores it: sentences, tables whose columns have units, and notes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType, field

from harness.data.codec import Document, Facts, Number, Part

Unit = Literal["text", "number", "count", "s", "bytes", "bytes_per_s", "tokens_per_s", "rps", "share", "ratio", "yes"]
Cell = str | Number | bool | None


class Column(Part, frozen=True):
    """The head of a column and the unit of its cells; a cell of None has no value."""

    head: str
    unit: Unit = "number"


class Table(Part, frozen=True):
    """Rows under their columns; `title` says what they show."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Line(Part, frozen=True):
    """Points of one curve; `simulated` ones are drawn as marks over the lines of the formulas."""

    name: str
    points: tuple[tuple[Number, Number], ...]
    simulated: bool = False


class Picture(Part, frozen=True):
    """Lines over one axis for the page; `y_log` spreads a value over decades."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    y_log: bool = False


class TheoryAnswer(Document, frozen=True, kw_only=True):
    """The results of `bench theory FORM`, for the options `given`."""

    schema: int = 1
    kind: Literal["theory"] = "theory"
    versions: Facts = field(default_factory=dict)
    exit_code: int = 0
    form: str
    given: Facts
    sentences: list[str]
    tables: list[Table]
    notes: list[str]
    pictures: list[Picture]


class Published(Part, frozen=True):
    """The SLOs of a model and its hardware as they were published: p99 of ITL in seconds."""

    title: str
    strict_s: Number
    relaxed_s: Number
    note: str = ""


class Derived(Part, frozen=True):
    """One SLO: `factor` decode steps, as the p99 of ITL in seconds, and as --slo takes it."""

    name: str
    factor: Number
    itl_p99_s: Number
    slo: str


class PricedSystem(Part, frozen=True, kw_only=True):
    """What a step was priced for; constants know neither model nor hardware."""

    model: str | UnsetType = UNSET
    hardware: str | UnsetType = UNSET
    latency: str
    tp: int
    pp: int


class TheorySloAnswer(Document, frozen=True, kw_only=True):
    """The results of `bench theory slo`: SLOs derived from a decode step, beside those that were published."""

    schema: int = 1
    kind: Literal["theory_slo"] = "theory_slo"
    versions: Facts = field(default_factory=dict)
    exit_code: int = 0
    system: PricedSystem
    batch: int
    context_tokens: int
    decode_step_s: Number
    derived: list[Derived]
    published: dict[str, Published]
    warnings: list[dict[str, str]]


def table(title: str, columns: Iterable[tuple[str, Unit]], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table of (head, unit) columns."""
    return Table(title, tuple(Column(*one) for one in columns), tuple(tuple(row) for row in rows))


def answer(
    form: str, given: Mapping[str, object], sentences: Sequence[str], tables: Sequence[Table],
    notes: Sequence[str] = (), pictures: Sequence[Picture] = (),
) -> TheoryAnswer:  # fmt: skip
    """The results, with the versions that made them."""
    from harness.data.host import versions

    return TheoryAnswer(
        versions=dict(versions()), form=form, given=dict(given), sentences=list(sentences), tables=list(tables),
        notes=list(notes), pictures=list(pictures),
    )  # fmt: skip
