"""P/D-Serve: reject and forward at the gateway, the ratio of prefill to decode, contiguous transfers (K14)."""

from collections.abc import Iterator, Mapping
from typing import Any

from acceptance.rows import Place, Row
from acceptance.topics import placement
from acceptance.topics._trials import trial
from harness.experiments.place.systems import Cluster
from harness.experiments.theory.forms.builtin import handoff

SYSTEM = "P/D-Serve"
CLUSTER: Mapping[str, object] = {
    "backend": "sim:log_steps=false", "model": "opt-13b", "workload": "chatbot", "prefill": "4", "decode": "4",
    "requests": 2000,
}  # fmt: skip
COMMAND = (
    "bench run --backend sim --latency roofline "
    "--model opt-13b --workload chatbot --prefill 4 --decode 4 --requests 2000 --rate {} "
    "--router {}"
)
REPORTS_S = (0.0, 0.1, 1.0)
RATES = (15, 20, 25)
SEEDS = 5
TIMEOUT_S = 1.0
"""A first token later than that is a timeout."""
SEARCHES = {
    "2 GPUs": {"gpus": 2, "slo": "ttft=0.4,tpot=0.04"},
    "4 GPUs": {"gpus": 4, "slo": "ttft=0.2,tpot=0.1"},
    "8 GPUs": {"gpus": 8, "slo": "ttft=0.4,tpot=0.04"},
}


def rows(place: Place) -> Iterator[Row]:
    """S47, routers by old reports; S48, the ratio by the min-rule and the transfer in one piece."""
    del place
    yield from _reports()
    yield _ratio()
    yield _transfer()


def shares(router: str, rate_rps: float, seed: int) -> tuple[float, float]:
    """(share of timeouts, attainment of the preset's bound on TTFT) of 2,000 requests."""
    import numpy as np

    from harness.registry import make

    table = trial(None, router=router, rate=rate_rps, seed=seed, **CLUSTER).table
    ttft_s = make("metrics", "ttft").of(table)
    return float(np.mean(~(ttft_s <= TIMEOUT_S))), float(np.mean(ttft_s <= 0.25))


def _reports() -> Iterator[Row]:
    late: dict[float, list[list[float]]] = {}  # by rate: timeouts of reject-forward and of each delay, by seed
    gains: dict[float, list[list[float]]] = {}  # by rate: attainment gained over each delay, by seed
    for rate_rps in RATES:
        late[rate_rps], gains[rate_rps] = [], []
        for seed in range(SEEDS):
            own = shares("reject-forward", rate_rps, seed)
            reported = [shares(f"reported-queue:report_s={delay_s:g}", rate_rps, seed) for delay_s in REPORTS_S]
            late[rate_rps].append([own[0], *(one[0] for one in reported)])
            gains[rate_rps].append([own[1] - one[1] for one in reported])
    text = "; ".join(
        f"{rate_rps} req/s: {_mean(late[rate_rps], 0):.2%} against "
        + ", ".join(f"{_mean(late[rate_rps], i + 1):.2%}" for i in range(len(REPORTS_S)))
        for rate_rps in RATES
    )
    grows = all(
        mine <= fresh + 0.01 and fresh <= tenth <= second and tenth < second
        for found in late.values() for mine, fresh, tenth, second in found
    )  # fmt: skip
    counting = [shares("reported-queue:report_s=1,counts=on", RATES[-1], seed) for seed in range(SEEDS)]
    yield Row(
        "S47.a", SYSTEM, "simulated", "timeouts flat with reject and forward, growing with the age of reports",
        text, "with reports of 0, 0.1 and 1 s ordered, and never fewer (by 1 point) than without, in every seed", grows,
        COMMAND.format(RATES[-1], "reported-queue:report_s=1"),
        f"share of requests without a first token within {TIMEOUT_S:g} s, reject-forward against reports of 0, 0.1 and "
        f"1 s; {SEEDS} seeds; reject-forward reads no reports, so that it is one number. A gateway that adds what it "
        f"has sent since a report of 1 s: {_mean(counting, 0):.2%} at {RATES[-1]} req/s",
    )  # fmt: skip
    yield Row(
        "S47.b", SYSTEM, "simulated", "+42 % requests within the bound on TTFT",
        "; ".join(
            f"{rate_rps} req/s: " + ", ".join(f"{_mean(gains[rate_rps], i) * 100:+.1f}" for i in range(len(REPORTS_S)))
            for rate_rps in RATES
        ) + " points",
        "above 0 with reports of 0.1 and 1 s, and growing with their age, in every seed",
        all(fresh < tenth < second and tenth > 0 for found in gains.values() for fresh, tenth, second in found),
        COMMAND.format(RATES[-1], "reject-forward"),
        "points of requests within 0.25 s over a router by reports of 0, 0.1 and 1 s; with fresh reports what is left "
        "is the gain of one queue over four",
    )  # fmt: skip


def _mean(rows_: list[Any], place: int) -> float:
    return float(sum(row[place] for row in rows_) / len(rows_))


def _ratio() -> Row:
    """The ratio that `bench place` finds, that of the min-rule, and the best of all whole numbers of replicas."""
    texts, right = [], True
    for name, how in SEARCHES.items():
        planner = placement.Planner(slo=str(how["slo"]), cluster=Cluster(1, int(str(how["gpus"]))))
        best = planner.best("high")[0]
        (prefills, prefill), (decodes, decode) = best.members
        a, b = prefill.total_rps, decode.total_rps
        p, d = prefill.system.gpus, decode.system.gpus
        most = int(str(how["gpus"]))
        _, n, m = max(
            (min(n * a, m * b) / (n * p + m * d), -n, -m)
            for n in range(1, most + 1) for m in range(1, most + 1) if n * p + m * d <= most
        )  # fmt: skip
        right = right and (prefills, decodes) == (-n, -m)
        texts.append(f"{name} {prefills}:{decodes} (brute force {-n}:{-m}, min-rule {b / a:.2f}:1)")
    return Row(
        "S48.a", SYSTEM, "exact", "the best ratio of prefill to decode is that of the min-rule",
        "; ".join(texts), "found = brute force", right,
        placement.COMMAND.format("S48"),
        "OPT-13B, DistServe's planner and constants; the min-rule is the rate of a decode replica over that of a "
        "prefill replica; the ratio is the best in whole numbers that fits",
    )  # fmt: skip


def _transfer() -> Row:
    """2,048 tokens of OPT-13B over 200 Gbit/s, 10 us a piece."""
    saved = {size: handoff(block_tokens=size)[0]["saved_share"] for size in (16, 32, 64, 128)}
    return Row(
        "S48.b", SYSTEM, "exact", "contiguous transfer takes 46 % less time than one in blocks",
        ", ".join(f"{share:.1%} in blocks of {size}" for size, share in saved.items()),
        "30 to 70 % for some block size", any(0.3 <= share <= 0.7 for share in saved.values()),
        "bench theory handoff --over block=16:128:x2",
        "2,048 tokens of OPT-13B over 200 Gbit/s; 10 us a piece are ours, one piece a block and layer or a layer",
    )  # fmt: skip
