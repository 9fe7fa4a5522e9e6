"""JUnit XML as CI systems read it, and a run as a suite: a case for its validity, and one for each bound of its SLO."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree as ET

from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.validity.conclude import completed
from harness.validity.work_done import exceeded
from reports._format import clean, seconds, share

Outcome = Literal["passed", "failure", "error", "skipped"]

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Case:
    """One test case; `message` says why it did not pass, `text` shows more of it."""

    name: str
    outcome: Outcome
    message: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """The cases of one command; `classname` groups them, `properties` say what they are of."""

    name: str
    classname: str
    cases: Sequence[Case]
    seconds: float = 0.0
    properties: Mapping[str, object] = field(default_factory=dict)


def render(suite: Suite) -> str:
    """The XML of a suite, ending with a newline."""
    top = _element("testsuite", name=suite.name, tests=len(suite.cases))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        top.set(name, str(sum(case.outcome == kind for case in suite.cases)))
    top.set("time", f"{suite.seconds:.3f}")
    if suite.properties:
        properties = ET.SubElement(top, "properties")
        properties.extend(_element("property", name=name, value=value) for name, value in suite.properties.items())
    for case in suite.cases:
        share = f"{suite.seconds / len(suite.cases):.3f}"
        row = _element("testcase", classname=suite.classname, name=case.name, time=share)
        if case.outcome != "passed":
            row.append(_element(case.outcome, case.text, message=case.message))
        top.append(row)
    ET.indent(top)
    xml: bytes = ET.tostring(top, "UTF-8", xml_declaration=True)
    return xml.decode() + "\n"


def _element(tag: str, text: str = "", **attributes: object) -> ET.Element:
    """An element without what XML cannot hold."""
    element = ET.Element(tag, {name: _NOT_XML.sub("", str(value)) for name, value in attributes.items()})
    element.text = _NOT_XML.sub("", text)
    return element


@dataclass(frozen=True, slots=True)
class Junit:
    """The verdict of a run for a CI system: a bound that is not kept is a failure, a run that is not valid and a
    backend that failed are errors; a bound that is kept where the run cannot prove it is skipped."""

    def render(self, run: Run) -> str:
        """The XML, ending with a newline."""
        info = completed(run).info
        workload = clean(info.workload.name or "run")
        backend = clean(info.backend.get("backend", "unknown"))
        properties = {
            "schedule": info.schedule.sha256 or "",
            "seed": info.spec.get("seed", ""),
            **{f"version of {name}": version for name, version in info.versions.items()},
        }
        window_s = float(info.summary.window_s or 0.0)
        return render(Suite("bench.run", f"{workload}.{backend}", [*_cases(info, run.complete)], window_s, properties))


def _cases(info: RunInfo, complete: bool) -> Iterator[Case]:
    verdict, summary = info.verdict, info.summary
    reasons = "; ".join(clean(reason, None) for reason in verdict.reasons)
    yield Case("valid", "passed") if verdict.valid else Case("valid", "error", reasons or "not valid")
    if failed := exceeded(info):
        yield Case("backend", "error", clean(failed, None))
    doubt = _doubt(info, complete)
    hidden = info.resolution.unresolved if info.warning("held-back") is not None else []
    if summary.attainment is not None and summary.goal is not None and summary.bounds:
        met = f"{share(summary.attainment, summary.goal)} of the requests met the SLO"
        goal = f"the goal is {share(summary.goal)}"
        reached = summary.attainment >= summary.goal
        yield _bound("attainment", reached or (bool(hidden) and info.resolution.undecided), f"{met}, {goal}", doubt)
    for bound in summary.bounds:
        if bound.text in hidden:
            yield Case(clean(bound.text), "skipped", doubt)
        elif bound.passed is not None:
            message = f"{share(bound.attainment)} of the requests met it"
            if bound.percentile is not None:
                message = "too many requests failed" if bound.value_s is None else f"it is {seconds(bound.value_s)}"
            yield _bound(clean(bound.text), bound.passed, message, doubt)


def _doubt(info: RunInfo, complete: bool) -> str:
    """Why what was kept is not proven to be; empty where nothing speaks against it."""
    verdict = info.verdict
    doubts = (
        (not verdict.valid, "the run is not valid"),
        (exceeded(info), "the backend failed"),
        (not complete, "the run did not finish"),
        (verdict.overloaded, "the queue grew all through the run, so fewer may meet the SLO in a longer one"),
        (info.warning("held-back"), "the stream was held back on its way"),
        (verdict.unresolved, "the client's own error leaves it open"),
    )
    return next((why for holds, why in doubts if holds), "")


def _bound(name: str, passed: bool, message: str, doubt: str) -> Case:
    if not passed:
        return Case(name, "failure", message)
    return Case(name, "skipped", f"{message}; {doubt}") if doubt else Case(name, "passed")
