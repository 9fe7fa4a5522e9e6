"""The engine's loop under any clock: one turn takes in what arrived, forms a batch, runs it and commits it.

`backends.engine` runs it in a process of its own under the wall clock; tests run it with a clock of their own.
"""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf

import numpy as np

from backends.engine_process.generation import NO_PARAMS, Answers, GenerationParams, Turn, execute
from backends.engine_process.pacing import Pace, pace_facts
from backends.executors.paced import Paced
from backends.serving.batch import Batch
from backends.serving.replica import Replica
from backends.simulator.core import preemption_costs
from harness.api import Ended, Executor, Prompts, Request


class EngineCore:
    """One replica whose batches an executor runs: a real model, or one that only waits as long as that takes.

    Paced steps that follow one another leave no gap: what the host does between two of them is within the time of the
    second. `sleep` waits so many seconds of `clock`.
    """

    def __init__(
        self,
        replica: Replica,
        executor: Executor | Paced,
        prompts: Prompts | None,
        clock: Callable[[], float],
        temperature: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.replica = replica
        self._executor = executor
        self._clock = clock
        self._sleep = sleep
        pacer = executor if isinstance(executor, Paced) else None
        self._answers = Answers(prompts, executor.vocab_size, executor.max_tokens, temperature, pacer)
        self._pace = None if pacer is None else Pace(pacer, replica)
        self._host: dict[int, ListOf[object]] = {}  # KV of who is swapped out, block by block
        self._ended_s: float | None = None  # when the paced step before ended, while one follows the other

    @property
    def computes(self) -> bool:
        """Whether a real model runs, rather than a clock."""
        return self._pace is None

    def token_ids(self, request_id: int) -> np.ndarray:
        """Prompt and output of a request under way, (prompt + output,); outputs to come are 0."""
        return self._answers.token_ids[request_id]

    def turn(
        self,
        arrived: ListOf[Request] = (),
        cancelled: ListOf[int] = (),
        params: Mapping[int, GenerationParams] = NO_PARAMS,
        sent_s: float | None = None,
    ) -> Turn:
        """Take in, schedule, execute, commit. A turn without a step means that nothing can run.

        `params` (by request id) go with what arrived; a request without one has the prompt of its content. `sent_s` is
        when the last of what arrived was sent, where that is known.
        """
        now_s = self._clock()
        if self._ended_s is not None:
            # a paced step starts at the end of the one before, but not before the last request that it takes in came
            came_s = (now_s if sent_s is None else sent_s) if arrived else 0.0
            now_s = min(now_s, max(self._ended_s, came_s))
        turn = Turn(now_s)
        for request_id in cancelled:
            seq = self.replica.cancel(request_id, now_s)
            if seq is not None:
                turn.ended.append(self._answers.end(seq, self.replica.index, now_s, "cancelled"))
        for request in arrived:
            refusal = self._answers.refusal(request) or self.replica.add(request, now_s)
            if refusal is None:
                self._answers.add(request, params.get(request.id))
            else:
                turn.ended.append(Ended(request.id, now_s, "rejected", refusal, arrived_s=now_s))
        batch = self.replica.schedule(now_s)
        if batch is not None:
            self._run(batch, turn)
        else:
            self._ended_s = None
        for ended in turn.ended:
            self._host.pop(ended.request_id, None)
        blocks = self.replica.blocks
        turn.running, turn.free_blocks, turn.total_blocks = self.replica.running, blocks.free, blocks.total
        return turn

    def _run(self, batch: Batch, turn: Turn) -> None:
        replica, executor, pace = self.replica, self._executor, self._pace
        if pace is None:
            assert not isinstance(executor, Paced)
            step = self._answers.plan(replica, batch)
            self._answers.take(step, execute(executor, self._host, step.work))
            turn.at_s = self._clock()
        else:
            step = self._answers.plan_paced(pace, replica, batch)
            due_s = step.work.end_s
            assert due_s is not None
            if (left_s := due_s - self._clock()) > 0:
                self._sleep(left_s)
            self._ended_s = turn.at_s = pace.ended(due_s, self._clock())
            turn.facts = pace_facts([pace])
        if batch.preempted or batch.swaps:
            turn.facts = {**turn.facts, **preemption_costs([replica])}
        self._answers.commit(turn, replica, batch, step)
