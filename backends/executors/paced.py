"""Paced: computes nothing; a step takes as long on the wall clock as a latency model says that it takes on a GPU.

The scheduler, its process, its queue and its clock are those of the engine, so that step times of any GPU are tried on
any machine. Tokens are arbitrary, equal from run to run, and prompts are not even made. Steps that end late are
counted.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

import numpy as np

from backends.latency.recorded import Recorded
from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica
from backends.simulator.core import BlockCost, block_cost, token_bytes
from backends.simulator.loop import step_ends
from harness.api import FrontTime, LatencyModel, StoredBits
from harness.bounds import AtLeastOne, NotNegative, PositiveShare, check
from harness.catalog import (
    Hardware,
    Model,
    Shape,
    facts_of_files,
    hardware,
    kv_bytes_per_token,
    kv_capacity_blocks,
    model,
)
from harness.errors import UsageError
from harness.registry import make

_GOLDEN = 2654435761  # 2**32 over the golden ratio: neighbours land far apart (Knuth, TAOCP 3, section 6.4)
_BYTES = 256  # ids of the built-in tokenizer below this are bytes; the first third of the others, at least, are words


@dataclass(slots=True)
class Paced:
    """`latency` is a spec as in the simulator, `model` and `hardware` names of the catalogue, on `tp` GPUs.

    KV memory is what the GPUs leave beside the weights at `utilisation`, unless `kv_blocks` of the engine says how much
    there is. A step that ends up to `late_s` after its time counts as in time and is stamped with its time; one that is
    later, because the scheduler or this machine was too slow, is late.
    """

    latency: str = "operators:front_s=0"
    model: str = "opt-13b"
    hardware: str = "a100-80g"
    tp: AtLeastOne = 1
    utilisation: PositiveShare = 0.9
    max_model_len: AtLeastOne | None = None
    late_s: NotNegative = 0.001
    _model: Model = field(init=False, repr=False)
    _gpu: Hardware = field(init=False, repr=False)
    _latency: LatencyModel = field(init=False, repr=False)
    _bits: tuple[float | None, float | None] = field(init=False, repr=False)  # of a weight, of an element of the KV

    def __post_init__(self) -> None:
        check(self)
        self._model, self._gpu = model(self.model), hardware(self.hardware)
        built = make("latency", self.latency, model=self.model, hardware=self.hardware, tp=self.tp, pp=1, dp=1, ep=1)
        if isinstance(built, Recorded):
            raise UsageError(
                "latency=recorded repeats a run that is over; a paced engine serves requests as they come."
            )
        if isinstance(built, FrontTime) and built.front_s > 0:
            raise UsageError(
                f"latency={self.latency} lets requests reach the scheduler {1000 * built.front_s:.3g} ms after they "
                "arrive; a paced engine has a front end of its own, so give the model's front_end_s=0."
            )
        self._latency = built
        self._bits = built.stored_bits if isinstance(built, StoredBits) else (None, None)

    @property
    def latency_model(self) -> LatencyModel:
        return self._latency

    @property
    def vocab_size(self) -> int:
        return self._model.vocab

    @property
    def max_tokens(self) -> int:
        return self.max_model_len or self._model.max_tokens

    @property
    def kv_bytes_per_token(self) -> int:
        """On all its GPUs."""
        return kv_bytes_per_token(self._model, kv_bits=self._bits[1])

    def end_s(self, batch: Batch, start_s: float) -> float:
        """When one step of a batch that starts at `start_s` ends; drafts and copies to the host included."""
        return step_ends(self._latency, batch, start_s, start_s)[0]

    def answer(self, seed: int, tokens: int) -> np.ndarray:
        """(tokens,) int64: an answer, of words of the built-in tokenizer where the vocabulary has any."""
        words = range(_BYTES, _BYTES + (self.vocab_size - _BYTES) // 3)
        return drawn_words(seed, tokens, words or range(self.vocab_size))

    def blocks_that_fit(self, block_tokens: int) -> int:
        """KV blocks beside the weights on its GPUs, as the simulator counts them."""
        weight_bits, kv_bits = self._bits
        return kv_capacity_blocks(
            self._model, self._gpu, Shape(self.tp), utilisation=self.utilisation, block_tokens=block_tokens,
            weight_bits=weight_bits, kv_bits=kv_bits,
        )  # fmt: skip

    def block_cost(self, block_tokens: int) -> BlockCost:
        """Cost of moving a block of one of its GPUs to the host, as the simulator counts it."""
        return block_cost(self._model, Shape(self.tp, hardware=self.hardware), block_tokens, self._bits[1])

    def describe(self) -> dict[str, object]:
        """Facts for run.json; `layer_token_bytes` are those of one token in one layer on one GPU."""
        return {
            "model": self.model, "hardware": self.hardware, "latency": self.latency, "tp": self.tp, "gpus": self.tp,
            "vocab_size": self.vocab_size, "max_tokens": self.max_tokens, "late_after_s": self.late_s,
            **facts_of_files(self.model, (self.hardware,)),
            "layer_token_bytes": token_bytes(self._model, self.tp, self._bits[1]),
        }  # fmt: skip


def drawn_words(seed: int, tokens: int, words: range) -> np.ndarray:
    """(tokens,) int64 of these ids, arbitrary and equal for equal seeds: an answer of a model that is not there."""
    drawn = (seed + np.arange(1, tokens + 1, dtype=np.int64) * _GOLDEN) % 2**32
    token_ids: np.ndarray = words.start + drawn % len(words)
    return token_ids


class Pace:
    """Says when the paced steps of a replica end, and counts those that came late."""

    def __init__(self, pacer: Paced, replica: Replica) -> None:
        self._pacer = pacer
        self._replica = replica
        self._guess = None if replica.drafts is None else replica.drafts.kept  # by chance, as in the simulator
        self.steps = 0
        self.late = 0
        self.latest_s = 0.0

    @property
    def late_s(self) -> float:
        """A step that ends up to so much after its time counts as in time."""
        return self._pacer.late_s

    def due_s(self, batch: Batch, start_s: float) -> float:
        """When the step of a batch that starts at `start_s` ends."""
        return self._pacer.end_s(batch, start_s)

    def ended(self, due_s: float, now_s: float) -> float:
        """A step that was due is over now: when it ended."""
        late_s = now_s - due_s
        self.steps += 1
        self.latest_s = max(self.latest_s, late_s)
        if late_s <= self._pacer.late_s:
            return due_s
        self.late += 1
        return due_s + late_s

    def right_drafts(self) -> dict[Sequence, int]:
        """How many drafts of each sequence are right; the replica will take no others."""
        group = self._replica.drafts
        assert group is not None and self._guess is not None
        right = {seq: self._guess(seq, drafts) if drafts else 0 for seq, drafts in group.members.items()}
        group.kept = lambda seq, _: right[seq]
        return right


def pace_facts(paces: ListOf[Pace]) -> dict[str, object]:
    """Facts for run.json: steps and late steps so far."""
    return {
        "paced_steps": sum(pace.steps for pace in paces),
        "late_steps": sum(pace.late for pace in paces),
        "latest_step_s": max(pace.latest_s for pace in paces),
    }
