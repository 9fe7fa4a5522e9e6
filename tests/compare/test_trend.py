"""The trend of nightly runs: steps with their first run, and everything that is none."""

import datetime as dt
import json
import re
import shutil

import numpy as np
import pytest

from harness.data.codec import encode
from harness.errors import UsageError
from harness.experiments.compare.compare_json import ChangedRun, FactChange
from harness.experiments.compare.history import ACCEPTED, accept
from harness.experiments.compare.trend import trend
from reports.answers.trend import document, rows
from reports.document import markdown, text

FLAT = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0, 101.0, 99.0, 100.0, 100.5]


@pytest.fixture
def nightly(tmp_path):
    """Writes runs: `nightly(values)` writes one run a day whose mean TPOT in ms is the value.

    `change` gets the number of the night and its run.json, to alter it.
    """

    def make(values, *, series="chatbot/vllm", clock="wall", change=lambda *_: None):
        for day, value in enumerate(values):
            latency = {"mean": value / 1000, "p99": value / 400}
            info = {
                "schema": 2,
                "state": "finished",
                "clock": clock,
                "summary": {
                    "metrics": {"tpot": latency, "ttft": {"mean": 0.2, "p99": 0.5}},
                    "failed": 0.0,
                    "goodput_rps": 2.0,
                    "attainment": 0.95,
                },
                "verdict": {"valid": True, "overloaded": False},
                "schedule": {"sha256": "a" * 64},
                "slo": {"text": "ttft=0.25"},
                "backend": {"hardware": "a100", "policy": "sarathi", "salt": str(day)},
                "host": {"cpu": "one", "cores": 8},
                "versions": {"bench": "1.0", "numpy": "2.0"},
            }
            change(day, info)
            date = dt.date(2026, 1, 1) + dt.timedelta(days=day)
            folder = tmp_path / "results" / series / f"{date:%Y%m%d}T021700Z-c{day:06d}"
            folder.mkdir(parents=True)
            (folder / "run.json").write_text(json.dumps(info))
        return tmp_path / "results"

    return make


def shown(answer):
    """The report as text."""
    return text.render(document(answer))


def metric(answer, name="tpot mean", series=0):
    return next(one for one in answer.series[series].metrics if one.name == name)


def test_a_step_is_named_with_its_first_run_and_what_changed_with_it(nightly):
    """A regression would be seen without its date or its cause."""

    def faster_policy(day, info):
        info["backend"]["policy"] = "sarathi" if day < 10 else "vllm-v0"

    answer = trend(nightly([*FLAT, 110.0, 111.0, 109.0, 110.0], change=faster_policy))
    step = metric(answer).steps[0]

    assert (1, "regressed", "regressed") == (answer.exit_code, answer.state, metric(answer).state)
    assert ("worse", "2026-01-11", "c000010", "2026-01-10", "c000009", "2026-01-14") == tuple(
        getattr(step, key) for key in ("side", "first", "commit", "night_before", "commit_before", "called")
    )
    assert pytest.approx((0.1, 0.11, 10.0)) == (step.before, step.after, step.loss_pct)
    assert [FactChange(what="policy", before="sarathi", after="vllm-v0")] == step.changed


def test_the_fit_finds_a_first_run_that_was_not_suspect(nightly):
    """The commit that made it slower is held to be the one after it."""
    answer = trend(nightly([*FLAT, *FLAT, *FLAT[:4], 103.9, 106.0, 105.8, 106.1, 105.9, 106.2]))

    assert ("2026-01-25", "2026-01-28") == (metric(answer).steps[0].first, metric(answer).steps[0].called)


def test_one_bad_run_is_no_step(nightly):
    """Every noisy night would raise an alarm."""
    answer = trend(nightly([*FLAT, 120.0, 100.0, 100.0]))

    assert (0, "steady", []) == (answer.exit_code, metric(answer).state, metric(answer).steps)


def test_the_last_run_may_be_the_first_of_a_step(nightly):
    """A first bad run would be called good."""
    answer = trend(nightly([*FLAT, 120.0]))

    assert (0, "suspect") == (answer.exit_code, metric(answer).state)
    assert "tpot mean suspect" in " ".join(shown(answer).split())


