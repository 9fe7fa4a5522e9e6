"""How often the interval of `bench agents` holds the truth: repeated searches beside a reference of many other seeds.

    python tests/perf/agents_intervals.py --trace traces/ --systems 4 --searches 6

Systems are drawn at random: model and GPU, cap of the think times, longest context, tier. The truth of each is the
crossing of a line through trials of `--reference` seeds at the numbers of agents around the searches' answers.
"""

import argparse
import math
import statistics
from dataclasses import replace

import numpy as np

from harness.experiments import pool
from harness.experiments.agents.execute import Setup, Task, run_search, set_up, simulated
from harness.experiments.agents.search import Key, SearchOptions, _fitted
from harness.options import Given, run_spec

MODELS = (
    ("llama3.1-8b", "h100", 1), ("llama3.1-8b", "a100-80g", 1), ("qwen3-32b", "h100", 2), ("gpt-oss-20b", "h200", 1),
    ("llama3.1-70b", "h200", 4),
)  # fmt: skip
REFERENCE_SEED = 1_000_000


def system(number: int, trace: str, horizon_s: float) -> tuple[str, Setup]:
    """A system drawn by its number, and what names it."""
    rng = np.random.default_rng(number)
    model, gpu, tp = MODELS[rng.integers(len(MODELS))]
    cap_s, context = int(rng.choice([5, 20, 60])), int(rng.choice([16_000, 32_000, 64_000, 96_000]))
    tier = f"p95:ttft={rng.choice([1, 2, 5])},p90:tpot={rng.choice([20, 30, 50])}ms"
    given = {
        "trace": trace, "turns": f"think-only:cap={cap_s}s", "scale": f"context:{context}", "backend": "sim",
        "model": model, "hardware": gpu, "tp": str(tp), "prefix-cache": "on", "kv": "paged:block_tokens=64",
    }  # fmt: skip
    name = f"{number}: {model} on {tp} x {gpu}, think <= {cap_s} s, context <= {context:,}, {tier}"
    return name, set_up(run_spec(Given(given)), [tier], SearchOptions(), horizon_s, None)


def main() -> None:
    """Print a line for each system, the worst first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--systems", type=int, default=4)
    parser.add_argument("--searches", type=int, default=6)
    parser.add_argument("--reference", type=int, default=60)
    parser.add_argument("--horizon", type=float, default=1200.0)
    given = parser.parse_args()
    lines, counts = [], list[tuple[int, int]]()
    for number in range(given.first, given.first + given.systems):
        name, setup = system(number, given.trace, given.horizon)
        found = []
        for search in range(given.searches):
            options = replace(setup.options, first_seed=1000 * search)
            (tier,) = run_search(replace(setup, options=options), None).answers
            found.append(tier)
        known = [one for one in found if one.agents is not None and one.low is not None and one.high is not None]
        if not known:
            lines.append((1.0, f"{name}: {found[0].state} ({found[0].why})"))
            continue
        middle = statistics.median(one.agents for one in known if one.agents is not None)
        numbers = {max(1, math.floor(middle * 0.93)), math.ceil(middle * 1.07)}
        tasks = [Task(setup.spec, setup.slos, Key(users, REFERENCE_SEED + seed), given.horizon)
                 for users in numbers for seed in range(given.reference)]  # fmt: skip
        with pool.of() as processes:
            truth = _fitted(setup.tiers[0], [one for _, one in processes.map(simulated, tasks)])
        held = [one for one in known if truth is not None and (one.low or 0) <= truth <= (one.high or 0)]
        half = statistics.median(((one.high or 0) - (one.low or 0)) / (2 * (one.agents or 1)) for one in known)
        each = ", ".join(f"{one.agents:.3g}" for one in known)
        text = f"truth {truth or math.nan:.3g}, {len(held)} of {len(known)} hold (+-{half:.1%}): {each}"
        lines.append((len(held) / len(known), f"{name}: {text}"))
        counts.append((len(held), len(known)))
        print(lines[-1][1], flush=True)
    if counts:
        worst = min(counts, key=lambda one: one[0] / one[1])
        print(f"held {sum(h for h, _ in counts)} of {sum(k for _, k in counts)}; worst {worst[0]} of {worst[1]}")
    print("\nworst first")
    for _, line in sorted(lines):
        print(line)


if __name__ == "__main__":
    main()
