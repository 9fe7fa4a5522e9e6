"""Every fact of the specification of serving systems is a row of the table of acceptance."""

from __future__ import annotations

from harness import acceptance
from harness.acceptance import table

SYSTEMS = [*range(1, 17), *range(19, 34), 35, 37, 40, 41, 43, 58, 63]
WANTED = {*(f"S{n:02d}" for n in SYSTEMS), *(f"E{n}" for n in range(1, 24)), *(f"I{n}" for n in range(1, 9))}


def test_no_fact_of_the_specification_is_left_out():
    """A published number that nobody compares would be taken for one that holds."""
    rows = {table.base(one) for topic in acceptance.names() for one in table.ids_of(topic)}

    assert set() == WANTED - rows