def test_a_step_stays_flagged_until_it_is_accepted_or_the_level_returns(nightly):
    """A regression of last month is green, because it is older than a week."""
    lasting = nightly([*FLAT, *[110.0] * 20])
    back = trend(nightly([*FLAT, *[110.0] * 5, *[100.0] * 5], series="code/vllm"))

    assert (1, "regressed") == (trend(lasting).exit_code, metric(trend(lasting)).state)
    assert ("steady", "2026-01-16", False) == (
        metric(back, series=1).state,
        metric(back, series=1).steps[0].ended,
        metric(back, series=1).steps[0].open,
    )

    accept(lasting / "chatbot", "2026-01-11", "new tokenizer")
    accepted = trend(lasting)

    assert (0, "steady", pytest.approx(0.11)) == (
        accepted.exit_code,
        metric(accepted).state,
        metric(accepted).reference,
    )
    assert [False] == [step.open for step in metric(accepted).steps]
    assert [("2026-01-11", "new tokenizer")] == [(one.night, one.reason) for one in accepted.series[0].accepted]


def test_the_first_week_is_not_called_steady(nightly):
    """Runs that were compared with nothing would be called good."""
    answer = trend(nightly(FLAT[:6]))

    assert (0, "few", 1) == (answer.exit_code, answer.state, metric(answer).needed)
    assert "No trend yet" in shown(answer)


def test_runs_that_never_compare_are_not_steady(nightly):
    """Ten runs of ten schedules are green for ever, and nothing was ever compared."""

    def other(day, info):
        info["schedule"]["sha256"] = f"{day:064d}"[::-1]

    answer = trend(nightly(FLAT, change=other))
    found = shown(answer)

    assert (5, "incomparable") == (answer.exit_code, answer.state)
    assert "9 of 10 runs cannot be compared with the one before" in " ".join(found.split())


def test_a_step_of_a_simulator_stands_beside_the_level_before_it(nightly):
    """A step of 24 % is shown as no change, and blamed on the noise of runs."""
    answer = trend(nightly([100.0] * 5 + [124.0] * 3, clock="virtual"))
    found = shown(answer)

    assert ("regressed", 0.1, pytest.approx(24.0)) == tuple(
        getattr(metric(answer), key) for key in ("state", "reference", "change_pct")
    )
    assert "+24.0%" in found
    assert "A virtual clock has no noise" in found


def test_a_gain_is_reported_and_is_no_failure(nightly):
    """A faster server fails the night."""
    answer = trend(nightly([*FLAT, 90.0, 90.5, 90.0, 90.5]))

    assert (0, "improved", "better") == (
        answer.exit_code,
        metric(answer).state,
        metric(answer).steps[0].side,
    )


def test_runs_that_are_not_valid_are_gaps_with_their_reason(nightly):
    """A run in which the client failed moves the median, or disappears."""

    def spoilt(day, info):
        if day == 4:
            info["verdict"] = {"valid": False, "text": "not valid: late"}
        if day == 5:
            info["state"] = "running"

    series = trend(nightly(FLAT, change=spoilt)).series[0]

    assert [("2026-01-05", "not valid: late"), ("2026-01-06", "not finished (running)")] == [
        (gap.night, gap.why) for gap in series.gaps
    ]
    assert (10, 8) == (series.runs, series.valid)


def test_a_last_run_that_is_not_valid_is_not_steady(nightly):
    """The server no longer starts, and the trend is green for ever."""

    def spoilt(day, info):
        if day == 9:
            info["verdict"] = {"valid": False, "text": "not valid: late"}

    answer = trend(nightly(FLAT, change=spoilt))
    found = shown(answer)

    assert (5, "missing", "none") == (answer.exit_code, answer.state, metric(answer).state)
    assert "No value in the last run." in found
    assert " steady" not in found


def test_a_value_that_is_gone_is_not_steady(nightly):
    """The server sends answers in one piece, has no TPOT any more, and is as good as ever."""

    def in_one_piece(day, info):
        if day == 9:
            del info["summary"]["metrics"]["tpot"]

    answer = trend(nightly(FLAT, change=in_one_piece))

    assert (5, "none", "steady") == (
        answer.exit_code,
        metric(answer).state,
        metric(answer, "ttft mean").state,
    )


