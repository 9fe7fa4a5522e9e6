"""The answer on pairs of runs: what is paired, refused, decided and warned of."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec import structs

from harness.data.run_json import RunInfo, Verdict
from harness.errors import UsageError
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare import answer, gates, pairing, verdict, wording
from harness.experiments.compare.answer import Settings
from harness.experiments.compare.compare_json import CachedShares, ComparedPair, GateRow
from harness.experiments.compare.pairing import Matched, Numbers, Pair
from harness.metrics.objective import parse_slo
from harness.options import NO_SETTINGS

NOISE = (1.0, 1.004, 0.997, 1.002, 0.999)


@pytest.fixture
def pairs(stored):
    """Five pairs under a wall clock: every head slower by a factor, beside the noise of its run."""

    def made(slower=1.0, **head):
        return [
            Pair(stored(seed, clock="wall"), stored(seed, slower=slower * noise, clock="wall", **head))
            for seed, noise in enumerate(NOISE)
        ]

    return made


def compared(pairs, **settings):
    return answer.compare(Matched(tuple(pairs)), Settings(**settings))


def row(info, name):
    return next(each for each in (*info.gates, *info.shown) if each.metric == name)


@pytest.mark.parametrize(
    ("slower", "verdict", "code"), [(1.0, "equivalent", 0), (1.06, "regressed", 1), (0.9, "improved", 0)]
)
def test_a_slower_head_is_found_and_an_equal_one_is_not(pairs, slower, verdict, code):
    """The reason why the command exists."""
    info = compared(pairs(slower))

    assert (info.verdict, info.exit_code, info.mode) == (verdict, code, "paired")
    assert row(info, "tpot").change_pct == pytest.approx(100 * (slower - 1), abs=0.5)
    assert row(info, "tpot").low_pct < row(info, "tpot").change_pct < row(info, "tpot").high_pct


def test_too_noisy_pairs_decide_nothing_and_say_what_would(stored):
    """'No significant difference' must not be sold as 'equal'."""
    noisy = [
        Pair(stored(seed, clock="wall"), stored(seed, slower=factor, clock="wall"))
        for seed, factor in enumerate((1.0, 1.2, 0.85))
    ]
    info = compared(noisy)

    assert (info.verdict, info.exit_code) == ("inconclusive", 5)
    assert row(info, "tpot").mde_pct > 5 and row(info, "tpot").pairs_needed > 3
    assert "with 3 pairs only a loss of" in info.text


def test_enough_pairs_for_a_loss_at_the_limit_tell_what_is_not_ruled_out(stored):
    """'5% by 4 pairs' is no advice where there are five."""
    factors = (1.02, 1.06, 1.03, 1.05, 1.04)
    pairs = [Pair(stored(i, clock="wall"), stored(i, slower=f, clock="wall")) for i, f in enumerate(factors)]
    info = compared(pairs, gates=gates.parse("tpot=4.5%:5%"))

    assert "inconclusive" == info.verdict
    assert row(info, "tpot").pairs_needed <= 5
    assert "is not ruled out by these 5 pairs, and one of 5% must be found; make more pairs" in info.text


def test_percentiles_and_attainment_are_shown_but_decide_nothing(pairs):
    """They are too flat, or too wild, to raise an alarm by default."""
    info = compared(pairs(1.06))

    assert {each.metric for each in info.gates} == {"tpot", "ttft", "failed"}
    assert {"attainment", "goodput_rps", "p99:ttft"} <= {each.metric for each in info.shown}
    assert not any(isinstance(each, GateRow) for each in info.shown)


def test_the_user_chooses_the_gates(pairs):
    """A limit of 10 % lets a loss of 6 % pass."""
    assert compared(pairs(1.06), gates=gates.parse("tpot=10%:20%")).verdict == "equivalent"
    assert compared(pairs(1.06), gates=gates.parse("e2e=1%:5%")).verdict == "regressed"


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("slo", {"slo": {"text": "ttft=9", "bounds": [], "goal": 0.9}}),
        ("workload", {"workload": {"name": "code"}}),
        ("model", {"backend": {"model": "other"}}),
        ("hardware", {"host": {"cpu": "another", "cores": 8, "machine": "x86_64"}}),
        ("schedule", {"schedule": {"sha256": "f" * 64, "requests": 60}}),
        ("requests", {"schedule": {"sha256": None, "requests": 61}}),
        ("backend", {"backend": {"backend": "openai"}}),
        ("tool", {"source": {"tool": "vllm", "missing": []}}),
        ("schema", {"schema": 1}),
    ],
)
def test_what_is_not_comparable_is_refused_by_name(pairs, field, changed):
    """A difference that comes from other traffic or another machine is no regression."""
    info = compared(pairs(1.06, **changed))

    assert (info.verdict, info.exit_code, info.gates) == ("refused", 4, [])
    assert field in {stop.field for stop in info.refused}
    once = dict.fromkeys(stop.field for stop in info.refused)
    assert f"--allow-different {','.join(once)} " in info.text


def test_an_allowed_difference_is_compared_and_reported(pairs):
    """Who asks for it gets it, with a warning in every output."""
    info = compared(pairs(1.06, backend={"model": "other"}), allowed=frozenset({"model"}))

    assert info.verdict == "regressed"
    assert [each.field for each in info.allowed_differences] == ["model"]
    assert "allowed-difference" in {each.code for each in info.warnings}


def test_fewer_than_three_pairs_of_real_runs_are_refused(pairs):
    """Two runs can look different by chance in every way."""
    info = compared(pairs(1.06)[:2])

    assert [stop.field for stop in info.refused] == ["pairs"]
    assert compared(pairs(1.06)[:1], allowed=frozenset({"pairs"})).verdict == "inconclusive"


def test_runs_that_are_not_valid_end_the_comparison(pairs):
    """A pair is never dropped in silence: the run that was late may be the one that was slow."""
    made = pairs(1.06)
    verdict = Verdict(valid=False, reasons=["late"])
    bad = replace(made[2].head, info=made[2].head.info.change(verdict=verdict))
    info = compared([*made[:2], replace(made[2], head=bad), *made[3:]])

    assert (info.verdict, info.exit_code) == ("invalid", 4)
    assert info.pairs[2].reasons == ["head: late"]
    assert "head: late" in info.text


@pytest.mark.parametrize(("late_s", "verdict"), [(0.0005, "regressed"), (0.2, "invalid")])
def test_a_pair_with_late_requests_counts_where_they_decide_no_gate(pairs, late_s, verdict):
    """A comparison of two servers from a busy machine ended without a verdict, whatever the servers did."""
    made = pairs(1.3)
    late = RunInfo.of({"verdict": {"valid": False}, "checks": [{"check": "lateness", "state": "failed"}]})
    head = made[2].head
    info = head.info.change(verdict=late.verdict, checks=late.checks)
    sent = pc.add(head.requests["scheduled_s"], late_s)
    table = head.requests.set_column(head.requests.column_names.index("sent_s"), "sent_s", sent)
    compare = compared([*made[:2], replace(made[2], head=replace(head, info=info, requests=table)), *made[3:]])

    assert verdict == compare.verdict
    assert (verdict != "invalid") == ("late-requests" in {warning.code for warning in compare.warnings})


def test_a_pair_that_could_not_be_made_is_not_passed_over(pairs):
    """The server dies with the fourth pair, and the JUnit file is green."""
    made = pairs()[:3]
    attempts = [
        ComparedPair(pair=n, base_run=str(pair.base.path), head_run=str(pair.head.path), valid=True)
        for n, pair in enumerate(made, 1)
    ]
    lost = ComparedPair(pair=4, base_run="x/base", head_run="x/head", valid=False, why="head: it broke.")
    again = structs.replace(lost, repeated=True)
    info = answer.compare(Matched(tuple(made)), Settings(), attempts=[*attempts, lost, again])

    assert ("invalid", 4) == (info.verdict, info.exit_code)
    assert "not valid: 1 of 4 pairs prove nothing (head: it broke)" in info.text


def test_a_killed_run_is_not_valid(pairs):
    """Half a run is faster than a whole one."""
    made = pairs()
    info = compared([*made[:4], replace(made[4], head=replace(made[4].head, complete=False))])

    assert info.verdict == "invalid"


def test_both_runs_of_a_pair_are_cut_at_the_later_cut(pairs, stored):
    """Otherwise the longer warm-up of one side would look like a faster server."""
    at_s = float(stored(0).requests["scheduled_s"].to_numpy()[20])
    made = pairs(1.0, warmup={"rule": "mser5", "at_s": at_s, "requests": 20})
    info = compared(made)

    assert [each.cut_s for each in info.pairs] == [at_s] * 5
    assert [each.cut_s for each in compared(made, warmup="none").pairs] == [0.0] * 5


def test_another_slo_scores_both_sides_anew(pairs):
    """The question of today is not the one that the runs were made for."""
    strict = compared(pairs(), slo=parse_slo("ttft=1ms"))

    assert strict.slo == "ttft=0.001"
    assert row(strict, "attainment").base == 0.0


TURNS = {"in turns": (0, 3, 4, 1, 2, 5), "a pair made again": (0, 9, 4, 1, 8, 5)}
BATCHES = {
    "two batches": (0, 1, 2, 3, 4, 5),
    "the head always second": (0, 2, 4, 1, 3, 5),
    "not side by side": (0, 3, 4, 2, 1, 5),
    "times that are not stored": (0, 3, 4, 1, 2, None),
}


@pytest.mark.parametrize("hours", [*TURNS.values(), *BATCHES.values()], ids=[*TURNS, *BATCHES])
@pytest.mark.parametrize("slower", [1.0, 1.1, 0.9])
def test_runs_that_were_not_made_in_turns_decide_nothing(stored, hours, slower):
    """A baseline of last week makes every fourth night a regression, at an alpha of 1%."""
    runs = [
        stored(i % 3, clock="wall", slower=slower if i > 2 else 1.0, name=f"r{i}",
               started=hour if hour is None else f"2026-01-05T{hour:02d}:00:00+00:00")
        for i, hour in enumerate(hours)
    ]  # fmt: skip
    pairs = [Pair(base, head) for base, head in zip(runs[:3], runs[3:], strict=True)]
    info, allowed = compared(pairs), compared(pairs, allowed=frozenset({"turns"}))
    verdict = {1.0: "equivalent", 1.1: "regressed", 0.9: "improved"}[slower]

    assert verdict == allowed.verdict
    assert (verdict if hours in TURNS.values() else "inconclusive") == info.verdict
    assert ("were not made in turns" in info.text) == (hours in BATCHES.values()) == (info.exit_code == 5)


def test_failures_come_from_no_other_day(pairs):
    """A candidate that fails every second request passes as undecided, because it was run a day later."""
    made = pairs(1.0, started="2026-01-06T00:00:00+00:00")
    rows = made[0].head.requests
    failed = pa.array(["timeout", "ok"] * (len(rows) // 2), rows.schema.field("status").type)
    place = rows.schema.get_field_index("status")
    worse = [
        replace(p, head=replace(p.head, requests=p.head.requests.set_column(place, "status", failed))) for p in made
    ]

    assert ("regressed", 1) == ((info := compared(worse)).verdict, info.exit_code)


@pytest.mark.parametrize("grew", [{"overloaded": True}, {"overloaded": False, "queue_grew": True}])
def test_a_growing_queue_is_warned_of_be_the_slo_met_or_not(pairs, grew):
    """Their means tell how long the run was."""
    info = compared(pairs(1.0, verdict={"valid": True, **grew}))

    assert "overloaded" in {each.code for each in info.warnings}


def test_a_percentile_that_the_head_alone_misses_is_warned_of(pairs):
    """A broken bound of the SLO was not shown at all, as no default gate is on it."""
    limit_s = 1.1 * max(gates.of(pair.base, None, 0.0)["p99:itl"] for pair in pairs())
    info = compared(pairs(1.3), slo=parse_slo(f"p99:itl={limit_s}"))
    [warning] = [each.message for each in info.warnings if each.code == "percentile-missed"]
    found = row(info, f"missed p99:itl={limit_s}")

    assert "missed in 0 of 5 runs of the base and in " in warning
    assert found.base == 0 < found.head
    assert found.label == f"runs that miss p99:itl={limit_s}"
    assert not [each for each in compared(pairs(1.0)).warnings if each.code == "percentile-missed"]


def test_a_wild_pair_is_named_and_stays(stored):
    """Removing what does not fit is how results are made up."""
    factors = (1.0, 1.001, 0.999, 1.0005, 1.4)
    wild = [Pair(stored(seed, clock="wall"), stored(seed, slower=f, clock="wall")) for seed, f in enumerate(factors)]
    info = compared(wild)

    assert any(w.code == "outlier" and "pair 5" in w.message for w in info.warnings)
    assert row(info, "tpot").pairs == 5


def test_a_warm_cache_on_one_side_is_reported(pairs):
    """A prefix cache that the first run filled makes the second one look fast."""
    info = compared(pairs())
    warm = structs.replace(info.pairs[0], cached=CachedShares(0.0, 0.5))
    found = wording.warnings(info.change(pairs=[warm, *info.pairs[1:]]), Matched(()))

    assert "cached-tokens" in {each.code for each in found}


def test_simulators_are_compared_exactly(stored):
    """A simulator has no noise: the same run twice is equal, and one changed bit is a difference that is shown."""
    same = compared([Pair(stored(0), stored(0, name="again"))])
    other = compared([Pair(stored(0), stored(0, slower=1.0000001))])
    worse = compared([Pair(stored(0), stored(0, slower=1.1))])

    assert (same.verdict, same.exact.identical) == ("equivalent", True)
    assert (other.verdict, other.exit_code) == ("equivalent", 0)
    assert (worse.verdict, worse.exit_code) == ("regressed", 1)
    assert other.exact.requests_differ == 60
    assert other.exact.first_request.request_id == 0
    assert other.exact.first_request.column == "token_s"


def test_one_request_of_one_seed_does_not_fail_a_gate(stored):
    """A change that moved one of 60 requests over its bound failed the pull request."""
    goodput, *_ = gates.exact(gates.few_requests(60))
    losses = [verdict.Series(goodput.quantity, {}, (2.0,), (2.0 * met / 60,)) for met in (59, 57)]

    assert ["equivalent", "regressed"] == [
        row.verdict for row in verdict.exact([(goodput, each) for each in losses], 0.01)
    ]


def test_baselines_of_several_systems_name_none_for_all(stored):
    """The header named the GPU of the first pair for all of them."""
    one, two = (stored(seed, backend={"name": "sim", "hardware": hardware}) for seed, hardware in enumerate(("a", "b")))
    info = compared([Pair(one, one), Pair(two, two)])

    assert {"name": "sim"} == info.base.system


def test_seeds_that_contradict_one_another_are_decided_as_pairs(stored):
    """Better for one traffic and worse for another is no regression yet."""
    mixed = [Pair(stored(seed), stored(seed, slower=f)) for seed, f in enumerate((1.02, 0.98, 1.01, 0.99, 1.0))]

    info = compared(mixed)

    assert info.mode == "exact"
    assert row(info, "tpot").verdict == "equivalent"


def test_runs_are_paired_by_what_was_sent(stored):
    """Matching by name or order would compare the traffic of one seed with that of another."""
    base = [stored(seed) for seed in (0, 1, 2)]
    head = [stored(seed, name=f"head-{seed}") for seed in (2, 0, 3)]
    matched = pairing.match(base, head)

    assert [(str(p.base.path), str(p.head.path)) for p in matched.pairs] == [("run-0", "head-0"), ("run-2", "head-2")]
    assert [str(run.path) for run in (*matched.alone_base, *matched.alone_head)] == ["run-1", "head-3"]


def test_a_base_without_a_partner_is_not_passed_over(stored):
    """A gate whose run is missing must not turn green."""
    matched = pairing.match([stored(0), stored(1)], [stored(1)])
    info = answer.compare(matched, Settings())
    allowed = answer.compare(matched, Settings(allowed=frozenset({"runs"})))

    assert (info.verdict, info.exit_code) == ("refused", 4)
    assert "run-0" in info.text
    assert allowed.verdict == "equivalent"


def test_the_system_under_test_does_not_decide_what_is_paired(stored):
    """Another policy in one run of two is what is to be compared, not a reason to pass it over."""
    base = [stored(seed, rate=rate) for seed, rate in ((0, 1.0), (0, 2.0))]
    head = [
        replace(base[0], info=base[0].info.change(spec={**base[0].info.spec, "policy": "orca"})),
        base[1],
    ]
    matched = pairing.match(base, head)

    assert len(matched.pairs) == 2
    assert (matched.alone_base, matched.alone_head) == ((), ())


def test_runs_of_one_schedule_are_paired_with_their_likes(stored):
    """In a sweep over policies every point sends the same: each is compared with itself, in whatever order."""
    base, head = (
        [stored(0, spec={"policy": policy, "rate": 2.0}, name=policy) for policy in policies]
        for policies in (("a", "b"), ("b", "a"))
    )

    assert [(p.base.path, p.head.path) for p in pairing.match(base, head).pairs] == [
        (Path("a"), Path("a")),
        (Path("b"), Path("b")),
    ]


def test_every_point_of_a_sweep_is_compared_on_its_own(stored):
    """A loss at a high rate must not be averaged away by the low ones."""
    base = [stored(seed, rate=rate, clock="wall") for rate in (1.0, 2.0) for seed in range(3)]
    head = [
        stored(seed, rate=rate, clock="wall", slower=1.1 if rate == 2.0 else 1.0)
        for rate in (1.0, 2.0)
        for seed in range(3)
    ]
    info = answer.compare(pairing.match(base, head), Settings(allowed=frozenset({"turns"})))
    verdicts = {each.point["rate"]: each.verdict for each in info.gates if each.metric == "tpot"}

    assert verdicts == {"1.0": "equivalent", "2.0": "regressed"}


@pytest.mark.parametrize("option", NO_SETTINGS)
def test_seeds_are_one_point_whatever_decides_the_exit_code_of_their_runs(stored, option):
    """Three seeds of one system would be three points of one pair each, none of which can decide."""
    base, head = (
        [stored(seed, spec={"rate": 2.0, option: 0.1 * seed}, name=f"{side}-{seed}") for seed in range(3)]
        for side in ("base", "head")
    )

    assert [{}, {}, {}] == [pair.point for pair in pairing.match(base, head).pairs]


def test_points_are_named_by_the_fewest_options(stored):
    """A row headed by forty options cannot be read."""
    runs = [
        stored(0, rate=rate, spec={"rate": rate, "policy": policy, "latency": policy})
        for rate, policy in ((1.0, "a"), (2.0, "a"), (1.0, "b"), (2.0, "b"))
    ]
    heads = [replace(run, path=Path(f"other-{i}")) for i, run in enumerate(runs)]

    assert {tuple(pair.point) for pair in pairing.match(runs, heads).pairs} == {("latency", "rate")}


def test_searches_are_compared_seed_by_seed():
    """The traffic of a seed moves its capacity by 4 %; on the same seed two searches agree to 0.2 %."""
    base = [
        Numbers(Path("a"), {"capacity_rps": 2.0 + 0.1 * seed}, CapacityAnswer(clock="virtual"), seed)
        for seed in range(8)
    ]
    head = [replace(each, values={"capacity_rps": 0.95 * each.values["capacity_rps"]}) for each in base]
    info = answer.compare(pairing.match(base, head), Settings())

    assert row(info, "capacity_rps").verdict == "regressed"
    assert row(info, "capacity_rps").change_pct == pytest.approx(-5.0)
    assert "capacity_rps fell by 5.00%" in info.text


def test_numbers_that_commands_printed_are_compared():
    """Any program that prints a number can be gated."""
    pairs = [
        Pair(Numbers(Path("a"), {"took_ms": 10.0}), Numbers(Path("b"), {"took_ms": 11.0 + 0.01 * i})) for i in range(5)
    ]

    assert (
        compared(pairs, gates=gates.parse("took_ms=2%:5%", free=True), allowed=frozenset({"turns"})).verdict
        == "regressed"
    )
    assert compared(pairs).verdict == "inconclusive"


def test_everything_recorded_that_differs_is_listed(stored):
    """Who sees a difference asks first what was changed."""
    changed = {"versions": {"bench": "0.2.0"}, "backend": {"backend": "sim", "policy": "orca", "model": "opt-13b"}}
    base = stored(0, backend={"backend": "sim", "policy": "vllm-v0", "model": "opt-13b"})
    info = compared([Pair(base, stored(0, **changed))])

    assert {(d.field, d.base, d.head) for d in info.differences} == {
        ("policy", "vllm-v0", "orca"),
        ("version of bench", "0.1.0", "0.2.0"),
    }


def test_a_field_that_a_version_did_not_have_is_no_difference(stored):
    """Every run of an older bench would be refused, or blamed for a list of options that it never knew."""
    host = {"host": {"machine": "x86_64"}, "backend": {"model": None}}
    older = [stored(seed, clock="wall", versions={"bench": "0.0.9"}, **host) for seed in range(3)]
    same = [stored(seed, clock="wall", **host) for seed in range(3)]
    newer = [stored(seed, clock="wall", backend={"quantization": "fp8"}) for seed in range(3)]
    across = compared([Pair(a, b) for a, b in zip(older, newer, strict=True)], allowed=frozenset({"hardware"}))
    within = compared([Pair(a, b) for a, b in zip(same, newer, strict=True)], allowed=frozenset({"hardware"}))

    assert "quantization" not in {each.field for each in across.differences} and not across.refused
    assert "quantization" in {each.field for each in within.differences}
    assert ["model"] == list(dict.fromkeys(stop.field for stop in within.refused))


def test_a_loss_beside_noisy_neighbours_is_found_and_printed_with_what_found_it(stored):
    """The bounds of the mean hold 0, and the reader does not learn why it is a regression."""

    def hit(run, part):  # a neighbour slows down a part of the requests to 1.6 times their time
        tables = [run.requests, stored(run.info.seed, clock="wall", slower=1.6).requests]
        n = len(run.requests)
        rows = pa.concat_tables([tables[1][:part], tables[0][part:n]]) if part else run.requests
        return replace(run, requests=rows)

    runs = [(stored(seed, clock="wall"), stored(seed, slower=1.06 + 0.001 * seed, clock="wall")) for seed in range(6)]
    info = compared(
        [
            Pair(hit(base, 14 * (seed % 3 == 1)), hit(head, 14 * (seed % 3 == 2)))
            for seed, (base, head) in enumerate(runs)
        ],
        gates=gates.parse("tpot"),
    )
    [tpot] = info.gates

    assert "regressed" == info.verdict and tpot.low_pct < 0 < tpot.high_pct
    assert tpot.p <= 0.01 < tpot.p_mean
    assert "median group of requests +6" in info.text
    assert {1, 2, 4, 5} == set(verdict.unusual(info.gates))
    assert "outlier" in {each.code for each in info.warnings}


def test_fewer_failures_are_more_work(pairs):
    """A base that rejects a third of its requests is fast, and the head that serves all is called slow."""
    made = pairs()
    place = made[0].base.requests.schema.get_field_index("status")
    field = made[0].base.requests.schema.field(place)
    gone = pa.array(["rejected", "ok", "ok"] * (len(made[0].base.requests) // 3), field.type)
    made = [replace(p, base=replace(p.base, requests=p.base.requests.set_column(place, field, gone))) for p in made]

    assert "less-load" in {each.code for each in compared(made).warnings}


def test_a_gate_on_what_no_run_has_is_refused(pairs):
    """A gate that is dropped in silence is always green."""
    with pytest.raises(UsageError, match="No quantity to gate in these runs named 'capacity_rps'"):
        compared(pairs(), gates=gates.parse("capacity_rps,tpot"))


def test_runs_in_which_everything_failed_are_not_equivalent(pairs):
    """Two servers that answer nothing fail equally well."""
    made = pairs()
    dead = [
        replace(run, requests=run.requests.set_column(
            run.requests.schema.get_field_index("status"), "status", pa.array(["error"] * len(run.requests))
        ))
        for run in (made[0].base, made[0].head)
    ]  # fmt: skip
    info = compared([Pair(*dead), *made[1:]])

    assert (info.verdict, info.exit_code) == ("invalid", 4)
    assert "base: no request ended well" in info.pairs[0].reasons


def test_runs_of_different_traffic_are_paired_in_order_where_that_is_allowed(stored):
    """Traces that cannot be repeated can still be compared, with all the noise of the traffic."""
    base, head = ([stored(seed, clock="wall", name=f"{side}{seed}") for seed in seeds] for side, seeds in (
        ("base", (0, 1, 2)), ("head", (2, 3, 4)),
    ))  # fmt: skip
    matched = pairing.match(base, head, any_schedule=True)
    info = answer.compare(matched, Settings(allowed=frozenset({"schedule"})))

    assert [(str(p.base.path), str(p.head.path)) for p in matched.pairs][2] == ("base2", "head2")
    assert len(info.pairs) == 3 and info.verdict != "refused"


def test_what_cannot_be_measured_any_more_is_worse(stored):
    """A candidate that answers in one piece has no TPOT; that is no equivalence."""
    whole = [
        replace(run, requests=_in_one_piece(run.requests)) for run in (stored(seed, clock="wall") for seed in range(3))
    ]
    info = compared([Pair(stored(seed, clock="wall"), run) for seed, run in enumerate(whole)])
    exact = compared([Pair(stored(0), replace(stored(0), requests=_in_one_piece(stored(0).requests)))])

    for each in (info, exact):
        assert (row(each, "tpot").verdict, row(each, "tpot").change_pct) == ("regressed", None)
        assert "tpot mean is there on one side only" in each.text
    assert "not-measured" in {warning.code for warning in info.warnings}


def test_a_seed_that_cannot_be_measured_any_more_is_named_beside_equal_ones(stored):
    """'fell by 0.00%' stands behind 'regressed'."""
    whole = replace(stored(1), requests=_in_one_piece(stored(1).requests))
    info = compared([Pair(stored(0), stored(0)), Pair(stored(1), whole)])

    assert "regressed" == row(info, "tpot").verdict
    assert "tpot mean is 0 or not measured on one side in 1 of 2 pairs" in info.text


def _in_one_piece(table):
    """All tokens of an answer in one event."""
    stamps = [times[-1:] for times in table["token_s"].to_pylist()]
    counts = [[sum(n)] for n in table["token_n"].to_pylist()]
    for name, values in (("token_s", stamps), ("token_n", counts)):
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return table


def test_aggregates_of_other_tools_are_compared():
    """A file without requests has means and percentiles all the same, and its 2 failures of 12 are not 200%."""
    run = pairing.opened(Path(__file__).parents[1] / "golden" / "results" / "vllm-aggregate.json")[0]
    info = compared([Pair(run, run)] * 3, allowed=frozenset({"turns"}))

    assert pytest.approx(2 / 12) == row(info, "failed").base
    assert "equivalent" == row(info, "ttft").verdict
    assert pytest.approx(0.04196147) == row(info, "p99:ttft").base
    assert "ttft-from-sending" in {warning.code for warning in info.warnings}


def test_tests_that_disagree_are_reported(stored):
    """Eight losses of which one is huge: t is unsure, the signs are not."""
    factors = (1.03, 1.03, 1.031, 1.029, 1.03, 1.03, 1.03, 1.9)
    pairs = [Pair(stored(i, clock="wall"), stored(i, clock="wall", slower=f)) for i, f in enumerate(factors)]

    assert "tests-disagree" in {warning.code for warning in compared(pairs).warnings}


def test_no_pairs_at_all_are_refused():
    """Nothing compared is not equivalent."""
    assert compared([]).exit_code == 4
