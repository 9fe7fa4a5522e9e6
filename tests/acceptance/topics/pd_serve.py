"""P/D-Serve: the ratio of prefill to decode (K14)."""

from collections.abc import Iterator

from acceptance.rows import Place, Row
from acceptance.topics import placement
from harness.experiments.place.systems import Cluster

SYSTEM = "P/D-Serve"
SEARCHES = {
    "2 GPUs": {"gpus": 2, "slo": "ttft=0.4,tpot=0.04"},
    "4 GPUs": {"gpus": 4, "slo": "ttft=0.2,tpot=0.1"},
    "8 GPUs": {"gpus": 8, "slo": "ttft=0.4,tpot=0.04"},
}


def rows(place: Place) -> Iterator[Row]:
    """S48, the ratio by the min-rule."""
    del place
    yield _ratio()


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
