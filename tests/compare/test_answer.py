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
from harness.experiments.compare.compare_json import CachedShares, ComparedPair
from harness.experiments.compare.pairing import Matched, Pair, Searched
from harness.metrics.objective import parse_slo
from harness.options import NO_SETTINGS
from reports.answers import compare
from reports.document import text

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


def of_status(run, *statuses):
    """The run with these statuses in turn."""
    place = run.requests.schema.get_field_index("status")
    texts = (statuses * len(run.requests))[: len(run.requests)]
    column = pa.array(texts, run.requests.schema.field(place).type)
    return replace(run, requests=run.requests.set_column(place, "status", column))


def in_one_piece(run):
    """The run with all tokens of an answer in one event."""
    table = run.requests
    stamps = [times[-1:] for times in table["token_s"].to_pylist()]
    counts = [[sum(n)] for n in table["token_n"].to_pylist()]
    for name, values in (("token_s", stamps), ("token_n", counts)):
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return replace(run, requests=table)


OTHERS = {
    "slo": {"slo": {"text": "ttft=9", "bounds": [], "goal": 0.9}},
    "workload": {"workload": {"name": "code"}},
    "model": {"backend": {"model": "other"}},
    "hardware": {"host": {"cpu": "another", "cores": 8, "machine": "x86_64"}},
    "schedule": {"schedule": {"sha256": "f" * 64, "requests": 60}},
    "number of requests": {"schedule": {"sha256": None, "requests": 61}},
    "backend": {"backend": {"backend": "openai"}},
    "tool": {"source": {"tool": "vllm", "missing": []}},
    "schema": {"schema": 1},
}


