"""Reasoning models: memory that rises and falls, stragglers, time by difficulty, and two times to first token (K27)."""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np

from acceptance.rows import Place, Row
from harness.api import Request
from harness.options import Given, run_spec
from harness.registry import make
from harness.runner.run import execute
from harness.stats.seeds import half_width

SYSTEM = "RLMServing"
SEEDS = 8
MODEL, REQUESTS, RATE_RPS = "llama3.1-8b", 300, 0.5
LENGTHS = {"reasoning": "reasoning-in-budget:budget_tokens=8192", "chatbot": "sharegpt:preparation=distserve"}
ARRIVALS = "gamma:cv=2"


def rows(place: Place) -> Iterator[Row]:
    """S55: the preset `reasoning` beside chat of as many tokens a second, by sign."""
    per_request = {name: sum(make("lengths", lengths).mean_tokens) for name, lengths in LENGTHS.items()}
    alike = per_request["reasoning"] / per_request["chatbot"]  # chat has as many more requests as they are shorter
    found = {
        name: [_measured(place, name, times, seed) for seed in range(SEEDS)]
        for name, times in (("reasoning", 1.0), ("chatbot", alike))
    }
    load = f"{RATE_RPS * per_request['reasoning']:,.0f} tokens/s each, {ARRIVALS}, {MODEL} on a100-80g, {SEEDS} seeds"
    for row_id, metric, what in (
        ("S55.a", "kv_swing", "KV swing"), ("S55.b", "straggler_tail", "straggler tail"),
        ("S55.c", "adaptivity", "adaptivity"),
    ):  # fmt: skip
        values = {name: [run[metric] for run in runs] for name, runs in found.items()}
        apart = [ours - theirs for ours, theirs in zip(*values.values(), strict=True)]
        mean, half = math.fsum(apart) / SEEDS, half_width(apart) or math.inf
        means = {name: math.fsum(each) / SEEDS for name, each in values.items()}
        yield Row(
            row_id, SYSTEM, "simulated", f"{what}: larger for reasoning than for chat (abstract)",
            f"{means['reasoning']:.3f} against {means['chatbot']:.3f}; difference {mean:+.3f}, "
            f"95% interval {mean - half:+.3f} to {mean + half:+.3f}",
            "interval of the difference above 0", mean - half > 0,
            f"bench run --backend sim --latency roofline --model {MODEL} --workload reasoning",
            f"{load}; chat is --workload chatbot --arrivals {ARRIVALS} --rate {RATE_RPS * alike:.3g} "
            f"--requests {round(REQUESTS * alike)}" if row_id != "S55.c" else
            "the requested tokens stand for the difficulty in both; without queues either follows them",
        )  # fmt: skip
    yield _first_tokens()


def _measured(place: Place, workload: str, times: float, seed: int) -> dict[str, float]:
    """Means of the metrics of a run as a whole, with `times` the rate and the requests of the preset `reasoning`."""
    given = {
        "backend": "sim", "model": MODEL, "workload": workload, "arrivals": ARRIVALS, "rate": str(RATE_RPS * times),
        "requests": str(round(REQUESTS * times)), "seed": str(seed),
    }  # fmt: skip
    run = execute(run_spec(Given(given)), out=place.work / f"{workload}-{seed}").run
    return {name: float(values.mean or 0.0) for name, values in run.info.summary.run_metrics.items()}


def _first_tokens() -> Row:
    """The first token of the reasoning and of the answer, as the lengths divide the output."""
    reasoned, answered, without, order = [], [], 0, True
    for seed in range(SEEDS):
        lengths_rng, arrivals_rng = np.random.default_rng(seed).spawn(2)
        parts = list(islice(make("lengths", LENGTHS["reasoning"]).parts(lengths_rng), REQUESTS))
        at_s = islice(make("arrivals", f"{ARRIVALS},rate_rps={RATE_RPS}").times(arrivals_rng), REQUESTS)
        requests = [Request(i, at, p, r + a) for i, (at, (p, r, a)) in enumerate(zip(at_s, parts, strict=True))]
        for record in make("backends", "sim", model=MODEL, log_steps=False).simulate(requests):
            _, reasoning, answer = parts[record.request_id]
            reasoned.append(record.token_s[0] - record.scheduled_s)
            without += not answer
            if answer:
                answered.append(record.token_s[reasoning] - record.scheduled_s)
                order &= answered[-1] > reasoned[-1]
    return Row(
        "S55.d", SYSTEM, "simulated", "two times to first token: of the reasoning and of the answer",
        f"median {np.median(reasoned):.3f} s and {np.median(answered):.1f} s; {without / len(reasoned):.1%} of the "
        "requests are cut at the budget and have no answer",
        "the answer comes after the reasoning in every request", bool(order),
        "bench run --backend openai:url=URL --workload reasoning",
        "the lengths of both parts are those of reasoning-in-budget; of a remote server the line Variation has TTFT "
        "(answer)",
    )  # fmt: skip
