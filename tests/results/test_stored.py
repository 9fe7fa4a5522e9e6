"""Runs are judged again when they are read: tables that were changed since the run prove nothing."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import harness
from harness.cli import main
from harness.data import large
from harness.data.codec import encode
from harness.data.run_json import Verdict
from harness.errors import UsageError
from harness.validity.conclude import completed

OPTIONS = {"backend": "sim", "model": "llama3.1-8b", "policy": "vllm-v0", "requests": 60, "rate": 2}
ROW = 7
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of sessions, so that some requests wait for an answer."""
    out = tmp_path_factory.mktemp("stored") / "sound"
    harness.run(out=out, sessions="fixed:turns=2,think=1s", seed=1, **OPTIONS)
    return out


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[pa.Table], pa.Table], name: str = "requests") -> None:
    file = folder / f"{name}.parquet"
    pq.write_table(change(pq.read_table(file)), file)


def cell(name: str, value: Change) -> Callable[[pa.Table], pa.Table]:
    """Changes one value of request 7; the function is called with all that is known of it."""

    def change(table: pa.Table) -> pa.Table:
        at, values = table.schema.get_field_index(name), table[name].to_pylist()
        row = table["request_id"].to_pylist().index(ROW)
        values[row] = value(table.slice(row, 1).to_pylist()[0])
        return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))

    return change


def verdicts(folder: Path) -> Iterator[Verdict]:
    """The verdict of the run as it is read whole, and as large ones are."""
    found = harness.load(folder)
    assert isinstance(found, harness.RunResult)
    yield found.data.info.verdict
    yield completed(large.load(folder, large=0)).info.verdict


def test_a_run_as_it_was_written_stays_valid(sound: Path) -> None:
    """Every stored run would prove nothing."""
    assert [(True, [])] * 2 == [(found.valid, found.reasons) for found in verdicts(sound)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cell("token_s", lambda r: [*r["token_s"][:-1], r["token_s"][0]]), "Token times never fall: not so for "),
        (cell("token_s", lambda r: r["token_s"][:-1]), "Every token event has a time and a count: not so for "),
        (cell("token_s", lambda r: [float("nan"), *r["token_s"][1:]]), "Times are finite: not so for "),
        (cell("token_n", lambda r: [2, *r["token_n"][1:]]), "Token conservation"),
        (cell("output_tokens", lambda r: r["output_tokens"] + 1), "Token conservation"),
        (cell("output_tokens_asked", lambda r: r["output_tokens"] + 1), "Each record is that of a scheduled request"),
        (cell("prompt_tokens", lambda r: r["prompt_tokens"] + 1), "Each record is that of a scheduled request"),
        (cell("scheduled_s", lambda r: r["scheduled_s"] - 1000), "Each record is that of a scheduled request"),
        (cell("sent_s", lambda r: r["scheduled_s"] - 1), "Causality (nothing is sent before it is scheduled)"),
        (cell("sent_s", lambda r: r["token_s"][0] + 1), "Causality (no token comes before its request was sent)"),
        (cell("ended_s", lambda r: r["token_s"][-1] - 1), "Causality (no token comes after its request ended)"),
        (cell("sent_s", lambda _: None), "Each status is known, a request that ended well was sent"),
        (cell("status", lambda _: "fine"), "Each status is known"),
        (cell("status", lambda _: "dropped"), "and a dropped one was not"),
    ],
)
def test_a_changed_request_is_named(copy: Path, change: Callable[[pa.Table], pa.Table], says: str) -> None:
    """A file that was edited, or damaged, would be compared as if the run had measured it."""
    rewrite(copy, change)

    for found in verdicts(copy):
        assert not found.valid
        [reason] = [reason for reason in found.reasons if says in reason]
        assert "not so for request 7. Remedy: the files are not as the run wrote them" in reason
        assert reason in (found.text or "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cell("status", lambda _: "error"), "run.json counts 60 ok, and requests.parquet has 1 error, 59 ok."),
        (lambda t: t.slice(0, 59), "1 of 60 scheduled requests have no record, first request "),
        (lambda t: t.slice(0, 0), "60 of 60 scheduled requests have no record, first request 0."),
        (lambda t: pa.concat_tables([t, t.slice(3, 1)]), "Every request ends in exactly one record: request "),
        (cell("request_id", lambda _: 1000), "not so for request 1000."),
    ],
)
def test_tables_of_other_requests_are_found(copy: Path, change: Callable[[pa.Table], pa.Table], says: str) -> None:
    """Half a table would have percentiles of its own."""
    rewrite(copy, change)

    for found in verdicts(copy):
        assert not found.valid
        assert any(says in reason for reason in found.reasons)


