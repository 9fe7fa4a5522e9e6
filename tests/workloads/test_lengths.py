"""Length samplers against the real lists and against theory."""

import csv
import json
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import make_lengths
from harness.api import Lengths
from harness.registry import find, make
from workloads.lengths._empirical import load
from workloads.lengths.builtin import Lognormal, Uniform

DRAWS = 100_000


def draw(lengths: Lengths, count: int = DRAWS, seed: int = 1) -> np.ndarray:
    return np.array(list(islice(lengths.pairs(np.random.default_rng(seed)), count)))  # (N, 2)


def test_humaneval_means_are_those_of_distserve(shared_data: Path) -> None:
    """Traces E3: if this failed, tokenizer or preparation would not be DistServe's."""
    with (shared_data / "traces/humaneval/humaneval_opt_lengths.csv").open() as file:
        rows = np.array([(int(r["prompt_tokens"]), int(r["solution_tokens"])) for r in csv.DictReader(file)])
    stated = make("lengths", "humaneval").mean_tokens

    assert (171.35, 98.17) == tuple(np.round(stated, 2))
    np.testing.assert_allclose(rows.mean(axis=0), stated, atol=1e-6)


def test_longbench_samples_are_distserves_preparation_of_the_three_tasks(shared_data: Path) -> None:
    """If this failed, the cut at min(2,040 - answer, 1,900..2,048) would not be what is drawn."""
    with (shared_data / "traces/longbench/longbench_subset_lengths.csv").open() as file:
        rows = np.array([(int(r["context_tokens"]), int(r["answer_tokens"])) for r in csv.DictReader(file)])
    rng = np.random.default_rng(2)
    context, answer = rows[rng.integers(0, len(rows), 20_000)].T
    prompt = np.minimum(context, np.minimum(2040 - answer, rng.integers(1900, 2048, 20_000, endpoint=True)))
    drawn = draw(make("lengths", "longbench"), 20_000)

    assert stats.ks_2samp(prompt, drawn[:, 0]).statistic < 0.025
    assert abs(stats.spearmanr(prompt, answer).statistic - stats.spearmanr(*drawn.T).statistic) < 0.03
    np.testing.assert_allclose((prompt.mean(), answer.mean()), make("lengths", "longbench").mean_tokens, rtol=0.01)


@pytest.mark.parametrize(
    ("lengths", "limit"),
    [
        (make("lengths", "sharegpt"), 2047),
        (make("lengths", "sharegpt:multi-turn-8k"), 8192),
        (make("lengths", "longbench"), 2047),
    ],
)
def test_prompt_and_output_stay_within_the_limit_of_the_preparation(lengths: Lengths, limit: int) -> None:
    """If this failed, pairs that the real preparation never makes would overflow a model's context."""
    assert draw(lengths).sum(axis=1).max() <= limit


@pytest.mark.parametrize(
    "name", ["sharegpt_distserve", "sharegpt_first_turn", "sharegpt_multi_turn_8k", "humaneval", "longbench"]
)
def test_the_copula_leaves_the_marginals_alone(name: str) -> None:
    """If this failed, asking for the right correlation would change the lengths themselves."""
    shares = load(name).copula.shares
    tolerance = 2e-5 if name == "longbench" else 1e-12

    np.testing.assert_allclose(0.01, shares.sum(axis=1), rtol=0, atol=tolerance)
    np.testing.assert_allclose(0.01, shares.sum(axis=0), rtol=0, atol=tolerance)


@pytest.mark.nightly
@pytest.mark.parametrize("source", make_lengths.SOURCES, ids=lambda source: source.name)
def test_shipped_figures_are_what_the_script_makes(source: make_lengths.Source, shared_data: Path) -> None:
    """If this failed, it would be unknown where the shipped numbers come from."""
    if not (rows := shared_data / "traces" / source.rows).exists():
        pytest.skip(f"needs {rows.name} of {source.texts['source']}")
    shipped = json.loads((make_lengths.FIGURES / f"{source.name}.json").read_text())
    made = json.loads(json.dumps(make_lengths.figures(source, shared_data)))

    assert pytest.approx(shipped.pop("tilt"), abs=1e-3) == made.pop("tilt")
    assert shipped == made


@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
def test_quantiles_are_those_stored(percent: int) -> None:
    """If this failed, `bench explain` would print another list's figures."""
    figures = json.loads((make_lengths.FIGURES / "sharegpt_distserve.json").read_text())
    expected = tuple(figures[side]["quantiles"][percent] for side in ("prompt", "output"))

    assert expected == make("lengths", "sharegpt").quantile_tokens(percent)


@pytest.mark.parametrize(
    "lengths",
    [
        Lognormal(),
        Lognormal(prompt_mean_tokens=3, prompt_cv=2, output_mean_tokens=1, output_cv=5),
        Lognormal(max_total_tokens=1024),
        Lognormal(prompt_cv=0.05, output_mean_tokens=60_000, output_cv=3),
        Lognormal(prompt_clip="8..600", output_clip="150..151"),
        Uniform(10, 20, 1, 3),
    ],
)
def test_stated_means_are_those_of_the_sampler(lengths: Lengths) -> None:
    """If this failed, rounding, redraws or a bound would shift the load without a word."""
    drawn = draw(lengths)
    error = drawn.std(axis=0) / math.sqrt(len(drawn))

    assert np.all(np.abs(drawn.mean(axis=0) - lengths.mean_tokens) < 4 * error + 1e-9)


def test_lognormal_mean_is_the_sum_over_its_probabilities() -> None:
    """If this failed, 'exact mean' would be a promise that the closed form does not keep."""
    mu, sigma = math.log(390) - math.log(2) / 2, math.sqrt(math.log(2))
    above = stats.lognorm(sigma, scale=math.exp(mu)).sf(np.arange(3_000_000) + 0.5)

    assert above.sum() / above[0] == pytest.approx(Lognormal().mean_tokens[0], rel=1e-9)


def test_lognormal_has_the_requested_spread() -> None:
    """If this failed, 'cv' would not be the coefficient of variation."""
    drawn = draw(Lognormal(prompt_cv=0.5, output_cv=1.5))

    assert 0.5 == pytest.approx(drawn[:, 0].std() / drawn[:, 0].mean(), rel=0.02)
    assert stats.kstest(np.log(drawn[:, 0]), "norm", args=_log_law(390, 0.5)).statistic < 0.01


def _log_law(mean: float, cv: float) -> tuple[float, float]:
    variance = math.log(1 + cv**2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def test_a_clipped_lognormal_piles_up_at_its_ends() -> None:
    """If this failed, a clip would redraw, and the load would be that of another law."""
    prompts = draw(Lognormal(prompt_mean_tokens=100, prompt_clip="50..200"))[:, 0]
    below, above = stats.norm.cdf(np.log([49.5, 199.5]), *_log_law(100, 1))

    assert (50, 200) == (prompts.min(), prompts.max())
    assert [below, 1 - above] == pytest.approx([(prompts == 50).mean(), (prompts == 200).mean()], abs=0.01)


def test_both_bounds_of_a_uniform_come_out() -> None:
    """If this failed, 'max' would be one token less than the user wrote."""
    drawn = draw(Uniform(2, 4, 7, 7), 1000)

    assert {2, 3, 4} == set(drawn[:, 0].tolist())
    assert {7} == set(drawn[:, 1].tolist())


def test_an_unknown_preparation_is_refused_in_code_too() -> None:
    """If this failed, a wrong name in Python would end in a missing file."""
    with pytest.raises(ValueError, match="preparation must be one of"):
        find("lengths", "sharegpt")("other")
