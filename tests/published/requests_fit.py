"""Step times from request-level results alone: what each answer lived through tells what a step costs.

Within one answer of n tokens the steps are n - 1 decodes, each with so many other sequences and so much context, and
the prompts that came in between. All of them are known from the times of the others, so that the span of an answer is
linear in the constants; a regression over all answers gives them without a simulation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from harness.experiments.validate.simulated import Floats, Traffic

FEWEST = 5
"""Tokens of an answer whose span is used in the fit: in shorter ones the wait for the first step dominates."""
MOMENTS = 60
"""Points of time per answer at which the other requests are counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A measured run: its requests with TTFT and TPOT, each (requests,) seconds, in order of arrival."""

    traffic: Traffic
    ttft_s: Floats
    tpot_s: Floats

    @property
    def first_s(self) -> Floats:
        """(requests,) when the first token came."""
        return self.traffic.arrival_s + self.ttft_s

    @property
    def last_s(self) -> Floats:
        """(requests,) when the last token came."""
        last: Floats = self.first_s + np.nan_to_num(self.tpot_s) * (self.traffic.output_tokens - 1)
        return last


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of a step: base + token * prompt tokens + squared * their squares + seq * decodes + context * cached.

    `once_s` is what an answer loses once, beside its steps. `error` is the relative error of the fit (RMS).
    """

    base_s: float
    token_s: float = 0.0
    squared_s: float = 0.0
    seq_s: float = 0.0
    context_s: float = 0.0
    once_s: float = 0.0
    error: float = 0.0

    def format(self) -> str:
        """The constants that are not 0, with their units."""
        parts = (
            (1e3 * self.base_s, "ms"), (1e6 * self.token_s, "us a prompt token"),
            (1e9 * self.squared_s, "ns its square"), (1e3 * self.seq_s, "ms a sequence"),
            (1e6 * self.context_s, "us a cached token"),
        )  # fmt: skip
        return " + ".join(f"{value:.3g} {unit}" for value, unit in parts if value > 0)


def _states(seen: Seen, row: int) -> tuple[float, float, float, int]:
    """What one answer lived through: mean sequences, mean cached tokens, tokens and number of prompts in between."""
    first, last, traffic = seen.first_s, seen.last_s, seen.traffic
    at = np.linspace(first[row], last[row], MOMENTS)[:, None]  # (moments, 1)
    there = (first <= at) & (last > at)  # (moments, requests)
    made = np.clip((at - first) / np.maximum(np.nan_to_num(seen.tpot_s), 1e-9), 0, traffic.output_tokens)
    cached = float((there * (traffic.prompt_tokens + made)).sum(axis=1).mean())
    between = (first > first[row]) & (first < last[row])
    return float(there.sum(axis=1).mean()), cached, float(traffic.prompt_tokens[between].sum()), int(between.sum())


def _spans(seen: Seen) -> tuple[Floats, Floats]:
    """(answers, 5) steps, prompts in between, their tokens, sequences and cached tokens of all steps; (answers,) s."""
    rows, spans = [], []
    for row in np.flatnonzero(seen.traffic.output_tokens >= FEWEST):
        steps = int(seen.traffic.output_tokens[row]) - 1
        decoding, cached, tokens, between = _states(seen, int(row))
        rows.append([steps, between, tokens, steps * decoding, steps * cached])
        spans.append(float(seen.last_s[row] - seen.first_s[row]))
    return np.array(rows, dtype=np.float64).reshape(-1, 5), np.array(spans)


def mixed_terms(runs: Sequence[Seen]) -> Terms:
    """The constants of a step from the spans of all answers, where prompts are computed between the decodes."""
    rows, spans = (np.concatenate(part) for part in zip(*map(_spans, runs), strict=True))
    steps, between, tokens, sequences, cached = rows.T
    (base, token, seq, context), error = _solved(np.stack([steps + between, tokens, sequences, cached], axis=1), spans)
    return Terms(base, token_s=token, seq_s=seq, context_s=context, error=error)


def decode_terms(groups: Sequence[tuple[int, Sequence[Seen]]]) -> list[Terms]:
    """The constants of decode steps of one system in several shapes, each with its pipeline stages and its runs.

    A shape has a base of its own; what a sequence and a cached token cost is that of one stage divided by the stages.
    Note: the sequences of one rate are nearly as many all the time, so that a shape with one rate below saturation does
    not tell its base from its slopes; together they do.
    """
    parts, spans = [], []
    for place, (stages, runs) in enumerate(groups):
        for seen in runs:
            rows, took = _spans(seen)
            own = np.zeros((len(rows), 2 * len(groups)))
            own[:, 2 * place] = rows[:, 0]
            own[:, 2 * place + 1] = 1.0
            parts.append(np.concatenate([own, rows[:, 3:] / stages], axis=1))
            spans.append(took)
    found, error = _solved(np.concatenate(parts), np.concatenate(spans))
    seq, context = found[-2:]
    return [
        Terms(
            found[2 * place], seq_s=seq / stages, context_s=context / stages, once_s=found[2 * place + 1], error=error
        )
        for place, (stages, _) in enumerate(groups)
    ]


def idle_prefill(runs: Sequence[Seen]) -> Terms:
    """The constants of a prompt from requests that came when every one before had its first token."""
    rows, firsts = [], []
    for seen in runs:
        before = np.concatenate(([-np.inf], np.maximum.accumulate(seen.first_s)[:-1]))
        alone = before < seen.traffic.arrival_s
        tokens = seen.traffic.prompt_tokens[alone].astype(np.float64)
        rows.append(np.stack([np.ones(len(tokens)), tokens, tokens**2], axis=1))
        firsts.append(seen.ttft_s[alone])
    (base, token, squared), error = _solved(np.concatenate(rows), np.concatenate(firsts))
    return Terms(base, token_s=token, squared_s=squared, error=error)


def _solved(rows: Floats, times_s: Floats) -> tuple[list[float], float]:
    """Constants, none below 0, with the least relative error, and that error (RMS)."""
    found, left = nnls(rows / times_s[:, None], np.ones(len(times_s)))
    return found.tolist(), float(left) / float(np.sqrt(len(times_s)))


def held_tokens(seen: Seen) -> float:
    """KV (tokens) that answers under way hold while requests come: no more is held a tenth of the time."""
    first, last, traffic = seen.first_s, seen.last_s, seen.traffic
    held = []
    for at in np.linspace(0.0, float(traffic.arrival_s[-1]), 500):
        made = np.clip((at - first) / np.maximum(np.nan_to_num(seen.tpot_s), 1e-9), 0, traffic.output_tokens)
        held.append(float((((first <= at) & (last > at)) * (traffic.prompt_tokens + made)).sum()))
    return float(np.quantile(held, 0.9))


def mixed_file(path: Path, terms: Terms, stages: int = 1) -> str:
    """Write the terms as a file of the latency model `mixed`, and return its spec.

    Decodes count as tokens there. With pipeline stages each has its own batch of the sequences, and a part of the base.
    """
    arguments = {
        "base_s": terms.base_s,
        "token_s": terms.token_s,
        "prefill_token_squared_s": terms.squared_s,
        "seq_s": max(0.0, stages * terms.seq_s - terms.token_s),
        "context_token_s": stages * terms.context_s,
    }
    lines = "".join(f"{name} = {value!r}\n" for name, value in arguments.items())
    path.write_text(f'latency = "mixed"\n\n[arguments]\nconstants = "given"\n{lines}', encoding="utf-8")
    return f"file:{path}"
