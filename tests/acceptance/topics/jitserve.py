"""JITServe: service goodput of schedulers on chat, deadlines and compound tasks (K20)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from acceptance.rows import Place, Row
from acceptance.topics._paced import paced_run, sign_row
from acceptance.topics._trials import trial
from harness.data.folder import load
from harness.experiments.rescore.tokens import tokens
from harness.metrics.objective import Seen, Slo, restored_slo, score
from harness.metrics.summary import per_second_of

SYSTEM = "JITServe"
SEEDS = 5
FCFS, SARATHI, AUTELLIX, EDF, GMAX = "vllm-v0:max_seqs=32", "sarathi:max_seqs=32", "autellix", "edf", "gmax"
NOISY = "noisy-oracle:log_sd=0.8"
LTR, GMAX_NOISY, GMAX_ORACLE = f"ltr:predictor={NOISY}", f"gmax:predictor={NOISY}", "gmax:predictor=oracle"
COMPARED = (FCFS, SARATHI, LTR, AUTELLIX, GMAX)
RATES_RPS = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
"""Where the knee is looked for."""
SHORTER = 8
"""The engine serves lengths and deadlines of such a part of those that are simulated, and as many more requests."""
LENGTHS = f"lognormal:prompt_mean_tokens={298.8 / SHORTER:g},output_mean_tokens={323.7 / SHORTER:g}"
SHORT_MIX = f"""
about = "Chat, deadlines and compound tasks, short"
shares_of = "arrivals"

[[class]]
name = "chat"
share = 1
lengths = "{LENGTHS}"
slo = {{ ttft = {2 / SHORTER}, tpot = 0.1 }}

[[class]]
name = "deadline"
share = 1
lengths = "{LENGTHS}"
deadline_s = {20 / SHORTER}

[[class]]
name = "compound"
share = 1
lengths = "{LENGTHS}"
sessions = "compound:stages=1/3/1,inherit=context"
deadline_s = {60 / SHORTER}
"""
ONE = "bench run --config jitserve --rate {} --policy {} --seed 1 --out one && bench slo one --tokens"
"""Of seed 0, two prompts of ShareGPT exceed the context, and such a run is not valid."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Per second: service goodput with prompt and output tokens 1:8 and 0:1, and requests within their objectives."""

    service: float
    output_tps: float
    requests_rps: float


@cache
def goodput(policy: str, rate_rps: float, seed: int) -> Goodput:
    """Of one run of 3,000 requests."""
    made = trial("jitserve", policy=policy, rate=rate_rps, seed=seed)
    return goodput_of(made.table, made.plan.slo)


def goodput_of(table: pa.Table, slo: Slo) -> Goodput:
    """Of the requests of a run."""
    seen = Seen(table)
    scored = score(table, slo, seen)
    good, per_second = tokens(seen, slo, scored), per_second_of(table)
    prompt, output = int(good.prompt.sum()), int(good.output.sum())
    return Goodput(per_second(prompt + 8 * output), per_second(output), per_second(int(scored.met.sum())))


def ratios(of: str, to: str, rate_rps: float, which: str = "service") -> list[float]:
    """Goodput of one policy over that of another, seed by seed."""
    pairs = [(goodput(of, rate_rps, seed), goodput(to, rate_rps, seed)) for seed in range(SEEDS)]
    return [float(getattr(one, which) / getattr(other, which)) for one, other in pairs]


def spread(rate_rps: float, seeds: Sequence[int]) -> float:
    """By how much the worst policy is below the best, in the mean of these seeds."""
    means = [float(np.mean([goodput(policy, rate_rps, seed).service for seed in seeds])) for policy in COMPARED]
    return 1 - min(means) / max(means)