def test_series_are_not_connected_across_other_hardware(nightly):
    """A new machine is called a regression of the server."""

    def moved(day, info):
        info["backend"]["hardware"] = "a100" if day < 8 else "l4"

    answer = trend(nightly([*[100.0] * 8, *[140.0] * 3], change=moved))

    assert [FactChange(what="hardware", before="a100", after="l4")] == answer.series[0].breaks[0].changed
    assert ("few", 4, 0) == (metric(answer).state, metric(answer).needed, answer.exit_code)


def test_a_break_is_seen_over_a_run_without_facts(nightly):
    """A killed run in between connects what must not be connected."""

    def moved(day, info):
        info["host"]["cpu"] = "one" if day < 8 else "two"
        if day == 8:
            info.clear()

    answer = trend(nightly([100.0] * 12, change=moved))

    assert ["2026-01-10"] == [one.night for one in answer.series[0].breaks]


def test_an_overloaded_run_is_worse_than_any_other(nightly):
    """A server so slow that its queue grows has no mean, and therefore no regression."""

    def slow(day, info):
        info["verdict"]["overloaded"] = day >= 10

    answer = trend(nightly([*FLAT, 90.0, 90.0, 90.0, 90.0], change=slow))

    assert (1, "regressed", None) == (answer.exit_code, metric(answer).state, metric(answer).last)
    steps = [block for block in document(answer).sections[0].blocks if getattr(block, "caption", "") == "changes"]
    assert ("tpot mean", "overloaded", "100 ms -> overloaded") in [row[:3] for row in steps[0].rows]


def test_failures_are_followed_as_a_difference(nightly):
    """The first failures after weeks of none are an infinite rise, or none at all."""

    def failing(day, info):
        info["summary"]["failed"] = 0.004 if day == 8 else 0.02 if day >= 9 else 0.0

    answer = trend(nightly([100.0] * 13, change=failing))

    assert ("regressed", "2026-01-10") == (
        metric(answer, "failed").state,
        metric(answer, "failed").steps[0].first,
    )


def test_what_is_only_shown_never_fails(nightly):
    """Goodput at one rate, flat below capacity, would decide."""

    def less(day, info):
        info["summary"]["goodput_rps"] = 2.0 if day < 7 else 1.0

    answer = trend(nightly([100.0] * 11, change=less))

    assert (0, "regressed", False) == (
        answer.exit_code,
        metric(answer, "goodput_rps").state,
        metric(answer, "goodput_rps").judged,
    )


def test_any_difference_of_a_simulator_is_found_at_once(nightly):
    """A change of a simulator by half a percent hides behind noise that it does not have."""
    answer = trend(nightly([100.0] * 5 + [100.5], clock="virtual"))

    assert (0, "changed") == (answer.exit_code, metric(answer).state)
    assert ("2026-01-06", pytest.approx(0.5)) == (metric(answer).steps[0].first, metric(answer).steps[0].loss_pct)


def test_a_noisy_series_advises_pairs(nightly):
    """A series that can find nothing is called steady."""
    answer = trend(nightly([100.0, 108.0, 95.0, 104.0, 93.0, 107.0, 99.0, 106.0, 94.0, 103.0]))

    assert metric(answer).noisy
    assert "--pairs auto" in shown(answer)


def test_several_runs_of_a_night_count_as_their_mean(tmp_path, nightly):
    """The first of five seeds stands for the night."""
    root = nightly([90.0] * 8, series="seeds")
    for night in sorted((root / "seeds").iterdir()):
        info = json.loads((night / "run.json").read_text())
        (night / "run.json").unlink()
        for seed, mean_s in enumerate((0.09, 0.11)):
            info["summary"]["metrics"]["tpot"]["mean"] = mean_s
            (night / f"seed{seed}").mkdir()
            (night / f"seed{seed}" / "run.json").write_text(json.dumps(info))

    answer = trend(root)

    assert pytest.approx(0.1) == metric(answer).last
    assert 8 == answer.series[0].runs


def test_searches_have_a_trend_too(tmp_path):
    """Capacity, the answer that matters most, is not followed."""
    for day in range(11):
        folder = tmp_path / f"r/chatbot/sim/202601{day + 1:02d}"
        folder.mkdir(parents=True)
        answer = {"goal": 0.9, "state": "resolved", "capacity_rps": 12.0 if day < 7 else 11.0}
        info = {"schema": 1, "kind": "capacity", "clock": "wall", "answers": [answer]}
        (folder / "capacity.json").write_text(json.dumps(info))
    found = trend(tmp_path / "r")

    assert ("regressed", 11.0) == (metric(found, "capacity_rps").state, metric(found, "capacity_rps").last)


