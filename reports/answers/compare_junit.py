"""The answer of `bench compare` as JUnit XML: a test case for each gate."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.compare import said
from reports._clean import clean
from reports._junit import Case, Suite, render
from reports.answers import compare


def junit(info: Mapping[str, Any]) -> str:
    """The XML, ending with a newline: regressed is a failure, inconclusive is skipped, not comparable an error."""
    workload = clean((info.get("workload") or {}).get("name", "comparison"))
    backend = clean(info["head"]["system"].get("backend", "unknown"))
    pairs = [pair for pair in info["pairs"] if pair.get("schedule_hash")]
    properties = {
        "verdict": info["verdict"],
        "schedule": ",".join(str(pair["schedule_hash"]) for pair in pairs),
        "seeds": ",".join(str(pair["seed"]) for pair in pairs if pair.get("seed") is not None),
        **{f"version of {name}": version for name, version in info["versions"].items()},
    }
    return render(Suite("bench.compare", f"{workload}.{backend}", [*_cases(info)], 0.0, properties))


def _cases(info: Mapping[str, Any]) -> Iterator[Case]:
    if info["verdict"] in ("refused", "invalid"):
        yield Case("comparable", "error", clean(info["text"], None), compare.text(info))
    for row in info["gates"]:
        yield _case(row, info)


def _case(row: Mapping[str, Any], info: Mapping[str, Any]) -> Case:
    name = clean(f"{row['metric']}, {said.where(row)}" if row["point"] else row["metric"])
    if row["verdict"] == "regressed":
        bounds = said.bounds(row, info["alpha"]) if info["mode"] == "paired" else said.spread(row)
        changed = f"{row['label']} {said.change(row)}{f' ({bounds})' if bounds else ''}"
        return Case(name, "failure", clean(changed, None), compare.text(info))
    if row["verdict"] == "inconclusive":
        return Case(name, "skipped", _open(row))
    return Case(name, "passed")


def _open(row: Mapping[str, Any]) -> str:
    if row["mde_pct"] is None:
        return "inconclusive: too few pairs for an interval"
    needed = "more than 1,000" if row["pairs_needed"] is None else f"{row['pairs_needed']:,}"
    unit = " points" if row["scale"] == "difference" else "%"
    return f"inconclusive: MDE {said.percent(row['mde_pct'])}{unit}, {needed} pairs needed"
