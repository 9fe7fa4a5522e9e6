"""The parts of logged steps, for columns of the `steps` table: computed when it is made, not while the run goes on."""

from collections.abc import Sequence

import numpy as np

from backends.serving.cluster import Member
from harness.api import PartsOfSteps, StepLoads, StepParts


def columns_of_parts(replica: np.ndarray, every: StepLoads, members: Sequence[Member]) -> dict[str, np.ndarray]:
    """(steps,) seconds of each part, NaN where the latency model of the replica does not know them."""
    found = np.full((len(StepParts._fields), len(replica)), np.nan)
    models = [member.model for member in members]
    for model in {id(one): one for one in models}.values():
        if not isinstance(model, PartsOfSteps):
            continue
        if all(one is model for one in models):
            mine, some = np.arange(len(every.decode_seqs)), every
        else:
            mine = np.flatnonzero(np.array([one is model for one in models])[replica])
            some = _only(every, mine)
        if len(mine) and (parts := model.step_parts(some)) is not None:
            found[:, mine] = parts
    return dict(zip(StepParts._fields, found, strict=True))


def _only(loads: StepLoads, steps: np.ndarray) -> StepLoads:
    place = np.full(len(loads.decode_seqs), -1)
    place[steps] = np.arange(len(steps))
    kept = place[loads.step] >= 0
    return StepLoads(
        loads.decode_seqs[steps],
        loads.context_tokens[steps],
        place[loads.step][kept],
        loads.new_tokens[kept],
        loads.stored_tokens[kept],
    )