def test_answers_golden(pairs, stored, golden):
    """A loss would be missed, noise be called one, or runs be compared that cannot be."""
    level, slow = pairs(), pairs(1.06)

    def of(*factors, clock="wall"):
        runs = [(stored(i, clock=clock), stored(i, slower=f, clock=clock)) for i, f in enumerate(factors)]
        return [Pair(base, head) for base, head in runs]

    def hit(run, part):
        """A neighbour slows down a part of the requests to 1.6 times their time."""
        tables = [stored(run.info.seed, clock="wall", slower=1.6).requests[:14], run.requests[14:]]
        return replace(run, requests=pa.concat_tables(tables)) if part else run

    def with_head(number, change):
        return [replace(p, head=change(p.head)) if i == number else p for i, p in enumerate(slow)]

    late = with_head(2, lambda run: replace(run, info=run.info.change(verdict=Verdict(valid=False, reasons=["late"]))))
    dead = replace(level[0], base=of_status(level[0].base, "error"), head=of_status(level[0].head, "error"))
    days = pairs(1.0, started="2026-01-06T00:00:00+00:00")
    spec = {"backend": "sim", "policy": "vllm-v0", "model": "opt-13b"}
    base = stored(0, backend=spec)
    head = stored(0, versions={"bench": "0.2.0"}, backend={**spec, "policy": "orca"})
    sides = [[stored(i, rate=rate, clock="wall", slower=slower) for rate, slower in rates for i in range(3)]
             for rates in (((1.0, 1.0), (2.0, 1.0)), ((1.0, 1.0), (2.0, 1.1)))]  # fmt: skip
    searches = [[Searched(Path("a"), {"capacity_rps": share * (2.0 + 0.1 * i)}, CapacityAnswer(clock="virtual"), i)
                 for i in range(8)] for share in (1.0, 0.95)]  # fmt: skip
    neighbours = [
        Pair(
            hit(stored(i, clock="wall"), i % 3 == 1), hit(stored(i, slower=1.06 + 0.001 * i, clock="wall"), i % 3 == 2)
        )
        for i in range(6)
    ]
    lost = ComparedPair(pair=4, base_run="x/base", head_run="x/head", valid=False, why="head: it broke.")
    attempts = [
        *(ComparedPair(pair=n, base_run=str(pair.base.path), head_run=str(pair.head.path), valid=True)
          for n, pair in enumerate(level[:3], 1)),
        lost, structs.replace(lost, repeated=True),
    ]  # fmt: skip
    turns, alone = frozenset({"turns"}), pairing.match([stored(0), stored(1)], [stored(1)])
    answers = {
        "equal": compared(level),
        "slower: what decides, and what is only shown": compared(slow),
        "faster": compared(pairs(0.9)),
        "too noisy: what would decide": compared(of(1.0, 1.2, 0.85)),
        "a loss at the limit is not ruled out":
            compared(of(1.02, 1.06, 1.03, 1.05, 1.04), gates=gates.parse("tpot=4.5%:5%")),
        "gates of the user let a loss pass": compared(slow, gates=gates.parse("tpot=10%:20%")),
        "or are on another metric": compared(slow, gates=gates.parse("e2e=1%:5%")),
        **{f"another {field} is refused": compared(pairs(1.06, **changed)) for field, changed in OTHERS.items()},
        "but where it is allowed": compared(pairs(1.06, **OTHERS["model"]), allowed=frozenset({"model"})),
        "two pairs are too few": compared(slow[:2]),
        "one pair decides nothing, though it is allowed": compared(slow[:1], allowed=frozenset({"pairs"})),
        "a run that is not valid": compared(late),
        "a killed run": compared(with_head(4, lambda run: replace(run, complete=False))),
        "a pair without an answer": compared([dead, *level[1:]]),
        "another SLO": compared(level, slo=parse_slo("ttft=1ms")),
        "failures of another day count":
            compared([replace(p, head=of_status(p.head, "timeout", "ok")) for p in days]),
        "a base that rejects a third has less to do":
            compared([replace(p, base=of_status(p.base, "rejected", "ok", "ok")) for p in level]),
        "an overloaded head": compared(pairs(1.0, verdict={"valid": True, "overloaded": True, "queue_grew": True})),
        "a queue that grew": compared(pairs(1.0, verdict={"valid": True, "overloaded": False, "queue_grew": True})),
        "a wild pair is named and stays": compared(of(1.0, 1.001, 0.999, 1.0005, 1.4)),
        "a simulator with itself": compared([Pair(stored(0), stored(0, name="again"))]),
        "and with one changed bit": compared(of(1.0000001, clock="virtual")),
        "or a loss": compared(of(1.1, clock="virtual")),
        "seeds of it that contradict one another": compared(of(1.02, 0.98, 1.01, 0.99, 1.0, clock="virtual")),
        "a base without a partner": answer.compare(alone, Settings()),
        "which is allowed": answer.compare(alone, Settings(allowed=frozenset({"runs"}))),
        "each rate by itself": answer.compare(pairing.match(*sides), Settings(allowed=turns)),
        "which were not made in turns": answer.compare(pairing.match(*sides), Settings()),
        "searches, seed by seed": answer.compare(pairing.match(*searches), Settings()),
        "everything recorded that differs": compared([Pair(base, head)]),
        "what cannot be measured any more is worse":
            compared([Pair(stored(i, clock="wall"), in_one_piece(stored(i, clock="wall"))) for i in range(3)]),
        "also in one seed of two": compared([Pair(stored(0), stored(0)), Pair(stored(1), in_one_piece(stored(1)))]),
        "tests that disagree": compared(of(1.03, 1.03, 1.031, 1.029, 1.03, 1.03, 1.03, 1.9)),
        "no pairs at all": compared([]),
        "neighbours slow down a part of some runs": compared(neighbours, gates=gates.parse("tpot")),
        "a pair that could not be made": answer.compare(Matched(tuple(level[:3])), Settings(), attempts=attempts),
        "a percentile that the head alone misses":
            compared(pairs(1.3), slo=parse_slo("p99:itl=0.2582")),
    }  # fmt: skip
    golden("answers.txt", "\n".join(
        f"# {reason}\n{text.render(compare.document(info))}exit code {info.exit_code}, {info.verdict}\n"
        for reason, info in answers.items()
    ))  # fmt: skip


