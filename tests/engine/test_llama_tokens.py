"""Sampled tokens: the same for a request whatever the batch, the chunks and the preemptions."""

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from backends.executors._layers import sample
from backends.executors.llama import Llama
from harness.api import Piece

OUTPUTS = 60


def outputs(kit: Any, model: Llama, *, seed: int, temperature: float = 0.0, mixed: bool = True) -> list[list[int]]:
    """Tokens of 8 requests; `mixed` runs them together with random chunks, preemptions and pages."""
    rng = np.random.default_rng(seed)
    pages = kit.Pages(400, 16, seed)
    model.allocate(400, 16)
    prompts = [np.random.default_rng(100 + i).integers(0, model.vocab_size, 5 + 37 * i) for i in range(8)]
    runs = [kit.Run(i, prompt, pages, OUTPUTS, temperature) for i, prompt in enumerate(prompts)]
    if not mixed:
        for run in runs:
            kit.generate(model, [run], lambda: 1000, lambda: False)
    else:
        kit.generate(model, runs, lambda: int(rng.choice([1, 2, 50, 1000])), lambda: bool(rng.random() < 0.02))
    return [run.output for run in runs]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_tokens_do_not_depend_on_chunks_batches_or_preemption(kit: Any, seed: int, temperature: float) -> None:
    """Comparing policies on the engine would compare different texts."""
    model = Llama(dtype="float64", vocab=512)
    alone = outputs(kit, model, seed=0, temperature=temperature, mixed=False)
    mixed = outputs(kit, model, seed=seed, temperature=temperature)

    assert alone == mixed
    assert {OUTPUTS} == {len(tokens) for tokens in mixed}


def _orders_sums_alike(dtype: str) -> bool:
    """OpenBLAS kernels whose sums do not depend on the row; those for AVX2 do in float32."""
    blas = [i for i in threadpool_info() if i["user_api"] == "blas"]
    known = ("SkylakeX", "Sandybridge", *(("Haswell", "Zen") if dtype == "float64" else ()))
    return bool(blas) and all(i["internal_api"] == "openblas" and i.get("architecture") in known for i in blas)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_are_equal_to_the_last_bit_however_the_batch_is_cut(kit: Any, dtype: Any) -> None:
    """Greedy tokens would flip on near-ties from one policy to the next."""
    if not _orders_sums_alike(dtype):
        pytest.skip(f"this BLAS orders {dtype} sums by the shape of the product; greedy tokens may flip on near-ties")
    model = Llama(dtype=dtype)
    model.allocate(500, 16)
    pages, rng = kit.Pages(500, 16), np.random.default_rng(0)
    sequences = [rng.integers(0, model.vocab_size, n).tolist() for n in (2, 40, 128, 129, 300, 513)]
    blocks = [pages.take(len(ids)) for ids in sequences]
    whole = [
        model.logits([Piece(0, ids, 0, held, True)])[0].tobytes() for ids, held in zip(sequences, blocks, strict=True)
    ]
    for sizes in ([1], [2, 3, 1, 30], [1, 200]):
        computed, last = [0] * len(sequences), [b""] * len(sequences)
        while any(done < len(ids) for done, ids in zip(computed, sequences, strict=True)):
            live = [i for i, ids in enumerate(sequences) if computed[i] < len(ids)]
            cuts = [int(rng.choice(sizes)) for _ in live]
            pieces = [
                Piece(i, sequences[i][computed[i] : computed[i] + n], computed[i], blocks[i], True)
                for i, n in zip(live, cuts, strict=True)
            ]
            for piece, row in zip(pieces, model.logits(pieces), strict=True):
                computed[piece.request_id] += len(piece.token_ids)
                last[piece.request_id] = row.tobytes()

        assert whole == last


def test_greedy_takes_the_most_likely_token(kit: Any) -> None:
    """Temperature 0 would not be greedy."""
    model = Llama(vocab=64)
    model.allocate(4, 16)
    piece = Piece(0, [3, 1, 4, 1, 5], 0, [2], True)

    assert [int(model.logits([piece])[0].argmax())] == model.execute([piece])