def test_a_killed_search_is_a_gap(tmp_path):
    """A search that was killed would pass as a valid run without a value."""
    for day in range(8):
        folder = tmp_path / f"r/chatbot/sim/202601{day + 1:02d}"
        folder.mkdir(parents=True)
        info = {"schema": 1, "kind": "capacity", "clock": "wall"}
        if day < 7:
            info["answers"] = [{"goal": 0.9, "state": "resolved", "capacity_rps": 12.0}]
        (folder / "capacity.json").write_text(json.dumps(info))
    found = trend(tmp_path / "r")

    assert (5, "missing") == (found.exit_code, found.state)
    assert "not finished: no answer" == found.series[0].gaps[0].why


def test_without_any_valid_run_there_is_no_trend(nightly):
    """A series of failed runs is green."""

    def failed(day, info):
        info["verdict"] = {"valid": False, "text": "not valid"}

    answer = trend(nightly([100.0] * 3, change=failed))

    assert (4, "invalid", []) == (answer.exit_code, answer.state, answer.series[0].metrics)
    assert "No run is valid" in shown(answer)


def test_a_folder_without_runs_is_wrong_usage(tmp_path, nightly):
    """A wrong path is a green night."""
    (tmp_path / "empty").mkdir()
    one = next((nightly([100.0]) / "chatbot/vllm").iterdir())

    with pytest.raises(UsageError, match="no folder"):
        trend(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="No nightly run in"):
        trend(tmp_path / "empty")
    with pytest.raises(UsageError, match="is a single run"):
        trend(one)


def test_the_answer_is_json_and_fits_a_terminal(nightly):
    """A job cannot parse it, or a log breaks its lines."""

    def hostile(day, info):
        info["backend"]["policy"] = "a|b" if day < 10 else "<img src=x>\x1b[31m`c`"

    answer = trend(
        nightly([*FLAT, 110.0, 111.0, 110.0, 111.0], change=hostile, series="a-rather-long-workload-name/and-a-backend")
    )
    found, as_markdown = shown(answer), markdown.render(document(answer))

    assert encode(answer) == json.loads(json.dumps(encode(answer), allow_nan=False))
    assert 100 >= max(map(len, found.splitlines()))
    assert "\x1b" not in found
    assert "<img" not in as_markdown
    assert "REGRESSED" in as_markdown
    assert [1, "trend"] == [answer.schema, answer.kind]


def test_a_table_has_a_row_for_each_run_of_a_metric(nightly):
    """Values of runs could only be had from JSON."""
    found = [row for row in rows(trend(nightly([*FLAT, 110.0, 111.0]))) if row["metric"] == "tpot mean"]

    assert 12 == len(found)
    assert ("chatbot/vllm", "2026-01-12", "c000011", pytest.approx(0.111), "s") == tuple(
        found[-1][name] for name in ("series", "night", "commit", "value", "unit")
    )


def test_a_value_stands_with_the_interval_of_its_run(nightly):
    """A change inside its own interval would pass for one of the server."""

    def bounded(day, info):
        info["within"] = {"metrics": {"tpot": {"mean": [0.09, 0.11]}}}

    real = trend(nightly([100.0] * 8, change=bounded))
    exact = trend(nightly([100.0] * 8, change=bounded, clock="virtual", series="sim"))

    assert (0.09, 0.11) == (metric(real).runs[-1].low, metric(real).runs[-1].high)
    assert metric(real, "attainment").runs[-1].low is None
    assert metric(exact, series=1).runs[-1].low is None


def test_another_version_of_the_server_is_marked_and_breaks_nothing(nightly):
    """A new server would be compared with nothing, or go unnoticed."""

    def updated(day, info):
        info["server"] = {"kind": "vllm", "version": "0.10" if day < 4 else "0.11"}

    series = trend(nightly(FLAT, change=updated)).series[0]
    change = FactChange(what="server version", before="0.10", after="0.11")

    assert [] == series.breaks
    assert [ChangedRun(night="2026-01-05", changed=[change])] == series.versions


