"""A run as JUnit XML: a test case for its validity, and one for each bound of its SLO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.conclude import completed
from reports._clean import clean
from reports._junit import Case, Suite, render
from reports._numbers import share

if TYPE_CHECKING:
    from harness.folder import Run


@dataclass(frozen=True, slots=True)
class Junit:
    """The verdict of a run for a CI system: a bound that is not kept is a failure, a run that is not valid an error."""

    def render(self, run: Run) -> str:
        """The XML, ending with a newline."""
        info = completed(run).info
        workload = clean((info.get("workload") or {}).get("name", "run"))
        backend = clean((info.get("backend") or {}).get("backend", "unknown"))
        properties = {
            "schedule": (info.get("schedule") or {}).get("sha256", ""),
            "seed": (info.get("spec") or {}).get("seed", ""),
            **{f"version of {name}": version for name, version in (info.get("versions") or {}).items()},
        }
        seconds = float(info["summary"].get("window_s") or 0.0)
        return render(Suite("bench.run", f"{workload}.{backend}", [*_cases(info)], seconds, properties))


def _cases(info: dict[str, Any]) -> Iterator[Case]:
    verdict, summary = info["verdict"], info["summary"]
    reasons = "; ".join(clean(reason, None) for reason in verdict.get("reasons") or [])
    yield Case("valid", "passed") if verdict["valid"] else Case("valid", "error", reasons or "not valid")
    if summary["attainment"] is not None and summary["bounds"]:
        kept = f"{share(summary['attainment'], summary['goal'])} of the requests kept the SLO"
        goal = f"the goal is {share(summary['goal'])}"
        yield _bound("attainment", summary["attainment"] >= summary["goal"], f"{kept}, {goal}")
    for bound in summary["bounds"]:
        if bound["passed"] is not None:
            yield _bound(clean(bound["text"]), bound["passed"], f"{share(bound['attainment'])} of the requests met it")


def _bound(name: str, passed: bool, message: str) -> Case:
    return Case(name, "passed") if passed else Case(name, "failure", message)
