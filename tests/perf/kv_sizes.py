"""Does `bench fit --requests` find how much KV memory a server has? Draws servers, and fits what a client saw of them.

A server is drawn by its number: constants of its steps, policy, KV memory, lengths, and two loads: well below what it
answers at most, and between half and 1.4 times that. Printed are the size found beside the true one, and in the end the
errors, how many were not found although requests were preempted, and how many were found though none waited.

    python tests/perf/kv_sizes.py [--first 100] [--servers 40]
"""

import sys
from pathlib import Path

import numpy as np
from _options import parsed  # beside this file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backends.sim import Sim
from harness.api import Request
from harness.experiments.fit.requests import BLOCK_TOKENS, Measured, fit_with_kv
from harness.spec import parse

POLICIES = ("vllm-v0", "sarathi", "vllm-v1")
LOADS = (0.5, 0.9, 1.1, 1.4)
REQUESTS = 600


def seen(
    rng: np.random.Generator, system: dict[str, object], lengths: np.ndarray, rate_rps: float
) -> tuple[Measured, int]:
    """What a client sees at a rate, and how often a request was preempted."""
    at_s = np.cumsum(rng.exponential(1 / rate_rps, REQUESTS))
    rows = zip(at_s.tolist(), *lengths.tolist(), strict=True)
    records = sorted(Sim(**system).simulate(Request(i, *row) for i, row in enumerate(rows)), key=lambda r: r.request_id)  # type: ignore[arg-type]  # options that it has
    ended = [record for record in records if record.status == "ok"]
    ttft_s = np.array([r.token_s[0] - r.scheduled_s for r in ended])
    tpot_s = np.array([(r.token_s[-1] - r.token_s[0]) / (r.output_tokens - 1) for r in ended])
    which = [r.request_id for r in ended]
    prompt, output = lengths[:, which].astype(float)
    return Measured(f"{rate_rps:.3g}", at_s[which], prompt, output, ttft_s, tpot_s), sum(r.preemptions for r in ended)


def main() -> None:
    """A line for each server, and what they say together."""
    given = parsed(__doc__, first=100, servers=40)
    errors, silent, preempting, idle = [], 0, 0, 0
    for number in range(given.first, given.first + given.servers):
        rng = np.random.default_rng(number)
        constants = {
            "base_s": rng.uniform(0.008, 0.03), "prefill_token_s": rng.uniform(3e-5, 2e-4),
            "decode_seq_s": rng.uniform(5e-5, 4e-4), "context_token_s": rng.uniform(1e-8, 5e-7),
            "front_end_s": rng.uniform(1e-3, 1e-2),
        }  # fmt: skip
        latency = "linear:" + ",".join(f"{name}={value:g}" for name, value in constants.items())
        blocks, policy = int(rng.integers(400, 3000)), POLICIES[rng.integers(len(POLICIES))]
        system: dict[str, object] = {"latency": latency, "policy": policy, "kv_blocks": blocks}
        prompt = np.clip(rng.lognormal(5.8, 0.8, REQUESTS).astype(int), 8, blocks * 8)
        output = np.clip(rng.lognormal(4.8, 0.7, REQUESTS).astype(int), 2, blocks * 4)
        lengths = np.stack([prompt, output])
        burst, _ = seen(rng, system, lengths, 1000.0)
        most_rps = REQUESTS / float((burst.arrival_s + burst.ttft_s + burst.tpot_s * burst.output_tokens).max())
        load = float(rng.choice(LOADS))
        (low, _), (high, preempted) = (seen(rng, system, lengths, share * most_rps) for share in (0.4, load))
        every = [np.ones(len(run), bool) for run in (low, high)]
        _, _, size = fit_with_kv("linear", [low, high], every, parse(f"sim:policy={policy}"), {})
        assert size is not None
        true = blocks * BLOCK_TOKENS
        found = "not found" if size.tokens is None else f"{size.tokens:,} ({size.tokens / true - 1:+.1%})"
        print(f"{number} {policy:8} load {load:g}, {preempted:3} preemptions: {true:,} tokens, {found}", flush=True)
        if size.tokens is not None:
            errors.append(abs(size.tokens / true - 1))
        idle += size.tokens is not None and not preempted
        preempting += preempted > 5
        silent += preempted > 5 and size.tokens is None
    middle, worst = np.median(errors), max(errors)
    print(f"\n{given.servers} servers; found for {len(errors)}: median {middle:.1%}, worst {worst:.1%} off")
    print(f"not found for {silent} of {preempting} with more than 5 preemptions; found for {idle} without any")


if __name__ == "__main__":
    main()
