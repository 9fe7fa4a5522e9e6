"""How much KV memory the measured system had, where its requests tell: the size that simulates their waits best.

A larger memory changes nothing as long as no request had to wait for it, so the requests tell a size only where their
errors with it are surely smaller than without any limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments.fit.requests import QUEUED, Measured, errors_of, fit, simulated
from harness.spec import Spec

BLOCK_TOKENS = 16
STEPS = np.geomspace(0.6, 3.0, 28)
"""Sizes that are tried, as multiples of what was under way at once: a preempted request held nothing for a while."""
ROUNDS = 4
SURE = 3.0
"""Standard errors by which errors must differ."""
LOTS = 20
"""Neighbouring requests wait for the same memory: their errors count together, in so many lots of a run."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """`tokens` of KV memory of a replica; None where the requests do not tell. `under_way` were at once, at most."""

    tokens: int | None
    under_way: int


def kv_size(
    shown: Sequence[tuple[Measured, np.ndarray]], latency: str, constants: Mapping[str, float], backend: Spec
) -> KvSize | None:
    """The size of the KV memory of each replica; None where the backend says it, or has sides with memory of their own.

    Raises UsageError for a backend that does not simulate.
    """
    if {"kv_blocks", "kv", "prefill", "decode"} & backend.args.keys():
        return None
    replicas = int(backend.args.get("replicas", 1))
    longest = max(float((run.prompt_tokens + run.output_tokens).max()) for run, _ in shown)
    held = max(longest, *(_held(run) / replicas for run, _ in shown))
    sizes = [BLOCK_TOKENS * int(np.ceil(max(longest, held * step) / BLOCK_TOKENS)) for step in STEPS]

    usual_s = min(float(np.median(run.ttft_s)) for run, _ in shown)
    waited = [(run, mask & (run.ttft_s > QUEUED * usual_s)) for run, mask in shown]
    if not any(mask.sum() > LOTS for _, mask in waited):
        return KvSize(None, round(held))

    def lots(spec: Spec) -> np.ndarray:
        found = []
        for run, mask in waited:
            errors = np.abs(errors_of(run, mask, simulated(run, latency, constants, spec)))[: mask.sum()]  # of TTFT
            found += [float(one.mean()) for one in np.array_split(errors, LOTS) if len(one)]
        return np.array(found)

    plenty = lots(with_kv(backend, BLOCK_TOKENS * int(np.ceil(50 * held / BLOCK_TOKENS))))
    each = [lots(with_kv(backend, size)) for size in sizes]
    best = int(np.argmin([one.mean() for one in each]))
    worse = plenty - each[best]  # lot by lot
    sure = worse.mean() > SURE * worse.std(ddof=1) / np.sqrt(len(worse))
    return KvSize(sizes[best] if sure else None, round(held))


def with_kv(backend: Spec, tokens: int) -> Spec:
    """The backend with so much KV memory."""
    return Spec(backend.name, {**backend.args, "kv_blocks": str(tokens // BLOCK_TOKENS)}, backend.first)


def _held(run: Measured) -> float:
    """The most tokens that were under way at once, from the first token of a request to its last."""
    first_s = run.arrival_s + run.ttft_s
    last_s = first_s + np.nan_to_num(run.tpot_s) * np.maximum(run.output_tokens - 1, 0)
    per_s = run.output_tokens / np.maximum(last_s - first_s, 1e-9)
    at_s = np.concatenate([first_s, last_s])
    order = np.argsort(at_s, kind="stable")
    gaps_s = np.diff(at_s[order], prepend=at_s[order[0]])
    rate = np.concatenate([[0.0], np.cumsum(np.concatenate([per_s, -per_s])[order])[:-1]])  # tokens/s before each time
    jumps = np.concatenate([run.prompt_tokens, -(run.prompt_tokens + run.output_tokens)])[order]
    return float(np.max(np.cumsum(rate * gaps_s + jumps), initial=0.0))


def fit_with_kv(
    latency: str, runs: Sequence[Measured], masks: Sequence[np.ndarray], backend: Spec, fixed: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float], KvSize | None]:
    """(constants, half widths of their intervals, KV memory) from the requests that the masks show.

    Constants and memory explain the same waits, so each is found again with the other. Raises UsageError as `fit` does.
    """
    shown = [(run, mask) for run, mask in zip(runs, masks, strict=True) if mask.any()]
    constants, spread = fit(latency, runs, masks, backend, fixed)
    size = kv_size(shown, latency, constants, backend)
    for _ in range(ROUNDS):
        if size is None or size.tokens is None:
            break
        constants, spread = fit(latency, runs, masks, with_kv(backend, size.tokens), fixed)
        again = kv_size(shown, latency, constants, backend)
        if again is None or again.tokens is None or again.tokens == size.tokens:
            break
        size = again
    return constants, spread, size
