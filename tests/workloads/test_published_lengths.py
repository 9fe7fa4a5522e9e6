"""Every list of published lengths against its stored figures (traces E1 to E3)."""

import csv
import json
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import make_lengths
import make_lengths_burstgpt
from harness.api import Lengths
from harness.registry import make
from workloads.lengths._empirical import load

DRAWS = 100_000
BOUND = 1.36 / math.sqrt(DRAWS) + 0.005
LISTS = {
    "sharegpt:preparation=distserve": "sharegpt_distserve_opt",
    "sharegpt:preparation=first-turn": "sharegpt_first_turn_longchat",
    "sharegpt:preparation=multi-turn-8k": "sharegpt_multiturn_8k_llama2",
    "humaneval": "humaneval_opt",
    "azure": "azure2023_conv",
    "mooncake": "mooncake_conversation",
    "lmsys": "lmsys_chat_first_turn_longchat",
    "arxiv": "arxiv_summarization_llama2",
    "bwb": "bwb_translation_llama2",
}
NEW = ["azure", "mooncake", "lmsys", "arxiv", "bwb"]
LIMITED = {"arxiv": 4096, "bwb": 4096}


def draw(lengths: Lengths, count: int = DRAWS, seed: int = 1) -> np.ndarray:
    """(N, 2) prompts and outputs."""
    return np.array(list(islice(lengths.pairs(np.random.default_rng(seed)), count)))


def stored(shared_data: Path, name: str) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((shared_data / "lengths" / f"{name}.json").read_text())
    return found


def distance(values: np.ndarray, quantiles: list[int]) -> float:
    """Largest distance between the CDF of the values and the stored quantiles (inverted CDF, whole numbers)."""
    at = np.array(quantiles)
    last = np.searchsorted(at, at, side="right") - 1  # the last percentile at which a value stands
    return float(np.abs(np.searchsorted(np.sort(values), at[1:], side="right") / len(values) - last[1:] / 100).max())


@pytest.mark.parametrize("spec", LISTS)
def test_lists_have_their_quantiles_and_their_rank_correlation(shared_data: Path, spec: str) -> None:
    """Traces E1 and E2: if this failed, a name would promise lengths that it does not draw."""
    known = stored(shared_data, LISTS[spec])
    drawn = draw(make("lengths", spec))

    for side, values in zip(("prompt", "output"), drawn.T, strict=True):
        assert distance(values, known[side]["quantiles_0_100"]) <= BOUND
    assert known["joint"]["spearman"] == pytest.approx(stats.spearmanr(*drawn.T).statistic, abs=0.03)


@pytest.mark.parametrize("name", LISTS)
def test_lists_have_their_means(shared_data: Path, name: str) -> None:
    """If this failed, the offered load in tokens would be off by the interpolation of a long tail."""
    known = stored(shared_data, LISTS[name])
    means = [known[side]["mean"] for side in ("prompt", "output")]

    np.testing.assert_allclose(means, make("lengths", name).mean_tokens, rtol=2e-4 if name in LIMITED else 1e-5)


@pytest.mark.parametrize("name", LIMITED)
def test_totals_stay_within_the_limit_of_the_list(name: str) -> None:
    """If this failed, pairs that the preparation left out would overflow a model's context."""
    shares = load(name).copula.shares

    assert draw(make("lengths", name)).sum(axis=1).max() <= LIMITED[name]
    np.testing.assert_allclose(0.01, shares.sum(axis=1), rtol=0, atol=2e-5)
    np.testing.assert_allclose(0.01, shares.sum(axis=0), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", [*NEW, "burstgpt", "burstgpt:api"])
def test_lists_say_what_they_are(name: str) -> None:
    """If this failed, a report could not name tokenizer, preparation, source and licence of its lengths."""
    made = make("lengths", name)

    assert {"preparation", "tokenizer", "source", "licence"} <= set(made.facts)
    assert made.quantile_tokens(50)[0] == pytest.approx(np.median(draw(made, 20_000)[:, 0]), rel=0.03)
    assert made.quantile_tokens(0)[0] < made.quantile_tokens(99)[0] < made.quantile_tokens(100)[0]


@pytest.mark.parametrize("side", ["request", "response"])
def test_burstgpt_conversations_have_the_histograms_of_figure_7(shared_data: Path, side: str) -> None:
    """Traces E1: if this failed, the two humps of the answers would be smoothed away."""
    path = shared_data / "traces/burstgpt/paper_figures/fig7_chatgpt_conversation_token_histogram.csv"
    with path.open() as file:
        rows = [(int(row["token_bin_end"]), int(row[f"{side}_count"])) for row in csv.DictReader(file)]
    ends, counts = np.array(rows).T
    figure = np.cumsum(counts) / counts.sum()

    def off(values: np.ndarray) -> float:
        return float(np.abs(np.searchsorted(np.sort(values), ends) / len(values) - figure).max())

    column = 0 if side == "request" else 1
    assert off(draw(make("lengths", "burstgpt"))[:, column]) <= BOUND


def test_burstgpt_conversations_have_the_rank_correlation_of_figure_10() -> None:
    """Traces E2: if this failed, long questions would have answers as short as those of short ones."""
    prompt, output = draw(make("lengths", "burstgpt")).T

    assert 0.34 == pytest.approx(stats.spearmanr(prompt, output).statistic, abs=0.03)
    assert np.median(output[prompt > 1000]) > 1.5 * np.median(output[prompt < 256])


def test_burstgpt_api_has_the_moments_that_are_known() -> None:
    """If this failed, the second-hand figures would be second-hand and wrong."""
    drawn = draw(make("lengths", "burstgpt:api"), 200_000)

    np.testing.assert_allclose((457, 68.9), make("lengths", "burstgpt:api").mean_tokens, rtol=1e-3)
    np.testing.assert_allclose((457, 68.9), drawn.mean(axis=0), rtol=0.03)
    np.testing.assert_allclose((326, 14), np.median(drawn, axis=0), rtol=0.02)
    assert 0.18 == pytest.approx(stats.spearmanr(*drawn.T).statistic, abs=0.03)
    assert np.all(drawn.max(axis=0) <= (125_591, 5_383))


def test_shipped_burstgpt_figures_are_what_the_script_makes(shared_data: Path) -> None:
    """If this failed, it would be unknown where the shipped numbers come from."""
    shipped = json.loads((make_lengths.FIGURES / f"{make_lengths_burstgpt.NAME}.json").read_text())
    made = json.loads(json.dumps(make_lengths_burstgpt.figures(shared_data)))

    assert made.pop("tilt") == pytest.approx(shipped.pop("tilt"), abs=1e-3)
    assert made == shipped


def test_an_unknown_service_is_refused_in_code_too() -> None:
    """If this failed, a wrong name in Python would draw the other service."""
    with pytest.raises(ValueError, match="service must be one of"):
        type(make("lengths", "burstgpt"))("chat")
