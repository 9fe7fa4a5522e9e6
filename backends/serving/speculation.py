"""Speculative decoding: a draft proposes tokens, one step of the model verifies them and adds one of its own.

Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023. While a sequence decodes
it runs 1 + drafts tokens a step and keeps those up to the first that the model would not have produced.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from backends.serving.batch import Phase, Sequence
from harness.bounds import AtLeastOne, NotNegative, Share, check


@dataclass(frozen=True, slots=True)
class Speculation:
    """`k` drafts a step and sequence, each as likely as `alpha` to be right if those before it were.

    A draft takes the share `cost` of a decode step. With `max_rows` nothing is drafted in a step that would verify more
    tokens than that, where computing binds. The engine drafts by n-gram lookup instead: what followed the last `ngram`
    tokens when they last occurred; there `alpha` and `cost` are measured.
    """

    k: AtLeastOne = 4
    alpha: Share = 0.7
    cost: NotNegative = 0.1
    max_rows: AtLeastOne | None = None
    ngram: AtLeastOne = 2

    def __post_init__(self) -> None:
        check(self)

    def guess(self, chance: Callable[[], float]) -> Callable[[Sequence, int], int]:
        """How many of its drafts a sequence keeps, drawn from `chance`."""

        def kept(_: Sequence, drafts: int) -> int:
            right = 0
            while right < drafts and chance() < self.alpha:
                right += 1
            return right

        return kept


class Drafts:
    """The decoding sequences of one replica, in the order in which they joined, where each may emit several tokens.

    It stands in the place of `Decodes`; a step costs something for each of its members. `kept` says how many of the
    drafts of a sequence were right; no draft goes beyond the last requested token.
    """

    __slots__ = ("_size", "_speculation", "context", "fresh", "kept", "members", "padded_context", "padded_rows",
                 "tick")  # fmt: skip

    def __init__(self, speculation: Speculation, block_size: int | None, kept: Callable[[Sequence, int], int]) -> None:
        """`block_size` None: memory was reserved at admission, so decoding takes no blocks."""
        self._speculation = speculation
        self._size = block_size
        self.kept = kept
        self.tick = 0  # members move by themselves
        self.members: dict[Sequence, int] = {}  # with the drafts of the step in flight
        self.fresh: list[Sequence] = []
        self.context = 0
        self.padded_rows = 0
        self.padded_context = 0

    @property
    def ngram(self) -> int:
        """How many tokens a driver that drafts by n-gram lookup must match."""
        return self._speculation.ngram

    def __len__(self) -> int:
        return len(self.members)

    @property
    def rows(self) -> int:
        """Members, each of one answer."""
        return len(self.members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.members)

    def join(self, seq: Sequence) -> None:
        """A sequence whose prompt is computed starts to decode."""
        seq.group = self
        seq.joined_tick = self.tick
        seq.phase = Phase.DECODE
        seq.token_n = seq.tokens_per_stamp()
        self.members[seq] = 0
        self.fresh.append(seq)
        self.context += seq._computed

    def leave(self, seq: Sequence) -> None:
        """A member stops decoding."""
        del self.members[seq]
        seq.group = None
        self.context -= seq._computed

    def plan(self, rows: int | None, free: int) -> None:
        """Set how much each drafts: at most `rows` tokens run, and drafts use only `free` blocks."""
        speculation, members = self._speculation, self.members
        most = speculation.k
        if speculation.max_rows is not None and len(members) * (most + 1) > speculation.max_rows:
            most = 0
        room = len(members) * most if rows is None else max(0, rows - len(members))
        for seq in members:
            members[seq] = drafts = min(most, room, seq._output - seq._emitted - 1)
            room -= drafts
        # A draft may be wrong: no sequence loses its memory for one.
        if self.blocks_needed() > free:
            for seq in members:
                members[seq] = 0

    def drafted(self) -> tuple[int, float]:
        """(drafts of all members, decode steps that it takes to make them)."""
        drafts = self.members.values()
        return sum(drafts), max(drafts, default=0) * self._speculation.cost

    def blocks_needed(self) -> int:
        """Blocks that the next step takes, room for its drafts included."""
        size = self._size
        if size is None:
            return 0
        return sum([-(-(seq._computed + 1 + n) // size) - seq.blocks for seq, n in self.members.items()
                    if seq._computed + 1 + n > seq.blocks * size])  # fmt: skip

    def take_blocks(self) -> None:
        """The blocks of the next step are theirs."""
        size = self._size
        if size is not None:
            for seq, n in self.members.items():
                seq.blocks = max(seq.blocks, -(-(seq._computed + 1 + n) // size))

    def advance(self, end_s: ListOf[float]) -> int:
        """A step ended: every member has the drafts that were right, and one token more. Returns 0: no more blocks."""
        (now_s,) = end_s
        for seq, drafts in self.members.items():
            count = 1 + (self.kept(seq, drafts) if drafts else 0)
            seq._computed += count
            seq._emitted += count
            seq.token_s.append(now_s)
            assert seq.token_n is not None
            seq.token_n.append(count)
            self.context += count
            self.members[seq] = 0
        if self.padded_rows:
            self.padded_context += self.padded_rows
        return 0

    def _steps_ahead(self, free: int) -> int:  # noqa: ARG002  how far a step comes is not known before
        """One: no step is like the last."""
        return 1

    def ended(self) -> list[Sequence]:
        """Members that have emitted their last token; they have left the group."""
        done = [seq for seq in self.members if seq._emitted == seq._output]
        for seq in done:
            self.leave(seq)
        return done

    def check(self) -> None:
        """Integrity of the derived sums."""
        assert self.context == sum(seq.computed for seq in self.members)
        assert all(seq.group is self and seq.computed == seq.prompt + seq.emitted - 1 for seq in self.members)
        assert all(sum(seq.tokens_per_stamp()) == seq.emitted for seq in self.members)
