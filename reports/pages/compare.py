"""The page of a comparison: the verdict, the losses with their limits, both sides beside one another, what differs."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.data.run_json import Workload, from_facts
from harness.experiments.compare import gates, wording
from reports import _format, _page, _system, comparison, figures
from reports._format import clean, quoted, sentence
from reports._sheet import Section, Sheet
from reports._system import Facts, first, flat, in_use, part
from reports.answers import compare as told
from reports.comparison import Comparison
from reports.comparison import _tables as tables

Info = Mapping[str, Any]

_MARKS = {
    "regressed": ("REGRESSED", False),
    "improved": ("IMPROVED", True),
    "equivalent": ("EQUIVALENT", True),
    "inconclusive": ("INCONCLUSIVE", None),
    "refused": ("NOT COMPARABLE", None),
    "invalid": ("NOT VALID", False),
}
_TRUST = {
    "exact": "Simulators repeat themselves to the last bit, so any difference is real and no test is needed.",
    "paired": "Each pair sent the same requests to both sides; the paired t decides, with Holm's correction.",
    "unknown": "The paired t over the pairs decides, with Holm's correction.",
    "searched": "The capacities that both sides have for the same seed are a pair; the paired t decides.",
}
_DEFINITIONS = (
    (
        "change",
        "of the mean over the pairs, head against base, in percent (of shares in points); ~ where it could be chance",
    ),
    ("loss", "the change turned so that above 0 is worse, for what should be high and for what should be low"),
    ("bounds", "with this confidence the true change is above the first, and with the same below the second"),
    ("MDE", "minimum detectable effect: the loss that these pairs find in 95 of 100 cases"),
    ("pairs needed", "pairs with which a loss of what must be found is found in 95 of 100 cases"),
    ("regressed", "the loss is surely there, and above what is ignored"),
    ("improved", "the same with the other sign"),
    ("equivalent", "the loss is surely below what must be found"),
    ("inconclusive", "neither can be told from these pairs; no significant difference is not called equal"),
)


def sheet(info: Info, path: Path) -> Sheet:
    """What stands on the page of the answer of `bench compare`; `path` is the file or folder it will stand in."""
    found = comparison.of(info, path)
    mark, good = _MARKS[info["verdict"]]
    _, _, how = told.heading(info).partition(" (")
    return Sheet(
        title=f"{clean(info['head']['label'], 80)} against {clean(info['base']['label'], 80)}",
        subtitle=f"comparison of a head with a base, {clean(how.removesuffix(')'), 200)}",
        mark=mark,
        good=good,
        answer=_answer(info),
        state=_trust(found),
        heads=tuple(_heads(found)),
        warnings=tuple(
            (sentence(each["message"], 600), sentence(each.get("remedy"), 600)) for each in info["warnings"]
        ),
        sections=tuple(s for s in _sections(found) if s.texts or s.tables or s.parts),
        commands=_commands(found),
        facts=_facts(info),
        definitions=(*_DEFINITIONS, *in_use()),
    )


def _trust(found: Comparison) -> str:
    """How far the verdict can be trusted; empty where there is none."""
    info = found.info
    if not info["gates"] or info["mode"] == "exact":
        return _TRUST["exact"] if info["gates"] else ""
    if found.searches:
        return _TRUST["searched"]
    known = found.same_requests and all(pair.get("schedule_hash") for pair in info["pairs"] if pair["valid"])
    return _TRUST["paired" if known else "unknown"]


def _answer(info: Info) -> str:
    text = clean(info["text"], 4000)
    if info["verdict"] in ("regressed", "improved"):
        return f"The head {text}"
    return text[:1].upper() + text[1:]


def _heads(found: Comparison) -> Iterator[tuple[str, str]]:
    """What the verdict speaks of."""
    info = found.info
    for side in ("base", "head"):
        yield side.capitalize(), clean(info[side]["label"], 300)
    if info["slo"]:
        yield "SLO", f"{clean(info['slo'], 300)}, goal {_format.option(100 * info['goal'])}%"
    yield from _traffic(part(info, "workload"))
    backends = [info[side]["system"] for side in ("base", "head")]
    systems = [_system.system(b, {}) or first(b, "backend", "name") or "" for b in backends]
    if systems[0] == systems[1]:
        yield from (("System", text) for text in systems[:1] if text)
    else:
        yield from (
            (f"System of the {side}", text) for side, text in zip(("base", "head"), systems, strict=True) if text
        )
    yield from (("Gates", text) for text in [_limits(info)] if text)
    yield from found.floors
    every = {pair["pair"] for pair in info["pairs"]}
    good = {pair["pair"] for pair in info["pairs"] if pair["valid"]}
    if every:
        yield "Validity", f"{len(good):,} of {_format.count(len(every), 'pair')} valid"


def _traffic(workload: Info) -> Iterator[tuple[str, str]]:
    provenance = {**part(workload, "provenance"), **workload}
    without_rate = {key: value for key, value in workload.items() if key != "rate_rps"}
    words = [first(workload, "name"), *_system.source(from_facts(Workload, without_rate), {})]
    rows = (
        ("Workload", ", ".join(word for word in words if word)),
        ("Preparation", first(provenance, "preparation", "source")),
        ("Tokenizer", first(provenance, "tokenizer")),
    )
    yield from ((name, text) for name, text in rows if text)


def _limits(info: Info) -> str:
    """What each gate ignores and what it must find."""
    once = {row["metric"]: row for row in info["gates"]}.values()
    if info["mode"] == "exact":
        return clean(", ".join(str(row["label"]) for row in once), 400) + (": any loss counts" if once else "")
    texts = [
        f"{row['label']} (ignored up to {row['min_effect_pct']:g}{wording.unit(row)}, must be found from "
        f"{row['must_detect_pct']:g}{wording.unit(row)})"
        for row in once
    ]
    return clean(", ".join(texts), 900)


def _sections(found: Comparison) -> Iterator[Section]:
    info = found.info
    parts = _parts(found)
    if info["refused"]:
        yield Section("refusals", "What stands against it", tables=(tables.refusals(info),), tables_first=True)
    if not info["gates"]:
        yield from _apart(info)
        yield Section("runs", "Pairs", tables=tables.pairs(found))
        return
    yield Section("losses", "Losses", tables=(tables.gated(info),), parts=parts["losses"])
    yield Section("curves", "SLO attainment", parts=parts["curves"])
    yield Section("pairs", "Pairs and their requests", tables=tables.changed(found), parts=parts["pairs"])
    if info["exact"] and not info["exact"]["identical"]:
        yield Section("parting", "Where the simulations part", tuple(clean(text, 400) for text in told.parting(info)))
    yield from _apart(info)
    yield Section("shown", "Not gated", ("These decide nothing.",) if told.shown(info) else (), tables.shown(info))
    yield Section("runs", "Pairs", tuple(clean(note, 600) for note in info["notes"]), tables.pairs(found))


def _apart(info: Info) -> Iterator[Section]:
    """In what the two sides differ, allowed or not."""
    none = "Nothing that is recorded differs between the two sides."
    rows = tables.differences(info)
    texts = () if rows else (none,) if info["pairs"] else ()
    yield Section("differences", "What differs", texts, rows)


def _parts(found: Comparison) -> dict[str, tuple[_page.Part, ...]]:
    every: dict[str, tuple[_page.Part, ...]] = {"losses": (), "curves": (), "pairs": ()}
    told: set[str] = set()
    for name, module in figures.modules("compare").items() if found.info["gates"] else ():
        part_ = _page.part(name, module.TITLE, module.figure(found))
        if part_.table or part_.caption not in told:  # what keeps several figures from the page is said once
            every[module.SECTION] += (part_,)
        told.add(part_.caption)
    return every


def _commands(found: Comparison) -> tuple[str, ...]:
    """What gives the same answer again from stored runs; pairs that were made are told from their folder."""
    info = found.info
    if any(pair.get("order") for pair in info["pairs"]):
        return (f"bench report {quoted(found.folder)}",)
    words = ["bench", "compare", *(clean(info[side]["label"], None) for side in ("base", "head"))]
    if info.get("rescored") and info["slo"]:
        words += ["--slo", clean(info["slo"], None), "--goal", f"{_format.option(100 * info['goal'])}%"]
    for option, value in (("--warmup", info.get("warmup")), ("--gate", _gates(info))):
        words += [option, clean(value, None)] if value else []
    words += ["--alpha", f"{100 * info['alpha']:g}%"] if info["alpha"] != _ALPHA else []
    allowed = dict.fromkeys(each["field"] for each in info["allowed_differences"])
    words += ["--allow-different", ",".join(map(str, allowed))] if allowed else []
    return (shlex.join(words),)


_ALPHA = 0.01


def _gates(info: Info) -> str:
    """The gates as an option takes them, where they are not the ones that stand anyhow."""
    once = {row["metric"]: row for row in info["gates"]}
    usual = (
        gates.exact() if info["mode"] == "exact" else gates.defaults([*once, *(row["metric"] for row in info["shown"])])
    )
    limits = {gate.quantity.name: (100 * gate.min_effect, 100 * gate.must_detect) for gate in usual}
    if all(limits.get(name) == (row["min_effect_pct"], row["must_detect_pct"]) for name, row in once.items()):
        return ""
    return ",".join(
        f"{name}={row['min_effect_pct']:g}%:{row['must_detect_pct']:g}%"
        + ("" if gates.quantity(name).unit else f":{row['better']}")
        for name, row in once.items()
    )


def _facts(info: Info) -> Facts:
    rows = [("alpha, one-sided", f"{100 * info['alpha']:g}%")]
    if info["looks"]:
        rows.append(("looked after", f"{', '.join(map(str, info['looks']))} pairs"))
    rows += [(f"version of {clean(name, 40)}", clean(value, 80)) for name, value in part(info, "versions").items()]
    for title, content in (("workload", part(info, "workload")),
                           *((f"{side}, system", info[side]["system"]) for side in ("base", "head"))):  # fmt: skip
        rows += [(f"{title}: {name}", value) for name, value in flat(content)]
    return tuple(rows)
