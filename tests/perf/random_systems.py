"""Does `bench capacity` hold on systems drawn at random? Draws them, finds their truth, searches them, and reports.

A system is drawn by its number: model, GPU, parallelism, replicas alike or prefill and decode apart, policy, workload
(single turns, conversations, mixes, long context), arrivals, objective (what it bounds, tight or loose) and goal. Its
truth is the rate at which attainment in the steady state crosses the goal: long chains of fresh seeds at two rates
around it, with a standard error. Every search has fresh seeds too. One line of JSON a system goes to `--file`, and what
is there is not made again; the tables are printed from all of them.

    python tests/perf/random_systems.py --file FILE [--first 0] [--systems 12] [--searches 2] [--truth 600000]
    python tests/perf/random_systems.py --file FILE --systems 0        only the tables
"""

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.records import to_table
from harness.errors import BenchError
from harness.experiments.capacity.chain import Chain, ChainRequest, unloaded
from harness.experiments.capacity.conditions import Condition, conditions, settings
from harness.experiments.capacity.steady import BLOCKS, UNSTABLE, Tried, growth, logit, sample
from harness.experiments.trial import own_rate
from harness.metrics.measure import metrics, per_request
from harness.metrics.objective import parse_slo
from harness.options import RunSpec

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
    from harness.experiments.capacity import chain

    traffic = chain.Traffic(chain.load_workload(spec).workload.start(np.random.default_rng(9)), lambda _: None, 1e5)
    simulation = traffic.served_by(chain.simulator(spec))
    table = to_table([next(simulation) for _ in range(200)])
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


class Truth:
    """The steady state of a system, by long chains of its own."""

    def __init__(self, spec: RunSpec, goal: float, requests: int) -> None:
        self.spec, self.goal, self.requests = replace(spec, slo=None), goal, requests
        self.own_rps = own_rate(spec)
        self.slo = parse_slo(spec.slo or "")
        self.wanted = conditions(self.slo, goal, "joint")
        self.alone = unloaded(spec, self.slo, 600)
        self.sent = 0

    def tried(self, rate_rps: float, span_s: float, seeds: int, first: int = 0) -> Tried:
        """Chains at a rate."""
        found = []
        for seed in range(seeds):
            cut_s = max(4 * self.alone.p99_s, self.alone.filled_s)
            request = ChainRequest(
                TRUTH_SEED + first + seed, rate_rps, cut_s, span_s / BLOCKS, BLOCKS, 10 * self.alone.p99_s + 1
            )
            found.append(Chain(self.spec, self.own_rps, self.slo, request).observe(request))
            self.sent += found[-1].sent
        return Tried(rate_rps, found)

    def away(self, tried: Tried) -> tuple[float, Condition]:
        """The least z above the goal, and of which condition; far below where the queue grows without end."""
        away, condition = min(
            ((sample(tried.chains, c).z - logit(c.goal), c) for c in self.wanted), key=lambda pair: pair[0]
        )
        return (min(away, -4.0) if growth(tried.chains) > UNSTABLE else away), condition

    def found(self) -> tuple[float, float, float]:
        """The rate, its relative standard error, and the slope of z; 0 where requests miss without load."""
        shares = {s.key: s.met / max(1, s.of) for s in self.alone.shares}
        if any(shares[c.key] < c.goal for c in self.wanted):
            return 0.0, 0.0, 0.0
        low, high = None, None
        rate_rps = 4 / self.alone.mean_s
        for _ in range(60):
            away, _ = self.away(self.tried(rate_rps, self._span_s(rate_rps, 3000) / 2, 1))
            low, high = (rate_rps, high) if away >= 0 else (low, rate_rps)
            if low and high and high / low < 1.1:
                break
            rate_rps = math.sqrt(low * high) if low and high else 2 * low if low else rate_rps / 2
        assert low is not None and high is not None
        centre, half = math.log(low * high) / 2, 0.04
        for step in range(8):  # two rates on both sides, neither far from the goal
            pair = [
                self.tried(math.exp(centre + s * half), self._span_s(math.exp(centre), 5000) / 2, 3, 100 * (step + 1))
                for s in (-1, 1)
            ]
            first, second = (self.away(t)[0] for t in pair)
            if first > 0 > second and (max(first, -second) < 1.8 or half < 0.006):
                break
            if first > 0 > second:
                centre, half = centre - half + 2 * half * first / (first - second), half / 2.5
            else:
                nearest = min(first, second, key=abs)
                slope = max(4.0, (first - second) / (2 * half))
                centre += max(-0.15, min(0.15, nearest / slope))
        seeds = 8
        span_s = max(self.requests / 2 / seeds / math.exp(centre), self._span_s(math.exp(centre), 6000))
        pair = [self.tried(math.exp(centre + s * half), span_s, seeds, 50_000) for s in (-1, 1)]
        return self._crossing(pair, centre, half)

    def _crossing(self, pair: Sequence[Tried], centre: float, half: float) -> tuple[float, float, float]:
        condition = min((self.away(t) for t in pair), key=lambda one: one[0])[1]
        low, high = (sample(t.chains, condition) for t in pair)
        first, second = (s.z - logit(condition.goal) for s in (low, high))
        slope = (first - second) / (2 * half)
        if any(growth(t.chains) > UNSTABLE for t in pair) or max(abs(first), abs(second)) > 3:  # no curve: both sides
            sides = first > 0 > self.away(pair[1])[0]
            return math.exp(centre), half / 2 if sides else math.nan, math.inf
        if slope <= 0:
            return math.exp(centre), math.nan, slope
        x = centre - half + first / slope
        weight = min(1.0, max(0.0, (x - centre + half) / (2 * half)))  # of the upper rate
        errors = (1 - weight) * low.errors * low.scale + weight * high.errors * high.scale
        error = float(np.std(errors, ddof=1)) / math.sqrt(len(errors)) / slope
        return math.exp(x), error, slope

    def _span_s(self, rate_rps: float, requests: float) -> float:
        longest_s = max(20 * self.alone.p99_s, 3 * self.alone.filled_s, 20 * self._memory_s)
        return max(requests / rate_rps, 10 / (1 - self.goal) / rate_rps, longest_s)

    @property
    def _memory_s(self) -> float:
        return 30.0 if "mmpp" in str(self.spec.arrivals) else 0.0


