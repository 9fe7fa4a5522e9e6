"""Every fact of the specification of serving systems is a row of acceptance, or is named by the test that holds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from harness import acceptance
from harness.acceptance import table

TESTS = Path(__file__).resolve().parents[1]
SYSTEMS = [*range(1, 17), *range(19, 34), 35, 37, 40, 41, 43, 58, 63]
WANTED = {*(f"S{n:02d}" for n in SYSTEMS), *(f"E{n}" for n in range(1, 24)), *(f"I{n}" for n in range(1, 9))}


def named_by_tests() -> Iterator[str]:
    """Ids in the docstrings of tests, and of their modules; E9-E12 names four."""
    for file in TESTS.rglob("test_*.py"):
        if file == Path(__file__).resolve():
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.Module):
                said = ast.get_docstring(node) or ""
                yield from re.findall(r"\b(?:S\d\d|[EI]\d{1,2})\b", said)
                for kind, first, last in re.findall(r"\b([SEI])(\d{1,2})-[SEI](\d{1,2})\b", said):
                    yield from (f"{kind}{n:02d}" if kind == "S" else f"{kind}{n}" for n in range(int(first), int(last)))


def test_no_fact_of_the_specification_is_left_out():
    """A published number that nobody compares would be taken for one that holds."""
    rows = {table.base(one) for topic in acceptance.names() for one in table.ids_of(topic)}

    assert set() == WANTED - rows - {*named_by_tests()}
