"""Result files of other tools, written by the tools themselves, tell here what they tell there."""

import json
import shutil
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.experiments import imports
from harness.metrics.measure import missing, succeeded
from harness.metrics.objective import parse_slo, score

FILES = Path(__file__).resolve().parents[1] / "golden" / "results"
ROUND_TRIPS = ("vllm-detailed.json", "sglang-detailed.jsonl", "guidellm.json", "aiperf", "inference-perf")


@pytest.fixture
def imported():
    """The only run of a file."""

    def one(name):
        (run,) = imports.open(FILES / name)
        return run

    return one


@pytest.fixture
def changed(tmp_path):
    """A copy of a file whose JSON was changed."""

    def copy(name, change):
        value = json.loads((FILES / name).read_text())
        change(value)
        (tmp_path / Path(name).name).write_text(json.dumps(value))
        return tmp_path / Path(name).name

    return copy


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_every_request_is_there_the_failed_ones_too(imported, name):
    """A tool's failures would be lost on the way, and goodput would rise."""
    run = imported(name)
    aggregates, counts = run.info.aggregates, run.info.summary.status
    tokens = 176 if name == "inference-perf" else aggregates["output_tokens"]  # its own tokenizer counts twice as many

    assert aggregates["completed"] == counts["ok"]
    assert aggregates["failed"] == counts["error"] >= 1
    assert 12 == run.requests.num_rows
    assert tokens == run.requests["output_tokens"].to_numpy()[succeeded(run.requests)].sum()
    assert run.info.verdict.valid, run.info.verdict.text


def test_goodput_of_vllm_is_found_again(imported):
    """The SLO that a user knows from vLLM would score differently here."""
    run = imported("vllm-detailed.json")
    scored = score(run.requests, parse_slo("ttft=40ms,tpot=6ms"))
    good = run.info.aggregates["goodput_rps"] * run.info.aggregates["duration_s"]

    assert good == pytest.approx(scored.met.sum(), abs=1e-6)


@pytest.mark.parametrize("name", ["sglang-detailed.jsonl", "aiperf"])
def test_the_slo_that_the_tool_was_given_is_judged_at_once(imported, name):
    """The bounds would have to be typed a second time, perhaps in another unit."""
    run = imported(name)

    assert "ttft=0.04,tpot=0.006" == run.info.summary.slo
    assert run.info.aggregates["attainment"] == run.info.summary.attainment


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm-detailed.json", {"scheduled_s", "lateness"}),
        ("sglang-detailed.jsonl", {"scheduled_s", "sent_s", "lateness"}),
        ("guidellm.json", {"itl", "itl_p99", "token_n"}),
        ("aiperf", set()),
        ("inference-perf", {"scheduled_s", "lateness"}),
    ],
)
def test_what_a_file_lacks_is_a_warning_and_has_no_value(imported, name, expected):
    """A made-up lateness of 0 ms would pass for a measured one."""
    run = imported(name)
    measured = run.info.summary.metrics
    warned = [w.code for w in run.info.warnings]

    assert expected == missing(run.requests) == set(run.info.source.missing)
    assert all(measured[m].n == 0 for m in expected & set(measured))
    assert ("scheduled_s" in expected) == ("from-sending" in warned)


def test_where_a_few_streams_wait_for_one_another_nothing_was_due(changed, tmp_path):
    """A closed loop has such times in its file too; TTFT would count from a time that was never scheduled."""

    def streams(value):
        value["benchmarks"][0]["config"]["strategy"] = {"type_": "concurrent", "streams": 4}

    (guidellm,) = imports.open(changed("guidellm.json", streams))
    shutil.copytree(FILES / "aiperf", tmp_path / "a")
    whole = tmp_path / "a" / "profile_export_aiperf.json"
    value = json.loads(whole.read_text())
    value["input_config"]["phases"] = [{"name": "profiling", "type": "concurrency", "concurrency": 4}]
    whole.write_text(json.dumps(value))
    (aiperf,) = imports.open(tmp_path / "a")

    for run in (guidellm, aiperf):
        assert {"scheduled_s", "lateness"} <= missing(run.requests)
        assert run.requests["scheduled_s"].to_pylist() == run.requests["sent_s"].to_pylist()
        assert run.info.workload.rate_rps is None


def test_a_bound_on_what_is_not_there_is_refused(imported):
    """Every request of guidellm would keep any bound on ITL."""
    with pytest.raises(UsageError, match="cannot tell 'itl'"):
        score(imported("guidellm.json").requests, parse_slo("itl=0.001"))


def test_without_a_time_axis_there_are_no_rates(imported):
    """SGLang's file would give a goodput per second of nothing."""
    summary = imported("sglang-detailed.jsonl").info.summary

    assert (None, None, None) == (summary.throughput_rps, summary.goodput_rps, summary.window_s)


def test_aggregates_are_shown_and_never_scored(imported):
    """A file without requests would give an attainment of nothing."""
    run = imported("vllm-aggregate.json")
    info = run.info

    assert 0 == run.requests.num_rows
    assert not info.source.per_request
    assert 12 == info.summary.requests
    assert info.aggregates["ttft"]["p99"] == info.summary.metrics["ttft"].p99
    assert "--save-detailed" in info.verdict.text
    assert not info.verdict.valid


