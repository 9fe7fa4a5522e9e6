"""Rows of public measurements: the targets of `bench validate --against`, each with what others reached."""

from collections.abc import Iterator

from harness import validate
from harness.acceptance import Place, Row


def rows_of(source: str, prefix: str, place: Place) -> Iterator[Row]:
    """A row for each target of a set of measurements, `prefix` and a number as its id; without data one."""
    command = f"bench validate --against {source}"
    if place.data is None:
        yield Row(f"{prefix}.1", source, "real", "measured runs", "not run", "see the note", None, command,
                  "Needs the folder of public measurements (--data).")  # fmt: skip
        return
    found = validate.source(source)(place.data)
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
