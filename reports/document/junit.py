"""JUnit XML as CI systems read it: a suite with a case for each thing that was judged; foreign text made harmless."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree as ET

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
    made = ET.Element(tag, {name: _NOT_XML.sub("", str(value)) for name, value in attributes.items()})
    made.text = _NOT_XML.sub("", text)
    return made
