"""Where two simulated runs part: found whatever column, row or length it is in."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from harness.data.records import STEPS
from harness.experiments.compare import verdict
from harness.experiments.compare.compare_json import FirstDifference


def changed(run, column, row, value):
    """The run with one value changed."""
    values = run.requests[column].to_pylist()
    values[row] = value
    field = run.requests.schema.field(column)
    table = run.requests.set_column(run.requests.schema.get_field_index(column), field, pa.array(values, field.type))
    return replace(run, requests=table)


def test_equal_runs_are_identical_in_whatever_order_their_rows_came(stored):
    """Rows stand in the order in which requests ended; that order is no difference of its own."""
    run = stored(0)
    shuffled = run.requests.take(pa.array(np.random.default_rng(0).permutation(len(run.requests))))

    found = verdict.compared(run, replace(run, requests=shuffled))

    assert found.identical and found.requests_differ == 0 and found.first_request is None


@pytest.mark.parametrize(
    ("column", "value"),
    [("status", "error"), ("replica", 7), ("preemptions", None), ("token_n", [1, 1]), ("token_s", [])],
)
def test_one_changed_value_is_found(stored, column, value):
    """A difference that is overlooked is a gate that is always green."""
    run = stored(0)
    found = verdict.compared(run, changed(run, column, 33, value))

    assert not found.identical
    assert found.requests_differ == 1
    assert found.first_request.request_id == run.requests["request_id"][33].as_py()
    assert found.first_request.column == column


def test_the_last_bit_of_one_token_is_found_with_its_place(stored):
    """'Something differs' does not help to find out what."""
    run = stored(0)
    stamps = run.requests["token_s"][5].as_py()
    other = [*stamps[:2], np.nextafter(stamps[2], np.inf), *stamps[3:]]
    first = verdict.compared(run, changed(run, "token_s", 5, other)).first_request

    assert (first.column, first.item, first.base, first.head) == ("token_s", 2, stamps[2], other[2])


def test_a_missing_request_is_found(stored):
    """A run that is shorter is not the same run."""
    run = stored(0)
    found = verdict.compared(run, replace(run, requests=run.requests.sort_by("request_id")[:-1]))

    assert found.requests_differ == 1
    assert found.first_request.request_id == 59


def test_the_first_step_that_differs_is_the_first_decision(stored):
    """The cause of all that follows is where the schedulers part."""
    rows = [dict.fromkeys(STEPS.names, 0) | {"start_s": float(i), "end_s": i + 1.0} for i in range(4)]
    base = pa.Table.from_pylist(rows, STEPS)
    rows[2] = rows[2] | {"decode_seqs": 5}
    head = pa.Table.from_pylist(rows, STEPS)
    run = stored(0)
    found = verdict.compared(replace(run, steps=base), replace(run, steps=head))
    shorter = verdict.compared(replace(run, steps=base), replace(run, steps=base[:3]))

    assert found.first_step == FirstDifference(step=2, start_s=2.0, column="decode_seqs", base=0, head=5)
    assert not found.identical and found.requests_differ == 0
    assert shorter.first_step == FirstDifference(step=3, column="steps", base=4, head=3)


def test_a_column_that_one_side_lacks_is_a_difference(stored):
    """Runs of two versions of bench, compared because the user allows it, end in a traceback."""
    run = stored(0)
    older = replace(run, requests=run.requests.drop_columns(["preemptions"]))

    for base, head in ((run, older), (older, run)):
        found = verdict.compared(base, head)

        assert (len(run.requests), "preemptions") == (found.requests_differ, found.first_request.column)
