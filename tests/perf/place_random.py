"""Does `bench place --rate` hold on questions drawn at random? Draws them, asks them, and checks the answers.

A question is drawn by its number: model, kinds of GPU, size of the cluster, workload, arrivals, SLO, goal and rate. Two
checks, with seeds that the search does not use: the recommended deployment meets the goal at that rate (the 95%
interval of 16 long chains holds it or lies above), and, of questions with few enough of them, none of the deployments
that are at least 10 % cheaper does: all of them are run. One line of JSON a question goes to `--file`, and what is
there is not made again; the table is printed from all of them, the worst first.

    python tests/perf/place_random.py --file FILE [--first 0] [--questions 4] [--small]
    python tests/perf/place_random.py --file FILE --questions 0        only the table
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import BenchError
from harness.experiments import pool
from harness.experiments.capacity.at_rate import Attained, attained
from harness.experiments.place.execute import candidates, run_placement
from harness.experiments.place.questions import Question, rough
from harness.experiments.place.settings import PlaceOptions, place_options
from harness.experiments.place.store import Store
from harness.experiments.place.systems import Deployment, Group, Shape
from harness.options import Given

MODELS = (
    ("llama3-8b", 1), ("llama2-13b", 1), ("opt-13b", 1), ("mistral-7b", 1), ("qwen2.5-7b", 1), ("yi-34b", 2),
    ("llama3-70b", 4), ("opt-66b", 4),
)  # fmt: skip
KINDS = (("h100",), ("a100-80g",), ("h200",), ("h100", "a100-80g"), ("h100", "l40s"), ("h200", "l40s"))
PRICES = {"h100": 3.5, "a100-80g": 1.9, "h200": 4.6, "l40s": 1.1}
CLUSTERS = ((1, 4), (1, 8), (2, 4), (2, 8), (4, 8))
WORKLOADS = ("chatbot", "code", "summarization", "sharegpt-8k", "balanced", "prefill-heavy", "chatbot-multi-turn")
ARRIVALS = (None, None, "poisson", "gamma:cv=2", "gamma:cv=3", "mmpp:levels=1/3,dwells=20s/10s")
BOUNDS = ("ttft+tpot", "ttft+tpot", "ttft", "tpot", "e2e")
GOALS = (0.9, 0.9, 0.95)
MOST_CHEAPER, CHEAPER = 40, 0.9
FRESH_SEED, FRESH_CHAINS = 700_000, 16


def drawn(number: int, prices: Path, *, small: bool) -> tuple[PlaceOptions, dict[str, Any]]:
    """The question of that number. Raises UsageError for one that cannot be requested."""
    rng = np.random.default_rng([23, number, small])
    models = [one for one in MODELS if one[1] == 1] if small else MODELS
    model, tp = models[rng.integers(len(models))]
    hardware = KINDS[rng.integers(3 if small else len(KINDS))]
    nodes, gpus = (1, 4) if small else CLUSTERS[rng.integers(len(CLUSTERS))]
    if len(hardware) > 1:
        nodes = max(2, nodes)
    if nodes * gpus < 2 * tp:
        gpus = 8
    run = {"model": model, "workload": WORKLOADS[rng.integers(len(WORKLOADS))]}
    arrivals = ARRIVALS[rng.integers(len(ARRIVALS))]
    if arrivals is not None:
        run["arrivals"] = arrivals
    kind, factor = BOUNDS[rng.integers(len(BOUNDS))], rng.choice((2.0, 5.0)) * rng.uniform(0.8, 1.3)
    goal, share = GOALS[rng.integers(len(GOALS))], rng.uniform(0.1, 0.6)
    own = {
        "nodes": nodes, "gpus": gpus, "hardware": ",".join(hardware), "algorithm": "all", "goal": goal,
        "conditions": "joint", "rate": 1.0, "objective": None, "prices": str(prices), "power": None, "requests": None,
        "seeds": None, "seed": None,
    }  # fmt: skip
    one = Deployment((Group("mixed", hardware[0], Shape(tp, 1)),))
    plain = place_options(Given({**run, "slo": "ttft=1000"}), None, own)
    alone = Question("", plain, one).unloaded
    mask = _quantiles(plain, one)
    slack = {"ttft": 1.5 * factor, "tpot": factor, "e2e": factor}
    run["slo"] = ",".join(f"{name}={mask[name] * slack[name]:.3g}" for name in kind.split("+"))
    requested = place_options(Given(run), None, own)
    sustained = rough(Question("", requested, one)).rate_rps
    rate = max(0.5 / alone.mean_s, sustained * nodes * gpus / tp * share)
    text = {**run, "hardware": own["hardware"], "cluster": f"{nodes}x{gpus}", "goal": goal, "rate": round(rate, 3)}
    return replace(requested, rate_rps=round(rate, 3)), text


def _quantiles(options: PlaceOptions, one: Deployment) -> dict[str, float]:
    """97th percentiles of latencies without load, in seconds."""
    from harness.data.records import to_table
    from harness.experiments.capacity import chain
    from harness.metrics.measure import metrics, per_request

    spec = replace(options.of(one), requests=None)
    traffic = chain.Traffic(chain.load_workload(spec).workload.start(np.random.default_rng(9)), lambda _: None, 1e5)
    records = traffic.served_by(chain.simulator(spec))
    table = to_table([next(records) for _ in range(200)])
    return {name: float(np.nanquantile(per_request(metrics()[name], table), 0.97)) for name in ("ttft", "tpot", "e2e")}


def fresh(options: PlaceOptions, deployment: Deployment, seeds: int, limit: int) -> Attained:
    """Attainment of a deployment at the requested rate with seeds of the check."""
    question = Question("", options, deployment)
    search = question.search(limit)
    search.spec = replace(search.spec, first_seed=FRESH_SEED)
    return attained(question.observe, search, seeds)


def cheaper(options: PlaceOptions, taken: float) -> list[Deployment]:
    """All deployments that the cluster holds and that take at least a tenth less."""
    groups = {group: None for one in candidates(options)[0] for group in one.system.groups}
    return [one for one in _enumerated(options, [*groups]) if options.objective.taken(one) <= CHEAPER * taken]


def _enumerated(options: PlaceOptions, groups: Sequence[Group]) -> Iterator[Deployment]:
    def counted(group: Group) -> list[Group]:
        return [replace(group, count=n) for n in range(1, options.cluster.gpus // group.gpus + 1)]

    roles = {role: [one for group in groups if group.role == role for one in counted(group)]
             for role in ("mixed", "prefill", "decode")}  # fmt: skip
    for each in (*((one,) for one in roles["mixed"]), *product(roles["prefill"], roles["decode"])):
        deployment = Deployment(each)
        if options.cluster.holds(deployment):
            yield deployment


def answered(number: int, prices: Path, *, small: bool) -> dict[str, Any]:
    """A question with its answer and what the checks find."""
    options, text = drawn(number, prices, small=small)
    begun_s = time.process_time()
    info = run_placement(options, Store(None), pool.Here())
    line: dict[str, Any] = {"number": number, "small": small, "question": text, "cpu_s": time.process_time() - begun_s,
                            "exit_code": info.exit_code, "name": None}  # fmt: skip
    if not info.best:
        return line
    best = info.best[0]
    deployment = Deployment(tuple(Group(g.role, g.hardware, Shape(g.tp, g.pp), g.count) for g in best.groups))
    found = fresh(options, deployment, FRESH_CHAINS, 1_500_000)
    line |= {
        "name": deployment.key, "taken": best.taken,
        "printed": [best.attainment_low, best.attainment, best.attainment_high],
        "fresh": [found.low, found.share, found.high],
        "met": found.high >= options.slo.goal if found.high is not None else bool(found.meets),
    }  # fmt: skip
    others = cheaper(options, best.taken or 0.0)
    line["cheaper"] = len(others)
    if small and len(others) <= MOST_CHEAPER:
        line["better"] = [one.key for one in others if fresh(options, one, 8, 400_000).meets]
    return line


def table(lines: Sequence[Mapping[str, Any]]) -> None:
    """The questions, the worst first, and the totals."""
    answered = [line for line in lines if line["name"] is not None]
    brute = [line for line in answered if "better" in line]
    for line in sorted(answered, key=lambda one: (one["met"], not one.get("better"), _over(one))):
        text = " ".join(str(value) for value in line["question"].values())
        verdict = "met   " if line["met"] else "MISSED"
        better = "" if "better" not in line else f"; of {line['cheaper']} cheaper ones {line['better'] or 'none'} meet"
        print(f"{line['number']:>5} {verdict} {_shares(line['printed'])}, fresh {_shares(line['fresh'])}:")
        print(
            f"        {line['name']} ({line['taken']:.2f} per hour, {line['cpu_s']:.0f} CPU s){better}\n        {text}"
        )
    for line in lines:
        if line["name"] is None:
            print(f"{line['number']:>5} no answer (exit code {line['exit_code']}): {line['question']}")
    met = sum(line["met"] for line in answered)
    inside = sum(line["printed"][0] <= line["fresh"][1] <= line["printed"][2] for line in answered)
    print(f"\n{met} of {len(answered)} recommended deployments meet the goal with fresh seeds; "
          f"{inside} fresh shares lie in the printed interval")  # fmt: skip
    print(f"of {len(brute)} questions with all cheaper deployments run, {sum(not one['better'] for one in brute)}")
    print(f"have none at least 10 % cheaper that meets; {len(lines) - len(answered)} questions without an answer")


def _over(line: Mapping[str, Any]) -> float:
    return float(line["fresh"][1] - line["question"]["goal"])


def _shares(values: Sequence[float | None]) -> str:
    low, share, high = (math.nan if value is None else 100 * value for value in values)
    return f"{share:.1f}% ({low:.1f} .. {high:.1f})"


def main() -> None:
    """Ask what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="few GPUs, so that all cheaper deployments can be run")
    given = parser.parse_args()
    lines = [json.loads(text) for text in given.file.read_text().splitlines()] if given.file.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        prices = Path(folder) / "prices.toml"
        prices.write_text("".join(f"{name} = {price}\n" for name, price in PRICES.items()))
        for number in range(given.first, given.first + given.questions):
            if any((line["number"], line["small"]) == (number, given.small) for line in lines):
                continue
            try:
                lines.append(answered(number, prices, small=given.small))
            except BenchError as error:
                print(f"{number}: {error}", flush=True)
                continue
            with given.file.open("a") as out:
                out.write(json.dumps(lines[-1]) + "\n")
            print(f"{number}: {lines[-1]['name']}", flush=True)
    table(lines)


if __name__ == "__main__":
    main()
