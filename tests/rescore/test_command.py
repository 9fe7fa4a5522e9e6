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


def ten_a_second(n=100):
    """Requests at 10 a second: 4 of 10 keep TTFT 0.2 s, 6 of 10 TPOT 0.05 s, 3 of 10 both."""
    found = []
    for i in range(n):
        due_s, kind = i / 10, i % 10
        first_s = due_s + (0.1 if kind < 4 else 0.5)
        gap_s = 0.04 if kind in (0, 1, 2, 4, 5, 6) else 0.2
        tokens = [first_s + gap_s * k for k in range(5)]
        found.append(RequestRecord(i, due_s, due_s, tokens, None, 10, 5, 5, "ok"))
    return found


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
    "the rule of FastGen beside an SLO": ("--slo", "ttft=0.2", "--slo", "fastgen:rate=10", "--goal", "30%"),
    "the SLO of the run": (),
    "a percentile that makes it a miss": ("--slo", "ttft=9,p90:ttft=0.4"),
    "a percentile alone": ("--slo", "p90:ttft=0.4"),
    "groups, tokens and scale": ("--by", "prompt", "--tokens", "--scale", "0.5:2"),
}


def test_the_answer_in_words_golden(mixed, stored, foreign, tmp_path, monkeypatch, capsys, golden):
    """A reader of the terminal would not find what the JSON has, or read of a bound what does not hold of it."""
    monkeypatch.chdir(tmp_path)
    ok = [RequestRecord(i, i, i, [i + 0.1, i + 0.2], None, 5, 2, 2, "ok") for i in range(8)]
    stored("failures", [*ok, RequestRecord(8, 8, 8, [], [], 5, 0, 2, "error", error="no")])
    shutil.copy(foreign / "vllm-detailed.json", "vllm.json")
    cases = {case: (mixed.name, *options) for case, options in WORDS.items()}
    cases["where only failures missed no bound is to blame"] = ("failures", "--slo", "ttft=1,tpot=1")
    cases["failed requests of another tool"] = ("vllm.json", "--slo", "ttft=9,tpot=9", "--tokens")
    parts = []
    for case, words in cases.items():
        assert 0 == main(["slo", *words])
        parts.append(f"# {case}\n{capsys.readouterr().out}")
    assert max(len(line) for part in parts for line in part.splitlines()) <= 100
    golden("slo.txt", "\n".join(parts))


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


@pytest.mark.parametrize("single", ["", "ttft=9,"])
def test_a_curve_shows_at_which_rates_a_percentile_is_missed(stored, tmp_path, single, capsys):
    """'all rates lie above it' was printed where every request met its bound, and the p90 of the run did not."""
    for rate, n in ((5.0, 4), (10.0, 10)):
        records = [r for r in ten_a_second() if r.request_id % 10 < n]
        stored(f"rate={rate}", records, spec={"seed": 0, "rate": rate}, workload={"rate_rps": rate})
    assert 0 == main(["slo", str(tmp_path), "--slo", f"{single}p90:ttft=0.3"])
    words = " ".join(capsys.readouterr().out.split())

    assert "90% is not crossed: a bound on a percentile is part of the SLO" in words
    assert words.count("> 300 ms, missed") == 1
    assert "lie above" not in words


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


@pytest.mark.parametrize(("under", "code"), [("0.3", 0), ("31%", 1)])
def test_exit_codes_judge_only_when_requested(mixed, under, code, capsys):
    """A script could not tell a good run from a bad one."""
    assert 0 == main(["slo", str(mixed)])
    assert code == main(["slo", str(mixed), "--fail-under", under])
    assert (f"exit code {code}" in capsys.readouterr().err) == bool(code)


def test_a_run_that_is_not_valid_stays_so(stored, capsys):
    """Re-scoring would make a run good that broke its own rules."""
    path = stored("late", 20, verdict={"valid": False, "overloaded": False, "reasons": ["The client was late."]})

    assert 4 == main(["slo", str(path), "--slo", "ttft=9"])
    printed = capsys.readouterr()
    assert "is not valid: The client was late." in " ".join(printed.out.split())
    assert "is not valid: The client was late." in printed.err


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


def test_growing_queues_decide_nothing(stored, capsys):
    """A run below its goal, which a longer one would contradict, would be called good."""
    records = [RequestRecord(i, i, i, [i + 0.1 * i, i + 0.1 * i + 0.1], None, 5, 2, 2, "ok") for i in range(20)]
    path = stored("growing", records, verdict={"valid": True, "overloaded": True, "reasons": []})

    assert 5 == main(["slo", str(path), "--slo", "ttft=1", "--fail-under", "1%"])
    assert "The queue grew throughout" in capsys.readouterr().out


