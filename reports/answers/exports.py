"""The answer of `bench compare` as JUnit XML: a test case for each gate."""

from harness.experiments.compare import wording
from harness.experiments.compare.compare_json import CompareAnswer, GateRow
from reports._format import clean
from reports.answers import compare
from reports.document import text
from reports.junit import Case, Suite, render


def junit(info: CompareAnswer) -> str:
    """The XML, ending with a newline: regressed is a failure, inconclusive is skipped, not comparable an error."""
    workload = clean((info.workload or {}).get("name", "comparison"))
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