def searched(spec: RunSpec, goal: float, number_: int) -> dict[str, Any]:
    """One search with seeds of its own."""
    from harness.experiments.capacity.execute import run_search, set_up
    from harness.experiments.capacity.store import Store

    begun_s = time.process_time()
    spec = replace(spec, seed=SEEDS_APART * (number_ + 1))
    setup = set_up(spec, settings(f"{goal:g}", None, None, None, None, None, None))
    info = run_search(setup, Store(None), workers=1)
    one = info.answers[0]
    low, high = one.bracket_rps
    return {
        "state": one.state, "rate": one.capacity_rps, "low": one.low_rps, "high": one.high_rps,
        "bracket": [low, high], "why": one.why, "needs": one.needs, "requests": info.cost.requests if info.cost else 0,
        "cpu_s": time.process_time() - begun_s,
    }  # fmt: skip


def judged(search: Mapping[str, Any], truth: float, error: float) -> dict[str, Any]:
    """Whether what was printed holds the truth, and its own error of two standard errors; half of its width."""
    interval = search["low"] is not None and search["high"] is not None
    low, high = (search["low"], search["high"]) if interval else search["bracket"]
    if search["state"] == "unreachable" or truth == 0:
        return {
            "held": (search["state"] == "unreachable") == (truth == 0),
            "strict": None,
            "half": None,
            "kind": "zero",
        }
    slack = math.exp(2 * (error if error == error else 0.0))
    held = (low is None or low <= truth * slack) and (high is None or high >= truth / slack)
    strict = (low is None or low <= truth) and (high is None or high >= truth)
    half = None if not low or not high else (high / low - 1) / 2
    kind = search["state"] if interval and search["state"] == "resolved" else "interval" if interval else "bracket"
    if low is None and high is None:
        held, kind = False, "nothing"
    return {"held": held, "strict": strict, "half": half, "kind": kind}


