"""What befalls the replicas of a running cluster: roles that change, replicas that come, go, fail and come up again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from backends.serving.batch import Sequence
from backends.serving.cluster import Member, give_model
from backends.serving.prefix_cache import chain
from backends.serving.routing import Action, Drain, Fail, Lend, Migrate, Replicate, Scale, SetRole, Up
from harness.api import ActionEvent
from harness.errors import UsageError

if TYPE_CHECKING:
    from backends.serving.loop import Loop
    from backends.serving.migration import Moves
    from backends.serving.replica import Replica

T = TypeVar("T")


class Actions(Generic[T]):
    """Does what the router of `loop` wants, and what is planned; `paused_s` is when a replica may run again."""

    def __init__(self, loop: Loop[T], moves: Moves[T]) -> None:
        self._loop = loop
        self._moves = moves
        self.paused_s: dict[int, float] = {}
        self._when_empty: dict[int, SetRole | Drain] = {}
        self._down_indices: set[int] = set()  # of replicas that have failed and may come up again
        self._gpu_s = 0.0  # of replicas that are not up any more
        self._since_s: dict[int, float] = {}  # replica: from when on it is paid for

    def begin(self, now_s: float) -> None:
        """From now on all replicas are paid for."""
        self._since_s = dict.fromkeys(range(len(self._loop.cluster.replicas)), now_s)

    def do(self, action: Action, now_s: float) -> None:
        """What the router wants, unless it has become impossible."""
        replicas = self._loop.cluster.replicas
        if isinstance(action, Scale):
            self._scale(action, now_s)
            return
        ends = (action.replica,) if isinstance(action, (SetRole, Drain)) else (action.source, action.target)
        if not all(0 <= index < len(replicas) for index in ends) or len(ends) > len(set(ends)):
            raise UsageError(f"The router wants {action}; there are no such replicas, or they are the same one.")
        if not all(replicas[index].alive for index in ends):
            return  # it went down unseen
        for index in ends:
            self._loop.settle(replicas[index], now_s)
        if isinstance(action, Migrate):
            self._moves.migrate(action, now_s)
        elif isinstance(action, Replicate):
            self._replicate(action, now_s)
        elif isinstance(action, Lend):
            self._lend(action, now_s)
        elif isinstance(action, Drain) or action.after == "drain":
            self._drain(action, now_s)
        else:
            self._set_role(action, now_s)

    def _set_role(self, action: SetRole, now_s: float) -> None:
        loop = self._loop
        replica, cluster = loop.cluster.replicas[action.replica], loop.cluster
        if replica.role == action.role:
            return
        others = [r.role for r in cluster.replicas if r.alive and not r.draining and r is not replica]
        after = [*others, action.role]
        if ("prefill" in after) != ("decode" in after) or all(role == "decode" for role in after):
            return  # no replica would be left to do the other half
        if action.role != "mixed":
            # Leaps are cut at decisions of the router among replicas alike only: hand-offs tie the steps of one
            # replica to those of another.
            loop.settle_all(now_s)
            loop.cut_no_leaps()
        replica.set_role(action.role, now_s)
        cluster.refresh()
        if action.cost_s:
            self.paused_s[replica.index] = now_s + action.cost_s
            loop.free_at(now_s + action.cost_s, replica.index)
        offers, replica.inbox.offers = replica.inbox.offers, deque()
        for seq, source in offers:  # what was to come here to decode goes elsewhere
            loop.offer(seq, source)
        # Both sides full of what the other is to take would wait for each other for ever.
        if action.role != "prefill":  # what was computed here and has not left decodes here: no cycle of full memories
            for other in cluster.replicas:
                offered = [seq for seq, source in other.inbox.offers if source is replica]
                if offered:
                    other.inbox.offers = deque(pair for pair in other.inbox.offers if pair[1] is not replica)
                for seq in offered:
                    replica.stay(seq, now_s)
        loop.free.add(replica.index)
        loop.touch(replica.index)
        loop.note(ActionEvent("role", now_s, now_s + action.cost_s, replica.index, detail=action.role))

    def _drain(self, action: SetRole | Drain, now_s: float) -> None:
        loop = self._loop
        replica, cluster = loop.cluster.replicas[action.replica], loop.cluster
        open_ = [r for r in cluster.replicas if r.alive and not r.draining and r is not replica]
        if replica.draining or not any(r.role == replica.role or r.role == "mixed" for r in open_):
            return  # the last one that does this
        replica.draining = True
        cluster.refresh()
        self._when_empty[replica.index] = action
        loop.note(ActionEvent("drain", now_s, now_s, replica.index))
        loop.touch(replica.index)
        for seq in list(replica.waiting):
            if seq.emitted == 0 or replica.role != "decode":
                replica.send(seq._request.id, now_s)
                loop.returned[seq._request.id] = seq
                loop.ask(seq.request, now_s)
        offers, replica.inbox.offers = replica.inbox.offers, deque()
        for seq, source in offers:
            loop.offer(seq, source)
        self.check_empty(replica, now_s)

    def check_empty(self, replica: Replica, now_s: float) -> None:
        """Do what waits for a replica to be empty."""
        action = self._when_empty.get(replica.index)
        inbox = replica.inbox
        if action is None or replica.running or replica.waiting or replica.in_flight is not None or replica.swap:
            return
        if len(inbox) or inbox.reserved or replica.outbox.leaving:
            return
        del self._when_empty[replica.index]
        replica.draining = False
        if isinstance(action, SetRole):
            self._loop.cluster.refresh()
            role = replica.role
            self._set_role(SetRole(action.replica, action.role, "now", action.cost_s), now_s)
            if replica.role == role:  # another one went down meanwhile: it is open again as it was
                self._loop.note(ActionEvent("up", now_s, now_s, replica.index))
        else:
            self._down(replica, now_s, "drained")

    def _down(self, replica: Replica, now_s: float, why: str) -> None:
        loop = self._loop
        replica.alive = False
        self._gpu_s += (now_s - self._since_s.pop(replica.index)) * loop.cluster.members[replica.index].gpus
        loop.cluster.refresh()
        loop.note(ActionEvent("down", now_s, now_s, replica.index, detail=why))
        loop.touch(replica.index)

    def _scale(self, action: Scale, now_s: float) -> None:
        loop = self._loop
        if loop.cluster.build is None:
            raise UsageError("This cluster cannot grow: the router wants a replica more.")
        replica, member = loop.cluster.build(action.role)
        give_model(replica, member)
        replica.alive = False
        if loop.cluster.hierarchy is not None:
            loop.cluster.hierarchy.attach(replica)
        loop.cluster.replicas.append(replica)
        loop.cluster.members.append(member)
        loop.has_grown(replica)
        # It is paid for from now on, while it loads its weights.
        self._since_s[replica.index] = now_s
        loop.at(now_s + action.ready_s, Up(replica.index))
        loop.note(ActionEvent("scale", now_s, now_s + action.ready_s, replica.index, detail=action.role))

    def _replicate(self, action: Replicate, now_s: float) -> None:
        """The blocks count as stored at once, and the link is taken for as long as they cross it."""
        loop = self._loop
        if not loop.replicates:
            raise UsageError(
                "An engine that computes copies no stored prefixes; give executor=paced, or --backend sim."
            )
        source, target = loop.cluster.replicas[action.source], loop.cluster.replicas[action.target]
        if source.cache is None or target.cache is None or source.blocks.size != target.blocks.size:
            return
        keys = chain(action.request, source.blocks.size).keys
        stored = source.cache.stored_tokens(keys) // source.blocks.size
        copied = target.insert_prefix(keys[:stored], now_s)
        if copied:
            tokens = copied * source.blocks.size
            end_s = loop.cluster.links.end_s(source, target, tokens, now_s)
            loop.note(ActionEvent("replicate", now_s, end_s, source.index, target.index, tokens=tokens))
            loop.touch(target.index)

    def _lend(self, action: Lend, now_s: float) -> None:
        """The ledger is in the debtors, so that what is lent is what is owed."""
        loop = self._loop
        source, target = loop.cluster.replicas[action.source], loop.cluster.replicas[action.target]
        owed, blocks = source.debts.get(target.index, 0), min(action.blocks, source.blocks.free)
        if owed:
            blocks = min(blocks, owed)
            source.debts[target.index] = owed - blocks
            if owed == blocks:
                del source.debts[target.index]
        elif not source.debts:
            target.debts[source.index] = target.debts.get(source.index, 0) + blocks
        else:
            return
        source.resize(-blocks, now_s)
        target.resize(blocks, now_s)
        loop.memory_freed(target)
        loop.touch(source.index)
        loop.note(ActionEvent("lend", now_s, now_s, source.index, target.index, tokens=blocks * source.blocks.size))

    def change(self, change: Fail | Up, now_s: float) -> None:
        """A replica fails or comes up, or its steps take another time."""
        loop = self._loop
        loop.settle_all(now_s)
        replica = loop.cluster.replicas[change.replica]
        if isinstance(change, Up):
            if change.model is not None:
                members = loop.cluster.members
                members[replica.index] = member = Member(members[replica.index].gpus, change.model)
                give_model(replica, member)
                loop.note(ActionEvent("retime", now_s, now_s, replica.index))
                loop.touch(replica.index)
            if replica.index in self._down_indices or (not replica.alive and replica.index in self._since_s):
                self._down_indices.discard(replica.index)
                replica.alive = True
                self._since_s.setdefault(replica.index, now_s)
                loop.cluster.refresh()
                loop.show(replica, now_s)
                loop.note(ActionEvent("up", now_s, now_s, replica.index))
        elif replica.alive:
            self._fail(replica, now_s, requeue=change.requeue)

    def _fail(self, replica: Replica, now_s: float, *, requeue: bool) -> None:
        loop = self._loop
        offers: list[tuple[Sequence, Replica | None]] = list(replica.inbox.offers)
        self._down(replica, now_s, "failed")
        replica.draining = False
        self._when_empty.pop(replica.index, None)
        self.paused_s.pop(replica.index, None)
        offers += self._moves.replica_down(replica, now_s)
        self._down_indices.add(replica.index)
        lost = replica.fail(now_s)
        if loop.cluster.hierarchy is not None:
            loop.cluster.hierarchy.lose(replica)
        loop.forget(replica)
        for other in loop.cluster.replicas:
            other.inbox.offers = deque((seq, source) for seq, source in other.inbox.offers if source is not replica)
        for seq, source in offers:
            if source is not replica:
                loop.offer(seq, source)
        for seq in lost:
            if requeue:
                loop.returned[seq._request.id] = seq
                loop.ask(seq.request, now_s)
            else:
                loop.lose(seq, replica.index, f"replica {replica.index} went down", now_s)

    def gpu_s(self, now_s: float) -> float:
        """GPU seconds of all replicas until now, those included that load their weights."""
        members = self._loop.cluster.members
        return self._gpu_s + sum((now_s - since_s) * members[index].gpus for index, since_s in self._since_s.items())
