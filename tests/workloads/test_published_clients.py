"""Arrivals, lengths and requests of ServeGen client pools: real count noise, the pool's rates, no perfect pairing."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from harness.errors import UsageError
from harness.stats import arrivals
from workloads import catalog
from workloads._pool import ClientPool, choose
from workloads._token_laws import counted
from workloads.clients import Clients

WINDOW_S = 600


@pytest.fixture(scope="module")
def reason() -> Callable[[Path], str]:
    """The folder of the pool with lengths."""
    return lambda data: str(data / "traces/servegen/reason/deepseek-r1")


@pytest.fixture
def pool(tmp_path: Path) -> Callable[..., str]:
    """Writes a pool; each client is (rows of the trace, dataset or None)."""

    def write(*clients: tuple[str, dict[str, dict[str, str]] | None]) -> str:
        for number, (rows, dataset) in enumerate(clients):
            (tmp_path / f"chunk-{number}-trace.csv").write_text(rows)
            if dataset is not None:
                (tmp_path / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))
        return str(tmp_path)

    return write


def law(prompt: str, output: str) -> dict[str, str]:
    return {"input_tokens": prompt, "output_tokens": output}


def counts(pool: ClientPool, windows: int, seed: int) -> np.ndarray:
    """(clients, windows) arrivals per window of 600 s."""
    found = np.zeros((len(pool.clients), windows))
    for times, client in pool.blocks(np.random.default_rng(seed)):
        window = (times // WINDOW_S).astype(int)
        inside = window < windows
        np.add.at(found, (client[inside], window[inside]), 1)
        if not inside.all():
            return found
    raise AssertionError("blocks are endless")


@pytest.mark.parametrize(("family", "shape"), [("Gamma", 0.25), ("Gamma", 1.0), ("Gamma", 4.0), ("Weibull", 0.6)])
def test_counts_of_a_client_vary_as_its_gap_law_says(pool: Callable[..., str], family: str, shape: float) -> None:
    """If this failed, a window would always hold the same number of requests, as with ServeGen's own generator."""
    cv = shape**-0.5 if family == "Gamma" else stats.weibull_min(shape).std() / stats.weibull_min(shape).mean()
    rows = "".join(f"{start},0.5,{cv},{family},{shape},1\n" for start in (0, WINDOW_S))
    per_window = counts(
        choose(pool((rows, None)), rate_rps=None, clients=None, start_s=0.0, usable=counted), 1500, seed=1
    )[0]

    assert 300 == pytest.approx(per_window.mean(), rel=0.02)
    assert cv**2 == pytest.approx(per_window.var() / per_window.mean(), rel=0.2)


@pytest.mark.nightly
def test_a_day_of_all_clients_follows_the_rates_of_the_pool(shared_data: Path, reason: Callable[[Path], str]) -> None:
    """If this failed, the superposed clients would not be the service that was measured."""
    made = choose(reason(shared_data), rate_rps=None, clients=None, start_s=0.0, usable=counted)
    per_window = counts(made, 144, seed=2)
    table = np.array([client.rate_rps for client in made.clients]) * WINDOW_S
    steady = np.array([client.gap_cv for client in made.clients])

    assert np.corrcoef(per_window.sum(axis=0), table.sum(axis=0))[0, 1] > 0.98
    assert 1.0 == pytest.approx(per_window.sum() / table.sum(), rel=0.02)
    assert 0.93 == pytest.approx(arrivals.autocorrelation(per_window.sum(axis=0)), abs=0.05)
    assert 0.01 < np.mean((per_window - table)[(table > 100) & (steady > 0)] == 0) < 0.10  # not the expected number