def tables(lines: Sequence[Mapping[str, Any]]) -> None:
    """The systems, worst first, and the totals."""
    rows = []
    for line in lines:
        verdicts = [judged(search, line["truth"], line["error"]) for search in line["searches"]]
        rows.append((line, verdicts))
    rows.sort(key=lambda row: (-sum(not v["held"] for v in row[1]), -sum(v["kind"] != "resolved" for v in row[1])))
    for line, verdicts in rows:
        missed = sum(not v["held"] for v in verdicts)
        print(
            f"{line['number']:>5} missed {missed} of {len(verdicts)}  truth {line['truth']:.4g} "
            f"+-{100 * line['error']:.2f}% slope {line['slope']:.3g}  goal {line['goal']:g}  {line['system']}"
        )
        for search, verdict in zip(line["searches"], verdicts, strict=True):
            shown = [search["low"], search["rate"], search["high"]] if search["low"] else search["bracket"]
            text = " .. ".join("-" if v is None else f"{v:.4g}" for v in shown)
            off = math.log(search["rate"] / line["truth"]) if search["rate"] and line["truth"] else math.nan
            print(
                f"        {'held  ' if verdict['held'] else 'MISSED'} {verdict['kind']:>8}: {text} off "
                f"{100 * off:+.1f}%  {search['requests']:,} requests {search['cpu_s']:.0f} s  {search['why'] or ''}"
            )
    groups: dict[str, list[Any]] = {}
    for line, verdicts in rows:
        for search, verdict in zip(line["searches"], verdicts, strict=True):
            for name in ["all", *(f"{key} {value}" for key, value in line["strata"].items())]:
                if verdict["kind"] != "zero":
                    groups.setdefault(name, []).append((line, search, verdict))
    print("\nin %; cost is the median")
    print(HEAD)
    for name, some in groups.items():
        print(total(name, some))
    wide = [v["half"] for *_, v in groups.get("all", []) if v["kind"] != "resolved"]
    shown = " ".join("none" if half is None else f"{100 * half:.0f}" for half in sorted(wide, key=lambda h: h or 9.0))
    print(f"half widths of unresolved searches in %: {shown}")


HEAD = (
    f"{'stratum':<24}{'searches':>9}{'held':>6}{'strictly':>9}{'resolved':>9}{'of them held':>13}{'bias':>7}{'+-':>6}"
    f"{'requests':>10}{'cpu s':>7}"
)


def total(name: str, some: Sequence[Any]) -> str:
    """One line about the searches of a stratum; `strictly` allows nothing for the error of the truth."""
    resolved = [one for one in some if one[2]["kind"] == "resolved"]
    errors = [100 * math.log(search["rate"] / line["truth"]) for line, search, _ in resolved]
    held, strictly = (100 * np.mean([bool(v[key]) for *_, v in some]) for key in ("held", "strict"))
    of_them = 100 * np.mean([v["held"] for *_, v in resolved]) if resolved else math.nan
    half = 100 * np.mean([v["half"] for *_, v in resolved]) if resolved else math.nan
    requests, cpu_s = (np.median([search[key] for _, search, _ in some]) for key in ("requests", "cpu_s"))
    return (
        f"{name:<24}{len(some):>9}{held:>6.0f}{strictly:>9.0f}{100 * len(resolved) / len(some):>9.0f}{of_them:>13.0f}"
        f"{np.mean(errors) if errors else math.nan:>7.2f}{half:>6.1f}{requests:>10,.0f}{cpu_s:>7.1f}"
    )


def store(file: Path, line: Mapping[str, Any]) -> None:
    """Append a system; the last line of each counts."""
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")


def main() -> None:
    """Make what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--systems", type=int, default=12)
    parser.add_argument("--searches", type=int, default=2)
    parser.add_argument("--truth", type=int, default=600_000)
    parser.add_argument("--only", help="numbers of systems, separated by commas")
    given = parser.parse_args()
    lines = (
        {line["number"]: line for line in map(json.loads, given.file.read_text().splitlines())}
        if given.file.exists()
        else {}
    )
    numbers = [int(n) for n in given.only.split(",")] if given.only else range(given.first, given.first + given.systems)
    for number_ in numbers:
        line = lines.get(number_)
        try:
            spec, goal, strata = drawn(number_)
            if line is None:
                begun_s = time.process_time()
                truth = Truth(spec, goal, given.truth)
                rate, error, slope = truth.found()
                line = {"number": number_, "system": _text(spec), "goal": goal, "strata": strata, "truth": rate,
                        "error": error, "slope": slope, "truth_requests": truth.sent,
                        "truth_cpu_s": time.process_time() - begun_s, "searches": []}  # fmt: skip
                store(given.file, line)
            for search in range(len(line["searches"]), given.searches):
                line["searches"].append(searched(spec, goal, search))
                store(given.file, line)
        except BenchError as error_:
            print(f"{number_}: {error_}", flush=True)
            continue
        lines[number_] = line
        ends = [[s["low"] or s["bracket"][0], s["high"] or s["bracket"][1]] for s in line["searches"]]
        print(f"{number_}: truth {line['truth']:.4g} +-{100 * line['error']:.2f}%, searches {ends}", flush=True)
    tables(list(lines.values()))


if __name__ == "__main__":
    main()
