"""The candidate's numbers of a comparison for github-action-benchmark, which follows a series.

It takes a list of name, unit, value, range, extra, and one list for each direction.

The answer of `bench compare` as JUnit XML: a test case for each gate.
"""

import json
import math
from typing import Any

from harness.experiments.compare import wording
from harness.experiments.compare.compare_json import CompareAnswer, GateRow, Row
from reports._format import clean, count
from reports.answers import compare
from reports.document import text
from reports.junit import Case, Suite, render


def github_smaller(info: CompareAnswer) -> str:
    """For github-action-benchmark with the tool `customSmallerIsBetter`."""
    return _github(info, "lower")


def github_bigger(info: CompareAnswer) -> str:
    """For github-action-benchmark with the tool `customBiggerIsBetter`."""
    return _github(info, "higher")


def _github(info: CompareAnswer, better: str) -> str:
    rows = [_entry(row, info) for row in info.rows if row.head is not None and row.better == better]
    return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def _entry(row: Row, info: CompareAnswer) -> dict[str, Any]:
    ends = _ends(row)
    half = {} if ends is None else {"range": f"± {(ends[1] - ends[0]) / 2:.3g}"}
    verdict = row.verdict if isinstance(row, GateRow) else "not gated"
    extra = f"base {row.base}, verdict {verdict}, {count(row.pairs, 'pair')}"
    point = f", {wording.where(row.point)}" if row.point else ""
    name = f"{_workload(info)} on {info.head.system.get('backend', 'unknown')}{point}: {row.label}"
    return {"name": name, "unit": row.unit or "1", "value": row.head, **half, "extra": extra}


def _ends(row: Row) -> tuple[float, float] | None:
    """What the bounds of the change make of the base's value: the interval of the head's, the base taken as known."""
    if row.bounds_pct is None or row.base is None:
        return None
    ends = [row.base + pct / 100 if row.scale == "difference" else row.base * (1 + pct / 100) for pct in row.bounds_pct]
    return (ends[0], ends[1]) if all(map(math.isfinite, ends)) else None


def _workload(info: CompareAnswer) -> str:
    return str((info.workload or {}).get("name", "comparison"))


def junit(info: CompareAnswer) -> str:
    """The XML, ending with a newline: regressed is a failure, inconclusive is skipped, not comparable an error."""
    workload = clean(_workload(info))
    backend = clean(info.head.system.get("backend", "unknown"))
    pairs = [pair for pair in info.pairs if pair.schedule_hash]
    properties = {
        "verdict": info.verdict,
        "schedule": ",".join(str(pair.schedule_hash) for pair in pairs),
        "seeds": ",".join(str(pair.seed) for pair in pairs if pair.seed is not None),
        **{f"version of {name}": version for name, version in info.versions.items()},
    }
    cases = [_case(row, info) for row in info.gates]
    if info.verdict in ("refused", "invalid"):
        cases.insert(0, Case("comparable", "error", clean(info.text, None), text.render(compare.document(info))))
    return render(Suite("bench.compare", f"{workload}.{backend}", cases, 0.0, properties))


def _case(row: GateRow, info: CompareAnswer) -> Case:
    name = clean(f"{row.metric}, {wording.where(row.point)}" if row.point else row.metric)
    if row.verdict == "regressed":
        bounds = wording.bounds(row, info.alpha) if info.mode == "paired" else wording.spread(row)
        changed = f"{row.label} {wording.change(row)}{f' ({bounds})' if bounds else ''}"
        return Case(name, "failure", clean(changed, None), text.render(compare.document(info)))
    if row.verdict == "inconclusive":
        return Case(name, "skipped", f"inconclusive: {clean(wording.undecided(row), None)}")
    return Case(name, "passed")