def answering(tokens, by="server"):
    """Runs whose requests have so many output tokens on average."""

    def change(day, info):
        info["output_lengths"] = {"by": by, "output_tokens": tokens[min(day, len(tokens) - 1)]}

    return change


@pytest.mark.parametrize(
    ("tokens", "code", "state"),
    [
        (
            [200.0, 200.4, 199.7, 200.2, 199.9, 200.1, 200.3, 199.8, 200.0, 200.2, 50.0, 50.1, 50.0, 50.1],
            1,
            "regressed",
        ),
        (
            [200.0, 200.4, 199.7, 200.2, 199.9, 200.1, 200.3, 199.8, 200.0, 200.2, 260.0, 259.0, 260.0, 259.0],
            4,
            "longer",
        ),
        ([200.0, 206.0, 193.0, 204.0, 198.0, 203.0, 196.0, 205.0, 195.0, 202.0, 196.5, 196.0], 0, "steady"),
    ],
    ids=["shorter", "longer", "by chance"],
)
def test_runs_of_other_answers_are_found_before_any_speed(tokens, code, state, nightly):
    """A server that answers a quarter of the tokens would be steady: they come as fast."""
    answer = trend(nightly([*FLAT, 99.5, 100.5, 99.5, 100.5][: len(tokens)], change=answering(tokens)))

    assert (code, state) == (answer.exit_code, answer.state)
    assert state == metric(answer, "output tokens per request").state


def test_runs_of_exact_lengths_have_no_row_of_them(nightly):
    """Each such run is valid only with all of its tokens."""
    answer = trend(nightly(FLAT, change=answering([200.0], by="request")))

    assert "output tokens per request" not in {one.name for one in answer.series[0].metrics}


def seeded(level, sd=0.01, seed=4):
    """Sixty runs of mean TPOT in ms with that level."""
    return (100 * level * (1 + sd * np.random.default_rng(seed).standard_normal(60))).tolist()


NIGHT = np.arange(60)
LEVELS = {
    "a step": 1 + 0.1 * (NIGHT >= 40),
    "four steps": 1.04 ** np.searchsorted([12, 24, 36, 48], NIGHT, side="right"),
    "a rise over weeks": 1 + 0.1 * np.clip((NIGHT - 20) / 20, 0, 1),
    "a drift": 1 + 0.19 * NIGHT / 59,
}


@pytest.mark.parametrize("level", LEVELS.values(), ids=list(LEVELS))
def test_a_change_has_its_size(level, nightly):
    """A slow loss is steady every night, and after two months the server is a fifth slower."""
    answer = trend(nightly(seeded(level)))
    found = metric(answer)
    true = 100 * (level[-1] / np.median(level[:14]) - 1)

    assert (1, "regressed", 1, True) == (answer.exit_code, found.state, len(found.steps), found.steps[0].open)
    assert found.level_low_pct < found.level_pct < found.level_high_pct
    assert true == pytest.approx(found.level_pct, abs=2.5)
    assert true == pytest.approx(found.steps[0].loss_pct, abs=2.5)


def test_a_better_level_is_a_gain(nightly):
    """A gain is a failure of the night."""
    answer = trend(nightly(seeded(1 / LEVELS["a step"])))

    assert (0, "improved", "better") == (answer.exit_code, metric(answer).state, metric(answer).steps[0].side)


def test_a_bad_week_that_has_passed_is_listed_and_no_failure(nightly):
    """A week on a throttled machine is a regression for ever, or is forgotten."""
    level = 1 + 0.15 * ((NIGHT >= 30) & (NIGHT < 35))
    answer = trend(nightly(seeded(level)))
    [step] = metric(answer).steps

    assert (0, "c000030", "2026-02-05", False) == (answer.exit_code, step.commit, step.ended, step.open)
    [table] = [b for b in document(answer).sections[0].blocks if getattr(b, "caption", "") == "changes"]
    assert ("100 -> 115 ms", "2026-01-31 to 2026-02-05") in {row[2:4] for row in table.rows}


