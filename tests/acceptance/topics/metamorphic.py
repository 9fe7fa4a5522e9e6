"""What must stay the same, or change in a known way, when something else is changed (equations and invariants)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acceptance.rows import Place, Row
from acceptance.topics.conservation import MEMORIES, policies, traffic, watched
from acceptance.topics.shared_core import batches_agree
from acceptance.topics.speculative import tokens_per_step
from backends.serving.routing import requirements
from harness import registry

CLUSTERS: Mapping[str, Mapping[str, Any]] = {
    "one replica": {}, "three": {"replicas": 3}, "a pipeline": {"pp": 2},
    "2P1D": {"prefill": "2", "decode": "1", "link": "none"},
}  # fmt: skip
CLUSTER_TESTS = "python -m pytest tests/theory/test_clusters.py"
INVARIANTS = "python -m pytest tests/contracts/test_invariants.py"
WIDTH_RPS = 0.0625


def rows(place: Place) -> Iterator[Row]:
    """E13, E19 to E23 and I6 to I8."""
    del place
    yield _stages()
    yield _drafts()
    yield from _capacities_add()
    yield from _scaled()
    yield _same_batches()
    yield _search()
    yield _repeats()
    yield _more_load()
    yield from _nothing_to_choose()


def cost(scale: float = 1.0) -> str:
    """A latency model all of whose times are `scale` as long; powers of two halve without rounding."""
    return (f"linear:base_s={0.01 * scale!r},prefill_token_s={1e-4 * scale!r},"
            f"decode_seq_s={2e-4 * scale!r},context_token_s={2**-20 * scale!r}")  # fmt: skip


def served(requests: Sequence[Any], **fields: Any) -> list[Any]:
    """Records in order of their ids."""
    sim = registry.make("backends", "sim", **{"latency": cost(), "log_steps": False, **fields})
    return sorted(sim.simulate(requests), key=lambda record: record.request_id)


def _stamps(records: Sequence[Any]) -> list[list[float]]:
    return [list(record.token_s) for record in records]


def _stages() -> Row:
    requests = [r for r in traffic(300, 20.0) if r.output_tokens > 1]
    records = served(requests, prefill="2", decode="1", link="25Gbps", kv_blocks=400)
    stamps = [
        (r.scheduled_s, r.prefill_start_s, r.prefill_end_s, r.handoff_start_s, r.handoff_end_s, r.decode_start_s,
         r.token_s[-1])
        for r in records
    ]  # fmt: skip
    ordered = sum(list(one) == sorted(one) for one in stamps)
    first = max(abs(r.token_s[0] - r.prefill_end_s) for r in records)
    moved = sum(one[4] > one[3] for one in stamps)
    return Row(
        "E13", "five stages", "exact", "stages follow one another without a gap; TTFT = queue + prefill",
        f"{ordered} of {len(requests)} in order, {moved} with a hand-off that takes time; TTFT off by {first:g} s",
        "exact", ordered == moved == len(requests) and first == 0, "python -m pytest tests/replay/test_handoff.py",
        "their sum: S32",
    )  # fmt: skip


def _drafts() -> Row:
    cases = ((1, 0.5), (2, 0.8), (6, 0.9))
    published = [(1 - a ** (k + 1)) / (1 - a) for k, a in cases]
    obtained = [tokens_per_step(k, a) for k, a in cases]
    return Row(
        "E19", "speculative decoding", "exact",
        "tokens a step at k 1, 2, 6 and a .5, .8, .9: " + ", ".join(f"{n:.3f}" for n in published),
        ", ".join(f"{n:.3f}" for n in obtained), "1 %",
        all(abs(b / a - 1) <= 0.01 for a, b in zip(published, obtained, strict=True)),
        "bench theory speculative --over k=1,2,6 --over alpha=0.5,0.8,0.9",
    )  # fmt: skip


def _throughput(prompt: int, output: int, **fields: Any) -> float:
    """Requests per second of a queue that is there at once: 24 whole batches of 16 for each of four replicas."""
    from harness.api import Request

    count = 1536
    records = served([Request(i, 0.0, prompt, output) for i in range(count)], kv_blocks=4000, **fields)
    return float(count / max(record.token_s[-1] for record in records))


def _capacities_add() -> Iterator[Row]:
    link = {"link": "none"}
    worst, sides = 0.0, []
    for prompt, output in ((256, 16), (64, 64)):
        prefill, decode, both = (
            _throughput(prompt, output, **sides, **link)
            for sides in ({"prefill": "2"}, {"decode": "1"}, {"prefill": "2", "decode": "1"})
        )
        worst = max(worst, abs(both / min(prefill, decode) - 1))
        sides.append(f"{prompt}/{output}: {both:.2f} of min({prefill:.2f}, {decode:.2f})")
    yield Row(
        "E20.a", "2P1D", "exact", "sustains the lower rate of its two sides", "; ".join(sides) + " req/s", "5 %",
        worst <= 0.05, CLUSTER_TESTS,
    )  # fmt: skip
    policy = "vllm-v0:max_seqs=16"
    one, two, four = (_throughput(64, 16, replicas=n, policy=policy) for n in (1, 2, 4))
    yield Row(
        "E20.b", "replicas", "exact", "2 and 4 replicas sustain 2 and 4 times the rate",
        f"{two / one:.3f} and {four / one:.3f} times", "1 %",
        abs(two / one - 2) <= 0.02 and abs(four / one - 4) <= 0.04, CLUSTER_TESTS,
    )  # fmt: skip


def _scaled() -> Iterator[Row]:
    from dataclasses import replace

    requests = traffic(300, 12.0)
    halved = [replace(r, scheduled_s=r.scheduled_s / 2) for r in requests]
    equal = [
        [[t / 2 for t in stamps] for stamps in _stamps(served(requests, kv_blocks=300, **cluster))]
        == _stamps(served(halved, kv_blocks=300, latency=cost(0.5), **cluster))
        for cluster in CLUSTERS.values()
    ]
    yield Row(
        "E21.a", "scaled time", "exact", "half the costs at twice the rate: every token time halves",
        f"equal to the last bit on {sum(equal)} of {len(equal)} clusters", "exact", all(equal), CLUSTER_TESTS,
        f"{', '.join(CLUSTERS)}; so attainment under scaled bounds is that of a scaled machine (E20)",
    )  # fmt: skip
    groups = [replace(r, scheduled_s=r.id // 5 * 0.2, prompt_tokens=100, output_tokens=20) for r in traffic(100)]
    swapped = [replace(r, id=r.id ^ 1) for r in groups]
    same = [_latencies(served(groups, **each)) == _latencies(served(swapped, **each)) for each in CLUSTERS.values()]
    yield Row(
        "E21.b", "order of equals", "exact", "equal requests of one instant are interchangeable",
        f"equal latencies on {sum(same)} of {len(same)} clusters", "exact", all(same), CLUSTER_TESTS,
    )  # fmt: skip


def _latencies(records: Sequence[Any]) -> list[float]:
    return sorted(record.token_s[-1] - record.scheduled_s for record in records)


def _same_batches() -> Row:
    names = registry.names("policies")
    same = [name for name in names if batches_agree(name, seed=1, blocks=25)]
    return Row(
        "E22", "shared core", "exact", "simulator and engine form the same batches",
        f"{len(same)} of {len(names)} policies", "exact", same == names, INVARIANTS,
        "other traffic and less memory than S63",
    )  # fmt: skip


def _search() -> Row:
    from harness.experiments.place.search import bisected

    def missed(rate_rps: float) -> str | None:
        return "ttft" if _kept(rate_rps, 400) < 0.9 else None

    found, again = (bisected(missed, 8.0, WIDTH_RPS) for _ in range(2))
    low, high = (_kept(rate, 400) for rate in (found.low_rps, found.high_rps))
    return Row(
        "E23", "capacity search", "exact", "the rate meets the goal, a slightly higher one does not; repeatable",
        f"{found.low_rps:g} req/s meets {low:.1%}, {found.high_rps:g} req/s {high:.1%}; "
        f"{'the same' if found == again else 'another'} when repeated", "goal 90 %, within 5 %",
        low >= 0.9 > high and found.high_rps <= found.low_rps * 1.05 + WIDTH_RPS and found == again,
        "python -m pytest tests/place/test_search.py tests/capacity",
    )  # fmt: skip


def _kept(rate_rps: float, count: int, **fields: Any) -> float:
    """Share of answers whose first token comes within 0.1 s and whose others take 40 ms each at most."""
    records = served(traffic(count, rate_rps), **fields)
    kept = [
        r.status == "ok" and r.token_s[0] - r.scheduled_s <= 0.1
        and r.token_s[-1] - r.token_s[0] <= 0.04 * (len(r.token_s) - 1)
        for r in records
    ]  # fmt: skip
    return float(sum(kept) / count)


def _repeats() -> Row:
    runs = [[watched(policy, kv) for _ in range(2)] for policy in policies() for kv in MEMORIES[:2]]
    same = sum(
        (_stamps(one.records), one.decisions, one.steps) == (_stamps(two.records), two.decisions, two.steps)
        for one, two in runs
    )
    return Row(
        "I6", "determinism", "exact", "the same run twice: equal decisions, steps and token times",
        f"{same} of {len(runs)} runs", "exact", same == len(runs), INVARIANTS,
    )  # fmt: skip


def _more_load() -> Row:
    count, rates = 300, (2.0, 8.0, 32.0, 128.0)
    slack = 1.96 * (0.25 / count) ** 0.5
    shares = {policy: [_kept(rate, count, policy=policy, kv_blocks=120) for rate in rates] for policy in policies()}
    rise = max(b - a for found in shares.values() for a, b in zip(found, found[1:], strict=False))
    fall = sum(found[-1] < found[0] for found in shares.values())
    return Row(
        "I7", "more load", "exact", "the same arrivals closer together meet the bounds no more often",
        f"attainment rises by {rise:.1%} at most; it falls from {rates[0]:g} to {rates[-1]:g} req/s under {fall} of "
        f"{len(shares)} policies", f"rises by at most {slack:.1%}, the half-interval of {count} requests",
        rise <= slack, INVARIANTS,
    )  # fmt: skip


ACT_ALONE = ("reject-forward", "autoscale")
"""Routers that change what a single replica does by design: one holds requests back, one adds replicas."""


def _nothing_to_choose() -> Iterator[Row]:
    requests = traffic()
    for id_, kind, option, fields in (
        ("I8.a", "routers", "router", {"kv_blocks": 60}), ("I8.b", "admission", "admission", {"kv_blocks": 30_000}),
    ):  # fmt: skip
        names = [
            name for name in registry.names(kind)
            if name not in ACT_ALONE and requirements(registry.make(kind, name)).layout != "apart"
        ]  # fmt: skip
        seen = {str(_stamps(served(requests, **fields, **{option: name}))) for name in names}
        stated = "one replica the router" if kind == "routers" else "enough memory the rule"
        left_out = f"without {' and '.join(ACT_ALONE)}, which act by design" if kind == "routers" else ""
        equal = "the same token times" if len(seen) == 1 else f"{len(seen)} different outcomes"
        yield Row(
            id_, kind, "exact", f"with {stated} has no effect", f"{len(names)} names, {equal}", "exact",
            len(seen) == 1, INVARIANTS, left_out,
        )  # fmt: skip