@pytest.mark.parametrize(("late_s", "verdict"), [(0.0005, "regressed"), (0.2, "invalid")])
def test_a_pair_with_late_requests_counts_where_they_decide_no_gate(pairs, late_s, verdict):
    """A comparison of two servers from a busy machine ended without a verdict, whatever the servers did."""
    made = pairs(1.3)
    late = RunInfo.of({"verdict": {"valid": False}, "checks": [{"check": "lateness", "state": "failed"}]})
    head = made[2].head
    info = head.info.change(verdict=late.verdict, checks=late.checks)
    sent = pc.add(head.requests["scheduled_s"], late_s)
    table = head.requests.set_column(head.requests.column_names.index("sent_s"), "sent_s", sent)
    found = compared([*made[:2], replace(made[2], head=replace(head, info=info, requests=table)), *made[3:]])

    assert verdict == found.verdict
    assert (verdict != "invalid") == ("late-requests" in {warning.code for warning in found.warnings})


def test_both_runs_of_a_pair_are_cut_at_the_later_cut(pairs, stored):
    """Otherwise the longer warm-up of one side would look like a faster server."""
    at_s = float(stored(0).requests["scheduled_s"].to_numpy()[20])
    made = pairs(1.0, warmup={"rule": "mser5", "at_s": at_s, "requests": 20})
    info = compared(made)

    assert [each.cut_s for each in info.pairs] == [at_s] * 5
    assert [each.cut_s for each in compared(made, warmup="none").pairs] == [0.0] * 5


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


def test_a_warm_cache_on_one_side_is_reported(pairs):
    """A prefix cache that the first run filled makes the second one look fast."""
    info = compared(pairs())
    warm = structs.replace(info.pairs[0], cached=CachedShares(0.0, 0.5))
    found = wording.warnings(info.change(pairs=[warm, *info.pairs[1:]]), Matched(()))

    assert "cached-tokens" in {each.code for each in found}


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


def test_runs_are_paired_by_what_was_sent(stored):
    """Matching by name or order would compare the traffic of one seed with that of another."""
    base = [stored(seed) for seed in (0, 1, 2)]
    head = [stored(seed, name=f"head-{seed}") for seed in (2, 0, 3)]
    matched = pairing.match(base, head)

    assert [(str(p.base.path), str(p.head.path)) for p in matched.pairs] == [("run-0", "head-0"), ("run-2", "head-2")]
    assert [str(run.path) for run in (*matched.alone_base, *matched.alone_head)] == ["run-1", "head-3"]


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


def test_a_gate_on_what_no_run_has_is_refused(pairs):
    """A gate that is dropped in silence is always green."""
    with pytest.raises(UsageError, match="No quantity to gate in these runs named 'capacity_rps'"):
        compared(pairs(), gates=gates.parse("capacity_rps,tpot"))


def test_runs_of_different_traffic_are_paired_in_order_where_that_is_allowed(stored):
    """Traces that cannot be repeated can still be compared, with all the noise of the traffic."""
    base, head = ([stored(seed, clock="wall", name=f"{side}{seed}") for seed in seeds] for side, seeds in (
        ("base", (0, 1, 2)), ("head", (2, 3, 4)),
    ))  # fmt: skip
    matched = pairing.match(base, head, any_schedule=True)
    info = answer.compare(matched, Settings(allowed=frozenset({"schedule"})))

    assert [(str(p.base.path), str(p.head.path)) for p in matched.pairs][2] == ("base2", "head2")
    assert len(info.pairs) == 3 and info.verdict != "refused"


def test_aggregates_of_other_tools_are_compared():
    """A file without requests has means and percentiles all the same, and its 2 failures of 12 are not 200%."""
    run = pairing.opened(Path(__file__).parents[1] / "golden" / "results" / "vllm-aggregate.json")[0]
    info = compared([Pair(run, run)] * 3, allowed=frozenset({"turns"}))

    assert pytest.approx(2 / 12) == row(info, "failed").base
    assert "equivalent" == row(info, "ttft").verdict
    assert pytest.approx(0.04196147) == row(info, "p99:ttft").base
    assert "ttft-from-sending" in {warning.code for warning in info.warnings}
