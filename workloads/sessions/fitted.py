"""Sessions of a model that 'bench trace fit' wrote: turns and times between them as in its trace."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.bounds import AtLeastOne, Positive, check
from workloads.fit.model import NONE, Model
from workloads.mixed import Streams, Tasks
from workloads.sessions.builtin import BLOCK_TOKENS, conversations


@dataclass(frozen=True, slots=True)
class Fitted:
    """The turns of the sessions in the model file `path`, and the times from one to the next, times `think_scale`.

    `service` names one service of a model that has several. Times are seconds from a request to the next of its
    session: a trace does not tell when answers ended, so here they begin after the answer, somewhat later. Lengths are
    those of the new tokens of a turn and of its answer; the prompt holds the history too, of which the oldest turns are
    dropped where it would pass `truncate_at_tokens`. Source: the trace that the model was fitted to.
    """

    path: str
    service: str | None = None
    think_scale: Positive = 1.0
    truncate_at_tokens: AtLeastOne | None = None
    block_tokens: AtLeastOne = BLOCK_TOKENS
    turns: np.ndarray = field(init=False, repr=False, compare=False)  # cumulative share of 1, 2, ... turns
    think_s: np.ndarray = field(init=False, repr=False, compare=False)  # (101,) quantiles 0 to 100 %

    def __post_init__(self) -> None:
        check(self)
        facts = _sessions(Model.load(self.path).only(self.service), self.path)
        object.__setattr__(self, "turns", np.cumsum(facts["turns"]) / np.sum(facts["turns"]))
        object.__setattr__(self, "think_s", np.array(facts["think_s"]["quantiles"], float))

    @property
    def mean_requests(self) -> float:
        return float(1 + (1 - self.turns[:-1]).sum())

    def tasks(self, count: int, streams: Streams) -> Tasks:
        sizes = 1 + np.searchsorted(self.turns[:-1], streams.sizes.random(count), side="right")
        ranks = np.linspace(0, 1, len(self.think_s))
        return conversations(
            sizes,
            streams,
            lambda n: np.asarray(self.think_scale * np.interp(streams.delays.random(n), ranks, self.think_s)),
            self.truncate_at_tokens,
            self.block_tokens,
        )


def _sessions(model: Model, path: str) -> dict[str, Any]:
    fitted = [service for service in model.services if service.sessions]
    if not fitted:
        hint = f" --trace {path} draws its whole sessions." if model.whole is not None else ""
        raise ValueError(f"no sessions were fitted to '{path}': {NONE}.{hint}")
    if len(fitted) > 1:
        tags = ", ".join(str(service.tag) for service in fitted)
        raise ValueError(f"'{path}' has several services with sessions ({tags}); name one with service=.")
    return dict(fitted[0].sessions or {})
