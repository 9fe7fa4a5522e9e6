"""Sarathi-Serve: chunked prefill and stall-free batching, so that prompts do not interrupt decodes.

Source: Agrawal et al., Sarathi-Serve, OSDI 2024. It claims 3.7 times the capacity of vLLM and 4.0 times that of Orca
under a strict bound on the gaps between tokens. Its policy is policy=sarathi; here is what its table 4 compares with.
"""

from dataclasses import dataclass, field

from backends.serving._checks import positive
from backends.serving.batch import Batch
from backends.serving.replica import Replica


@dataclass(slots=True)
class ChunkOnlyPolicy:
    """Chunks of prompts and decodes in turns, never in one step: chunked prefill without stall-free batching.

    Source: the "chunked-prefills-only" column of table 4 of Agrawal et al., Sarathi-Serve, OSDI 2024, as scheduled by
    microsoft/sarathi-serve `simple_chunking_scheduler.py`: a prefill turn runs unfinished prompts, else new ones.

    At most `budget` prompt tokens in a prefill turn; at most `max_seqs` running sequences.
    """

    budget: int = 512
    max_seqs: int = 128
    _decoded: bool = field(default=True, init=False, repr=False)  # the last turn was not a prefill turn

    def __post_init__(self) -> None:
        positive(self, "budget", "max_seqs")

    def fill(self, replica: Replica, batch: Batch) -> None:
        """A prefill turn if the last turn decoded (or nothing decodes), else a decode turn."""
        tried = self._decoded or not replica.decoding.members
        if tried and self._prompts(replica, batch):
            self._decoded = False
            return
        self._decoded = True
        if replica.decoding.members:
            replica.decode(batch)
        batch.repeats = not batch.preempted and (tried or not (replica.prefilling or replica.waiting))

    def _prompts(self, replica: Replica, batch: Batch) -> bool:
        left = self.budget
        for seq in replica.prefilling:
            if left == 0:
                break
            tokens = min(seq.need(), left)
            replica.run(batch, seq, tokens)
            left -= tokens
        if batch.prefills:
            return True
        while left and replica.waiting and replica.running < self.max_seqs and replica.admissible():
            tokens = min(replica.waiting[0].need(), left)
            replica.admit(batch, tokens)
            left -= tokens
        return bool(batch.prefills)
