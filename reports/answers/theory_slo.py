"""The report of `bench theory slo`: SLOs derived from a decode step, beside the published ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import UNSET

from harness.data.codec import encode
from harness.experiments.theory.tables import TheorySloAnswer
from reports import _format
from reports._format import clean
from reports._system import flat
from reports.document import Document, Finding, Notice, Section, Table

_DELAY = "Sarathi-Serve's capacity also needs a median scheduling delay of at most 2 s."


def document(info: TheorySloAnswer, path: Path | None = None) -> Document:  # noqa: ARG001  # it has no figures
    """The derived SLOs and the published ones."""
    system = info.system
    gpus = "".join(f", {name} {count}" for name, count in (("tp", system.tp), ("pp", system.pp)) if count > 1)
    latency = clean(system.latency)
    what = latency if system.model is UNSET else f"{system.model} on {system.hardware}{gpus} ({latency})"
    published = None if system.model is UNSET else info.published.get(system.model)
    ratio = 5 * info.decode_step_s / published.strict_s if published else 0
    notes = (
        f"Five steps of this system are {ratio:.3g} times the strict SLO published for {published.title}.",
        _format.sentence(published.note, 1000),
    ) if published else ()  # fmt: skip
    return Document(
        title=f"SLOs of {what}",
        subtitle=f"{info.batch} sequences with {info.context_tokens:,} tokens of context each",
        mark="BY FORMULA",
        good=None,
        findings=(Finding(f"A decode step of {what}: {_format.seconds(info.decode_step_s)}.", None, (*notes, _DELAY)),),
        warnings=tuple(Notice(f"{clean(one['message'], None)}.") for one in info.warnings),
        sections=(Section("slos", "SLOs", (_derived(info), _published(info))),),
        used=tuple(flat(info.versions, "version of")),
        definitions=(),
    )


def _derived(info: TheorySloAnswer) -> Table:
    rows = tuple(
        (row.name, f"{row.factor:g}", _format.seconds(row.itl_p99_s), f"p99:itl={row.itl_p99_s:.4g}")
        for row in info.derived
    )
    return Table("derived", ("derived", "decode steps", "p99 ITL", "--slo"), rows)


def _published(info: TheorySloAnswer) -> Table:
    rows = tuple(
        (row.title, model, f"p99:itl={row.strict_s:g}", f"p99:itl={row.relaxed_s:g}")
        for model, row in info.published.items()
    )
    return Table("published", ("Sarathi-Serve, table 3", "--model", "strict", "relaxed"), rows, 2)


def rows(info: TheorySloAnswer) -> Iterator[dict[str, Any]]:
    """A row per derived SLO, then the published ones."""
    yield from map(encode, info.derived)
    for model, row in info.published.items():
        for name, limit_s in (("strict", row.strict_s), ("relaxed", row.relaxed_s)):
            yield {"name": name, "model": model, "itl_p99_s": limit_s, "slo": f"p99:itl={limit_s:g}"}