def test_a_gain_that_lasts_three_weeks_is_the_reference_of_a_later_loss(nightly):
    """A gain is lost again, and nothing is worse than the old level."""
    gain = trend(nightly([*FLAT, *[90.0] * 25], series="code/vllm"))
    lost = trend(nightly([*FLAT, *[90.0] * 25, *[96.0] * 5], series="chatbot/vllm").parent / "results/chatbot")
    [better, worse] = metric(lost).steps

    assert (0, "steady", "2026-01-11", pytest.approx(0.09)) == (
        gain.exit_code,
        metric(gain).state,
        metric(gain).gained,
        metric(gain).reference,
    )
    assert (1, "regressed", "c000035") == (lost.exit_code, metric(lost).state, worse.commit)
    assert [pytest.approx((0.1, 0.09)), pytest.approx((0.09, 0.096))] == [
        (better.before, better.after),
        (worse.before, worse.after),
    ]
    assert "90.0 ms since 2026-01-11" in " ".join(shown(lost).split())


def test_longer_answers_never_become_the_reference(nightly):
    """After three weeks of longer answers speeds of other work are compared."""
    tokens = [200.0] * 10 + [260.0] * 30
    answer = trend(nightly([100.0] * 40, change=answering(tokens)))

    assert (4, "longer", None) == (answer.exit_code, answer.state, metric(answer, "output tokens per request").gained)


def test_a_short_gain_is_the_reference_once_it_is_accepted(nightly):
    """A gain is lost again after ten days, although it was accepted."""
    root = nightly([*FLAT, *[90.0] * 10, *[100.0] * 5])
    before = trend(root)
    accept(root, "c000010", None)

    assert (0, "2026-01-21") == (before.exit_code, metric(before).steps[0].ended)
    assert (1, "regressed", pytest.approx(0.09)) == (
        trend(root).exit_code,
        metric(trend(root)).state,
        metric(trend(root)).reference,
    )


def test_a_simulator_stays_flagged_until_its_new_value_is_accepted(nightly):
    """The second night of a slower policy is green, because it is as slow as the first."""
    root = nightly([100.0] * 5 + [124.0] * 3 + [130.0], clock="virtual")

    assert ("regressed", ["c000005", "c000008"]) == (
        metric(trend(root)).state,
        [step.commit for step in metric(trend(root)).steps],
    )

    accept(root, "latest", None)

    assert ("few", 0) == (metric(trend(root)).state, trend(root).exit_code)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "it is no JSON"),
        ("[]", "at ''"),
        ('{"levels": [{"run": "20260111-c"}]}', "at 'levels[0].date'"),
        ('{"levels": [{"run": "main", "date": "2026-01-20"}]}', "at 'levels[0].run'"),
        ('{"levels": {}}', "at 'levels'"),
    ],
)
def test_a_damaged_file_of_accepted_levels_is_wrong_usage(text, place, nightly):
    """A merge conflict in it accepts everything, or nothing, or ends in a traceback."""
    root = nightly(FLAT)
    (root / "chatbot/vllm" / ACCEPTED).write_text(text)

    with pytest.raises(UsageError, match=re.escape(place)):
        trend(root)


def test_only_a_run_with_values_is_accepted(nightly):
    """A typo accepts the wrong level, or a failed run gives it."""

    def spoilt(day, info):
        if day == 9:
            info["verdict"] = {"valid": False, "text": "not valid: late"}

    root = nightly(FLAT, change=spoilt)

    with pytest.raises(UsageError, match=r"No run in .* is named '2026-02-01'; give its folder, date or commit"):
        accept(root, "2026-02-01", None)
    with pytest.raises(UsageError, match="has no values to accept: not valid: late"):
        accept(root, "latest", None)
    assert not list(root.rglob(ACCEPTED))


def test_levels_are_accepted_one_after_the_other_and_outlive_their_runs(nightly):
    """Old runs are deleted, and the accepted level is that of the first run that is left."""
    root = nightly([*FLAT, *[110.0] * 8, *[120.0] * 8])
    accept(root, "2026-01-11", None)
    accept(root, "20260119T021700Z-c000018", "known")
    accept(root, "2026-01-19", "known since")
    for night in sorted((root / "chatbot/vllm").glob("2026*"))[:20]:
        shutil.rmtree(night)
    found = json.loads((root / "chatbot/vllm" / ACCEPTED).read_text())

    assert [("20260111T021700Z-c000010", None), ("20260119T021700Z-c000018", "known since")] == [
        (level["run"], level["reason"]) for level in found["levels"]
    ]
    assert ("few", 1) == (metric(trend(root)).state, metric(trend(root)).needed)
