"""Online priority: vLLM v1 with online requests first in the queue, and offline ones first to lose their memory.

Source: the baseline of this name in the xLLM technical report, arXiv 2510.14686, section 5.2. Nothing bounds how many
offline requests run beside online ones, and a prompt that has begun goes on.
"""

from dataclasses import dataclass, field

from backends.serving.batch import Batch
from backends.serving.policies._online_first import OnlineFirst
from backends.serving.policies.vllm_v1 import VllmV1
from backends.serving.replica import Replica


@dataclass(slots=True)
class OnlinePriority:
    """`budget` tokens a step, at most `max_seqs` running sequences, as `vllm-v1` has them."""

    budget: int = 8192
    max_seqs: int = 256
    _base: VllmV1 = field(init=False, repr=False, compare=False)
    _order: OnlineFirst = field(default_factory=OnlineFirst, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._base = VllmV1(self.budget, self.max_seqs)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Running sequences in order, then online requests, then offline ones, under the budget."""
        self._order.sort(replica)
        self._order.make_room(replica, batch)
        self._base.fill(replica, batch)