def test_a_growing_queue_is_no_overload_where_the_objective_is_met(stored, capsys):
    """All requests met the bound and the exit code would be 5, because chance let the queue grow."""
    path = stored("met", [RequestRecord(i, i, i, [i + 0.1, i + 0.2], None, 5, 2, 2, "ok") for i in range(20)],
                  verdict={"valid": True, "overloaded": False, "queue_grew": True, "reasons": []})  # fmt: skip

    for objective in ("ttft=1", "p90:ttft=1"):
        assert 0 == main(["slo", str(path), "--slo", objective, "--fail-under", "90%"])
        assert "grew throughout" not in capsys.readouterr().out


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


def test_a_growing_queue_of_another_tool_decides_nothing_either(tmp_path, foreign, capsys):
    """Its file would be called good where a run of bench is not."""
    n = 200
    value = json.loads((foreign / "vllm-detailed.json").read_text()) | {
        "input_lens": [32] * n, "output_lens": [2] * n, "itls": [[0.01]] * n, "errors": [""] * n,
        "ttfts": [0.1 + 0.05 * i for i in range(n)], "start_times": [0.05 * i for i in range(n)],
    }  # fmt: skip
    (tmp_path / "vllm.json").write_text(json.dumps(value))

    assert 5 == main(["slo", str(tmp_path / "vllm.json"), "--slo", "ttft=8", "--fail-under", "50%"])
    assert "bench sweep" not in capsys.readouterr().out


def test_a_run_that_measured_nothing_decides_nothing(stored, capsys):
    """A script would take a run without a request for one that missed its SLO."""
    assert 5 == main(["slo", str(stored("empty", [])), "--slo", "ttft=1", "--fail-under", "90%"])
    assert "No request is left to score" in capsys.readouterr().out


def test_what_is_not_shown_of_many_runs_is_named(stored, tmp_path, capsys):
    """Groups that were requested would be missing without a word."""
    for seed in range(4):
        stored(f"seed-{seed}", 20)
    printed = "profiles of single runs are shown for up to 3 runs"

    assert 0 == main(["slo", str(tmp_path)])
    assert printed not in capsys.readouterr().out
    for options in (
        ["--by", "time"],
        ["--tokens"],
        ["--profile", "vllm"],
    ):
        main(["slo", str(tmp_path), *options])
        assert printed in " ".join(capsys.readouterr().out.split())


def test_scales_of_many_rates_stand_in_several_tables(stored, tmp_path, capsys):
    """A curve of eight rates would have no scales, without a word."""
    rates = [float(rate) for rate in range(1, 9)]
    for rate in rates:
        stored(f"rate={rate}", 20, spec={"rate": rate}, workload={"name": "chatbot", "rate_rps": rate})
    main(["slo", str(tmp_path), "--scale", "0.5,1"])
    shown = capsys.readouterr().out

    assert all(f"{rate:.0f} req/s" in shown for rate in rates)
    assert 2 == shown.count("\nSLO scale ")


def test_the_file_that_cannot_tell_is_named(foreign, capsys):
    """The file of a folder to leave out would be unknown."""
    assert 2 == main(["slo", str(foreign), "--slo", "itl=0.1"])

    assert "guidellm.json': The file that these requests" in capsys.readouterr().err


def test_what_is_named_twice_is_shown_once(mixed, capsys):
    """A table would have two equal columns."""
    twice = ["--goal", "90%,0.9", "--by", "time,time", "--slo", "ttft=0.2", "--slo", "ttft=200ms"]
    _, info = answer(capsys, mixed, *twice)
    (run,) = info["runs"]

    assert (1, 1, 1) == tuple(len(run[part]) for part in ("goals", "groups", "slos"))


def test_what_cannot_be_scored_gets_one_sentence(mixed, refusals):
    """A slip of the pen would end in a traceback, or be ignored."""
    refusals("wrong-slo.txt", str(mixed))


def test_milliseconds_given_as_seconds_are_noticed(mixed, capsys):
    """'ttft=250' would be met by every request of every system."""
    main(["slo", str(mixed), "--slo", "ttft=250"])

    assert "250ms" in capsys.readouterr().err


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


def test_rates_at_which_queues_grew_are_marked(stored, tmp_path, capsys):
    """A point beyond saturation would look like any other."""
    for rate, growing in ((5.0, False), (10.0, True)):
        verdict = {"valid": True, "overloaded": growing, "reasons": []}
        spec = {"backend": "sim", "rate": rate, "seed": 0}
        stored(f"rate={rate}", 30, spec=spec, workload={"name": "chatbot", "rate_rps": rate}, verdict=verdict)
    main(["slo", str(tmp_path)])
    shown = capsys.readouterr().out

    assert "saturated" in shown
    assert "The queue grew throughout (1 of 2 runs)" in shown
