"""The report of `bench fit`: constants with intervals, and the error on rows that the fit did not see."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.data.codec import encode
from harness.experiments.fit.fit_json import FitAnswer
from harness.experiments.fit.requests import BLOCK_TOKENS
from reports._format import clean, quoted
from reports._system import flat
from reports.document import Command, Document, Finding, Notice, Section, Table

_UNITS = {
    "squared_s": "s/token^2", "prefill_c_s": "s/token^2", "token_s": "s/token", "seq_s": "s/sequence",
    "memory_share": "of bandwidth", "flops_share": "of peak", "_b_s": "s/token", "_c_s": "s/sequence", "_s": "s",
}  # fmt: skip
"""How a name ends, the first that it ends with, and its unit."""
_POINTS = {"prefill": "tokens of a step with prompts", "decode": "decodes of a step"}


def document(info: FitAnswer, path: Path | None = None) -> Document:  # noqa: ARG001  # a fit has no figures
    error = info.unseen[0]
    return Document(
        title=f"Latency model '{info.latency}' fitted to {clean(info.what)}",
        subtitle=clean(", ".join(info.sources), 400),
        mark="FITTED",
        good=None,
        findings=(
            Finding(
                f"Mean error {error.mean:.1%} on {info.unseen_rows:,} {clean(info.what)} held out of "
                f"{info.unseen_rows + info.seen_rows:,} (seed {info.seed}).",
                None,
                () if info.out else ("Nothing is written; --out FILE.toml stores the model.",),
            ),
        ),
        key_facts=(
            ("Fitted to", f"{info.seen_rows:,} {clean(info.what)}"),
            ("Scored on", f"{info.unseen_rows:,} {clean(info.what)} that the fit did not see"),
            ("Left out", f"{info.left_out_rows:,} rows without a step" if info.left_out_rows else ""),
            ("KV memory", _memory(info) if info.kv_under_way else ""),
            ("Written to", clean(info.out or "", None)),
        ),
        warnings=tuple(_warnings(info)),
        sections=(
            Section("constants", "Constants", tuple(_constants(info))),
            Section("errors", "Errors", (_errors(info),)),
        ),
        next=Command(
            "run with it",
            f"bench run --backend {_backend(info)}{_system(info)} --latency file:{quoted(info.out or 'FILE.toml')}",
        ),
        used=tuple(
            (f"{group}: {name}", value)
            for group, facts in (("system", info.system), ("versions", info.versions))
            for name, value in flat(facts)
        ),
        definitions=(),
    )


def _system(info: FitAnswer) -> str:
    """Options of the system that the latency model holds for, where its file names one."""
    if info.latency != "operators":
        return ""
    return "".join(f" --{name} {quoted(str(value))}" for name, value in info.system.items())


def _memory(info: FitAnswer) -> str:
    if info.kv_tokens is None:
        return f"unknown: no request waited for it; {info.kv_under_way:,} tokens were under way on a replica at once"
    return f"about {info.kv_tokens:,} tokens a replica: {_backend(info)}"


def _backend(info: FitAnswer) -> str:
    return "sim" if info.kv_tokens is None else f"sim:kv_blocks={info.kv_tokens // BLOCK_TOKENS}"


def _warnings(info: FitAnswer) -> Iterator[Notice]:
    for name, reason in info.left_out.items():
        yield Notice(f"{clean(name)} is left out: {clean(reason, None)}.")
    spread = [(row, row.plus_minus) for row in info.constants if row.plus_minus is not None]
    if wide := [clean(row.name) for row, half in spread if 0 < row.value < half]:
        yield Notice(f"Intervals hold 0: {', '.join(wide)}.", "Measure other loads, or give the constant with --fix.")


def _constants(info: FitAnswer) -> Iterator[Table]:
    """The constants, and a few of the points of a table of step times."""
    if info.constants:
        rows = tuple(
            (
                clean(row.name),
                f"{row.value:.5g}",
                "given" if row.given else "" if row.plus_minus is None else f"{row.plus_minus:.2g}",
                _unit(row.name),
            )
            for row in info.constants
        )
        yield Table("constants", (f"constant of {info.latency}", "value", "+- (95%)", "unit"), rows, words=1)
    for name, points in info.points.items():
        last = len(points) - 1
        sample = [points[i] for i in sorted({0, len(points) // 4, len(points) // 2, 3 * len(points) // 4, last})]
        times = tuple((f"{point[0]:,.0f}", f"{point[-1] * 1000:.4g} ms") for point in sample)
        caption = f"step time, {len(sample)} of {len(points)} points"
        yield Table(caption, (_POINTS.get(name, clean(name)), "step time"), times, left=0)


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def _errors(info: FitAnswer) -> Table:
    heads = ("rows", "count", "mean error", "P90", "summed time")
    rows = tuple(
        (f"{which}, {clean(row.kind)}", f"{row.rows:,}", f"{row.mean:.1%}", f"{row.p90:.1%}",
         f"{row.bias:+.1%}")
        for which, scores in (("unseen", info.unseen), ("seen", info.seen)) for row in scores
    )  # fmt: skip
    return Table("errors of step times, relative", heads, rows)


def rows(info: FitAnswer) -> Iterator[dict[str, Any]]:
    """A row per constant with its unit, then a row per score, errors as shares."""
    for row in info.constants:
        yield {**encode(row), "unit": _unit(row.name)}
    for which, scores in (("unseen", info.unseen), ("seen", info.seen)):
        yield from ({"scored_on": which, **encode(row)} for row in scores)
