"""The forms of the answer: text, markdown, JUnit, and what other services take."""

import json
from xml.etree import ElementTree as ET

import pytest
from msgspec import structs

from harness.experiments.compare import answer, gates
from harness.experiments.compare.answer import Settings
from harness.experiments.compare.pairing import Matched, Pair
from reports.answers import compare, exports
from reports.document import markdown, text


def parsed(xml):
    return ET.fromstring(xml)  # noqa: S314  # our own text


@pytest.fixture
def compared(stored):
    """The answer on five pairs whose heads are slower by a factor, under a wall clock or a simulator's."""

    def made(slower=1.06, clock="wall", settings=None, label="after", **head):
        factors = [slower * noise for noise in (1.0, 1.004, 0.997, 1.002, 0.999)] if clock == "wall" else [slower]
        pairs = [
            Pair(stored(seed, clock=clock), stored(seed, slower=f, clock=clock, **head))
            for seed, f in enumerate(factors)
        ]
        info = answer.compare(Matched(tuple(pairs)), settings or Settings(), base="before", head=label)
        orders = ("BA", "AB")
        return info.change(pairs=[structs.replace(row, order=orders[(row.pair - 1) % 2]) for row in info.pairs])

    return made


def test_a_pair_that_was_made_again_is_marked(compared):
    """'Not valid' beside a verdict that counts would make people doubt the verdict."""
    info = compared()
    failed = structs.replace(info.pairs[1], valid=False, reasons=["head: late"])
    found = compare.document(info.change(pairs=[info.pairs[0], failed, *info.pairs[1:]]))
    [table] = next(section for section in found.sections if section.key == "notes").blocks

    assert (("2", "made again", "head: late"),) == table.rows
    assert "not valid" not in text.render(found)


def test_markdown_cannot_be_broken_by_foreign_names(compared):
    """A model or folder name from outside must not forge a heading, a link or a table row."""
    info = compared(label="x|y\n# owned <img src=x> [a](http://evil)")
    found = markdown.render(compare.document(info))

    assert "<img" not in found and "\n# owned" not in found and "[a](" not in found
    assert "**Regressed: ttft mean rose" in found or "**Regressed: tpot mean rose" in found
    assert found.endswith("\n")


def test_markdown_stays_below_what_a_comment_holds(compared):
    """GitHub refuses a longer comment, and the verdict would be lost."""
    info = compared()
    many = [structs.replace(info.gates[0], point={"rate": str(i)}) for i in range(2000)]
    found = markdown.render(compare.document(info.change(gates=many)))

    assert len(found.encode()) < 60_000
    assert "gates (the first 40 of 2,000; all are in the JSON)" in found


def test_a_table_has_a_row_for_each_metric(compared):
    """Who follows a series in a spreadsheet would have to read tables of rounded text."""
    info = compared()
    found = {row["metric"]: row for row in compare.rows(info)}
    tpot = next(row for row in info.gates if row.metric == "tpot")

    assert [row.metric for row in (*info.gates, *info.shown)] == list(found)
    assert (tpot.base, tpot.head, "s", "regressed") == tuple(
        found["tpot"][name] for name in ("base", "head", "unit", "verdict")
    )
    assert found["attainment"]["verdict"] is None


def test_junit_has_a_case_for_each_gate(compared):
    """CI systems count failures, errors and skipped tests, and show their messages."""
    suite = parsed(exports.junit(compared()))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}

    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("bench.compare", "3", "2")
    assert cases["tpot"].find("failure").get("message").startswith("tpot mean rose by 6")
    assert cases["tpot"].get("classname") == "chatbot.engine"
    assert list(cases["failed"]) == []
    assert properties["seeds"] == "0,1,2,3,4"


def test_junit_skips_what_is_open_and_errs_on_what_is_not_comparable(compared):
    """'Inconclusive' is neither green nor red; 'not comparable' is not a regression."""
    open_ = parsed(exports.junit(compared(1.0, settings=Settings(gates=gates.parse("tpot=0%:0.01%")))))
    refused = parsed(exports.junit(compared(backend={"model": "other"})))

    assert "or more is detectable" in open_.find("testcase/skipped").get("message")
    assert "the model differs" in refused.find("testcase/error").get("message")


def test_junit_holds_no_character_that_xml_forbids(compared):
    """One control character in a model name makes the whole report unreadable."""
    info = compared(backend={"model": "a\x00b\x1b[31m<&\"'"})

    assert parsed(exports.junit(info)).get("errors") == "1"


def test_services_get_the_candidates_numbers(compared):
    """A series in which base and candidate are mixed up shows steps that are none."""
    info = compared()
    tpot = next(row for row in info.gates if row.metric == "tpot")
    smaller, bigger = (json.loads(form(info)) for form in (exports.github_smaller, exports.github_bigger))

    assert {"chatbot on engine: tpot mean", "chatbot on engine: failed"} <= {each["name"] for each in smaller}
    assert {"chatbot on engine: goodput_rps", "chatbot on engine: attainment"} <= {each["name"] for each in bigger}
    assert next(each["value"] for each in smaller if each["name"].endswith(": tpot mean")) == tpot.head
    assert (
        "5 pairs" in smaller[0]["extra"]
        and "1 pair" == json.loads(exports.github_smaller(compared(clock="virtual")))[0]["extra"].rpartition(", ")[2]
    )