@pytest.mark.nightly
def test_sampling_follows_the_softmax_of_the_logits() -> None:
    """Sampled text would have another distribution than the model's."""
    model = Llama(vocab=16, hidden=32, heads=2, kv_heads=1)
    model.allocate(4, 16)
    ids, draws = [3, 1, 4], 4000
    logits = model.logits([Piece(0, ids, 0, [2], True)])[0].astype(float) / 0.7
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    drawn = [t for s in range(draws) for t in model.execute([Piece(0, ids, 0, [2], True, 0.7, seed=s)])]
    got = np.bincount(np.array(drawn, int), minlength=16) / draws
    spread = np.sqrt(expected * (1 - expected) / draws)

    assert bool((np.abs(expected - got) < 4 * spread + 1e-3).all())


def test_sampling_depends_on_seed_and_position() -> None:
    """All requests, or all tokens of one, would share one random number."""
    model = Llama(vocab=4096)
    model.allocate(8, 16)
    by_seed = model.execute([Piece(0, [3, 1], 0, [2], True, 100.0, seed=s) for s in range(20)])
    by_position = [model.execute([Piece(0, [3] * n, 0, [2], True, 100.0, seed=1)])[0] for n in range(2, 16)]

    assert len(set(by_seed)) > 15
    assert len(set(by_position)) > 10
    assert by_seed == model.execute([Piece(0, [3, 1], 0, [2], True, 100.0, seed=s) for s in range(20)])


@pytest.mark.parametrize(("top_p", "allowed"), [(0.5, {2}), (0.7, {2, 0}), (0.81, {2, 0, 3}), (1e-9, {2}), (1.0, None)])
def test_the_nucleus_is_the_likeliest_tokens_that_reach_top_p(top_p: float, allowed: set[int] | None) -> None:
    """A client that asks for top_p would get the improbable words it wants to exclude."""
    shares = np.array([0.2, 0.08, 0.55, 0.1, 0.07])
    pieces = [Piece(0, [1], 0, [0], True, 1.0, seed=s, top_p=top_p) for s in range(3000)]
    drawn = sample(np.log(np.tile(shares, (3000, 1))), pieces)
    kept = [i for i in range(5) if allowed is None or i in allowed]
    got = np.bincount(np.array(drawn), minlength=5)[kept] / 3000

    assert set(kept) == set(drawn)
    np.testing.assert_allclose(got, shares[kept] / shares[kept].sum(), atol=0.03)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_forbidden_token_does_not_come(temperature: float) -> None:
    """An answer would end before the length that the client requested."""
    logits = np.log(np.tile([0.1, 0.8, 0.06, 0.04], (200, 1)))
    pieces = [Piece(0, [1], 0, [0], True, temperature, seed=s, forbidden=(1, 2)) for s in range(200)]

    assert {0} | ({3} if temperature else set()) == set(sample(logits, pieces))


@pytest.mark.parametrize("temperature", [1e-300, 1e300])
def test_extreme_temperatures_stay_in_range(temperature: float) -> None:
    """A user's odd temperature would end the run with an overflow."""
    model = Llama(vocab=64)
    model.allocate(4, 16)
    piece = Piece(0, [3, 1, 4, 1, 5], 0, [2], True, temperature, seed=-7)
    token = model.execute([piece])[0]

    assert token is not None
    assert token in range(64)


def test_seeds_make_different_models() -> None:
    """The seed would not reach the weights."""
    logits = []
    for seed in (0, 0, 1):
        model = Llama(seed=seed, vocab=64)
        model.allocate(2, 16)
        logits.append(model.logits([Piece(0, [1, 2, 3], 0, [0], True)]))

    assert np.array_equal(logits[0], logits[1])
    assert not np.array_equal(logits[0], logits[2])


def test_facts_for_the_run_folder() -> None:
    """run.json would not tell what was served."""
    model = Llama()
    facts = model.describe()

    assert (model.vocab_size, model.max_tokens) == (facts["vocab_size"], facts["max_tokens"])
    per_token = 2 * 2 * 2 * 32 * 4
    parameters = 2 * 4096 * 256 + 256 + 2 * (2 * 256 + 2 * 128 * 256 + 2 * 64 * 256 + 3 * 256 * 512)

    assert per_token == facts["kv_bytes_per_token"]
    assert parameters == facts["parameters"]
