"""Rows of public measurements: the targets of each source in `tests/published`, each with what others reached."""

from collections.abc import Iterator

from acceptance.rows import Place, Row
from published import sources

PREFIXES = {
    "aic-e2e": "S58.aic",
    "apex-h100": "S58.apex",
    "distserve-66b-chat-ae": "S26",
    "distserve-a100": "S58.distserve",
    "llmservingsim": "S58.4090",
}
"""How the ids of the rows of a source begin."""


def rows_of(source: str, place: Place) -> Iterator[Row]:
    """A row for each target of a source of measurements; without data one."""
    prefix, command = PREFIXES[source], f"python tests/published/run.py {source}"
    if place.data is None:
        yield Row(f"{prefix}.1", source, "real", "measured runs", "not run", "see the note", None, command,
                  "Needs the folder of public measurements (--data).")  # fmt: skip
        return
    found = sources.compare(source, place.data)
    scored = {pair.metric: 0 for pair in found.pairs}
    for pair in found.pairs:
        scored[pair.metric] += not pair.calibrated
    for number, target in enumerate(found.targets, start=1):
        over = scored.get(target.metric, 0) if target.pairs is None else target.pairs
        unit = "points" if target.metric.endswith("_pct") else "%" if "percent" in target.how else ""
        yield Row(
            f"{prefix}.{number}", source, "real", target.published or "measured runs",
            f"{_named(target.metric)}: {target.obtained:.3g} {unit} over {over} pairs".strip(),
            f"{target.how} <= {target.limit:g}", target.holds, command,
            " ".join(found.setting) if number == 1 else "",
        )  # fmt: skip
    if not found.targets:
        beside = f"{len(found.pairs)} pairs side by side"
        yield Row(
            f"{prefix}.1", source, "real", "measured runs", beside, "none", None, command, " ".join(found.setting)
        )


def _named(metric: str) -> str:
    """'ttft_mean_s' as 'ttft mean'."""
    return metric.rpartition("_")[0].replace("_", " ")
