"""The transformer in PyTorch: the model's logits, the tokens of the NumPy executor, whatever the batch."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.executors.llama import Llama
from harness.api import Piece
from harness.errors import UsageError
from harness.registry import make

TOLERANCE = {"float32": 2e-4, "float64": 1e-10, "bfloat16": 0.5}


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed; make nightly installs it")


def ids_of(count: int, seed: int, vocab: int = 160) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return drawn


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("chunk", "block_size"), [(300, 16), (7, 16), (64, 5)])
@pytest.mark.parametrize("variant", ["gqa", "odd-groups", "large-groups", "bias", "tied", "window", "mixed-windows",
                                     "linear-rope", "llama3-rope"])  # fmt: skip
def test_chunks_over_scattered_pages_equal_the_dense_forward(
    kit: Any, tmp_path: Path, variant: str, dtype: str, chunk: int, block_size: int
) -> None:
    """The engine would compute something else than the model once a prompt is cut or its pages scatter."""
    folder = kit.write_model(tmp_path / "model", variant)
    model = make("executors", "torch", model=str(folder), dtype=dtype, device="cpu")
    model.allocate(400, block_size)
    ids, blocks = ids_of(300, seed=1), kit.Pages(400, block_size).take(300)
    starts = range(0, 300, chunk)
    got = np.array([model.logits([Piece(0, ids[s : s + chunk], s, blocks, True)])[0] for s in starts])
    ends = [min(s + chunk, 300) - 1 for s in starts]

    np.testing.assert_allclose(kit.dense_logits(folder, ids)[ends], got, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_those_of_numpy_whatever_the_chunks_batches_and_preemptions(kit: Any, temperature: float) -> None:
    """Two executors of one model that say different things would be two models."""

    def outputs(model: Any, seed: int | None) -> list[list[int]]:
        """Tokens of 8 requests: one after the other, or (`seed`) together with random chunks and preemptions."""
        rng, pages = np.random.default_rng(seed), kit.Pages(400, 16, seed or 0)
        model.allocate(400, 16)
        runs = [kit.Run(i, ids_of(5 + 37 * i, 100 + i, 512), pages, 60, temperature) for i in range(8)]
        if seed is None:
            for run in runs:
                kit.generate(model, [run], lambda: 1000, lambda: False)
        else:
            kit.generate(model, runs, lambda: int(rng.choice([1, 2, 50, 1000])), lambda: bool(rng.random() < 0.02))
        return [run.output for run in runs]

    model = make("executors", "torch:vocab=512,dtype=float64,device=cpu")
    alone = outputs(model, None)

    assert alone == outputs(Llama(vocab=512, dtype="float64"), None)
    assert alone == outputs(model, 1)


@pytest.mark.usefixtures("torch")
def test_swapped_pages_come_back_elsewhere() -> None:
    """A sequence that was swapped out would go on with the memory of another."""
    model = make("executors", "torch:dtype=float64,device=cpu")
    model.allocate(10, 4)
    model.execute([Piece(0, [5, 6, 7, 8, 9], 0, [3, 1], False)])
    kept = model.copy_out([3, 1])
    model.execute([Piece(1, [1] * 8, 0, [3, 1], False)])
    model.copy_in(kept, [0, 9])
    fresh = make("executors", "torch:dtype=float64,device=cpu")
    fresh.allocate(10, 4)
    again = model.logits([Piece(0, [4], 5, [0, 9], True)])
    whole = fresh.logits([Piece(0, [5, 6, 7, 8, 9, 4], 0, [2, 4], True)])

    np.testing.assert_allclose(whole, again, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("torch:dtype=int8", "dtype must be one of float32, float64, float16, bfloat16"),
        ("torch:device=tpu", "device must be one of auto, cpu, cuda"),
        ("torch:threads=0", "threads must be at least 1"),
        ("torch:heads=3", r"heads \(3\) must be a multiple of kv_heads"),
    ],
)
def test_wrong_arguments_are_one_sentence(spec: str, words: str) -> None:
    """A traceback of PyTorch would not name the argument."""
    with pytest.raises(UsageError, match=words):
        make("executors", spec)


def test_a_machine_without_a_gpu_says_so(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own message is a page long."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(UsageError, match=r"PyTorch sees no GPU here; take device=cpu"):
        make("executors", "torch:device=cuda")
    assert "cpu" == make("executors", "torch").describe()["device"]


def test_without_pytorch_the_user_reads_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is no dependency; a traceback of the import would look like a bug."""
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(UsageError, match="needs PyTorch, which is not installed here: 'pip install torch'"):
        make("executors", "torch")