def test_a_tokenizer_of_the_client_that_counts_differently_is_noted(imported):
    """TPOT would be halved by a wrong tokenizer, and the SLO kept by it."""
    notes = imported("inference-perf").info.source.notes

    assert "counted 176 output tokens where the server counted 88" in notes[0]


def test_the_tokenizer_of_aiperf_is_held_against_the_server_too(tmp_path):
    """Its default counts with a tokenizer of the client, whatever the server says."""
    text = (FILES / "aiperf" / "profile_export.jsonl").read_text()
    twice = text.replace('"output_sequence_length": {"value": 8', '"output_sequence_length": {"value": 16')
    (tmp_path / "twice.jsonl").write_text(twice)
    (run,) = imports.open(tmp_path / "twice.jsonl")

    assert any("aiperf counted 160 output tokens where the server counted 80" in n for n in run.info.source.notes)


def test_equal_traffic_is_known_again_whatever_the_order_of_sending(changed, imported):
    """Two runs of the same prompts would not be compared, because two requests left in another order."""

    def turned(value):
        value["start_times"] = value["start_times"][::-1]

    def longer(value):
        value["input_lens"][0] += 1

    (other,) = imports.open(changed("vllm-detailed.json", turned))
    (another,) = imports.open(changed("vllm-detailed.json", longer))
    own = imported("vllm-detailed.json").info.schedule.sha256

    assert own == other.info.schedule.sha256
    assert own != another.info.schedule.sha256


def test_files_that_belong_together_are_one_run(tmp_path):
    """The aggregates of aiperf would count as a second run without requests."""
    shutil.copytree(FILES / "aiperf", tmp_path / "a")
    by_folder, by_line = imports.open(tmp_path), imports.open(tmp_path / "a" / "profile_export.jsonl")
    alone = tmp_path / "renamed.jsonl"
    shutil.copy(FILES / "aiperf" / "profile_export.jsonl", alone)
    (by_itself,) = imports.open(alone)

    assert [12] == [run.requests.num_rows for run in by_folder] == [run.requests.num_rows for run in by_line]
    assert "0.13.0" == by_folder[0].info.source.version
    assert 12 == by_itself.requests.num_rows
    assert by_itself.info.source.version is None


def test_runs_appended_to_one_file_are_several(tmp_path, imported):
    """`vllm bench serve --append-result` would be no JSON, or the last run would win."""
    text = (FILES / "vllm-detailed.json").read_text()
    (tmp_path / "all.json").write_text(text.strip() + "\n" + text)
    runs = imports.open(tmp_path / "all.json")

    assert ["all.json (1 of 2)", "all.json (2 of 2)"] == [run.info.source.name for run in runs]
    assert runs[0].info.schedule.sha256 == runs[1].info.schedule.sha256


def test_tokens_that_share_an_event_are_listed_as_missing(changed):
    """With speculation vLLM writes fewer gaps than tokens; how many each event holds is not in the file."""

    def shared(value):
        value["output_lens"] = [2 * n for n in value["output_lens"]]

    (run,) = imports.open(changed("vllm-detailed.json", shared))
    first = run.requests.slice(0, 1).to_pylist()[0]

    assert "token_n" in missing(run.requests)
    assert 16 == first["output_tokens"] == sum(first["token_n"])
    assert run.info.verdict.valid


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "holds no results that bench knows"),
        ('{"a": ', "is not JSON"),
        ("", "is empty"),
        ("\x00\x01", "is not JSON"),
        ("time,value\n1,2\n", "is not JSON"),
    ],
)
def test_a_file_of_something_else_is_refused_in_words(tmp_path, text, message):
    """A traceback would be the answer to a wrong file name."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        imports.open(tmp_path / "x.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(ttfts=["fast"] * 12),
        lambda v: v.update(itls=[3] * 12),
        lambda v: v.update(start_times=["soon"] * 12),
        lambda v: v.update(start_times=[1.0]),
        lambda v: v["ttfts"].__setitem__(0, 1e300),
        lambda v: v["itls"][0].__setitem__(0, float("nan")),
        lambda v: v["input_lens"].__setitem__(0, 1e300),
        lambda v: v.update(output_lens=[]),
    ],
)
def test_a_damaged_file_ends_in_a_sentence(changed, change):
    """A field of the wrong kind would end in a traceback."""
    with pytest.raises(UsageError, match="appears to hold results of vllm"):
        imports.open(changed("vllm-detailed.json", change))


@pytest.mark.parametrize("field", ["input_lens", "errors", "start_times"])
def test_a_file_with_less_in_it_is_read_as_far_as_it_goes(changed, field):
    """A version of a tool that writes a field less could not be read at all."""
    (run,) = imports.open(changed("vllm-detailed.json", lambda v: v.pop(field)))

    assert 12 == run.requests.num_rows
    assert (field == "start_times") == ("sent_s" in missing(run.requests))
    assert (field == "start_times") == (run.info.summary.throughput_rps is None)
