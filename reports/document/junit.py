"""JUnit XML as CI systems read it: a suite with a case for each thing that was judged; foreign text made harmless."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

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
    counts = {kind: sum(case.outcome == kind for case in suite.cases) for kind in ("failure", "error", "skipped")}
    head = (
        f'<testsuite name={_attribute(suite.name)} tests="{len(suite.cases)}" failures="{counts["failure"]}" '
        f'errors="{counts["error"]}" skipped="{counts["skipped"]}" time="{suite.seconds:.3f}">'
    )
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', head]
    if suite.properties:
        rows = (f"    <property name={_attribute(k)} value={_attribute(v)}/>" for k, v in suite.properties.items())
        lines += ["  <properties>", *rows, "  </properties>"]
    lines += [_case(case, suite) for case in suite.cases]
    return "\n".join([*lines, "</testsuite>"]) + "\n"


def _case(case: Case, suite: Suite) -> str:
    share = suite.seconds / len(suite.cases)
    opening = f'  <testcase classname={_attribute(suite.classname)} name={_attribute(case.name)} time="{share:.3f}"'
    if case.outcome == "passed":
        return f"{opening}/>"
    text = escape(_plain(case.text))
    return f"{opening}>\n    <{case.outcome} message={_attribute(case.message)}>{text}</{case.outcome}>\n  </testcase>"


def _attribute(value: object) -> str:
    return quoteattr(_plain(value), {"\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})


def _plain(value: object) -> str:
    """The text without what XML cannot hold."""
    return _NOT_XML.sub("", str(value))
