"""Records become tables without losing or inventing anything."""

import dataclasses
from array import array

import numpy as np
import pytest

from harness.api import Exchange, Request, RequestRecord, Step
from harness.data.lists import streamed_tokens
from harness.data.records import HTTP, REQUESTS, SCHEDULE, STEPS, completed, http_table, steps_table, to_table
from harness.metrics.measure import metrics, per_request


@pytest.mark.parametrize(
    ("schema", "kind"), [(REQUESTS, RequestRecord), (STEPS, Step), (SCHEDULE, Request), (HTTP, Exchange)]
)
def test_every_field_has_its_column(schema, kind):
    """A field added to the contract would silently never reach the disk."""
    fields = {f.name for f in dataclasses.fields(kind)} - {"exchange"}  # what the wire saw has a table of its own

    assert fields == set(schema.names) - ({"request_id"} if schema is HTTP else set())


def test_schemas_tell_version_and_units():
    """A Parquet file read years later would not say what its numbers mean."""
    assert REQUESTS.metadata[b"bench.schema_version"] == b"2"
    assert REQUESTS.field("token_s").metadata == {b"unit": b"s"}
    assert REQUESTS.field("prompt_tokens_server").metadata == {b"unit": b"tokens"}


@pytest.mark.parametrize("kind", [lambda x: array("d", x), list, np.array, tuple, lambda x: np.array(x)[::1]])
def test_token_times_may_come_in_any_form(record, kind):
    """A backend that hands over another kind of sequence would lose or bend its stamps."""
    rows = [record(0, tokens=kind([0.5, 1.5, 1.75])), record(1, tokens=kind([])), record(2, tokens=kind([9.0]))]

    assert [[0.5, 1.5, 1.75], [], [9.0]] == to_table(rows)["token_s"].to_pylist()


def test_single_precision_arrays_are_not_read_as_bytes(record):
    """array('f') has half the bytes per stamp: joined blindly, it would become garbage times."""
    rows = to_table([record(0, tokens=array("f", [0.5, 1.5]))])

    assert [[0.5, 1.5]] == rows["token_s"].to_pylist()


def test_missing_token_counts_are_ones(record):
    """Events without a count would vanish from the token totals."""
    rows = to_table([record(0), record(1, tokens=[1.0, 2.0], token_n=[3, 4]), record(2, tokens=[])])

    assert [[1, 1, 1, 1], [3, 4], []] == rows["token_n"].to_pylist()


def test_a_record_has_the_times_of_its_row_in_the_table(record):
    """A router, a fit or a check against measurements would judge by another TTFT or TPOT than the run prints."""
    records = [
        record(0, tokens=[0.5, 1.5, 1.75]), record(1, tokens=[]), record(2, tokens=[9.0]),
        record(3, tokens=[4.0, 5.0], token_n=[3, 4], output_tokens=7), record(4, tokens=[6.0], output_tokens=4),
        record(5, tokens=[5.25, 7.0], output_tokens=9, unseen_tokens=6),
    ]  # fmt: skip
    table = to_table(records)

    for name in ("ttft", "tpot"):
        of_records = np.array([getattr(each, f"{name}_s") for each in records], np.float64)
        np.testing.assert_array_equal(of_records, per_request(metrics()[name], table))


def test_counts_that_do_not_fit_the_stamps_are_refused(record):
    """Counts of one request would slip into the row of the next."""
    with pytest.raises(ValueError, match="row 0: 1 token counts for 4 stamps"):
        to_table([record(0, token_n=[4])])


def test_rows_come_back_as_they_went_in(record):
    """A column swapped with another of the same type would go unnoticed by every type check."""
    row = record(
        3, tag="long", session=8, turn=2, error="late", prompt_tokens_server=11, cached_tokens=4, replica=1,
        preemptions=2, prefill_start_s=3.01, prefill_end_s=3.02, handoff_start_s=3.03, handoff_end_s=3.04,
        decode_start_s=3.05, slo_ttft_s=0.7, slo_tpot_s=0.8, token_n=[1, 2, 3, 4],
    )  # fmt: skip

    expected = {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name != "exchange"}

    assert expected == to_table([row]).to_pylist()[0]


def test_what_the_wire_saw_comes_back_as_it_went_in(record):
    """A connect time in the column of a server's time would blame the wrong side."""
    exchange = Exchange(
        1, "127.0.0.1:8000", 200, "stop", "usage", 0.01, 0.02, True, 0.03, 0.04, 5, 0.06, 0.07, 0.08, 0.09, 10, 0.11,
        12, 13,
    )  # fmt: skip

    rows = http_table([record(0), dataclasses.replace(record(7), exchange=exchange)])

    assert [{"request_id": 7, **dataclasses.asdict(exchange)}] == rows.to_pylist()


def test_no_records_make_an_empty_table_of_the_same_schema():
    """A run in which nothing ended would break every reader."""
    assert to_table([]).schema.equals(REQUESTS, check_metadata=True)
    assert steps_table([]).schema.equals(STEPS, check_metadata=True)


def test_steps_come_back_as_they_went_in():
    """The replay of a run would feed a step's fields to the wrong places."""
    step = Step(1, 0.5, 0.75, 3, 4, 5, 6, 7, 8)

    assert dataclasses.asdict(step) == steps_table([step]).to_pylist()[0]


def test_arrays_are_valid_arrow(record):
    """A wrong offset would crash readers in other languages, far from here."""
    stamps = [[float(k) for k in range(i)] for i in range(5)]
    table = to_table([record(i, tokens=tokens) for i, tokens in enumerate(stamps)])
    table.validate(full=True)

    assert stamps == table["token_s"].to_pylist()


def test_a_table_of_an_earlier_version_is_read_without_what_it_lacks(table):
    """A stored run would be lost with each column that is new."""
    now = table(3)
    old = now.drop_columns(["unseen_tokens", "slo_task_s"])

    assert now.equals(completed(old, now.schema))
    assert now["output_tokens"].to_pylist() == streamed_tokens(completed(old, now.schema)).tolist()
    with pytest.raises(KeyError):
        completed(now.drop_columns(["status"]), now.schema)