def test_gaps_of_clients_spread_like_those_of_the_pool(shared_data: Path, reason: Callable[[Path], str]) -> None:
    """If this failed, clients would be too even: half of the windows of the pool have a CV above 1."""
    made = choose(reason(shared_data), rate_rps=None, clients=20, start_s=0.0, usable=counted)
    found, stated = [], []
    blocks = list(islice(made.blocks(np.random.default_rng(3)), 40))
    times, client = (np.concatenate(part) for part in zip(*blocks, strict=True))
    for i, one in enumerate(made.clients):
        own = times[client == i]
        for window in range(int(times[-1] // WINDOW_S)):
            inside = own[(own >= WINDOW_S * window) & (own < WINDOW_S * (window + 1))]
            cv = arrivals.gap_cv(inside) if len(inside) > 100 else None
            if cv is not None and one.family[window] == "Gamma":
                found.append(cv)
                stated.append(float(one.gap_cv[window]))

    assert len(found) >= 100
    np.testing.assert_allclose(np.quantile(stated, [0.25, 0.5, 0.75]), np.quantile(found, [0.25, 0.5, 0.75]), rtol=0.1)
    assert stats.spearmanr(found, stated).statistic > 0.6


def test_prompt_and_output_are_not_drawn_from_one_number(shared_data: Path, reason: Callable[[Path], str]) -> None:
    """If this failed, the longest prompt would always get the longest answer, as with ServeGen's own generator."""
    workload = Clients(reason(shared_data))
    table = pa.concat_tables(islice(workload.start(np.random.default_rng(4)), 1))
    pairs = np.stack([np.asarray(table[name]) for name in ("prompt_tokens", "output_tokens")])
    one_law = workload.laws.draw(np.zeros(20_000, np.int64), np.random.default_rng(5))

    assert len(table) > 5_000
    assert abs(stats.spearmanr(*pairs).statistic) < 0.6
    assert 0 == pytest.approx(stats.spearmanr(one_law.prompts, one_law.outputs).statistic, abs=0.03)


def test_requests_carry_their_client_and_its_lengths(pool: Callable[..., str]) -> None:
    """If this failed, a burst of one client would come with the lengths of another."""
    path = pool(
        ("0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n", {"0": law("{7: 1.0}", "{3: 1.0}")}),
        ("0,0,0,,0,0\n600,4,1,Gamma,1,0.25\n", {"0": law("{}", "{}"), "600": law("{70: 0.5, 90: 0.5}", "{40: 1.0}")}),
        ("0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n", {"0": law("{5: 1}", "{1: 1}"), "600": law("{6: 1}", "{2: 1}")}),
    )
    workload = Clients(path)
    chunks = list(islice(workload.start(np.random.default_rng(6)), 4))
    table = pa.concat_tables(chunks)
    at_s, prompt, output = (np.asarray(table[name]) for name in ("scheduled_s", "prompt_tokens", "output_tokens"))
    tag = np.asarray(table["tag"])
    late = at_s % 1200 >= WINDOW_S

    np.testing.assert_array_equal(np.arange(table.num_rows), np.asarray(table["id"]))
    assert np.all(np.diff(at_s) >= 0)
    assert {"client-0", "client-1", "client-2"} == set(tag)
    assert not np.any(late[tag == "client-0"])
    assert np.all(late[tag == "client-1"])
    assert {(7, 3)} == set(zip(prompt[tag == "client-0"], output[tag == "client-0"], strict=True))
    assert {70, 90} == set(prompt[tag == "client-1"])
    np.testing.assert_array_equal(np.where(late, 6, 5)[tag == "client-2"], prompt[tag == "client-2"])
    assert 4.0 == pytest.approx(workload.mean_rate_rps)
    assert "3 of 3" == workload.describe()["clients"]


def test_a_window_without_lengths_has_those_of_the_window_before(pool: Callable[..., str]) -> None:
    """If this failed, a client would be refused, or be given lengths of other clients, for a quiet stretch."""
    rows = "0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n1200,1,1,Gamma,1,1\n"
    path = pool((rows, {"600": law("{8: 1}", "{2: 1}"), "1200": law("{}", "{9: 1}")}))
    chunk = next(Clients(path).start(np.random.default_rng(1)))

    assert {8} == set(chunk["prompt_tokens"].to_pylist())


def test_requests_of_no_tokens_are_left_out_and_reported(pool: Callable[..., str]) -> None:
    """If this failed, zero-token requests would be drawn, or vanish without a word."""
    rows = "0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n"
    workload = Clients(pool((rows, {"0": law("{0: 0.25, 4: 0.75}", "{2: 1}")})))

    assert {4} == set(next(workload.start(np.random.default_rng(1)))["prompt_tokens"].to_pylist())
    assert 0.25 == pytest.approx(workload.facts["zero_tokens_left_out"])


IMAGES = {
    "text_tokens": "{0: 0.5, 10: 0.5}", "image_tokens": "{100: 0.25, 200: 0.75}", "image_count": "{1: 0.5, 3: 0.5}",
    "audio_tokens": "{0: 1.0}", "audio_count": "{0: 1.0}", "video_tokens": "{7: 1.0}",
    "video_count": "{0: 0.5, 1: 0.5}", "output_tokens": "{3: 1.0}",
}  # fmt: skip
EMPTY = dict.fromkeys(IMAGES, "{0: 1.0}")
"""What a multimodal pool has where a client is silent."""


def test_prompts_of_a_multimodal_pool_are_text_and_so_many_images(pool: Callable[..., str]) -> None:
    """Images would be text, or one number of tokens whatever their number."""
    path = pool(("0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n", {"0": IMAGES, "600": EMPTY}))
    chunks = list(islice(Clients(path).start(np.random.default_rng(2)), 40))
    table = pa.concat_tables(chunks)
    images = table["extra"].combine_chunks().field("image_tokens").to_numpy()
    rest = table["prompt_tokens"].to_numpy() - images
    mean = 2 * 175.0

    assert {100, 200, 300, 400, 500, 600} == set(images.tolist())
    assert {0, 7, 10, 17} == set(rest.tolist())
    assert mean == pytest.approx(images.mean(), rel=0.02)
    assert mean + 5 + 3.5 == pytest.approx(table["prompt_tokens"].to_numpy().mean(), rel=0.02)
    assert {3} == set(table["output_tokens"].to_pylist())


def test_clients_without_token_counts_are_left_out_and_named(pool: Callable[..., str]) -> None:
    """One client with a gap would make a pool unusable, or would send requests without tokens."""
    rows = "0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n"
    workload = Clients(pool((rows, {"0": IMAGES}), (rows, None), (rows, {"0": EMPTY, "600": EMPTY})))
    chunk = next(workload.start(np.random.default_rng(1)))

    assert {"client-0"} == set(chunk["tag"].to_pylist())
    assert ("1 of 3", "1, 2") == (workload.facts["clients"], workload.facts["clients_without_tokens"])
    assert 1.0 == workload.mean_rate_rps
    assert "Clients left out, without token counts: 1, 2" in catalog.explain(f"servegen:{workload.path}")


def test_the_span_comes_round_and_can_begin_anywhere(pool: Callable[..., str]) -> None:
    """If this failed, a long run would run dry, or a run could not skip the night."""
    path = pool(("0,4,1,Gamma,1,0.25\n600,0,0,,0,0\n1200,1,1,Gamma,1,1\n", None))
    shifted = counts(choose(path, rate_rps=None, clients=None, start_s=900.0, usable=counted), 12, seed=3)[0]
    whole = counts(choose(path, rate_rps=None, clients=None, start_s=0.0, usable=counted), 12, seed=3)[0]

    np.testing.assert_allclose([2400, 0, 600] * 4, whole, atol=200)
    np.testing.assert_allclose([300, 1500, 1200] * 4, shifted, atol=200)


@pytest.mark.nightly
def test_the_largest_clients_and_another_rate(shared_data: Path, reason: Callable[[Path], str]) -> None:
    """If this failed, `clients=5` would not be the five that matter, or --rate would change who they are."""
    whole, few = (choose(reason(shared_data), rate_rps=None, clients=n, start_s=0.0, usable=counted) for n in (None, 5))
    scaled = Clients(reason(shared_data), rate_rps=2.0, clients=5)

    assert few.mean_rate_rps == pytest.approx(0.5 * whole.mean_rate_rps, rel=0.1)
    assert 2.0 == pytest.approx(scaled.mean_rate_rps)
    assert [c.number for c in few.clients] == [c.number for c in scaled.pool.clients]


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (None, "has no token counts"),
        ({"0": law("{1.5: 1}", "{2: 1}")}, "whole numbers"),
        ({"0": law("{0: 1}", "{2: 1}")}, "no token counts above 0"),
    ],
)
def test_pools_without_usable_lengths_are_refused(
    pool: Callable[..., str], dataset: dict[str, dict[str, str]] | None, words: str
) -> None:
    """If this failed, requests without tokens would be sent."""
    path = pool(("0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n", dataset))
    with pytest.raises(UsageError, match=words):
        Clients(path)