def rows(place: Place) -> Iterator[Row]:
    """S52: the ratios at 1.5 times the knee, equality below it, the gap to the oracle; S52.e on the engine."""
    knee_rps = 0.0
    for rate_rps in RATES_RPS:
        if spread(rate_rps, range(SEEDS)) > 0.05:
            break
        knee_rps = rate_rps
    high_rps = 1.5 * knee_rps
    gains = {other: ratios(GMAX, other, high_rps) for other in (FCFS, SARATHI, AUTELLIX, LTR, EDF)}
    yield Row(
        "S52.a", SYSTEM, "simulated", "1.4-6.3x goodput (abstract); simulated 2.35-3.22, 1.88-2.55, 1.33-1.87",
        f"FCFS {_range(gains[FCFS])}, Sarathi {_range(gains[SARATHI])}, Autellix {_range(gains[AUTELLIX])} "
        f"at {high_rps:g} req/s",
        "FCFS, Sarathi in [1.4, 6.3], Autellix in [1.2, 6.3], every seed",
        all(1.4 <= gain <= 6.3 for gain in gains[FCFS] + gains[SARATHI])
        and all(1.2 <= gain <= 6.3 for gain in gains[AUTELLIX]),
        ONE.format(f"{high_rps:g}", GMAX),
        f"service goodput 1:8 of 3,000 requests, {SEEDS} seeds, 32 seats each; the knee is {knee_rps:g} req/s. Mean "
        f"ratios of output tokens and of requests: FCFS {_other(FCFS, high_rps)}, Sarathi {_other(SARATHI, high_rps)}, "
        f"Autellix {_other(AUTELLIX, high_rps)}",
    )  # fmt: skip
    below = [rate_rps for rate_rps in RATES_RPS if rate_rps < knee_rps]
    apart = max((spread(rate_rps, [seed]) for rate_rps in below for seed in range(SEEDS)), default=1.0)
    yield Row(
        "S52.b", SYSTEM, "simulated", "equal at low rates; simulated: within 5 %",
        f"at most {apart:.1%} apart from {RATES_RPS[0]:g} req/s to the knee at {knee_rps:g}", "5 %, every seed",
        apart <= 0.05, ONE.format(f"{RATES_RPS[0]:g}", GMAX),
        f"knee: the highest rate, in steps of .5, to which FCFS, Sarathi, LTR, Autellix and GMAX agree in the mean of "
        f"{SEEDS} seeds",
    )  # fmt: skip
    per_request, marginal = (
        [1 - ratio for ratio in ratios(policy, GMAX_ORACLE, high_rps)] for policy in (GMAX_NOISY, GMAX)
    )
    yield Row(
        "S52.c", SYSTEM, "simulated", "within 3-9 % of the oracle (notes); simulated 2-28 % with a marginal quantile",
        f"{min(per_request):.1%} to {max(per_request):.1%} with a predictor of each request, "
        f"{min(marginal):.1%} to {max(marginal):.1%} with the quantile of all",
        "<= 10 % and <= 30 %, every seed", max(per_request) <= 0.10 and max(marginal) <= 0.30,
        ONE.format(f"{high_rps:g}", GMAX_ORACLE),
        "the predictor of each request is the true length with a lognormal error (sd of the logarithm .8)",
    )  # fmt: skip
    yield Row(
        "S52.d", SYSTEM, "simulated", "LTR: 0.83-0.99 (simulated)",
        f"LTR {_range(gains[LTR])}, with its predictor {_range(ratios(GMAX_NOISY, LTR, high_rps))}; "
        f"EDF {_range(gains[EDF])}",
        "none", None, ONE.format(f"{high_rps:g}", LTR),
        "LTR has the predictor of each request, GMAX the quantile of all; the order of the two is not robust",
    )  # fmt: skip
    yield _on_the_engine(place, high_rps)


def _on_the_engine(place: Place, high_rps: float) -> Row:
    """S52.e: GMAX and FCFS on the paced engine, where everything lasts an eighth as long and comes eight times as
    often."""
    workload = place.work / "slo-mix-short.toml"
    workload.write_text(SHORT_MIX, encoding="utf-8")
    rate_rps = SHORTER * high_rps
    late, found = [], []
    for seed in range(SEEDS):
        both = []
        for policy in (GMAX, FCFS):
            out = place.work / f"engine-{policy.partition(':')[0]}"
            late.append(
                paced_run(
                    out, backend="engine:executor=paced,kv=paged:blocks=8192", model="llama3.1-8b",
                    hardware="a100-80g", policy=policy, workload=workload, rate=f"{rate_rps:g}", duration="10s",
                    seed=seed,
                )
            )  # fmt: skip
            run = load(out)
            both.append(goodput_of(run.requests, restored_slo(run.info)).service)
        found.append(both)
    return sign_row(
        "S52.e", f"{SYSTEM}, on the engine", "1.4-6.3x goodput (abstract)", "GMAX over FCFS",
        [ours / theirs for ours, theirs in found], late, "python tests/acceptance/run.py --only S52.e",
        f"service goodput 1:8 at {rate_rps:g} req/s for 10 s, roofline of llama3.1-8b on an A100, 32 seats; the "
        f"classes of slo-mix, with lengths of an eighth of ShareGPT's means, and bounds of an eighth but for TPOT.",
    )  # fmt: skip


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}x"


def _other(policy: str, rate_rps: float) -> str:
    means = [float(np.mean(ratios(GMAX, policy, rate_rps, which))) for which in ("output_tps", "requests_rps")]
    return " and ".join(f"{mean:.2f}" for mean in means)
