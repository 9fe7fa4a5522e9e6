"""Does `bench capacity` hold on systems drawn at random? Draws them, searches them, finds their truth, and reports.

A system is drawn by its number: model, GPU, parallelism, replicas alike or prefill and decode apart, policy, workload
(single turns, conversations, mixes, long context), arrivals, objective (what it bounds, tight or loose) and goal. Its
truth is the rate at which the mean share of runs over the horizon of the search crosses the goal: 100 fresh seeds or
more, by turns at two rates around it, with a standard error. One line of JSON a search goes to `--file`, and what is
there is not made again; the tables are printed from all of them.

    python tests/perf/random_systems.py --file FILE [--first 0] [--systems 12] [--searches 1] [--truth 600000]
    python tests/perf/random_systems.py --file FILE --systems 0        only the tables
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from capacity_queues import Strata, judged, tables  # beside this file

from harness.api import Slo
from harness.errors import BenchError
from harness.experiments.capacity.conditions import settings
from harness.experiments.capacity.execute import Setup, set_up, simulated_warnings
from harness.experiments.capacity.horizon import HorizonSearch
from harness.experiments.capacity.search_spec import SearchResult, TrialRequest
from harness.experiments.capacity.trials import Key, Task, Trial, _alone, simulated
from harness.experiments.trial import own_rate
from harness.metrics.measure import metrics, per_request
from harness.options import RunSpec
from harness.stats.crossing import logit
from harness.validity.rules import sentences

MODELS = (
    ("llama3-8b", 1), ("llama2-7b", 1), ("llama2-13b", 1), ("opt-13b", 1), ("mistral-7b", 1), ("qwen2.5-7b", 1),
    ("yi-34b", 2), ("llama3-70b", 4), ("qwen2.5-72b", 4), ("opt-66b", 4),
)  # fmt: skip
HARDWARE = ("h100", "a100-80g", "h200", "h800")
POLICIES = ("sarathi", "vllm-v0", "vllm-v1", "orca", "fastgen")
WORKLOADS = (
    "chatbot", "code", "summarization", "sharegpt-8k", "balanced", "prefill-heavy", "burstgpt",
    "chatbot-multi-turn", "chatbot-multi-turn", "two-scenario", "mooncake-conversation",
)  # fmt: skip
ARRIVALS = (
    None, None, "poisson", "gamma:cv=2", "gamma:cv=3", "gamma:cv=4", "mmpp:levels=1/3,dwells=20s/10s", "azure",
    "burstgpt",
)  # fmt: skip
GOALS = (0.9, 0.9, 0.95, 0.99)
BOUNDS = ("ttft", "tpot", "ttft+tpot", "p99:itl", "itl_p99", "e2e")
SEEDS_APART, TRUTH_SEED = 10_000, 5_000_000
FEWEST_TRUTH = 100
"""Seeds of a truth."""


def drawn(number_: int) -> tuple[RunSpec, float, dict[str, str]]:
    """The system of that number, its goal and its strata."""
    rng = np.random.default_rng([17, number_])
    model, tp = MODELS[rng.integers(len(MODELS))]
    given: dict[str, Any] = {"model": model, "hardware": HARDWARE[rng.integers(len(HARDWARE))]}
    given["workload"] = WORKLOADS[rng.integers(len(WORKLOADS))]
    given["arrivals"] = ARRIVALS[rng.integers(len(ARRIVALS))]
    layout = rng.integers(4)
    if layout == 0:
        given["prefill"], given["decode"] = (f"{rng.integers(1, 4)}:tp={tp}" for _ in range(2))
    else:
        given["policy"], given["tp"] = POLICIES[rng.integers(len(POLICIES))], tp
        if layout == 1:
            given["replicas"] = int(rng.integers(2, 5))
            given["router"] = ("round-robin", "least-requests")[rng.integers(2)]
    if given["workload"] == "chatbot-multi-turn" and rng.integers(2) and layout:
        given["prefix_cache"] = "on"
    kind, slack = BOUNDS[rng.integers(len(BOUNDS))], rng.integers(2)
    factor = (1.5, 4.0)[slack] * rng.uniform(0.8, 1.3)
    goal = GOALS[rng.integers(len(GOALS))]
    spec = RunSpec(backend="sim", **given)
    spec = replace(spec, slo=_bounds(spec, kind, factor))
    arrivals = str(given["arrivals"] or "poisson").partition(":")[0]
    strata = {
        "bound": kind, "arrivals": arrivals, "layout": ("apart", "replicas", "one", "one")[layout],
        "traffic": "sessions" if "multi-turn" in given["workload"] else "single", "goal": f"{goal:g}",
    }  # fmt: skip
    return spec, goal, strata


def _bounds(spec: RunSpec, kind: str, factor: float) -> str:
    """Bounds that are `factor` times what requests take without load: tight below 2, loose above 3."""
    table = _alone(Task(spec, own_rate(spec), Slo(()), Key(9, 0.0, 200)))
    alone = {name: float(np.nanquantile(per_request(metrics()[name], table), 0.97))
             for name in ("ttft", "tpot", "itl_p99", "e2e")}  # fmt: skip
    if kind == "ttft+tpot":
        return f"ttft={alone['ttft'] * factor * 1.5:.3g},tpot={alone['tpot'] * factor:.3g}"
    name = "itl_p99" if kind == "p99:itl" else kind
    return f"{kind}={alone[name] * factor:.3g}"


def _text(spec: RunSpec) -> str:
    names = (
        "model",
        "hardware",
        "tp",
        "replicas",
        "prefill",
        "decode",
        "policy",
        "workload",
        "arrivals",
        "prefix_cache",
        "slo",
    )
    return " ".join(f"{value}" for name in names if (value := getattr(spec, name)) is not None)


def made(setup: Setup, request: TrialRequest) -> Trial:
    """The run that a search asks for."""
    slo = request.slo or setup.slo
    return simulated(
        Task(
            setup.spec, setup.own_rps, slo, request.key, request.conditions, request.settle_s, math.inf,
            request.horizon_s,
        )
    )  # fmt: skip


def searched(setup: Setup, goal: float) -> tuple[HorizonSearch, SearchResult]:
    """One search."""
    search = HorizonSearch(setup.search_spec(goal))
    steps, trials = search.steps(), None
    while True:
        try:
            trials = [made(setup, request) for request in steps.send(trials)]  # type: ignore[arg-type]
        except StopIteration as end:
            return search, end.value


def away(setup: Setup, search: HorizonSearch, rate_rps: float, seeds: Sequence[int]) -> tuple[float, float, int]:
    """The least distance of a mean share from its goal in logits at a rate, its variance, and requests sent."""
    wanted, slo = search._objective(search.horizon_s)
    request = TrialRequest(Key(0, rate_rps, 1), wanted, search.settle_s, search.horizon_s, slo)
    trials = [made(setup, replace(request, key=replace(request.key, seed=seed))) for seed in seeds]
    distances = []
    for condition in wanted:
        share = np.array([s.met / s.of for t in trials if (s := t.share(condition.key)).of])
        mean = min(max(float(share.mean()), 1e-4), 1 - 1e-4)
        distances.append((logit(mean) - logit(condition.goal),
                          float(share.var(ddof=1)) / len(share) / (mean * (1 - mean)) ** 2))  # fmt: skip
    return *min(distances), sum(trial.requests for trial in trials)


def truth(setup: Setup, search: HorizonSearch, result: SearchResult, requests: int) -> dict[str, float]:
    """ln(rate) where the mean share crosses its goal over the horizon of the search, its standard error and slope."""
    assert result.estimate is not None
    x, apart, seed, sent = math.log(result.estimate.rate_rps), 0.03, TRUTH_SEED, 0
    for attempt in range(8):  # a few seeds tell whether the rates lie around the crossing, and near enough to it
        pair = []
        for side in (-apart, apart):
            pair.append(away(setup, search, math.exp(x + side), range(seed, seed + 8)))
            seed, sent = seed + 8, sent + pair[-1][2]
        (above, *_), (below, *_) = pair
        slope = max((above - below) / (2 * apart), 1.0)
        if above > 0 > below and (max(above, -below) < 2 or attempt > 4):
            break
        if above > 0 > below:
            apart /= 2
        x += max(-0.15, min(0.15, (above + below) / 2 / slope))
    parts: list[list[tuple[float, float, int]]] = [[], []]
    while len(parts[0]) * 20 < FEWEST_TRUTH or sent < requests:
        for part, side in zip(parts, (-apart, apart), strict=True):
            part.append(away(setup, search, math.exp(x + side), range(seed, seed + 10)))
            seed, sent = seed + 10, sent + part[-1][2]
        if sent > 2 * requests and len(parts[0]) >= 3:
            break
    (above, above_var), (below, below_var) = (
        (float(np.mean([p[0] for p in part])), float(np.mean([p[1] for p in part])) / len(part)) for part in parts
    )
    slope = max((above - below) / (2 * apart), 0.3)
    weight = min(1.0, max(0.0, above / slope / (2 * apart)))
    error = math.sqrt((1 - weight) ** 2 * above_var + weight**2 * below_var) / slope
    return {"truth": x - apart + above / slope, "error": error, "slope": slope, "truth_requests": sent,
            "truth_seeds": 20 * len(parts[0])}  # fmt: skip


def rows(number_: int, place: int, limit: int, truth_requests: int) -> Iterator[dict[str, Any]]:
    """A search of a system, then the same with its truth."""
    spec, goal, strata = drawn(number_)
    begun_s = time.process_time()
    fresh = replace(spec, seed=SEEDS_APART * (place + 1))
    setup = set_up(fresh, settings(f"{goal:g}", None, None, None, None, None, limit))
    for wrong in sentences(simulated_warnings(setup.planned, recorded=setup.recorded)):
        raise BenchError(wrong)
    search, result = searched(setup, goal)
    answer: dict[str, Any] = {
        "number": number_, "place": place, "system": _text(spec), "slo": spec.slo, "goal": goal, "strata": strata,
        "horizon_s": search.horizon_s, "settle_s": search.settle_s,
        "state": "unreachable" if result.unreachable else "resolved" if result.resolved else "unresolved",
        "why": result.why, "requests": search._spent, "cpu_s": time.process_time() - begun_s, "needs": result.needs,
        "stable": result.stable_rps,
    }  # fmt: skip
    if result.near is not None:
        answer |= {"quarters": result.near.quarters, "worst": result.near.worst}
    begun_s = time.process_time()
    if (found := result.estimate) is not None and found.low_rps and found.high_rps:
        answer |= {"rate": found.rate_rps, "low": found.low_rps, "high": found.high_rps}
        yield answer
        answer |= truth(setup, search, result, truth_requests)
    elif result.bracket.high is not None and not result.unreachable:  # the capacity lies below
        seeds = range(TRUTH_SEED, TRUTH_SEED + 20)
        answer["below"] = result.bracket.high.rate_rps
        answer["away_there"] = away(setup, search, answer["below"], seeds)[0]
    yield answer | {"truth_cpu_s": time.process_time() - begun_s}


STRATA: Strata = {
    "": lambda _: "all",
    **{key: lambda a, key=key: a["strata"][key] for key in ("bound", "arrivals", "layout", "traffic", "goal")},  # type: ignore[misc]
    "horizon": lambda a: "cut" if a["horizon_s"] < 600 else "600 s" if a["horizon_s"] == 600 else "longer",
}


def main() -> None:
    """Make what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--systems", type=int, default=12)
    parser.add_argument("--searches", type=int, default=1)
    parser.add_argument("--limit", type=int, default=600_000)
    parser.add_argument("--truth", type=int, default=600_000)
    parser.add_argument("--only", help="numbers of systems, separated by commas")
    given = parser.parse_args()
    lines = given.file.read_text().splitlines() if given.file.exists() else []
    answers = {(a["number"], a["place"]): a for a in map(json.loads, lines) if "truth_cpu_s" in a}
    numbers = [int(n) for n in given.only.split(",")] if given.only else range(given.first, given.first + given.systems)
    for key in [(n, p) for n in numbers for p in range(given.searches) if (n, p) not in answers]:
        try:
            for answer in rows(*key, given.limit, given.truth):
                with given.file.open("a") as out:
                    out.write(json.dumps(answer) + "\n")
                answers[key] = answer
        except BenchError as error:
            print(f"{key[0]}: {error}", flush=True)
            continue
        print(key[0], judged(answer), answer["system"], flush=True)
    tables([a for a in answers.values() if a["state"] != "unreachable"], 12, STRATA)
    print(f"no rate is low enough: {sum(a['state'] == 'unreachable' for a in answers.values())}")


if __name__ == "__main__":
    main()