def test_a_follow_up_does_not_come_before_the_answer_it_waits_for(copy: Path) -> None:
    """Its time is not in the schedule, which knows only what it waits for."""
    schedule = pq.read_table(copy / "schedule.parquet").to_pylist()
    waits = {row["id"] for row in schedule if row["after"]}

    def earlier(table: pa.Table) -> pa.Table:
        ids, times = table["request_id"].to_pylist(), table["scheduled_s"].to_pylist()
        row = next(row for row, each in enumerate(ids) if each in waits)
        times[row] -= 1e-3
        return table.set_column(4, table.schema.field(4), pa.array(times))

    rewrite(copy, earlier)
    for found in verdicts(copy):
        assert any("Each record is that of a scheduled request" in reason for reason in found.reasons)


def test_a_table_with_holes_is_refused(copy: Path) -> None:
    """A value that is missing would end in a traceback."""
    for name, column in (("requests", "scheduled_s"), ("schedule", "scheduled_s")):
        table = pq.read_table(copy / f"{name}.parquet")
        holes = pa.field(column, pa.float64())
        at = table.schema.get_field_index(column)
        rewrite(copy, lambda t, at=at, holes=holes: t.set_column(at, holes, pa.nulls(len(t), pa.float64())), name)
        for read in (harness.load, lambda path: large.load(path, large=0)):
            with pytest.raises(UsageError, match="null values to non-nullable"):
                read(copy)


def test_a_killed_run_is_judged_by_its_schedule_too(copy: Path) -> None:
    """Its conclusion is made when it is read, from whatever stands there."""
    info = json.loads((copy / "run.json").read_text())
    info = {key: info[key] for key in ("schema", "spec", "clock", "workload", "backend", "slo", "schedule")}
    info["schedule"]["sha256"] = "0" * 64
    (copy / "run.json").write_text(json.dumps({**info, "state": "interrupted"}))

    assert ["schedule.parquet is not"] == [reason[:23] for reason in completed(large.load(copy)).info.verdict.reasons]


def test_a_schedule_of_another_run_is_found(copy: Path, tmp_path: Path) -> None:
    """Runs are paired by the hash of what they sent, which means nothing beside another schedule."""
    harness.run(out=tmp_path / "other", seed=1, **OPTIONS)
    shutil.copy(tmp_path / "other" / "schedule.parquet", copy)

    for found in verdicts(copy):
        assert not found.valid
        assert found.reasons[0].startswith("schedule.parquet is not what the run was to send: its hash is ")


def test_an_edited_schedule_is_refused(copy: Path) -> None:
    """Nothing would say what the run was to send."""
    metadata = pq.read_table(copy / "schedule.parquet").schema.metadata
    rewrite(copy, lambda t: t.slice(0, 59).replace_schema_metadata(metadata), "schedule")

    with pytest.raises(UsageError, match=r"was changed after it was drawn: its rows no longer give its hash \w+\."):
        harness.load(copy)
    assert 2 == main(["slo", str(copy)])


def test_every_command_says_so(sound: Path, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison, a score or a report would be made of it without a word."""
    rewrite(copy, cell("sent_s", lambda r: r["token_s"][0] + 1))
    shown = []
    for command, code in (("slo COPY", 4), ("compare SOUND COPY", 4), ("report COPY --format text", 0)):
        named = {"COPY": str(copy), "SOUND": str(sound)}
        assert code == main([named.get(word, word) for word in command.split()])
        shown.append(" ".join(capsys.readouterr().out.split()).lower())
    main(["report", str(copy), "--format", "json"])
    info = json.loads(capsys.readouterr().out)

    assert all("not valid" in text and "request 7" in text for text in shown)
    assert ["causality"] == [check["check"] for check in info["checks"] if check["state"] == "failed"]


def test_what_the_run_found_itself_is_not_repeated(copy: Path) -> None:
    """A run that was not valid from the start would blame its files for it."""
    rewrite(copy, cell("sent_s", lambda r: r["token_s"][0] + 1))
    found = harness.load(copy)
    assert isinstance(found, harness.RunResult)
    (copy / "run.json").write_text(json.dumps(encode(found.data.info)))

    assert [1, 1] == [len(verdict.reasons) for verdict in verdicts(copy)]
