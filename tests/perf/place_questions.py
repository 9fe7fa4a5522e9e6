"""Is what `bench place --rate` recommends right, and how soon does it answer? Draws questions, asks and checks them.

A question is drawn by its number: model, kinds of GPU and nodes (up to 64 GPUs), workload, arrivals, SLO, goal, rate.
It is answered in this process alone, so that CPU seconds are those of the whole search. With five seeds that the search
does not use the recommended deployment is run over the same period; of questions about at most `--enumerate` GPUs all
deployments of replicas alike that take a tenth less are run too. One line of JSON a question goes to `--file`, and what
is there is not made again; the table is printed from all of them, the worst first.

    python tests/perf/place_questions.py --file FILE [--first 0] [--questions 4] [--budget 120]
    python tests/perf/place_questions.py --file FILE --questions 0        only the table
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.errors import BenchError
from harness.experiments import pool
from harness.experiments.capacity.conditions import conditions
from harness.experiments.capacity.search_spec import TrialRequest
from harness.experiments.capacity.trials import Key, simulated
from harness.experiments.place import execute
from harness.experiments.place.place_json import BestUnit
from harness.experiments.place.questions import Question
from harness.experiments.place.settings import PlaceOptions, place_options
from harness.experiments.place.store import Store
from harness.experiments.place.systems import Deployment, Group, Shape
from harness.options import Given

MODELS = (
    ("llama3.1-8b", 1),
    ("llama2-13b", 1),
    ("mistral-7b", 1),
    ("qwen2.5-7b", 1),
    ("yi-34b", 2),
    ("llama3.1-70b", 4),
)
HARDWARE = (("h100",), ("a100-80g",), ("h200",), ("h100", "a100-80g"), ("h100", "l40s"), ("h100", "a100-80g", "l40s"))
PRICES = {"h100": 3.5, "a100-80g": 1.9, "h200": 4.6, "l40s": 1.1}
NODES = (1, 2, 4, 8)
WORKLOADS = ("chatbot", "code", "summarization", "sharegpt-8k", "balanced", "prefill-heavy")
ARRIVALS = (None, None, "gamma:cv=2", "mmpp:levels=1/3,dwells=20s/10s")
SLOS = ("ttft=0.5,tpot=0.05", "ttft=1,tpot=0.05", "ttft=2,tpot=0.1", "ttft=1", "tpot=0.04", "e2e=20")
GOALS = (0.9, 0.9, 0.95)
RATES = (1.0, 3.0, 8.0, 20.0, 40.0)
FRESH_SEED, FRESH_SEEDS, CHEAPER = 700_000, 5, 0.9


def drawn(number: int, prices: Path, budget_s: float) -> tuple[PlaceOptions, dict[str, Any]]:
    """The question of that number. Raises UsageError for one that cannot be placed."""
    rng = np.random.default_rng([31, number])
    model, _ = MODELS[rng.integers(len(MODELS))]
    hardware, nodes = HARDWARE[rng.integers(len(HARDWARE))], NODES[rng.integers(len(NODES))]
    run = {"model": model, "workload": WORKLOADS[rng.integers(len(WORKLOADS))], "slo": SLOS[rng.integers(len(SLOS))]}
    if (arrivals := ARRIVALS[rng.integers(len(ARRIVALS))]) is not None:
        run["arrivals"] = arrivals
    own = {
        "nodes": max(nodes, len(hardware)), "gpus": 8, "hardware": ",".join(hardware), "algorithm": "all",
        "goal": GOALS[rng.integers(len(GOALS))], "conditions": "joint", "rate": RATES[rng.integers(len(RATES))],
        "prices": str(prices), "power": None, "seed": None,
        "budget": budget_s,
    }  # fmt: skip
    text = {**run, **{name: own[name] for name in ("hardware", "nodes", "goal", "rate")}}
    return place_options(Given(run), None, own), text


def fresh(options: PlaceOptions, deployment: Deployment) -> tuple[float, bool]:
    """The mean share over fresh seeds of the condition that is the farthest below its goal, and whether it meets it."""
    assert options.rate_rps is not None
    question = Question("", options, deployment)
    wanted = conditions(options.slo, options.slo.goal, options.definition)
    first = TrialRequest(Key(FRESH_SEED, 0.0, 200), wanted)
    settle_s = options.filling.seconds(simulated(question.task(first)).e2e_s or 0.0)
    planned = math.ceil(options.rate_rps * (settle_s + options.horizon_s))
    trials = [
        simulated(question.task(TrialRequest(Key(FRESH_SEED + seed, options.rate_rps, planned), wanted, settle_s,
                                             options.horizon_s)))
        for seed in range(FRESH_SEEDS)
    ]  # fmt: skip
    shares = {c: float(np.mean([t.share(c.key).met / max(1, t.share(c.key).of) for t in trials])) for c in wanted}
    worst = min(wanted, key=lambda condition: shares[condition] - condition.goal)
    return shares[worst], shares[worst] >= worst.goal


def deployment_of(unit: BestUnit) -> Deployment:
    return Deployment(tuple(Group(g.role, g.hardware, Shape(g.tp, g.pp, g.dp, g.ep), g.count) for g in unit.groups))


def cheaper(options: PlaceOptions, taken: float) -> list[Deployment]:
    """Replicas alike without pipelines that the cluster holds and that take at least a tenth less."""
    found = []
    for hardware in options.hardware:
        for tp in (1, 2, 4, 8):
            try:
                options.kv_tokens(Group("mixed", hardware, Shape(tp)))
            except BenchError:
                continue
            for count in range(1, options.cluster.gpus // tp + 1):
                one = Deployment((Group("mixed", hardware, Shape(tp), count),))
                if options.cluster.holds(one) and options.objective.taken(one) <= CHEAPER * taken:
                    found.append(one)
    return found


def answered(number: int, prices: Path, budget_s: float, most_gpus: int) -> dict[str, Any]:
    """A question with its answer and what the checks find."""
    begun_s = time.process_time()
    options, text = drawn(number, prices, budget_s)
    met_s: list[float] = []

    def tell(line: str) -> None:
        if " meets (" in line and not met_s:
            met_s.append(time.process_time() - begun_s)

    info = execute.run_placement(options, Store(None), pool.Here(), tell)
    line: dict[str, Any] = {
        "number": number, "question": text, "cpu_s": time.process_time() - begun_s, "exit_code": info.exit_code,
        "first_cpu_s": met_s[0] if met_s else None, "name": None, "runs": len(info.candidates),
        "requests": 0 if info.cost is None else info.cost.requests, "horizon_s": options.horizon_s,
    }  # fmt: skip
    if not info.best:
        return line
    best = info.best[0]
    deployment = deployment_of(best)
    share, met = fresh(options, deployment)
    line |= {"name": deployment.key, "taken": best.taken, "printed": best.attainment, "fresh": share, "met": met}
    if options.cluster.gpus <= most_gpus:
        others = cheaper(options, best.taken or 0.0)
        line |= {"cheaper": len(others), "better": [one.key for one in others if fresh(options, one)[1]]}
    return line


def table(lines: Sequence[Mapping[str, Any]]) -> None:
    """The questions, the worst first, and the totals."""
    known = [line for line in lines if line["name"] is not None]
    for line in sorted(known, key=lambda one: (one["met"], not one.get("better"), one["fresh"] - goal_of(one))):
        better = "" if "better" not in line else f"; of {line['cheaper']} cheaper: {line['better'] or 'none'} meet"
        shares = f"{line['printed']:.1%}, fresh {line['fresh']:.1%}"
        print(f"{line['number']:>4} {'met   ' if line['met'] else 'MISSED'} {shares}: {line['name']}, "
              f"${line['taken']:.2f} per hour; first after {line['first_cpu_s']:.1f} CPU s, all {line['cpu_s']:.0f}, "
              f"{line['runs']} run{better}\n       {' '.join(map(str, line['question'].values()))}")  # fmt: skip
    for line in lines:
        if line["name"] is None:
            why = f"exit code {line['exit_code']}, {line['cpu_s']:.0f} CPU s, {line['runs']} run"
            print(f"{line['number']:>4} no answer ({why}): {' '.join(map(str, line['question'].values()))}")
    first = [line["first_cpu_s"] for line in known]
    checked = [line for line in known if "better" in line]
    print(f"\n{sum(line['met'] for line in known)} of {len(known)} recommended deployments meet with fresh seeds")
    if first:
        print(f"first answer: median {np.median(first):.1f}, most {max(first):.1f} CPU s, "
              f"{sum(seconds <= 20 for seconds in first)} of {len(first)} within 20")  # fmt: skip
    print(f"{sum(not line['better'] for line in checked)} of {len(checked)} have none of replicas alike 10 % cheaper")


def goal_of(line: Mapping[str, Any]) -> float:
    return float(line["question"]["goal"])


def main() -> None:
    """Ask what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--budget", type=float, default=120.0, help="CPU seconds of a search")
    parser.add_argument("--enumerate", type=int, default=0, metavar="GPUS")
    given = parser.parse_args()
    execute.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]  # others use the machine too
    lines = [json.loads(text) for text in given.file.read_text().splitlines()] if given.file.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        prices = Path(folder) / "prices.toml"
        prices.write_text("".join(f"{name} = {price}\n" for name, price in PRICES.items()))
        for number in range(given.first, given.first + given.questions):
            if any(line["number"] == number for line in lines):
                continue
            try:
                lines.append(answered(number, prices, given.budget, given.enumerate))
            except BenchError as error:
                print(f"{number}: {error}", flush=True)
                continue
            with given.file.open("a") as out:
                out.write(json.dumps(lines[-1]) + "\n")
            print(f"{number}: {lines[-1]['name']}", flush=True)
    table(lines)


if __name__ == "__main__":
    main()
