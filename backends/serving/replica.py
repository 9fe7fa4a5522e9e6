"""A replica: one copy of the model with its memory, its queue and its policy.

A driver calls, in this order at one instant: `commit` of what ended, `add` for what arrived, `schedule` when the
executor is free. Everything a replica decides follows from these calls (the journal), so the same calls give the
same batches under any clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from itertools import chain
from typing import TYPE_CHECKING, Literal

from backends.serving.batch import Batch, Phase, Sequence
from backends.serving.beams import Beams
from backends.serving.blocks import Adapters, Blocks
from backends.serving.decodes import Decodes
from backends.serving.handoff import Inbox, Outbox
from backends.serving.pipeline import Pipeline
from backends.serving.plugins import (
    Admission,
    Clocked,
    FinishFeedback,
    HandOffRoom,
    LengthFeedback,
    LengthLimit,
    Memory,
    Padding,
    Policy,
    Polling,
    Reserving,
    StepFeedback,
)
from backends.serving.prefix_cache import PrefixCache
from backends.serving.speculation import Drafts, Speculation
from harness.api import Request

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

    from backends.serving.blocks import Swap
    from backends.serving.hierarchy import Level
    from backends.serving.journal import Journal, Kind

Role = Literal["mixed", "prefill", "decode"]
"""What a replica of a cluster does: whole requests, prompts that it hands on, or decodes of what is handed on to it."""


class Replica:
    """Serves requests in the order that its policy chooses, within `num_blocks` blocks of KV memory."""

    __slots__ = ("_admission", "_admitted", "_arrived", "_chance", "_fill", "_has_room", "_last", "_learn", "_limits",
                 "_map_s", "_maps_ahead", "_now_s", "_on_finish", "_on_step_end", "_pads", "_poll_steps",
                 "_reserved_tokens", "_steps", "_unseen", "_watermark", "adapters", "alive", "blocks",
                 "cache", "debts", "decoding", "drafts", "draining", "exchange_s", "has_forks", "in_flight", "inbox",
                 "index", "journal", "levels", "memory", "outbox", "parked", "pipeline", "policy", "prefilling",
                 "prompt_tokens", "recomputed_tokens", "role", "swap", "waiting", "whole")  # fmt: skip

    def __init__(
        self,
        policy: Policy,
        memory: Memory,
        num_blocks: int,
        index: int = 0,
        journal: Journal | None = None,
        *,
        admission: Admission | None = None,
        chance: Callable[[], float] = float,  # float() is 0: nothing is left to chance
        prefix_cache: bool = False,
        speculation: Speculation | None = None,
        swap: Swap | None = None,
        adapters: Adapters | None = None,
        map_s: float = 0.0,
        maps_ahead: bool = False,
        tiered: bool = False,
    ) -> None:
        self.policy = policy
        self._admission = admission
        self._learn = admission.finished if isinstance(admission, LengthFeedback) else None
        self._chance = chance
        self._fill = _with_clock(policy) if isinstance(policy, Clocked) else policy.fill
        self._pads = isinstance(policy, Padding) and policy.pads
        self._limits = [limit for limit in (memory, policy) if isinstance(limit, LengthLimit)]
        self._on_step_end = policy.on_step_end if isinstance(policy, StepFeedback) else None
        self._on_finish = policy.on_finish if isinstance(policy, FinishFeedback) else None
        self.memory = memory
        self.index = index
        self.journal = journal
        self.blocks = Blocks(num_blocks, memory.block_tokens)
        self.cache = PrefixCache(self.blocks, tiered=tiered) if prefix_cache else None
        self.levels: list[Level] = []  # of a memory hierarchy, the fastest first
        self.waiting: deque[Sequence] = deque()
        self.prefilling: dict[Sequence, None] = {}  # admitted, prompt not yet computed, in order of admission
        self._reserved_tokens = memory.reserved_tokens if isinstance(memory, Reserving) and memory.reserves else None
        size = memory.block_tokens if self._reserved_tokens is None else None
        self.drafts = None if speculation is None else Drafts(speculation, size, speculation.guess(chance))
        self.decoding: Decodes | Drafts = Decodes(size) if self.drafts is None else self.drafts
        self.parked: dict[Sequence, None] = {}  # hold memory and wait for their turn to decode
        self.swap = swap  # None: preempted sequences are computed again
        self.adapters = adapters  # None: all requests are served by the base model
        self.debts: dict[int, int] = {}  # blocks of its memory that are on other replicas, by their index
        self.exchange_s = (0.0, 0.0)  # for attention on another replica: of a step, and of a row in it
        self.in_flight: Batch | None = None
        self.role: Role = "mixed"
        self.alive = True
        self.draining = False  # gets no further requests
        self.whole: set[int] = set()  # ids of requests that it does not hand on, although it is for prefill
        self.outbox = Outbox()  # what it hands on and still has in memory
        self.inbox = Inbox()  # what is handed on to it
        self.pipeline: Pipeline | None = None  # of a replica on several stages, and of its lanes
        self._has_room = policy.has_room if isinstance(policy, HandOffRoom) else None
        self._map_s = map_s  # what mapping takes for each block of a step
        self._maps_ahead = maps_ahead
        self._last = (0.0, 0.0)  # begin and end of the last step, beside which blocks were mapped or copied
        self._watermark = int(memory.watermark * num_blocks)
        self._poll_steps = policy.poll_steps if isinstance(policy, Polling) else 0
        self._unseen: dict[Sequence, None] = {}  # of those that wait, what the policy has not been shown yet
        self._steps = 0  # that have ended, where the policy polls
        self._arrived = 0
        self._admitted = 0
        self.recomputed_tokens = 0  # stored once and dropped, to be computed again
        self.prompt_tokens = 0  # of all requests here that are not over
        self.has_forks = False  # whether any request so far is for several answers
        self._now_s = 0.0

    # ---- calls of the driver ------------------------------------------------------------------------------

    def add(self, request: Request, now_s: float) -> str | None:
        """Queue a request. Returns why not, when it can never be served here."""
        if self.journal is not None:
            self.journal.call("add", now_s, request.id)
        refusal = self.refusal(request)
        if refusal is None:
            seq = Sequence(request, self._arrived, now_s)
            if seq.answers > 1:
                self._has_forked(seq)
            self.waiting.append(seq)
            if self._poll_steps and self.in_flight is not None:
                self._unseen[seq] = None
            self._arrived += 1
            self.prompt_tokens += request.prompt_tokens
        return refusal

    def serve_whole(self, request_id: int, now_s: float) -> None:
        """Decode this request where its prompt is computed, whatever the role of this replica is."""
        self._note("whole", now_s, request_id)
        self.whole.add(request_id)

    def schedule(self, now_s: float) -> Batch | None:
        """The next batch, or None when nothing can run (or a batch is still in flight)."""
        if self.pipeline is not None and self.pipeline.front is self:
            return self.pipeline.schedule(now_s)
        if self.in_flight is not None:
            return None
        journal, decoding = self.journal, self.decoding
        if journal is not None:
            journal.call("schedule", now_s)
        self._now_s = now_s
        if not (decoding.members or self.waiting or self.prefilling or self.parked or self.inbox.landed or self.swap):
            return None
        batch, had = Batch(), self.blocks.free
        if self.swap is not None and (self.pipeline is None or self.pipeline.decodes(self)):
            self.swap.back(self, batch)
        if self.inbox.landed and not (self.swap and self.running):
            self._join_landed()  # who was swapped out comes back before, unless what has landed leaves it no room
        fill = self._fill
        if self.adapters is not None or self.inbox.reserved:
            fill = Replica._fill_without_late
        elif self._unseen:
            fill = Replica._fill_without_unseen
        fill(self, batch)
        if batch.preempted and self.inbox.landed and not (self.running or batch.swaps):
            self._join_landed()  # who ran has lost the memory that what has landed has too little of
            fill(self, batch)
        if batch.swaps:
            assert self.swap is not None
            batch.swap_s = self.swap.moved * self.swap.block_s
            if self.swap.overlaps:
                batch.swap_s = self._beside_last(batch.swap_s, now_s)
        batch.free_blocks = free = self.blocks.free
        if self.debts:
            self._exchange(batch)
        if self._map_s:
            map_s = max(0, had - free) * self._map_s
            batch.setup_s += self._beside_last(map_s, now_s) if self._maps_ahead else map_s
        if batch.prefills:
            if not batch.loads:
                batch.loads = loads = []
                for seq, tokens in batch.prefills:  # nearly always one
                    loads.append((tokens, seq._computed))
        elif not batch.decode_seqs and not batch.swaps:
            return None  # a step may do nothing but copy
        elif (
            batch.repeats
            # what the rule of admission says of the head of the queue holds until something ends or arrives
            and (self._admission is None or not self.waiting or self._admission.decision_is_stable)
            and not (batch.swaps or batch.setup_s or self._map_s or self.debts)
            and not (self.has_forks and any(seq.beams is not None for seq in decoding))  # they free blocks each step
        ):
            batch.steps = decoding._steps_ahead(free)
            if not isinstance(batch.repeats, bool):
                batch.steps = min(batch.steps, batch.repeats)
            if self._unseen:
                batch.steps = min(batch.steps, self._poll_steps - self._steps % self._poll_steps)
        if batch.decode_seqs:
            batch.context_tokens = decoding.context + decoding.padded_context
            if decoding.fresh:
                for seq in decoding.fresh:
                    if seq.decode_start_s is None and seq.group is decoding:
                        seq.decode_start_s = now_s
                decoding.fresh.clear()
        if self._unseen and self._steps % self._poll_steps == 0:
            self._unseen.clear()  # taken in while this batch runs: the next one may hold them
            batch.steps = 1
        batch.replica = self.index
        batch.start_s = now_s
        batch.waiting = len(self.waiting)
        batch.running = self.running
        self.in_flight = batch
        if journal is not None:
            journal.batch(batch, decoding)
        return batch

    def _fill_without_late(self, batch: Batch) -> None:
        """Fill a batch without those whose adapter has no slot, or whose blocks are on their way from a tier."""
        adapters, reserved = self.adapters, self.inbox.reserved
        late = set(() if adapters is None else adapters.without_slot(self.waiting, self.all_holders()))
        late.update([seq for seq in self.waiting if seq._request.id in reserved])
        fill = Replica._fill_without_unseen if self._unseen else self._fill
        self.fill_without([seq for seq in self.waiting if seq in late], batch, fill)
        if adapters is not None:
            load_s, batch.adapter_factor = adapters.load(self.all_holders())
            batch.setup_s += load_s

    def _exchange(self, batch: Batch) -> None:
        """Add the time in which queries go to the replicas that have KV of this one, and partial results come back.

        Memory of its own is used first; each row goes with the share of the KV that is elsewhere.
        """
        used, borrowed = self.blocks.total - self.blocks.free, sum(self.debts.values())
        elsewhere = used + borrowed - self.blocks.total
        if elsewhere > 0:
            batch.setup_s += self.exchange_s[0] + self.exchange_s[1] * batch.tokens() * elsewhere / used

    def _beside_last(self, seconds: float, now_s: float) -> float:
        """What is left of this once the last step is over, unless nothing was known of it in a pause."""
        begin_s, end_s = self._last
        return max(0.0, seconds - (end_s - begin_s)) if now_s == end_s else seconds

    def fill_without(self, late: ListOf[Sequence], batch: Batch, fill: Callable[[Replica, Batch], None]) -> None:
        """Let `fill` fill a batch as if these did not wait; they keep their places in the queue."""
        place: dict[Sequence, int] = {}
        if late:
            place = {seq: i for i, seq in enumerate(self.waiting)}
            skipped = set(late)
            ready = [seq for seq in self.waiting if seq not in skipped]
            self.waiting.clear()  # in place: the lanes of a pipeline share it
            self.waiting.extend(ready)
        fill(self, batch)
        if late:
            still_waiting, next_late = list(self.waiting), 0
            self.waiting.clear()
            for seq in still_waiting:  # one that was preempted had no place, and goes where it is
                while next_late < len(late) and place.get(seq, -1) > place[late[next_late]]:
                    self.waiting.append(late[next_late])
                    next_late += 1
                self.waiting.append(seq)
            self.waiting.extend(late[next_late:])

    def _fill_without_unseen(self, batch: Batch) -> None:
        """Fill a batch that was formed while the one before ran; if it stays empty, everything is taken in at once."""
        late = [seq for seq in self.waiting if seq in self._unseen]
        for seq in late:
            self.waiting.remove(seq)
        self._fill(self, batch)
        self.waiting.extend(late)
        if not (batch.prefills or batch.decode_seqs or batch.swaps):
            self._unseen.clear()
            self._fill(self, batch)

    def commit(self, batch: Batch, end_s: ListOf[float]) -> list[Sequence]:
        """The batch ran `len(end_s)` times (1 to `batch.steps`), ending at these seconds. Returns what is done."""
        assert batch is self.in_flight
        if self.pipeline is not None and self.pipeline.front is self:
            return self.pipeline.commit(batch, end_s)
        if self.journal is not None:
            self.journal.call("commit", end_s[-1], end_s=end_s)
        self.in_flight = None
        if self._poll_steps:
            self._steps += len(end_s)
        if self._map_s or self.swap is not None:
            self._last = (batch.start_s if len(end_s) == 1 else end_s[-2], end_s[-1])
        done: list[Sequence] = []
        if batch.decode_seqs:
            # Those of the first step were taken when the batch was formed; a leap takes the others here.
            new_blocks = self.decoding.advance(end_s)
            if new_blocks:
                self.blocks.free -= new_blocks
            if self.has_forks:
                for seq in self.decoding:
                    self._search_beams(seq)
            done = self.decoding.ended()
        if batch.prefills:
            done += self._commit_prefills(batch, end_s[-1])
        if self._on_step_end is not None:
            self._report_steps(self._on_step_end, batch, end_s)
        if done:
            for seq in done:
                self._release(seq)
                self.prompt_tokens -= seq.prompt
                seq.phase = Phase.DONE
            if self._learn is not None:
                for seq in done:
                    self._learn(seq._emitted)
            if self._pads:
                self._keep_padded(done)
            if self.whole:
                self.whole.difference_update([seq._request.id for seq in done])
            # Who ended with its prompt stands behind the decodes; policies learn of all in order of arrival.
            if len(done) > 1:
                done.sort(key=_order)
            if self._on_finish is not None:
                for seq in done:
                    self._on_finish(seq)
        return done

    def go_on(self, batch: Batch, end_s: ListOf[float]) -> None:
        """Some steps of the leap in flight have ended, and the next one runs, whatever has come since the leap began.

        As `commit` and `schedule`, which a journal has to have: with one nothing may have come.
        """
        if self.journal is not None:
            self.commit(batch, end_s)
            self.schedule(end_s[-1])
            return
        decoding, steps_left = self.decoding, batch.steps - len(end_s)
        self._steps += len(end_s) if self._poll_steps else 0
        self.blocks.free -= decoding.advance(end_s) + decoding.blocks_needed()
        if self._on_step_end is not None:
            self._report_steps(self._on_step_end, batch, end_s)
        batch.steps, batch.start_s, batch.free_blocks = steps_left, end_s[-1], self.blocks.free
        batch.context_tokens = decoding.context + decoding.padded_context

    def cancel(self, request_id: int, now_s: float) -> Sequence | None:
        """Drop a request that is waiting or running, between two batches; None if it is not here (any more)."""
        self._note("cancel", now_s, request_id)
        seq = self._withdraw(request_id)
        if not self.decoding.members and not self.prefilling:
            self.decoding.padded_rows = self.decoding.padded_context = 0  # an empty padded batch is over
        return seq

    def stop(self, request_id: int, now_s: float) -> Sequence | None:
        """End a sequence before its last planned token, as `commit` ends the others."""
        self._note("stop", now_s, request_id)
        seq = self._withdraw(request_id)
        if seq is not None and self._learn is not None:
            self._learn(seq._emitted)
        if seq is not None and self._on_finish is not None:
            self._on_finish(seq)
        if seq is not None and self._pads:
            self._keep_padded([seq])
        return seq

    def forget_prefixes(self, now_s: float) -> None:
        """Forget the unreferenced stored blocks, if there is a prefix cache."""
        self._note("forget", now_s)
        if self.cache is not None:
            self.cache.forget()

    def refusal(self, request: Request, *, whole: bool = False) -> str | None:
        """Why this request can never be served here (`whole`: prompt and answer, whatever the role), or None.

        Callable at any time.
        """
        prompt, output = request.prompt_tokens, request.output_tokens
        if prompt < 1 or output < 1:
            return f"prompt and output must be at least 1 token, got {prompt} and {output}"
        for limit in self._limits:
            if (reason := limit.refusal(prompt, output)) is not None:
                return reason
        if self.drafts is not None and request.answers > 1:
            return "a request of several answers is not drafted for"
        if self.role == "prefill" and not whole:
            output = 1  # the further tokens need memory elsewhere
        # The last token is never fed back, so it has no KV.
        most = prompt + output - 1 if self._reserved_tokens is None else self._reserved_tokens(prompt, output)
        if request.extra is None:
            blocks = self.blocks.blocks_for(most)
        elif self._reserved_tokens is None:
            blocks = Sequence(request, 0, 0.0).blocks_for(most, self.blocks.size)
        else:
            blocks = request.answers * self.blocks.blocks_for(most)
        if blocks > self.blocks.total:
            room, count = self.blocks.total * self.blocks.size, request.answers
            needs = f"{most} tokens" if count == 1 else f"{most} tokens in each of {count} answers"
            return f"needs KV memory for {needs}, the replica has {room}"
        return None

    # ---- moves: calls of the driver on replicas that sequences leave and come to -----------------------------

    def send(self, request_id: int, now_s: float) -> Sequence | None:
        """Take a sequence that decodes out of the batch, between two batches, to move its KV elsewhere; it holds its
        memory until `release`. One that waits leaves at once. None for any other.
        """
        self._note("send", now_s, request_id)
        seq = next((seq for lane in self.lanes for seq in lane.decoding if seq._request.id == request_id), None)
        if seq is not None:
            assert not self.runs(request_id)
            assert seq.group is not None
            seq.group.leave(seq)
            self.outbox.hold(seq)
            return seq
        seq = next((seq for seq in self.waiting if seq._request.id == request_id), None)
        if seq is not None:
            self.waiting.remove(seq)
            self._unseen.pop(seq, None)
            self.whole.discard(request_id)
            self._release(seq)  # the prefix cache may have looked it up
            self.prompt_tokens -= seq.prompt
            seq._computed = 0
        return seq

    def stay(self, seq: Sequence, now_s: float) -> None:
        """The move of a sequence out of here has failed: it decodes here again from the next batch on, with the memory
        that it still holds.
        """
        self._note("stay", now_s, seq._request.id)
        self.outbox.back(seq)
        self._number(seq)  # where it was going it had got another number
        self.inbox.held += seq.blocks
        self.inbox.landed.append(seq)

    def reserve(self, request_id: int, blocks: int, now_s: float, keys: ListOf[int] = ()) -> bool:
        """Set `blocks` blocks aside for a sequence that will come here; False where that leaves less than admission.

        What the prefix cache stores of `keys` makes no room for them.
        """
        if self.blocks.free - blocks < self._watermark:
            return False
        if self.journal is not None:
            self.journal.call("reserve", now_s, request_id, blocks=blocks, keys=keys)
        if self.cache is not None and keys:
            self.cache.touch(keys)
        inbox = self.inbox
        inbox.reserved[request_id] = inbox.reserved.get(request_id, 0) + blocks
        inbox.held += blocks
        self.blocks.free -= blocks
        return True

    def resize(self, blocks: int, now_s: float) -> None:
        """So many more blocks from other replicas, or fewer."""
        self._note("resize", now_s, blocks=blocks)
        self.blocks.resize(blocks)

    def unreserve(self, request_id: int, now_s: float) -> None:
        """Nothing will come of what was reserved for this request."""
        self._note("unreserve", now_s, request_id)
        inbox = self.inbox
        blocks, table = inbox.reserved.pop(request_id, 0), inbox.staged.pop(request_id, [])
        inbox.held -= blocks
        self._give_unused(blocks, table)

    def name_reserved(self, request_id: int, count: int) -> list[int]:
        """Ids of the first `count` blocks that are reserved for this request, for drivers that copy into them."""
        owner = self.blocks if self.cache is None else self.cache
        return owner.name(self.inbox.staged.setdefault(request_id, []), count)

    def restart(self, seq: Sequence, now_s: float) -> None:
        """Queue a sequence that comes from elsewhere without KV: all it has is computed again here."""
        self._note("restart", now_s, seq._request.id, emitted=seq.emitted)
        self._number(seq)
        self.prompt_tokens += seq.prompt
        seq._computed = 0
        seq.phase = Phase.WAITING
        self.waiting.append(seq)

    def fail(self, now_s: float) -> list[Sequence]:
        """The replica is down: its batch in flight never ends, and its memory is lost. Returns the sequences it had."""
        self._note("fail", now_s)
        self.alive = False
        if self.adapters is not None:
            self.adapters.resident.clear()
        lost = dict.fromkeys(chain(*(lane.all_here() for lane in self.lanes), self.outbox.leaving))
        for seq in lost:
            if seq.group is not None:
                seq.group.leave(seq)
            elif seq.phase is Phase.SWAPPED:
                assert self.swap is not None
                self.swap.drop(seq)
            seq.blocks, seq.table, seq.phase = 0, [], Phase.DONE
        # New ones, because nothing of the old memory is given back block by block.
        self.blocks = Blocks(self.blocks.total, self.blocks.size)
        self.cache = None if self.cache is None else PrefixCache(self.blocks, tiered=bool(self.levels))
        self.inbox, self.outbox = Inbox(), Outbox()
        self.waiting.clear()
        self._unseen.clear()
        self.in_flight = None
        self.prompt_tokens = 0
        self.whole.clear()
        for lane in self.lanes:
            lane.in_flight = None
            lane.prefilling.clear()
            lane.parked.clear()
            lane.decoding.padded_rows = lane.decoding.padded_context = 0
        if self.pipeline is not None:
            self.pipeline.share()
        return list(lost)

    def drop(self, seq: Sequence, now_s: float) -> None:
        """The KV of a sequence that was on its way here will not arrive."""
        del self.inbox.incoming[seq]
        if not seq.blocks:
            return  # it was pushed
        self._note("drop", now_s, seq._request.id)
        self.inbox.held -= seq.blocks
        self.prompt_tokens -= seq.prompt
        computed, seq._computed = seq._computed, 0  # nothing that a prefix cache could keep
        self._release(seq)
        seq._computed = computed

    def accept(self, seq: Sequence, now_s: float) -> None:
        """Give memory to a sequence whose KV is on its way to this replica."""
        self._note("accept", now_s, seq._request.id, seq.computed, seq.emitted)
        self._number(seq)
        reserved = self.inbox.reserved.pop(seq._request.id, 0)
        self.inbox.held -= reserved
        self.blocks.free += reserved
        seq.table = self.inbox.staged.pop(seq._request.id, [])
        self._take_in(seq)
        self.inbox.incoming[seq] = None
        self.prompt_tokens += seq.prompt

    def land(self, seq: Sequence, now_s: float) -> None:
        """The KV of a sequence has arrived here; pushed KV that finds no room is lost and computed again.

        It has room where memory would admit it: with the watermark free.
        """
        self._note("land", now_s, seq._request.id, seq.computed, seq.emitted)
        inbox = self.inbox
        del inbox.incoming[seq]
        if not seq.blocks:  # it was pushed
            self._number(seq)
            self.prompt_tokens += seq.prompt
            # No memory was set aside for what is pushed: the sender did not ask.
            if self.blocks.free - self.blocks_to_hold(seq) < self._watermark:
                inbox.overflows += 1
                seq.preemptions += 1
                seq._computed = 0
                seq.phase = Phase.WAITING
                self.waiting.append(seq)
                return
            self._take_in(seq)
        inbox.landed.append(seq)

    def release(self, seq: Sequence, now_s: float) -> None:
        """The KV of a sequence is elsewhere now: free its memory on this replica."""
        self._note("release", now_s, seq._request.id)
        self.prompt_tokens -= seq.prompt
        self.whole.discard(seq._request.id)
        self._give_back(seq, *self.outbox.leaving.pop(seq))

    def _give_back(self, seq: Sequence, blocks: int, table: list[int]) -> None:
        if self.cache is not None:
            self.cache.give(seq, blocks, table)
        else:
            self.blocks.give(blocks, table)

    def runs(self, request_id: int) -> bool:
        """Whether the request may be in a batch in flight, so that it cannot be withdrawn now."""
        if self.pipeline is not None:
            return self.pipeline.runs(request_id)
        return self.in_flight is not None

    def blocks_to_hold(self, seq: Sequence, more: int = 0) -> int:
        """Blocks that a prefilled sequence takes when it comes here, with room for `more` tokens."""
        if self._reserved_tokens:
            return self._blocks_at_admission(seq)
        return seq.blocks_for((seq._computed if seq.group is None else seq.computed) + more, self.blocks.size)

    # ---- what a policy may do while it fills a batch -------------------------------------------------------

    @property
    def running(self) -> int:
        """Answers of sequences that hold memory: in prefill, decoding or parked; those of a lane are its own."""
        if self.pipeline is not None and self.pipeline.front is self:
            return sum(lane.running for lane in self.pipeline.lanes)
        if self.has_forks:
            return sum([seq.answers for seq in self.holders()])
        return len(self.prefilling) + len(self.decoding.members) + len(self.parked)

    @property
    def prefill_seqs(self) -> int:
        """Sequences that are admitted and whose prompts are not yet computed."""
        if self.pipeline is not None and self.pipeline.front is self:
            return sum(len(lane.prefilling) for lane in self.pipeline.lanes)
        return len(self.prefilling)

    def admissible(self, tokens: int | None = None) -> bool:
        """Whether memory admits the head of the queue.

        By default its whole prompt (or reservation) above the watermark; with `tokens` its next so many tokens (at
        most its prompt), on demand, and no watermark. Then the admission rule decides, if there is one. Only then
        does `need` of the head of the queue know what the prefix cache holds of it.
        """
        if self.swap is not None and self.swap.closed:
            return False
        held = self.cache.look(self.waiting[0]) if self.cache is not None else 0
        want = self._blocks_at_admission(self.waiting[0], tokens) - held
        free = self.blocks.free
        if tokens is not None:
            if want > free:
                return False
        # The watermark is room for those that run to grow. Where none runs a prompt may use it: one nearly as large as
        # memory would wait for ever.
        elif free - want < self._watermark and (want > free or self.prefilling or self.decoding.members):
            return False
        # Nor may a rule hold up an idle replica: nothing would ever end that it could wait for.
        rule = self._admission
        return rule is None or not self.running or rule.admits(self, self.waiting[0], self._chance)

    def holders(self) -> Iterator[Sequence]:
        """The sequences that hold memory: in prefill, decoding or parked; of a lane its own."""
        return chain(self.prefilling, self.decoding.members, self.parked)

    def all_here(self) -> list[Sequence]:
        """The sequences of this replica or lane: running, waiting, swapped out or landed."""
        return [*self.holders(), *self.waiting, *(self.swap or ()), *self.inbox.landed]

    def all_holders(self) -> Iterator[Sequence]:
        """The sequences that hold memory, those of all lanes of a pipeline."""
        return self.holders() if self.pipeline is None else self.pipeline.holders()

    def admit(self, batch: Batch, tokens: int, *, on_demand: bool = False) -> Sequence:
        """Move the head of the queue to prefill and run its first `tokens` tokens. Call it only if `admissible()`.

        With `on_demand` it gets memory for these tokens only, and `grow` gets more.
        """
        seq = self.waiting.popleft()
        seq.blocks = want = self._blocks_at_admission(seq, tokens if on_demand else None)
        if self.cache is not None:
            want -= self.cache.admit(seq)
        self.blocks.free -= want
        seq.phase = Phase.PREFILL
        self.prefilling[seq] = None
        seq.admitted = self._admitted
        self._admitted += 1
        if seq.prefill_start_s is None:
            seq.prefill_start_s = self._now_s
        batch.prefills.append((seq, tokens))
        return seq

    def blocks_to_grow(self, seq: Sequence, tokens: int) -> int:
        """Blocks that the next `tokens` tokens of an admitted prompt take beyond those it holds."""
        if self._reserved_tokens:
            return 0
        stored = min(seq._computed + tokens, seq.prompt + seq._emitted)  # what answers share is computed first
        return max(0, seq.blocks_for(stored, self.blocks.size) - seq.blocks)

    def grow(self, batch: Batch, seq: Sequence, tokens: int) -> None:
        """Put the next `tokens` tokens of a prompt admitted on demand into the batch, with the blocks they need."""
        more = self.blocks_to_grow(seq, tokens)
        self.blocks.take(more)
        seq.blocks += more
        batch.prefills.append((seq, tokens))

    def run(self, batch: Batch, seq: Sequence, tokens: int) -> None:
        """Put the next `tokens` tokens of an admitted prompt into the batch."""
        batch.prefills.append((seq, tokens))

    def run_chunks(self, batch: Batch, left: int) -> int:
        """Go on with the prompts that have begun, as far as `left` tokens reach; returns how many are left."""
        for seq in self.prefilling:
            tokens = min(seq.need(), left)
            if tokens:
                self.run(batch, seq, tokens)
                left -= tokens
        return left

    def admit_chunks(self, batch: Batch, left: int, max_seqs: int) -> None:
        """Begin the prompts that wait, as far as `left` tokens reach, with at most `max_seqs` running sequences."""
        while left and self.waiting and self.running < max_seqs and self.admissible():
            tokens = min(self.waiting[0].need(), left)
            self.admit(batch, tokens)
            left -= tokens

    def admit_whole(self, batch: Batch, most_tokens: int, most: int) -> None:
        """Begin the prompts that wait, whole: at most `most` of at most `most_tokens` tokens; a longer one alone."""
        tokens = 0
        while self.waiting and len(batch.prefills) < most and self.admissible():
            need = self.waiting[0].need()
            if tokens and tokens + need > most_tokens:
                return
            self.admit(batch, need)
            tokens += need

    def decode(self, batch: Batch, rows: int | None = None, keep: int = 0) -> None:
        """Put one token of every decoding sequence into the batch, and drafts up to `rows` tokens in all.

        Drafts leave `keep` blocks free for those that follow.

        Where memory is short the youngest running sequences are preempted (recompute) until the others fit.
        """
        decoding, blocks = self.decoding, self.blocks
        if self.drafts is not None:
            self.drafts.plan(rows, blocks.free - keep)
        # Counted anew after each: the one that lost its memory may have been one that needed a block.
        while (needed := decoding.blocks_needed()) > blocks.free:
            self.preempt(batch)
        if decoding.members:
            if needed:
                blocks.free -= needed
            batch.decode_seqs = decoding.rows + decoding.padded_rows
            if self.drafts is not None:
                self.drafts.take_blocks()
                batch.draft_rows, batch.draft_steps = self.drafts.drafted()
                batch.decode_seqs += batch.draft_rows

    def wanted_blocks(self, seq: Sequence) -> int:
        """Blocks that the next token of a decoding sequence takes beyond those it has."""
        if self._reserved_tokens:
            return 0
        size = self.blocks.size
        full = seq.computed % size == 0 if self.drafts is None else seq.computed >= seq.blocks * size
        return seq.answers if full else 0

    def park(self, seq: Sequence) -> None:
        """Let a decoding sequence sit out; it keeps its memory and queues behind those that are parked already."""
        self.decoding.leave(seq)
        self.parked[seq] = None

    def unpark(self, seq: Sequence | None = None) -> None:
        """A parked sequence decodes again, by default the one that was parked first."""
        if seq is None:
            seq = next(iter(self.parked))
        del self.parked[seq]
        self.decoding.join(seq)

    def order_waiting(self, key: Callable[[Sequence], SupportsRichComparison]) -> None:
        """Sort the queue, the smallest key first; equal ones keep their places."""
        if len(self.waiting) > 1:
            ordered = sorted(self.waiting, key=key)
            self.waiting.clear()  # in place: the lanes of a pipeline share it
            self.waiting.extend(ordered)

    def preempt(self, batch: Batch, seq: Sequence | None = None, *, last: bool = False) -> None:
        """Take memory from a running sequence, by default the youngest.

        It is swapped out where the replica swaps; else it goes to the front of the queue (with `last` to its end) and
        is recomputed.
        """
        # The youngest: the oldest never loses its memory to a later one, so something always ends.
        if seq is None:
            seq = next(reversed(self.prefilling or self.decoding.members))
        if seq.phase is Phase.PREFILL:
            del self.prefilling[seq]
        elif seq.group is not None:
            self.decoding.leave(seq)
        else:
            del self.parked[seq]
        seq.preemptions += 1
        batch.preempted = (*batch.preempted, seq)
        swapped = self.swap is not None and seq.phase is Phase.DECODE and self.swap.keep(seq, batch)
        self._release(seq, over=False)
        if swapped:
            return
        stored = seq.to_compute() - seq.answers if seq.phase is Phase.DECODE else seq._computed
        self.recomputed_tokens += stored
        seq._computed = 0
        seq.phase = Phase.WAITING
        # To the front: it was admitted before all that wait.
        if last:
            self.waiting.append(seq)
        else:
            self.waiting.appendleft(seq)

    def room(self) -> int:
        """Free blocks beside those that admitted prompts and the next decode step will take."""
        reserved = self._reserved_tokens is not None
        size = self.blocks.size
        prompts = 0 if reserved else sum(s.blocks_for(s.prompt + s._emitted, size) - s.blocks for s in self.prefilling)
        return self.blocks.free - self.decoding.blocks_needed() - prompts - self._watermark

    def resume(self, seq: Sequence, blocks: int) -> None:
        """A sequence that was swapped out gets `blocks` blocks and decodes again."""
        seq.blocks = blocks
        self.blocks.take(blocks)
        self._join(seq)

    # ---- for drivers that run a real model ------------------------------------------------------------------

    def table(self, seq: Sequence) -> list[int]:
        """Ids of the blocks of a running sequence, enough for the step in flight."""
        owner = self.blocks if self.cache is None else self.cache
        if seq.group is not None and not self._reserved_tokens and self.drafts is None:
            return owner.name(seq.table, seq.blocks_for(seq.computed + 1, self.blocks.size))
        return owner.name(seq.table, seq.blocks)

    def shared_blocks(self) -> int:
        """What to add where a stored block counts for each of its holders, and should count once."""
        return 0 if self.cache is None else self.cache.held(chain(self.all_holders(), self.outbox.leaving))

    def check(self) -> None:
        """Integrity: every block is owned or free, and every sequence is in one place."""
        self.blocks.check()
        self.decoding.check()
        if self.pipeline is not None:
            self.pipeline.check()
        elif self._reserved_tokens or self.in_flight is None:
            held = self.held_blocks() + self.held_on_the_way()
            held += self.shared_blocks()
            assert held + self.blocks.free == self.blocks.total, (held, self.blocks)
        if self.cache is not None:
            self.cache.check()
        assert all(s.phase is Phase.WAITING and s.blocks == 0 for s in self.waiting)
        assert all(s.phase is Phase.PREFILL and s.need() > 0 for s in self.prefilling)
        assert all(s.phase is Phase.DECODE and s.group is None for s in self.parked)
        if self.swap is not None:
            self.swap.check()

    def held_blocks(self) -> int:
        """Blocks that the running sequences of this replica or lane hold, between two batches."""
        exact, size = self._reserved_tokens is not None or self.drafts is not None, self.blocks.size
        held = sum(s.blocks for s in (*self.prefilling, *self.parked))
        held += sum(s.blocks if exact else s.blocks_for(s.computed, size) for s in self.decoding)
        return held

    def held_on_the_way(self) -> int:
        """Blocks of sequences that are about to leave for another replica, or on their way to this one."""
        inbox = self.inbox
        on_their_way = sum(s.blocks for s in (*inbox.incoming, *inbox.landed)) + sum(inbox.reserved.values())
        assert on_their_way == inbox.held
        return self.outbox.blocks + on_their_way

    @property
    def lanes(self) -> ListOf[Replica]:
        """What has the running sequences: the replica itself, or the lanes of its pipeline."""
        return (self,) if self.pipeline is None else self.pipeline.lanes

    def set_role(self, role: Role, now_s: float) -> None:
        """What it does from now on; what runs goes on."""
        if self.journal is not None:
            self.journal.call("role", now_s, role=role)
        for replica in (self, *self.lanes):
            replica.role = role

    def insert_prefix(self, keys: ListOf[int], now_s: float, request_id: int | None = None) -> int:
        """Store blocks with these keys, copied from elsewhere; how many were new and found room.

        Those for which memory was reserved for a request take it.
        """
        if self.cache is None:
            return 0
        if self.journal is not None:
            self.journal.call("insert", now_s, request_id, keys=keys)
        reserved, inbox = 0, self.inbox
        table: list[int] = []
        if request_id is not None and (blocks := inbox.reserved.pop(request_id, 0)):
            table = inbox.staged.pop(request_id, table)
            reserved = min(len(keys), blocks)
            inbox.held -= reserved
            if blocks > reserved:
                inbox.reserved[request_id] = blocks - reserved
        return self.cache.insert(keys, reserved, table)

    def has(self, request_id: int) -> bool:
        """Whether a request waits, runs, is swapped out or has landed here."""
        return any(seq._request.id == request_id for lane in self.lanes for seq in lane.all_here())

    def share_rule(self, front: Replica) -> None:
        """Ask the same rule of admission as `front`: what it has learnt holds for all lanes."""
        self._admission, self._learn, self._chance = front._admission, front._learn, front._chance

    def __repr__(self) -> str:
        return f"<Replica {len(self.waiting)} waiting, {self.running} running, {self.blocks!r}>"

    # ---- inside ----------------------------------------------------------------------------------------------

    def _note(
        self,
        kind: Kind,
        now_s: float,
        request_id: int | None = None,
        computed: int = 0,
        emitted: int = 0,
        blocks: int = 0,
    ) -> None:
        """Keep a call of the driver, where there is a journal."""
        if self.journal is not None:
            self.journal.call(kind, now_s, request_id, computed, emitted, blocks)

    def _withdraw(self, request_id: int) -> Sequence | None:
        if self.pipeline is not None:
            return self.pipeline.withdraw(request_id)
        assert self.in_flight is None
        return self.withdraw_here(request_id)

    def withdraw_here(self, request_id: int) -> Sequence | None:
        """Drop a request of this replica or lane that is in no batch in flight."""
        seq = next((s for s in self.all_here() if s._request.id == request_id), None)
        if seq is None:
            return None
        if seq.group is not None:
            self.decoding.leave(seq)
        elif seq.phase is Phase.PREFILL:
            del self.prefilling[seq]
        elif seq.phase is Phase.SWAPPED:
            assert self.swap is not None
            self.swap.drop(seq)
        elif seq.phase is Phase.HANDOFF:
            self.inbox.landed.remove(seq)
            self.inbox.held -= seq.blocks
        elif seq.phase is Phase.DECODE:
            del self.parked[seq]
        else:
            self.waiting.remove(seq)
            self._unseen.pop(seq, None)
        self._release(seq)
        self.prompt_tokens -= seq.prompt
        seq.phase = Phase.DONE
        return seq

    @staticmethod
    def _report_steps(on_step_end: Callable[[Batch, float], None], batch: Batch, end_s: ListOf[float]) -> None:
        """One call per step, with the batch as it was in that step: a leap is so many steps."""
        batch.steps = 1  # how far it could leap tells how long answers are
        for end in end_s[:-1]:
            on_step_end(batch, end - batch.start_s)
            batch.start_s = end
            batch.context_tokens += batch.decode_seqs
        on_step_end(batch, end_s[-1] - batch.start_s)

    def _blocks_at_admission(self, seq: Sequence, tokens: int | None = None) -> int:
        if self._reserved_tokens is not None:
            return seq.answers * self.blocks.blocks_for(self._reserved_tokens(seq.prompt, seq._output))
        stored = seq.prompt + seq._emitted
        if tokens is not None and seq._computed + tokens < stored:
            stored = seq._computed + tokens
        return -(-stored // self.blocks.size) if seq.answers == 1 else seq.blocks_for(stored, self.blocks.size)

    def _commit_prefills(self, batch: Batch, now_s: float) -> list[Sequence]:
        done, cache = [], self.cache
        for seq, tokens in batch.prefills:
            seq._computed += tokens
            if cache is not None:
                cache.fill(seq)
            if seq._computed < seq.to_compute():
                continue
            seq._computed = seq.prompt + seq._emitted
            del self.prefilling[seq]
            if seq._emitted:  # what was preempted stores its last tokens now, and goes on
                self._search_beams(seq)
            seq._emitted += 1
            seq.token_s.append(now_s)
            if seq.prefill_end_s is None:
                seq.prefill_end_s = now_s
            if seq._emitted == seq._output:
                done.append(seq)
            elif self.role != "prefill" or seq._request.id in self.whole:
                self.decoding.join(seq)
            else:
                self.outbox.put(seq)
        return done

    def _search_beams(self, seq: Sequence) -> None:
        """Drop beams and fork others, now that each has stored one token more; what no beam has is free."""
        if seq.beams is not None:
            computed, size = seq.computed, self.blocks.size
            had = seq.blocks_for(computed, size)
            seq.beams.step()
            if self._reserved_tokens is None:
                freed = had - seq.blocks_for(computed, size)
                seq.blocks -= freed if seq.group is None else 0
                self._give_unused(freed, [])

    def _give_unused(self, blocks: int, table: list[int]) -> None:
        if self.cache is not None:
            self.cache.give_unused(blocks, table)
        else:
            self.blocks.give(blocks, table)

    def _number(self, seq: Sequence) -> None:
        seq.order = self._arrived  # here it is younger than what was handed on before it
        self._arrived += 1
        if seq.answers > 1:
            self._has_forked(seq)

    def _has_forked(self, seq: Sequence) -> None:
        extra = seq._request.extra
        if seq.beams is None and extra is not None and extra.kind == "beams":
            seq.beams = Beams(seq.answers, seq._request.id)
        for replica in (self, *self.lanes):
            replica.has_forks = True

    def _take_in(self, seq: Sequence) -> None:
        seq.blocks = want = self.blocks_to_hold(seq)
        self.blocks.free -= want
        self.inbox.held += want

    def _join_landed(self) -> None:
        """Landed sequences decode from now on, as many as the policy has room for."""
        inbox = self.inbox
        while inbox.landed and (self._has_room is None or self._has_room(self)):
            if self.adapters is not None and self.adapters.without_slot([inbox.landed[0]], self.all_holders()):
                return
            seq = inbox.landed.popleft()
            inbox.held -= seq.blocks
            self._join(seq)

    def _join(self, seq: Sequence) -> None:
        seq.admitted = self._admitted
        self._admitted += 1
        self.decoding.join(seq)

    def _release(self, seq: Sequence, *, over: bool = True) -> None:
        if self.cache is not None:
            self.cache.release(seq, over=over)
        elif seq.table:
            self.blocks.give(seq.blocks, seq.table)
        else:
            self.blocks.free += seq.blocks
        seq.blocks = 0

    def _keep_padded(self, done: list[Sequence]) -> None:
        """Finished rows stay in a padded batch, at its cost, until its last row ends."""
        decoding = self.decoding
        if not decoding.members and not self.prefilling:
            decoding.padded_rows = decoding.padded_context = 0
        else:
            decoding.padded_rows += sum(seq.answers for seq in done)
            decoding.padded_context += sum(seq.answers * seq._computed for seq in done)


def _with_clock(policy: Clocked) -> Callable[[Replica, Batch], None]:
    def fill(replica: Replica, batch: Batch) -> None:
        policy.on_step_start(replica._now_s)
        policy.fill(replica, batch)

    return fill


def _order(seq: Sequence) -> int:
    return seq.order
