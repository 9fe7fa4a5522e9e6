"""DeepSpeed-FastGen: passes of one size, for which prompts are split and fused with decodes.

Source: Holmes et al., DeepSpeed-FastGen, 2024; scheduling as in deepspeedai/DeepSpeed-MII
`mii/batching/ragged_batching.py`, limits of DeepSpeed `manager_configs.py`. It claims up to 2.3 times the effective
throughput of vLLM, and gaps between tokens that are up to 3.7 times shorter at P95.
"""

from dataclasses import dataclass

from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, Checked


@dataclass(frozen=True, slots=True)
class FastgenPolicy(Checked):
    """Dynamic SplitFuse: every pass has the same number of tokens; decodes first, then pieces of prompts up to the
    budget.

    A decode that finds no block waits for one, it is not preempted; when nothing can run, the youngest is preempted.
    There a deadlock resets every sequence; here it costs one.

    `budget` tokens a pass, from at most `max_seqs` sequences; at most `max_tracked` sequences hold memory.
    """

    budget: AtLeastOne = 768
    max_seqs: AtLeastOne = 512
    max_tracked: AtLeastOne = 2048

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Decodes that find a block, then prompts exactly up to the budget; a deadlock preempts the youngest."""
        self._fuse(replica, batch)
        while not batch.decode_seqs and not batch.prefills and replica.running:
            replica.preempt(batch, max(replica.holders(), key=_order), last=True)
            self._fuse(replica, batch)

    def _fuse(self, replica: Replica, batch: Batch) -> None:
        self._generate(replica, batch)
        self._split(replica, batch, max(0, self.budget - batch.decode_seqs))
        batch.repeats = not batch.preempted and not replica.parked

    def _generate(self, replica: Replica, batch: Batch) -> None:
        decoding = replica.decoding
        most = min(self.budget, self.max_seqs)
        if replica.parked or decoding.rows > most or decoding.blocks_needed() > replica.blocks.free:
            self._choose(replica, most)
        if decoding.members:
            replica.decode(batch, self.budget)

    def _choose(self, replica: Replica, most: int) -> None:
        """Choose decodes: in order of arrival, those with room in their last block or a free one, `most` of them.

        The others sit out with the memory that they hold.
        """
        while replica.parked:
            replica.unpark()
        free = replica.blocks.free
        for seq in sorted(replica.decoding, key=_order):
            needs = replica.wanted_blocks(seq)
            if most <= 0 or needs > free:
                replica.park(seq)
                continue
            most -= seq.answers
            free -= needs

    def _split(self, replica: Replica, batch: Batch, left: int) -> None:
        seats = max(0, self.max_seqs - batch.decode_seqs + batch.draft_rows)
        for seq in replica.prefilling:
            need = seq.need()
            if not left or not seats or replica.blocks_to_grow(seq, need) > replica.blocks.free:
                return
            tokens = min(need, left)
            replica.grow(batch, seq, tokens)
            left -= tokens
            seats -= 1
        while left and seats and replica.waiting and replica.running < self.max_tracked:
            head = replica.waiting[0]
            if not replica.admissible(head.prompt + head.emitted):
                return
            tokens = min(head.need(), left)
            replica.admit(batch, tokens, on_demand=True)
            left -= tokens
            seats -= 1


def _order(seq: Sequence) -> int:
    return seq.order
