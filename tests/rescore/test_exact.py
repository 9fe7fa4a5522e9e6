"""Scales, groups, tokens and tasks against plain loops over the stored table."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from harness.api import Bound, Slo
from harness.data.large import thinned
from harness.experiments.rescore.objectives import Fastgen, curve, first_within, success, tasks, tokens
from harness.experiments.rescore.reading import GROUPINGS, grouped, of_run
from harness.metrics.objective import Seen, parse_slo, score

SLOS = [
    "ttft=0.25,tpot=0.1",
    "ttft=0.25,tpot=0.06,ttft@long=0.5",
    "ttft=0.3,e2e=2",
    "tpot=0.03",
    "itl=0.1,itl_p99=0.09",
    "ttft=0.4,task=5",
    "ttft=0.3,p90:tpot=0.05,p99:itl=0.3",
    "",
]


def scaled(slo, factor):
    """The SLO with every limit times `factor`; the bounds that requests bring along are not in it."""
    return replace(slo, bounds=tuple(replace(b, limit=b.limit * factor) for b in slo.bounds))


def value(name, row):
    """A metric of a request, None where it has none, from its definition."""
    t, n = row["token_s"], row["output_tokens"]
    if not t:
        return None
    if name == "ttft":
        return t[0] - row["scheduled_s"]
    if name == "e2e":
        return t[-1] - row["scheduled_s"]
    return (t[-1] - t[0]) / (n - 1) if n > 1 and len(t) > 1 else None


def meets(row, limits):
    if row["status"] != "ok":
        return False
    return all(value(m, row) is None or value(m, row) <= limit for m, limit in limits.items())


@pytest.fixture(params=SLOS)
def slo(request):
    return parse_slo(request.param)


def test_a_thin_table_scores_as_the_whole_one(mixture, slo):
    """A run of a million requests would score otherwise than the same run read at once."""
    whole = mixture()
    thin = Seen(thinned(whole), lambda: iter([whole]))
    expected, found = score(whole, slo), score(thin.table, slo, thin)

    assert expected.met.tolist() == found.met.tolist()
    assert expected.by_class == found.by_class
    assert [(b.bound, b.attainment, b.value_s, b.passed) for b in expected.bounds] == [
        (b.bound, b.attainment, b.value_s, b.passed) for b in found.bounds
    ]


def test_many_scores_of_one_table_are_those_of_fresh_ones(mixture):
    """What one SLO left behind would change the score of the next."""
    table = mixture()
    seen = Seen(table)

    for text in [*SLOS, *SLOS]:
        assert score(table, parse_slo(text)).met.tolist() == score(table, parse_slo(text), seen).met.tolist()


def test_the_scale_curve_is_a_score_under_every_scaled_slo(mixture, slo):
    """A point of the curve would not be what a run under the scaled SLO scores."""
    table = mixture()
    factors = [0.1, 0.5, 1.0, 1.1, 2.0, 40.0]
    found = curve(Seen(table), slo, factors)

    for i, factor in enumerate(factors):
        own = {
            c: [None if v is None else v * factor for v in table[c].to_pylist()] for c in ("slo_ttft_s", "slo_task_s")
        }
        moved = table
        for name, values in own.items():
            moved = moved.set_column(moved.schema.get_field_index(name), moved.schema.field(name), [values])
        expected = score(moved, scaled(slo, factor))
        assert expected.attainment == found.attainment[i]
        assert [b.attainment for b in expected.bounds if b.bound.percentile is None] == [
            shares[i] for shares in found.bounds.values()
        ]


def test_crossings_are_the_smallest_scale_that_reaches_the_goal(mixture):
    """'90% from scale 1.2 on' would be wrong on one side of 1.2."""
    table, slo = mixture(), parse_slo("ttft=0.25,tpot=0.1")
    at = curve(Seen(table), slo, [1.0]).crossing(0.7)
    shares = [curve(Seen(table), slo, [at * f]).attainment[0] for f in (1 - 1e-9, 1 + 1e-9)]

    assert shares[0] < 0.7 <= shares[1]
    assert curve(Seen(table), slo, [1.0]).crossing(0.99) is None


def test_a_percentile_bound_holds_from_its_own_scale_on(mixture):
    """The curve would hide that a run-level bound is broken at a scale."""
    table = mixture(700, 3)
    table = table.filter([s == "ok" for s in table["status"].to_pylist()])
    at = curve(Seen(table), parse_slo("p90:ttft=0.1"), [1.0]).holds_from[Bound("ttft", 0.1, percentile=90.0)]

    assert not score(table, scaled(parse_slo("p90:ttft=0.1"), at * (1 - 1e-9))).passed
    assert score(table, Slo((Bound("ttft", 0.1 * at * (1 + 1e-9), percentile=90.0),), goal=0.5)).bounds[0].passed


@pytest.mark.parametrize("limit", [1.0, np.array([0.3, 0.7, 1 / 3, 0.1])])
def test_equal_values_meet_their_scaled_bound(limit):
    """A value exactly on a bound would miss it by a rounding of the division."""
    factors = np.array([0.1, 0.3, 0.7, 1.1])
    values = np.array([0.3, 0.7, 1 / 3, 0.1]) * 0.7
    expected = [
        next((i for i, f in enumerate(factors) if v <= f * b), 4)
        for v, b in zip(values, np.full(4, limit), strict=False)
    ]

    assert expected == first_within(values, limit, factors).tolist()


def good_by_loop(row, ttft_s, tpot_s):
    """Tokens of a request on its line: token j is due at ttft + j * tpot."""
    if row["status"] != "ok":
        return 0
    times = [t for t, n in zip(row["token_s"], row["token_n"], strict=True) for _ in range(n)]
    from_s, base = (row["scheduled_s"], ttft_s) if ttft_s < math.inf else (times[0], 0.0)
    if tpot_s == math.inf:
        return len(times) if times[0] - from_s <= base else 0
    return sum(t - from_s <= base + j * tpot_s for j, t in enumerate(times))


@pytest.mark.parametrize(
    ("text", "ttft_s", "tpot_s"),
    [("ttft=0.25,tpot=0.03", 0.25, 0.03), ("ttft=0.25", 0.25, math.inf), ("tpot=0.02", math.inf, 0.02)],
)
def test_good_tokens_are_those_on_the_line(mixture, text, ttft_s, tpot_s):
    """Token goodput would count tokens that came late, or tokens of an event at times of their own."""
    table = mixture().drop_columns("slo_ttft_s").append_column("slo_ttft_s", [[None] * 400])
    table = table.drop_columns("slo_task_s").append_column("slo_task_s", [[None] * 400])
    rows = table.to_pylist()
    found = tokens(Seen(table), parse_slo(text))

    assert [good_by_loop(r, ttft_s, tpot_s) for r in rows] == found.output.tolist()
    prompts = [r["prompt_tokens"] if meets(r, {"ttft": ttft_s}) else 0 for r in rows]
    assert prompts == found.prompt.tolist()


def test_bounds_on_whole_answers_count_for_all_their_tokens(mixture):
    """A program that needs the whole answer in time would be credited with half of a late one (JITServe's classes)."""
    table = mixture().drop_columns("slo_task_s").append_column("slo_task_s", [[None] * 400])
    found = tokens(Seen(table), parse_slo("e2e=1")).output.tolist()

    for row, good in zip(table.to_pylist(), found, strict=True):
        late = (
            row["slo_ttft_s"] is not None and value("ttft", row) is not None and value("ttft", row) > row["slo_ttft_s"]
        )
        assert (row["output_tokens"] if meets(row, {"e2e": 1.0}) and not late else 0) == good


@pytest.mark.parametrize("rule", ["ema", "cumulative"])
@pytest.mark.parametrize("rate", [8.0, 20.0, 30.0])
def test_fastgen_success_is_that_of_its_script(mixture, rule, rate):
    """'FastGen's rule' would be another one than DeepSpeed's script computes."""
    table = mixture()
    rows = table.to_pylist()

    def succeeds(row):
        if row["status"] != "ok" or row["prompt_tokens"] / 512 < row["token_s"][0] - row["scheduled_s"]:
            return False
        gaps = np.diff(row["token_s"])
        if rule == "ema":
            return all(pd.Series(gaps).ewm(span=16).mean() < 1.0 / rate)
        return all(np.cumsum(gaps) <= (1 / rate) * np.arange(1, len(gaps) + 1))

    prompt, answer = success(Seen(table), Fastgen(rate=rate, rule=rule))

    assert [succeeds(r) for r in rows] == (prompt & answer).tolist()


def test_a_task_is_met_when_all_of_its_requests_are(mixture):
    """A task with one late stage would count as served."""
    table = mixture()
    scored = score(table, parse_slo("ttft=0.25,tpot=0.1"))
    groups = {}
    for row, met in zip(table.to_pylist(), scored.met.tolist(), strict=True):
        if row["session"] is not None:
            groups.setdefault(row["session"], []).append(met)
    found = tasks(Seen(table), scored.met, lambda count: count / 2)

    assert len(groups) == found.tasks
    assert sum(all(g) for g in groups.values()) == found.met
    assert found.met / 2 == found.goodput_tasks_rps


@pytest.mark.parametrize("by", GROUPINGS)
def test_every_request_is_in_one_group(mixture, run, by):
    """A group would lose requests, and its goodput with them."""
    source = of_run(run(mixture()))
    code, names = grouped(source, by)

    assert len(source.table) == len(code)
    assert len(names) == len(set(names)) or by == "prefix"
    assert set(range(len(names))) == set(code.tolist())


def test_tenths_of_prompts_hold_equal_lengths_together(mixture, run):
    """A length would stand in two groups, or a tenth hold half of the requests."""
    source = of_run(run(mixture(1000)))
    code, names = grouped(source, "prompt")
    lengths = source.table["prompt_tokens"].to_numpy()
    ranges = [(lengths[code == i].min(), lengths[code == i].max()) for i in range(len(names))]

    assert 10 == len(names)
    assert all(a[1] < b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    assert all(80 <= (code == i).sum() <= 120 for i in range(10))
