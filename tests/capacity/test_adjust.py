"""Attainment freed of the luck of the draw."""

import numpy as np
import pytest

from harness.experiments.capacity.conditions import JOINT, Condition, Share
from harness.experiments.capacity.traffic import LEVELS, Adjusted, Meanwhile, Queue
from harness.experiments.capacity.trials import Key, Trial

WANTED = Condition(JOINT, 0.9)
TRUE = Queue(4e-4, 5e-4)
"""The queue that really serves."""


class Known:
    """Traffic of a known law; the long draw is of another seed."""

    def __init__(self, drawn):
        self._drawn = drawn
        self._long = drawn(10**6, 1.0, 200_000)

    def trial(self, seed, rate_rps, requests):
        return self._drawn(seed, rate_rps, requests)

    def long(self, rate_rps, requests):
        whole = type(self._long)(self._long.due_s / rate_rps, self._long.prompt_tokens, self._long.output_tokens)
        return [whole.part(start, start + requests) for start in range(0, 200_000, requests)]


def _tried(drawn, seed, rate_rps=3.5, bound_s=1.5, noise_s=0.05):
    """A trial of a one-server queue, whose first tokens come a little earlier or later than its work says."""
    part = drawn(seed, rate_rps)
    ttft_s = TRUE.of(part) + noise_s * np.random.default_rng([seed, 1]).standard_normal(len(part))
    met = ttft_s <= bound_s
    share = Share(JOINT, int(met.sum()), len(met), met)
    return Trial(Key(seed, rate_rps, len(met)), len(met), len(met), 0.0, None, False, 1.0, 1.0, 0.0, (share,))


def test_the_waiting_of_the_proxy_is_that_of_a_queue(traffic):
    """Lindley's recursion, request by request: a slip would make the proxy tell nothing."""
    part = traffic(requests=300)
    free_s, expected = 0.0, []
    for due, prompt, output in zip(part.due_s, part.prompt_tokens, part.output_tokens, strict=True):
        begun_s = max(free_s, due)
        expected.append(begun_s - due + TRUE.per_prompt_token_s * prompt)
        free_s = begun_s + TRUE.per_prompt_token_s * prompt + TRUE.per_output_token_s * output

    assert pytest.approx(expected) == TRUE.of(part)


def test_what_arrives_meanwhile_is_counted_request_by_request(traffic):
    """Lengths of answers would be taken for those of others."""
    part, per_s = traffic(requests=300), 0.01
    expected = [
        sum(
            float(prompt)
            for at_s, prompt in zip(part.due_s[i + 1 :], part.prompt_tokens[i + 1 :], strict=True)
            if at_s <= part.due_s[i] + per_s * part.output_tokens[i]
        )
        / part.output_tokens[i]
        for i in range(len(part))
    ]

    assert pytest.approx(expected) == Meanwhile(per_s).of(part)


def test_seeds_scatter_much_less_and_their_mean_stays(traffic):
    """More seeds would be paid for, or the capacity would be another one."""
    trials = [_tried(traffic, seed) for seed in range(60)]
    adjusted = Adjusted(Known(traffic))
    adjusted.fit(trials, WANTED)

    raw = np.array([t.shares[0].met / t.shares[0].of for t in trials])
    values = np.array(adjusted(trials, WANTED).values)
    rng = np.random.default_rng(3)
    expected = np.mean(
        [
            np.mean(TRUE.of(part) + 0.05 * rng.standard_normal(len(part)) <= 1.5)
            for part in Known(traffic).long(3.5, 2000)
        ]
    )

    assert values.std() < 0.5 * raw.std()
    assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(len(values)) + 0.005


def test_a_proxy_of_nothing_leaves_the_mean_alone(traffic):
    """Wrong constants would move the capacity instead of costing precision."""
    trials = [_tried(traffic, seed) for seed in range(60)]
    adjusted = Adjusted(Known(traffic))
    wrong = Queue(0.0, 1e-5)
    values = wrong.of(traffic(0))
    adjusted._proxies[JOINT] = wrong, np.quantile(values, np.arange(1, LEVELS) / LEVELS)  # a wrong choice

    raw = np.array([t.shares[0].met / t.shares[0].of for t in trials])
    found = np.array(adjusted(trials, WANTED).values)

    assert abs(found.mean() - raw.mean()) < 3 * raw.std() / np.sqrt(len(raw))


def test_few_misses_are_not_explained(traffic):
    """The accidents of three requests would pass for a law."""
    trials = [_tried(traffic, seed, bound_s=1e9) for seed in range(3)]
    adjusted = Adjusted(Known(traffic))
    adjusted.fit(trials, WANTED)

    assert (1.0, 1.0, 1.0) == adjusted(trials, WANTED).values
