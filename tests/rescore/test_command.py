"""`bench slo` as a user meets it."""

import json
import shutil

import pytest

from harness.api import RequestRecord
from harness.cli import main
from harness.options import NO_SETTINGS


def answer(capsys, *arguments):
    """The exit code and the JSON of `bench slo`."""
    code = main(["slo", *map(str, arguments), "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def ten_a_second(n=100, kinds=10):
    """Requests at 10 a second: 4 of 10 keep TTFT 0.2 s, 6 of 10 TPOT 0.05 s, 3 of 10 both; of 10 the first `kinds`."""
    found = []
    for i in range(n):
        due_s, kind = i / 10, i % 10
        first_s = due_s + (0.1 if kind < 4 else 0.5)
        gap_s = 0.04 if kind in (0, 1, 2, 4, 5, 6) else 0.2
        tokens = [first_s + gap_s * k for k in range(5)]
        found.append(RequestRecord(i, due_s, due_s, tokens, None, 10, 5, 5, "ok"))
    return [record for record in found if record.request_id % 10 < kinds]


def one_a_second(n=20, wait_s=0.0):
    """Requests at 1 a second, answered after 0.1 s, of which each waits `wait_s` longer than the one before."""
    return [RequestRecord(i, i, i, [i + wait_s * i + 0.1, i + wait_s * i + 0.2], None, 5, 2, 2, "ok") for i in range(n)]


@pytest.fixture
def mixed(stored):
    return stored("mixed", ten_a_second(), slo={"text": "ttft=0.2,tpot=0.05", "goal": 0.9})


def test_a_throughput_of_ten_may_be_a_goodput_of_three(mixed, capsys):
    """The difference between answered and answered in time, for which this program exists, would not be shown."""
    code, info = answer(capsys, mixed)
    (run,) = info["runs"]
    (slo,) = run["slos"]

    assert 0 == code
    assert 10 == pytest.approx(run["throughput_rps"], rel=1e-12)
    assert 3 == pytest.approx(slo["goodput_rps"], rel=1e-12)
    assert 0.3 == slo["attainment"]
    assert {"ttft=0.2": 0.4, "tpot=0.05": 0.6} == {b["text"]: b["attainment"] for b in slo["bounds"]}
    assert "ttft=0.2" == slo["binding"]


WORDS = {
    "the rule of FastGen beside an SLO": "mixed --slo ttft=0.2 --slo fastgen:rate=10 --goal 30%",
    "the SLO of the run, without a judgement": "mixed",
    "a goal that is reached": "mixed --fail-under 0.3",
    "a goal that is missed": "mixed --fail-under 31%",
    "a percentile that makes it a miss": "mixed --slo ttft=9,p90:ttft=0.4",
    "a percentile alone": "mixed --slo p90:ttft=0.4",
    "groups, tokens and scale": "mixed --by prompt --tokens --scale 0.5:2",
    "milliseconds given as seconds": "mixed --slo ttft=250",
    "where only failures missed no bound is to blame": "failures --slo ttft=1,tpot=1",
    "failed requests of another tool": "vllm.json --slo ttft=9,tpot=9 --tokens",
    "the file of a folder that cannot tell": "others --slo itl=0.1",
    "a run that is not valid stays so under any SLO": "late --slo ttft=9",
    "a queue that grew decides nothing": "growing --slo ttft=1 --fail-under 1%",
    "nor does one of another tool": "growing.json --slo ttft=8 --fail-under 50%",
    "a queue that grew where the objective is met is no overload": "met --slo ttft=1 --fail-under 90%",
    "nor where a percentile is": "met --slo p90:ttft=1 --fail-under 90%",
    "a run without a request decides nothing": "empty --slo ttft=1 --fail-under 90%",
    "points of a curve at which the queue grew are marked": "saturated --slo ttft=0.2,tpot=0.05",
    "a percentile that is missed at some rates": "missed --slo p90:ttft=0.3",
    "the same beside a bound of single requests": "missed --slo ttft=9,p90:ttft=0.3",
    "scales of many rates stand in several tables": "rates --slo ttft=0.2 --scale 0.5,1",
    "groups of many runs are named, not shown": "seeds --slo ttft=0.2 --by time",
    "and their tokens": "seeds --slo ttft=0.2 --tokens",
    "and their profiles": "seeds --slo ttft=0.2 --profile vllm",
    "a scale of many runs is a table also where it is alone": "seeds --slo ttft=0.2 --scale 1",
}


@pytest.mark.usefixtures("mixed")
def test_the_answer_in_words(stored, foreign, tmp_path, monkeypatch, transcript):
    """A reader of the terminal would not find what the JSON has, or read of a bound what does not hold of it."""
    monkeypatch.chdir(tmp_path)
    stored("failures", [*one_a_second(8), RequestRecord(8, 8, 8, [], [], 5, 0, 2, "error", error="no")])
    stored("late", 20, verdict={"valid": False, "overloaded": False, "reasons": ["The client was late."]})
    grew = {"valid": True, "overloaded": True, "queue_grew": True, "reasons": []}
    stored("growing", one_a_second(wait_s=0.1), verdict=grew)
    stored("met", one_a_second(), verdict={**grew, "overloaded": False, "queue_grew": True})
    stored("empty", [])
    for rate, kinds in ((5.0, 4), (10.0, 10)):
        facts = {"spec": {"seed": 0, "rate": rate}, "workload": {"name": "chatbot", "rate_rps": rate}}
        stored(f"missed/rate={rate}", ten_a_second(kinds=kinds), **facts)
        stored(
            f"saturated/rate={rate}", 30, **facts, verdict={**grew, "overloaded": rate == 10, "queue_grew": rate == 10}
        )
    for number in range(1, 9):
        workload = {"name": "chatbot", "rate_rps": float(number)}
        stored(f"rates/rate={number}", 20, spec={"rate": float(number)}, workload=workload)
        if number < 5:
            stored(f"seeds/seed-{number}", 20)
    shutil.copytree(foreign, "others")
    value, n = json.loads((foreign / "vllm-detailed.json").read_text()), 200
    (tmp_path / "vllm.json").write_text(json.dumps(value))
    value |= {
        "input_lens": [32] * n, "output_lens": [2] * n, "itls": [[0.01]] * n, "errors": [""] * n,
        "ttfts": [0.1 + 0.05 * i for i in range(n)], "start_times": [0.05 * i for i in range(n)],
    }  # fmt: skip
    (tmp_path / "growing.json").write_text(json.dumps(value))

    transcript("slo.txt", {reason: f"slo {words}" for reason, words in WORDS.items()})


def test_separate_conditions_ask_each_bound_apart(mixed, capsys):
    """DistServe's search would seem to ask for bounds of the same request."""
    _, info = answer(capsys, mixed, "--goal", "0.3,40%,0.5", "--conditions", "separate")
    (slo,) = info["runs"][0]["slos"]

    assert [True, False, False] == slo["joint"]
    assert [True, True, False] == slo["separate"]


def test_runs_at_several_rates_make_a_curve(stored, tmp_path, capsys):
    """A sweep could not be looked at under an SLO that it was not made for."""
    for seed in range(5):
        for rate in (5.0, 10.0):
            records = ten_a_second()
            if rate == 5.0:
                records = [r for r in records if r.request_id % 10 < 4]
            info = {"workload": {"name": "chatbot", "rate_rps": rate}}
            spec = {"workload": "chatbot", "backend": "sim", "seed": seed, "rate": rate}
            stored(f"points/rate={rate}/seed-{seed}", records, spec=spec, **info)
    code, info = answer(capsys, tmp_path, "--slo", "ttft=0.2", "--goal", "0.7")
    curve = info["curve"]

    assert 0 == code
    assert [(5.0, 5, 1.0), (10.0, 5, 0.4)] == [
        (p["values"]["rate"], len(p["runs"]), p["attainment"]["mean"]) for p in curve["points"]
    ]
    assert 5 < curve["crossings"][0]["at"] < 10
    main(["slo", str(tmp_path), "--slo", "ttft=0.2", "--goal", "0.7", "--scale", "0.5,1"])
    shown = capsys.readouterr().out
    assert "attainment and goodput over seeds" in shown
    assert "5 to 10" in shown
    assert "crossed at SLO scale" in shown


@pytest.mark.parametrize("option", NO_SETTINGS)
def test_runs_that_differ_in_no_setting_are_one_system(stored, tmp_path, option, capsys):
    """A run would lose its curve to what decides the exit code."""
    for rate in (5.0, 10.0):
        spec = {"backend": "sim", "rate": rate, "seed": 0, option: rate / 100}
        stored(f"rate={rate}", 30, spec=spec, workload={"name": "chatbot", "rate_rps": rate})
    _, info = answer(capsys, tmp_path, "--slo", "ttft=0.2")

    assert [5.0, 10.0] == [point["values"]["rate"] for point in info["curve"]["points"]]
    assert {"rate"} == {name for point in info["curve"]["points"] for name in point["values"]}


def test_runs_of_two_systems_make_two_curves(stored, tmp_path, capsys):
    """Points of two systems would be drawn as one curve."""
    for policy in ("sarathi", "vllm-v0"):
        for rate in (5.0, 10.0):
            spec = {"backend": "sim", "policy": policy, "rate": rate, "seed": 0}
            stored(f"{policy}-{rate}", 30, spec=spec, workload={"name": "chatbot", "rate_rps": rate})
    _, info = answer(capsys, tmp_path)

    points = info["curve"]["points"]
    assert [(5, "sarathi"), (5, "vllm-v0"), (10, "sarathi"), (10, "vllm-v0")] == sorted(
        (point["values"]["rate"], point["values"]["policy"]) for point in points
    )


def test_units_of_groups_stand_in_the_head(mixed, capsys):
    """Cells would wrap in a terminal; JSON and CSV would get other names than stored files have."""
    assert 0 == main(["slo", str(mixed), "--by", "prompt,time", "--format", "markdown"])
    printed = capsys.readouterr().out
    _, info = answer(capsys, mixed, "--by", "prompt,time")

    assert "| prompt (tokens) |" in printed
    assert "| time (s) |" in printed
    for found, unit in zip(info["runs"][0]["groups"], ("tokens", "s"), strict=True):
        for group in found["groups"]:
            assert group["name"].endswith(f" {unit}")
            assert f"| {group['name'].removesuffix(unit)}|" in printed


def test_percentiles_alone_leave_no_attainment(stored, capsys):
    """'p99:tpot=0.1  100.0%  1.05 req/s  missed' would count answers that no bound was put to."""
    records = [RequestRecord(i, i, i, [i + 0.1, i + 0.2], None, 5, 2, 2, "ok", session=i // 2) for i in range(20)]
    path = stored("percentile", records)
    code, info = answer(capsys, path, "--slo", "p99:tpot=0.01", "--by", "time", "--fail-under", "90%")
    slo, group = info["runs"][0]["slos"][0], info["runs"][0]["groups"][0]["groups"][0]

    assert (None, None, None, None) == (slo["attainment"], slo["met"], slo["goodput_rps"], slo["tasks"])
    assert ([None], [None]) == (group["attainment"], group["goodput_rps"])
    assert (1, [False]) == (code, slo["joint"])
    assert 0 == main(["slo", str(path), "--slo", "p99:tpot=0.2", "--fail-under", "90%"])
    assert "p99:tpot=0.2 - - - met" in " ".join(capsys.readouterr().out.split())


def test_what_is_named_twice_is_shown_once(mixed, capsys):
    """A table would have two equal columns."""
    twice = ["--goal", "90%,0.9", "--by", "time,time", "--slo", "ttft=0.2", "--slo", "ttft=200ms"]
    _, info = answer(capsys, mixed, *twice)
    (run,) = info["runs"]

    assert (1, 1, 1) == tuple(len(run[part]) for part in ("goals", "groups", "slos"))


def test_what_cannot_be_scored_gets_one_sentence(mixed, refusals):
    """A slip of the pen would end in a traceback, or be ignored."""
    refusals("wrong-slo.txt", str(mixed))


def test_the_lowest_scale_of_each_goal_is_in_csv(mixed, capsys):
    """A spreadsheet, or a published result, could not compare how tight an SLO two systems meet."""
    options = ["--slo", "ttft=0.2,tpot=0.05", "--goal", "50%,100%", "--scale", "0.5:2"]
    main(["slo", str(mixed), *options, "--format", "csv"])
    lines = [line.split(",") for line in capsys.readouterr().out.splitlines() if ",lowest_scale," in line]
    _, info = answer(capsys, mixed, *options)

    found = info["runs"][0]["slos"][0]["scale"]["crossings"]
    assert [(float(line[-3]), float(line[-1])) for line in lines] == list(zip([0.5, 1.0], found, strict=True))


def test_foreign_text_does_nothing(stored, capsys):
    """The name of a class could colour the terminal, or break out of a table."""
    from dataclasses import replace

    records = [replace(r, tag="\x1b[31mred|\n# head") for r in ten_a_second(10)]
    path = stored("hostile", [*records[:5], *(replace(r, tag="b") for r in records[5:])])
    for form in ("text", "markdown", "csv"):
        main(["slo", str(path), "--by", "class", "--tokens", "--format", form])
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert "\n# head" not in shown


def test_one_system_of_two_machines_is_scored_per_gpu(stored, capsys):
    """Systems of unlike size would be compared by their whole goodput."""
    path = stored("pair", ten_a_second(), slo={"text": "ttft=0.2,tpot=0.05", "goal": 0.9}, backend={"gpus": 2})
    _, info = answer(capsys, path)
    main(["slo", str(path)])

    assert 1.5 == pytest.approx(info["runs"][0]["slos"][0]["goodput_rps_per_gpu"], rel=1e-12)
    assert "per GPU" in capsys.readouterr().out
