"""Paged, chunked, batched and recomputed execution against a plain dense float64 forward."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.executors.llama import Llama
from harness.api import Piece

VARIANTS = (
    "gqa", "mha", "mqa", "odd-groups", "large-groups", "bias", "tied", "wide-heads", "window", "wide-window",
    "mixed-windows", "linear-rope", "llama3-rope",
)  # fmt: skip
NIGHTLY = [(1, 16), (130, 1), (16, 16)]
"""Tokens of a chunk and of a block that are as good as others and take longer."""
TOLERANCE = {"float32": 2e-4, "float64": 1e-10}


def ids_of(count: int, seed: int, vocab: int = 160) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return drawn


def paged(model: Llama, ids: list[int], chunk: int, blocks: list[int]) -> np.ndarray:
    """Logits after every chunk, (chunks, V)."""
    starts = range(0, len(ids), chunk)
    return np.array([model.logits([Piece(0, ids[s : s + chunk], s, blocks, True)])[0] for s in starts])


def test_every_variant_of_the_tests_is_covered(kit: Any) -> None:
    """A model variant would be described but never run."""
    assert set(kit.variants) == set(VARIANTS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("chunk", "block_size"),
    [(300, 16), (7, 16), (64, 5), (33, 48), *(pytest.param(*p, marks=pytest.mark.nightly) for p in NIGHTLY)],
)
def test_chunks_over_scattered_pages_equal_the_dense_forward(
    kit: Any, tmp_path: Path, variant: str, dtype: Any, chunk: int, block_size: int
) -> None:
    """The engine would compute something else than the model once a prompt is cut or its pages scatter."""
    folder = kit.write_model(tmp_path / "model", variant)
    model = Llama(model=str(folder), dtype=dtype)
    model.allocate(400, block_size)
    ids = ids_of(300, seed=1)
    expected = kit.dense_logits(folder, ids)
    got = paged(model, ids, chunk, kit.Pages(400, block_size).take(300))
    ends = [min(i + chunk, 300) - 1 for i in range(0, 300, chunk)]

    assert got.dtype == np.dtype(dtype)
    np.testing.assert_allclose(expected[ends], got, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variant", ["gqa", "mha", "mixed-windows"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_mixed_batches_equal_the_dense_forward(kit: Any, tmp_path: Path, variant: str, dtype: Any, seed: int) -> None:
    """A request's tokens would depend on who else is in the batch: decodes, chunks and whole prompts."""
    folder = kit.write_model(tmp_path / "model", variant)
    model = Llama(model=str(folder), dtype=dtype)
    model.allocate(600, 16)
    pages, rng = kit.Pages(600, 16, seed), np.random.default_rng(seed)
    sequences = [ids_of(int(n), seed=i) for i, n in enumerate(rng.integers(2, 400, 12))]
    blocks = [pages.take(len(ids)) for ids in sequences]
    expected = [kit.dense_logits(folder, ids) for ids in sequences]
    computed = [0] * len(sequences)
    worst = 0.0
    while any(done < len(ids) for done, ids in zip(computed, sequences, strict=True)):
        live = [i for i, ids in enumerate(sequences) if computed[i] < len(ids)]
        live = sorted(live, key=lambda _: rng.random())
        sizes = [int(rng.choice([1, 1, 2, 3, 17, 90, 400])) for _ in live]
        pieces = [
            Piece(
                i,
                sequences[i][computed[i] : computed[i] + n],
                computed[i],
                blocks[i],
                bool(rng.random() < 0.7),
            )
            for i, n in zip(live, sizes, strict=True)
        ]
        got = model.logits(pieces)
        for piece in pieces:
            computed[piece.request_id] += len(piece.token_ids)
        wanted = [expected[p.request_id][computed[p.request_id] - 1] for p in pieces if p.sample]

        assert got.shape == (len(wanted), 160)
        worst = max([worst, *(float(np.abs(w - g).max()) for w, g in zip(wanted, got, strict=True))])

    assert worst < TOLERANCE[dtype]


def test_recomputing_in_other_pages_gives_the_same_logits(kit: Any, tmp_path: Path) -> None:
    """A preempted request would come back with another text; stale pages would leak into it."""
    model = Llama(model=str(kit.write_model(tmp_path / "model", "gqa")), dtype="float64")
    model.allocate(100, 16)
    pages, ids = kit.Pages(100, 16), ids_of(200, seed=3)
    first = paged(model, ids, 50, pages.take(200))[-1]
    paged(model, ids_of(400, seed=4), 400, pages.take(400))  # another sequence writes
    again = paged(model, ids, 200, pages.take(200))[-1]

    np.testing.assert_allclose(first, again, rtol=0, atol=1e-12)


def test_sequences_may_share_the_pages_of_a_prefix(kit: Any, tmp_path: Path) -> None:
    """A prefix cache could not reuse pages."""
    folder = kit.write_model(tmp_path / "model", "gqa")
    model = Llama(model=str(folder), dtype="float64")
    model.allocate(50, 16)
    pages = kit.Pages(50, 16)
    shared, tails = ids_of(32, seed=5), (ids_of(20, seed=6), ids_of(9, seed=7))
    prefix = pages.take(32)
    model.execute([Piece(0, shared, 0, prefix, False)])
    got = model.logits([Piece(i, tail, 32, prefix + pages.take(len(tail)), True) for i, tail in enumerate(tails)])
    expected = [kit.dense_logits(folder, shared + tail)[-1] for tail in tails]

    np.testing.assert_allclose(expected, got, rtol=0, atol=1e-10)


def test_pieces_that_do_not_sample_give_none(kit: Any, tmp_path: Path) -> None:
    """A half-computed prompt would emit a token."""
    model = Llama(model=str(kit.write_model(tmp_path / "model", "gqa")))
    model.allocate(10, 16)

    first = model.execute([Piece(0, [1, 2, 3], 0, [4], False)])
    second = model.execute([Piece(0, [4], 3, [4], False)])
    nothing = model.execute([])

    expected: list[list[None]] = [[None], [None], []]

    assert expected == [first, second, nothing]


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (
            Piece(7, [1] * 17, 0, [0], True),
            "request 7: 17 tokens at position 0 do not fit 1 pages of 16 tokens",
        ),
        (Piece(7, [], 0, [0], True), "request 7: 0 tokens"),
        (Piece(7, [1], 0, [10], True), r"request 7: a page is not in \[0, 10\)"),
        (Piece(7, [1], 0, [-1], True), "request 7: a page is not in"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused(kit: Any, tmp_path: Path, piece: Piece, words: str) -> None:
    """A scheduler's mistake would silently overwrite another request's memory."""
    model = Llama(model=str(kit.write_model(tmp_path / "model", "gqa")))
    model.allocate(10, 16)

    with pytest.raises(ValueError, match=words):
        model.execute([piece])
