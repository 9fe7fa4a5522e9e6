"""The page of a placement: the best of each algorithm, every candidate with its interval, what was left out."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reports import _page, figures
from reports._format import clean
from reports._sheet import Section, Sheet, Table
from reports._system import Facts, flat, part
from reports.answers import place as said

Info = Mapping[str, Any]

_DEFINITIONS = (
    ("tp, pp", "GPUs that share one stage, and pipeline stages of one replica; a replica has tp x pp GPUs"),
    ("P, D", "a replica that prefills only, and one that decodes only"),
    ("rate per GPU", "the highest rate at which enough requests keep the SLO, over the GPUs of the unit"),
    ("interval", "holds the mean over all traffic of this kind with 95%, by Student's t over the seeds"),
    ("misses above it", "the condition that is not kept at the next higher rate that was tried"),
)


def sheet(info: Info, path: Path) -> Sheet:  # noqa: ARG001  # nothing is looked for beside the answer
    """What stands on the page of a placement whose place.json is `info`."""
    over = "best" in info
    asked = part(info, "asked")
    hardware = " or ".join(clean(name, 40) for name in asked.get("hardware") or [])
    cluster = f"{asked.get('nodes')} x {asked.get('gpus_per_node')} {hardware}"
    return Sheet(
        title=f"Placement of {clean(asked.get('model') or 'a model', 60)} on {cluster}",
        subtitle=f"{clean(asked.get('slo'), 200)}, {clean(asked.get('conditions'), 40)}, goal {asked.get('goal')}",
        mark=_mark(info),
        good=bool(info["best"]) if over else None,
        answer=f"{_upper(said.headline(info))}." if over else said.RUNNING,
        state=" ".join(said.sentences(info)) if over else "",
        heads=_heads(info, asked),
        warnings=tuple((one["message"], "") for one in info.get("warnings") or []),
        sections=tuple(_sections(info)) if over else (),
        facts=tuple(flat(asked)) + tuple((f"version of {k}", clean(v, 80)) for k, v in part(info, "versions").items()),
        definitions=_DEFINITIONS,
    )


def _upper(text: str) -> str:
    """`text` with a capital first letter; names and units in it stay as they are."""
    return text[:1].upper() + text[1:]


def _mark(info: Info) -> str:
    if info.get("state") == "interrupted":
        return "INTERRUPTED"
    if "best" not in info:
        return "NOT FINISHED"
    return "PLACED" if info["best"] else "NOTHING CARRIES IT"


def _heads(info: Info, asked: Info) -> Facts:
    traffic = f"{clean(asked.get('workload'), 80)}, {asked.get('requests')} requests a trial"
    cost = (("Cost", said.cost(info).removeprefix("cost: ")),) if "cost" in info else ()
    return (("Traffic", traffic), ("Planner", clean(asked.get("planner"), 40)), *cost)


def _sections(info: Info) -> Iterator[Section]:
    objective = info["objective"]  # told in the title where it is not the rate per GPU
    title = None if objective["name"] == "gpu" else f"{_upper(objective['unit'])} of each placement"
    parts = tuple(_page.part(row.key, title or row.title, row.draw(info)) for row in figures.of("place").values())
    yield Section("figures", "Beside one another", parts=parts)
    heads = said.heads_of(info)
    tables = tuple(Table(title, heads, tuple(rows), left=3) for title, rows in said.tables(info, most=100))
    yield Section("candidates", "Candidates", tables=tables)
    if info["skipped"]:
        yield Section("skipped", "Left out", texts=tuple(f"{line}." for line in said.skipped(info)))
