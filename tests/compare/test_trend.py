"""The trend of nightly runs: steps with their first run, and everything that is none."""

import datetime as dt
import json
import re
import shutil

import numpy as np
import pytest

from harness.data.codec import encode
from harness.errors import UsageError
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
    """Capacity, the answer that matters most, is not followed, or a killed search passes for a valid run."""
    for day in range(12):
        folder = tmp_path / f"r/chatbot/sim/202601{day + 1:02d}"
        folder.mkdir(parents=True)
        answer = {"goal": 0.9, "state": "resolved", "capacity_rps": 12.0 if day < 7 else 11.0}
        info = {"schema": 1, "kind": "capacity", "clock": "wall"} | ({"answers": [answer]} if day != 3 else {})
        (folder / "capacity.json").write_text(json.dumps(info))
    found = trend(tmp_path / "r")

    assert ("regressed", 11.0) == (metric(found, "capacity_rps").state, metric(found, "capacity_rps").last)
    assert ["not finished: no answer"] == [gap.why for gap in found.series[0].gaps]


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


def answering(tokens, by="server"):
    """Runs whose requests have so many output tokens on average."""

    def change(day, info):
        info["output_lengths"] = {"by": by, "output_tokens": tokens[min(day, len(tokens) - 1)]}

    return change


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


def at(night, *, on=False, **parts):
    """Changes run.json of one night, or of all from it on: each part is a path and its value, None for none."""

    def change(day, info):
        if day == night or (on and day > night):
            for path, value in parts.items():
                *above, last = path.split("__")
                place = info
                for name in above:
                    place = place.setdefault(name, {})
                if value is None:
                    del place[last]
                else:
                    place[last] = value

    return change


def both(*changes):
    return lambda day, info: [change(day, info) for change in changes]


SIMULATED = at(0, on=True, clock="virtual")
LATE = {"valid": False, "text": "not valid: late"}
WORK = [200.0, 200.4, 199.7, 200.2, 199.9, 200.1, 200.3, 199.8, 200.0, 200.2]
STEADY = [*FLAT, 99.5, 100.5, 99.5, 100.5]
LOSS = [*FLAT, 110.0, 111.0, 109.0, 110.0]
SERIES = {
    "a step, its first run and what changed with it": (LOSS, at(10, on=True, backend__policy="vllm-v0")),
    "a first run that was not suspect": ([*FLAT, *FLAT, *FLAT[:4], 103.9, 106.0, 105.8, 106.1, 105.9, 106.2],),
    "one bad run is no step": ([*FLAT, 120.0, 100.0, 100.0],),
    "the last run may be the first of one": ([*FLAT, 120.0],),
    "a step stays flagged": ([*FLAT, *[110.0] * 20],),
    "until it is accepted": ([*FLAT, *[110.0] * 20], None, ("2026-01-11", "new tokenizer")),
    "or the level returns": ([*FLAT, *[110.0] * 5, *[100.0] * 5],),
    "the first week is compared with nothing": (FLAT[:6],),
    "ten runs of ten schedules": (FLAT, lambda day, info: info["schedule"].update(sha256=f"{day:064d}"[::-1])),
    "a step of a simulator": ([100.0] * 5 + [124.0] * 3, SIMULATED),
    "a change of half a percent there": ([100.0] * 5 + [100.5], SIMULATED),
    "each step of it stays flagged": ([100.0] * 5 + [124.0] * 3 + [130.0], SIMULATED),
    "until its value is accepted":
        ([100.0] * 5 + [124.0] * 3 + [130.0], SIMULATED, ("latest", None)),
    "a gain is no failure": ([*FLAT, 90.0, 90.5, 90.0, 90.5],),
    "gaps have their reason": (FLAT, both(at(4, verdict=LATE), at(5, state="running"))),
    "no value in the last run": (FLAT, at(9, verdict=LATE)),
    "a metric that is gone": (FLAT, at(9, summary__metrics__tpot=None)),
    "failures after none, as a difference":
        ([100.0] * 13, both(at(8, summary__failed=0.004), at(9, on=True, summary__failed=0.02))),
    "what is only shown never fails": ([100.0] * 11, at(7, on=True, summary__goodput_rps=1.0)),
    "a series that can find nothing advises pairs":
        ([100.0, 108.0, 95.0, 104.0, 93.0, 107.0, 99.0, 106.0, 94.0, 103.0],),
    "a series is not connected across other hardware":
        ([*[100.0] * 8, *[140.0] * 3], at(8, on=True, backend__hardware="l4")),
    "nor over a run without facts":
        ([100.0] * 12, both(at(8, on=True, host__cpu="two"), lambda day, info: day == 8 and info.clear())),
    "an overloaded run is worse than any other": ([*FLAT, *[90.0] * 4], at(10, on=True, verdict__overloaded=True)),
    "no run is valid": ([100.0] * 3, at(0, on=True, verdict=LATE)),
    "another version of the server breaks nothing":
        (FLAT, both(at(0, on=True, server__version="0.10"), at(4, on=True, server__version="0.11"))),
    "answers of a quarter of the tokens": (STEADY, answering([*WORK, 50.0, 50.1, 50.0, 50.1])),
    "longer answers": (STEADY, answering([*WORK, 260.0, 259.0, 260.0, 259.0])),
    "others by chance": (FLAT, answering([200.0, 206.0, 193.0, 204.0, 198.0, 203.0, 196.0, 205.0, 195.0, 202.0])),
    "of exact lengths": (FLAT, answering([200.0], by="request")),
    "longer answers never become the reference": ([100.0] * 40, answering([200.0] * 10 + [260.0] * 30)),
    "a gain over weeks": (seeded(1 / LEVELS["a step"]),),
    "a bad week that has passed": (seeded(1 + 0.15 * ((NIGHT >= 30) & (NIGHT < 35))),),
    "a gain that lasts is the reference": ([*FLAT, *[90.0] * 25],),
    "of a later loss": ([*FLAT, *[90.0] * 25, *[96.0] * 5],),
    "a short gain is lost again": ([*FLAT, *[90.0] * 10, *[100.0] * 5],),
    "and was the reference, as it was accepted": ([*FLAT, *[90.0] * 10, *[100.0] * 5], None, ("c000010", None)),
}  # fmt: skip


def test_trends_golden(nightly, golden):
    """A regression would be seen without its date or cause, a noisy night raise an alarm, or nothing be compared."""
    parts = []
    for number, (reason, (values, *rest)) in enumerate(SERIES.items()):
        change, accepted = (*rest, None, None)[:2]
        root = nightly(values, series=f"{number}/vllm", change=change or (lambda *_: None)) / str(number)
        if accepted:
            accept(root, *accepted)
        answer = trend(root)
        below = shown(answer).split("\n\n", 2)[2]  # the title and the rule
        parts.append(f"# {reason}\n{below}exit code {answer.exit_code}, {answer.state}\n")
    golden("trend.txt", re.sub(r"(-c\d{6}  )[-\d]{10}", r"\1TODAY     ", "\n".join(parts)))


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
    root = nightly(FLAT, change=at(9, verdict=LATE))

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
