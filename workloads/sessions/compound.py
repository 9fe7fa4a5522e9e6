"""Compound tasks: stages of requests (plan, work in parallel, join), each after all answers of the one before."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from harness.bounds import AtLeastOne, NotNegative, Positive, check
from harness.spec import joined
from workloads.mixed import Streams, Tasks
from workloads.sessions.builtin import BLOCK_TOKENS

Inherit = Literal["context", "answers", "nothing"]
MOST_REQUESTS = 4096


@dataclass(frozen=True, slots=True)
class Compound:
    """Tasks of `stages`, such as 1/4/1: one planner, four workers at once, one that joins their answers.

    A stage starts when every answer of the stage before is there, after `tool_s` seconds (the time of a tool).
    What a prompt holds before its own tokens (those of the lengths): with `inherit=context` all prompts and answers
    of the earlier stages, with `answers` the answers of the stage before, with `nothing` nothing. Requests of one
    stage share these leading tokens by name, as far as they fill blocks. `deadline_s` bounds the whole task, from
    its first request to its last token. Source: the compound requests of JITServe (NSDI 2026), which sets 20 s a stage.
    """

    stages: str = "1/4/1"
    tool_s: NotNegative = 0.0
    inherit: Inherit = "context"
    deadline_s: Positive | None = None
    block_tokens: AtLeastOne = BLOCK_TOKENS
    widths: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        widths = joined(self.stages, "stages", int, "1/4/1")
        if min(widths) < 1 or sum(widths) > MOST_REQUESTS:
            raise ValueError(f"stages must be at least 1 each and {MOST_REQUESTS} together, got '{self.stages}'.")
        object.__setattr__(self, "widths", widths)

    @property
    def mean_requests(self) -> float:
        return float(sum(self.widths))

    def tasks(self, count: int, streams: Streams) -> Tasks:
        widths = np.array(self.widths)
        size = int(widths.sum())
        stage = np.repeat(np.arange(len(widths)), widths)  # (size,) of each request of a task
        before = (np.cumsum(widths) - widths)[np.maximum(stage - 1, 0)]  # first request of the stage before
        parents = np.where(stage > 0, widths[np.maximum(stage - 1, 0)], 0)
        new, answer = (x.reshape(count, size) for x in streams.pairs(count * size))
        held = self._inherited(new, answer, widths)
        prompt = held[:, stage] + new
        passed_on = (widths == 1)[stage] & (self.inherit == "context")  # its whole prompt begins the next one's
        blocks = np.where(passed_on, -(-prompt // self.block_tokens), held[:, stage] // self.block_tokens)
        return Tasks(
            np.full(count, size),
            np.tile(stage, count),
            prompt.ravel(),
            answer.ravel(),
            np.tile(np.where(stage > 0, self.tool_s, 0.0), count),
            (np.arange(count)[:, None] * size + before).ravel(),
            np.tile(parents, count),
            blocks.ravel(),
            self._first_blocks(blocks, stage, widths).ravel(),
        )

    def _inherited(self, own: np.ndarray, answer: np.ndarray, widths: np.ndarray) -> np.ndarray:
        """(count, stages) tokens that the prompts of a stage hold before their own."""
        first = np.cumsum(widths) - widths
        answers, spoken = (np.add.reduceat(x, first, axis=1) for x in (answer, own + answer))  # (count, stages)
        held = np.zeros_like(answers)
        if self.inherit == "context":
            held[:, 1:] = np.cumsum(spoken, axis=1)[:, :-1]
        elif self.inherit == "answers":
            held[:, 1:] = answers[:, :-1]
        return held

    def _first_blocks(self, blocks: np.ndarray, stage: np.ndarray, widths: np.ndarray) -> np.ndarray:
        """(count, size): one stream for the context; answers are named anew by every stage."""
        if self.inherit == "context":
            return np.zeros_like(blocks)
        of_stage = blocks[:, np.cumsum(widths) - widths]  # (count, stages): requests of a stage name the same
        return np.asarray((np.cumsum(of_stage, axis=1) - of_stage)[:, stage])
