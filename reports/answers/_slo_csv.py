"""`bench slo --format csv`: a row per number, with what it is of; times in seconds, shares from 0 to 1."""

import csv as tables
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reports._clean import clean

Info = Mapping[str, Any]

HEADS = ("run", "rate_rps", "seed", "objective", "what", "of", "at", "at_other", "value")


def csv(info: Info) -> str:
    """The numbers of all runs, one a line."""
    file = io.StringIO()
    writer = tables.writer(file, lineterminator="\n")
    writer.writerow(HEADS)
    for run in info["runs"]:
        for row in _rows(run):
            writer.writerow([clean(cell) if isinstance(cell, str) else cell for cell in row])
    return file.getvalue()


def _rows(run: Info) -> Iterator[list[Any]]:
    first = [run["path"], run["rate_rps"] or run["scheduled_rps"], run["seed"]]
    for slo in run["slos"]:
        for row in _slo(slo, run["goals"]):
            yield [*first, slo["text"], *row]
    for row in _plane(run["plane"]):
        yield [*first, "", *row]
    for found in run["groups"]:
        for group in found["groups"]:
            for i, text in enumerate(found["slos"]):
                yield [
                    *first,
                    text,
                    "attainment",
                    f"{found['by']}: {group['name']}",
                    None,
                    None,
                    group["attainment"][i],
                ]
    for column in (run["profiles"] or {"columns": ()})["columns"]:
        for name, value in column["values"].items():
            yield [*first, "", name, column["name"], None, None, value]


def _slo(slo: Info, goals: Sequence[float]) -> Iterator[list[Any]]:
    yield ["attainment", "all", None, None, slo["attainment"]]
    for goal, joint, separate in zip(goals, slo["joint"], slo["separate"], strict=True):
        yield ["reached", "joint", goal, None, int(joint)]
        yield ["reached", "separate", goal, None, int(separate)]
    yield ["goodput_rps", "all", None, None, slo["goodput_rps"]]
    for bound in slo["bounds"]:
        yield ["attainment", bound["text"], None, None, bound["attainment"]]
    scale = slo["scale"] or {"factors": ()}
    for i, factor in enumerate(scale["factors"]):
        yield ["attainment", "scale", factor, None, scale["attainment"][i]]
        yield ["goodput_rps", "scale", factor, None, scale["goodput_rps"][i]]
    if slo["tokens"] is not None:
        yield ["token_goodput_tps", "all", None, None, slo["tokens"]["token_goodput_tps"]]
        yield ["tokens_in_time", "all", None, None, slo["tokens"]["share"]]


def _plane(found: Info | None) -> Iterator[list[Any]]:
    if found is None:
        return
    for i, limit in enumerate(found["limits_s"][0]):
        for j, other in enumerate(found["limits_s"][1]):
            of = "plane: " + ", ".join(found["metrics"])
            yield ["attainment", of, limit, other, found["attainment"][i][j]]
            yield ["goodput_rps", of, limit, other, found["goodput_rps"][i][j]]
