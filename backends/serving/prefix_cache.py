"""The prefix cache of one replica: full blocks are kept by the chain of what they hold, and found again.

Unreferenced blocks stay in one list, least recently used first, the stored ones among the others; whatever takes
blocks takes from its head, and what was stored there is forgotten. Like `Blocks` it counts first: the hot path only
moves `blocks.free`, and `_settle` later draws as many blocks from the head as were taken meanwhile.
Source: vLLM's automatic prefix caching (Kwon et al., vLLM, SOSP 2023, section 4.4, and its block pool): chained keys,
reference counts, a list of free blocks in order of last use to which a sequence returns its last block first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from itertools import takewhile
from typing import TypeAlias, cast

from backends.serving.batch import Sequence, VisibleRequest
from backends.serving.blocks import Blocks
from harness.api import names_answer

CHAINS = 4
"""How many times as many keys as blocks are remembered of sessions, which may return after their blocks are gone."""
_SEED = 0x9E3779B97F4A7C15  # where every chain begins
Changes: TypeAlias = tuple[list[int], list[int], list[int], dict[int, int]]
"""Keys of blocks that were stored, used, given up, each in order; ids of these blocks by key, where ids are used."""


class Shelf:
    """Stored blocks by number (not their id): a key, how many sequences hold it (none: it waits in the list), an id.

    Note: lists of numbers and not one object per block, of which millions would keep the garbage collector busy.
    """

    __slots__ = ("ids", "keys", "refs", "spare")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.refs: list[int] = []
        self.ids: list[int | None] = []  # None where ids are not used
        self.spare: list[int] = []  # numbers that no block has

    def put(self, keys: list[int], ids: list[int]) -> list[int]:
        """Numbers of new blocks with these keys, each held once; `ids` is empty where they are not used."""
        cut = max(0, len(self.spare) - len(keys))
        numbers, new = self.spare[cut:], len(keys) - (len(self.spare) - cut)
        del self.spare[cut:]
        if new:
            numbers += range(len(self.keys), len(self.keys) + new)
            for column in (self.keys, self.refs):
                column += [0] * new
            self.ids += [None] * new
        for number, key in zip(numbers, keys, strict=True):
            self.keys[number] = key
            self.refs[number] = 1
            self.ids[number] = None
        for number, id_ in zip(numbers, ids, strict=False):
            self.ids[number] = id_
        return numbers


class UnnamedBlocks:
    """`count` blocks without named content; `ids` are those that were ever drawn, the first to go last."""

    __slots__ = ("count", "ids")

    def __init__(self, count: int, ids: list[int]) -> None:
        self.count = count
        self.ids = ids


class Hold:
    """State of one sequence in the cache: the keys of its full blocks, and the stored blocks it holds."""

    __slots__ = ("blocks", "keys", "link")

    def __init__(self, keys: list[int], link: int) -> None:
        self.keys = keys
        self.link = link  # end of the chain of what the request shares
        self.blocks: list[int] = []  # by their numbers on the shelf


class Linked:
    """A chain of keys: `ids` of which the first `count` are part of it, the keys of `full` blocks, and the last link.

    What continues the content of `ids` begins its chain here. Keys beyond `full` are not of the chain.
    """

    __slots__ = ("begin", "count", "full", "ids", "keys", "link")

    def __init__(self, begin: int, ids: ListOf[int], count: int, keys: list[int], link: int) -> None:
        self.begin = begin
        self.ids = ids
        self.count = count
        self.keys = keys
        self.full = len(keys)
        self.link = link

    def leads_to(self, begin: int, ids: ListOf[int], full: int) -> bool:
        """Whether the chain of `full` blocks of a content begins with this one."""
        return begin == self.begin and full >= self.full and ids[: len(self.ids)] == self.ids


def chain(request: VisibleRequest, size: int, output_tokens: int = 0, before: Linked | None = None) -> Linked:
    """Keys of the full blocks of `size` tokens that `prefix_ids` name, and the last link of their chain.

    They are those of the prompt, and those that an answer of `output_tokens` fills. `before` saves work where the
    request continues its content.
    """
    block_tokens, ids = request.prefix_block_tokens, request.prefix_ids
    id_tokens = block_tokens * len(ids)
    goes_on = names_answer(len(ids), block_tokens, request.prompt_tokens)
    named_tokens = request.prompt_tokens + (output_tokens if goes_on else 0)
    model = 0 if request.model is None else int.from_bytes(request.model.encode())  # its adapter makes KV another
    return linked(ids, block_tokens, min(named_tokens, id_tokens) // size, size, model, before)


def linked(ids: ListOf[int], each: int, full: int, size: int, model: int = 0, before: Linked | None = None) -> Linked:
    """Keys of `full` blocks of `size` tokens in a content of `ids` with `each` tokens, and the last link.

    A key stands for all content up to the end of its block: it is made of the chain of ids up to the one that holds
    the last token of the block, and of the place of the block.
    """
    link = begin = hash((_SEED, each, model) if model else (_SEED, each))
    keys: list[int] = []
    count = held = 0
    if before is not None and before.count and before.leads_to(begin, ids, full):
        count, link, keys = before.count, before.link, before.keys[: before.full]
        held = min(full, count * each // size)
        keys.extend(range(link + len(keys), link + held))  # of a last block that was cut short
    while count < len(ids) and (held < full or not count):
        link = hash((link, 2 * ids[count] + 1))  # Note: odd, because hash(-1) == hash(-2)
        count += 1
        upto = min(full, count * each // size)
        if upto == held + 1:
            keys.append(link + held)
        else:
            keys.extend(range(link + held, link + upto))
        held = upto
    return Linked(begin, ids, count, keys, link)


class PrefixCache:
    """Finds stored blocks for what arrives, keeps those of what ended, and gives up the least recently used."""

    __slots__ = ("_blocks", "_chained", "_chains", "_changes", "_copies", "_drawn", "_found", "_fresh", "_holds",
                 "_index", "_list", "_listed", "_shelf", "_was_stored", "hit_tokens", "queried_tokens")  # fmt: skip

    def __init__(self, blocks: Blocks, *, tiered: bool = False) -> None:
        """With `tiered` it keeps what tiers below it want to know: `changes`."""
        self._blocks = blocks
        self._changes: Changes | None = ([], [], [], {}) if tiered else None
        self._was_stored: dict[int, bool] | None = (
            None  # at the last report, of keys that changed since; None: no reports
        )
        self._shelf = Shelf()
        self._index: dict[int, int] = {}  # key: number of the block to be found
        self._copies: dict[int, list[int]] = {}  # key: further blocks with the same content, in order
        self._list: OrderedDict[int | UnnamedBlocks, None] = OrderedDict({UnnamedBlocks(blocks.total, []): None})
        self._listed = blocks.total  # blocks in the list; more than `blocks.free` by those taken and not yet drawn
        self._drawn = UnnamedBlocks(0, [])  # drawn from the list, and not yet named by their owners
        self._fresh = 0  # ids given out so far
        self._holds: dict[Sequence, Hold] = {}
        self._chains: OrderedDict[int, Linked] = OrderedDict()  # by session, the last used last
        self._chained = 0  # keys of these chains
        self._found: tuple[Sequence, list[int]] | None = None
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self._blocks.size

    # ---- before admission -----------------------------------------------------------------------------------

    def stored_tokens(self, keys: ListOf[int], *, reported: bool = False) -> int:
        """Tokens at the head of a chain that are stored now, or were when they were `reported`."""
        self._settle()
        is_stored = self.reported if reported else self._index.__contains__
        return self._blocks.size * sum(1 for _ in takewhile(is_stored, keys))

    def report(self) -> None:
        """What is stored now is what `reported` says until the next report."""
        self._settle()
        self._was_stored = {}

    def reported(self, key: int) -> bool:
        """Whether a key was stored at the last report; without reports, whether it is."""
        was_stored, is_stored = self._was_stored, key in self._index
        return is_stored if was_stored is None else was_stored.get(key, is_stored)

    def __contains__(self, key: int) -> bool:
        return key in self._index

    def findable(self, seq: Sequence) -> list[int]:
        """Keys of the blocks of a sequence that may be found, at least one token left to compute."""
        # A prompt that is stored to its last token has no step left that would give the next one.
        return self._hold(seq).keys[: (seq.prompt + seq._emitted - 1) // self._blocks.size]

    def touch(self, keys: ListOf[int]) -> None:
        """What is stored of this chain will be used soon, and goes last."""
        self._settle()
        for key in reversed(keys):
            if (block := self._index.get(key)) is not None and block in self._list:
                self._list.move_to_end(block)

    def changes(self) -> Changes:
        """Keys that were stored, used by sequences that left, and given up, since the last call."""
        self._settle()
        changes, self._changes = self._changes, ([], [], [], {})
        assert changes is not None
        return changes

    def unstored(self) -> int:
        """Blocks that will be taken before one that is stored has to go."""
        self._settle()
        head = next(iter(self._list), None)
        return head.count if isinstance(head, UnnamedBlocks) else 0

    def look(self, seq: Sequence) -> int:
        """Find what is stored of the sequence at the head of the queue, at least one token left to compute.

        Sets `computed` of the sequence. Returns how many of the blocks found are referenced already.
        """
        self._settle()
        index, size = self._index, self._blocks.size
        keys = self.findable(seq)
        blocks: list[int | None] = [*map(index.get, keys), None]
        stored = cast("list[int]", blocks[: blocks.index(None)])
        self._found = seq, stored
        seq._computed = len(stored) * size
        return len(stored) - list(map(self._shelf.refs.__getitem__, stored)).count(0)

    def admit(self, seq: Sequence) -> int:
        """Hold what `look` found. Returns its blocks, which have been taken from those that are free."""
        assert self._found is not None
        assert self._found[0] is seq
        stored = self._found[1]
        refs, ids, before = self._shelf.refs, self._shelf.ids, len(self._list)
        for block in stored:
            if not refs[block]:
                del self._list[block]
            refs[block] += 1
        claimed = before - len(self._list)
        self._listed -= claimed
        self._blocks.free -= claimed
        self._holds[seq].blocks = stored
        seq.table = [id_ for block in stored if (id_ := ids[block]) is not None]
        if seq.cached_tokens is None:
            seq.cached_tokens = seq._computed
            self.queried_tokens += seq.prompt
            self.hit_tokens += seq._computed
        self._found = None
        return len(stored)

    # ---- while it runs --------------------------------------------------------------------------------------

    def fill(self, seq: Sequence) -> None:
        """Store the blocks that the sequence has just filled."""
        hold = self._hold(seq)
        self._store(hold, min(self._named_blocks(seq), len(hold.keys)), seq.table)

    def tell(self, seq: Sequence, ids: ListOf[int]) -> None:
        """All blocks of the sequence, answer included, are known by now: `ids` name them one by one."""
        self._hold(seq).keys = linked(ids, self._blocks.size, len(ids), self._blocks.size).keys

    def name(self, table: list[int], count: int) -> list[int]:
        """Draw ids until `table` names all `count` blocks of its owner; returns the table."""
        if len(table) < count:
            self._settle()
        drawn = self._drawn
        while len(table) < count:
            drawn.count -= 1
            if drawn.ids:
                table.append(drawn.ids.pop())
            else:
                table.append(self._fresh)
                self._fresh += 1
        return table

    def release(self, seq: Sequence, over: bool) -> None:
        """Take back all blocks of a sequence; where it is not `over` it finds what it computed when it comes again."""
        self.give(seq, seq.blocks, seq.table, over=over)

    def give(self, seq: Sequence, count: int, table: list[int], *, over: bool = True) -> None:
        """`release` for a sequence whose `count` blocks, of which those in `table` have ids, stand apart from it."""
        self._settle()
        hold = self._hold(seq)
        full = min(self._named_blocks(seq), count)  # one that waits may have been looked up
        if over:
            self._store(hold, min(full, len(hold.keys)), table)
            del self._holds[seq]
        else:
            if full > len(hold.keys):  # name its own content, too: only the sequence itself finds it again
                base = hash((hold.link, 2 * seq.request.id))
                hold.keys.extend(range(base + len(hold.keys), base + full))
            self._store(hold, full, table)
        stored = hold.blocks
        plain = count - len(stored)
        if plain:
            self._give(plain, table[len(stored) :])
        # The end of a chain goes first: without its beginning it is not found, but the beginning is without it.
        if self._changes is not None:
            self._changes[1].extend(self._shelf.keys[block] for block in reversed(stored))
        refs, before = self._shelf.refs, len(self._list)
        for block in reversed(stored):
            refs[block] -= 1
            if not refs[block]:
                self._list[block] = None
        freed = len(self._list) - before
        self._listed += freed
        self._blocks.free += freed
        table.clear()
        hold.blocks = []

    def give_unused(self, count: int, ids: list[int]) -> None:
        """Take back `count` blocks that nothing was stored in, `ids` of which have ids."""
        if count > 0:
            self._settle()
            self._give(count, ids)

    def insert(self, keys: ListOf[int], reserved: int = 0, table: ListOf[int] = ()) -> int:
        """Store blocks with these keys that are not stored yet, as if just used, where blocks are free; how many.

        `reserved` blocks have been taken for them before; `table` are the ids of those that content was copied into.
        """
        self._settle()
        new = [key for key in keys if key not in self._index][: self._blocks.free + reserved]
        ids = dict(zip(keys, table, strict=False))
        new_ids = [ids.pop(key) for key in new if ids]
        self.give_unused(reserved - len(new), [*ids.values()])
        self._blocks.free -= max(0, len(new) - reserved)
        self._settle()
        hold = Hold(new, 0)
        self._store(hold, len(new), new_ids)
        for block in reversed(hold.blocks):
            self._shelf.refs[block] = 0
            self._list[block] = None
        self._listed += len(new)
        self._blocks.free += len(new)
        return len(new)

    def forget(self) -> None:
        """Forget every block that no sequence holds; the order of the list stays."""
        self._settle()
        self._list = OrderedDict((self._forgotten(entry), None) for entry in self._list)

    # ---- inside ---------------------------------------------------------------------------------------------

    def _named_blocks(self, seq: Sequence) -> int:
        """Full blocks that a chain can name: of several answers those of their prompt."""
        tokens = seq._computed if seq.answers == 1 else min(seq._computed, seq.prompt)
        return tokens // self._blocks.size

    def _hold(self, seq: Sequence) -> Hold:
        hold = self._holds.get(seq)
        if hold is None:
            session = seq._request.session
            before = None if session is None else self._chains.pop(session, None)
            keyed = chain(seq.request, self._blocks.size, seq._output if seq.answers == 1 else 0, before)
            hold = self._holds[seq] = Hold(keyed.keys, keyed.link)
            if session is not None:
                self._remember(session, keyed, 0 if before is None else before.full)
        return hold

    def _remember(self, session: int, found: Linked, before: int) -> None:
        """Keep the last chain of a session for its next turn, within `CHAINS`."""
        self._chains[session] = found
        self._chained += found.full - before
        while self._chained > CHAINS * self._blocks.total and len(self._chains) > 1:
            self._chained -= self._chains.popitem(last=False)[1].full

    def _store(self, hold: Hold, full: int, table: list[int]) -> None:
        index, begin = self._index, len(hold.blocks)
        if begin >= full:
            return
        keys, was_stored = hold.keys[begin:full], self._was_stored
        blocks = self._shelf.put(keys, table[begin:full])
        for key, block in zip(keys, blocks, strict=True):
            if index.setdefault(key, block) != block:
                self._copies.setdefault(key, []).append(block)
            elif was_stored is not None:
                was_stored.setdefault(key, False)
        hold.blocks += blocks
        if self._changes is not None:
            self._changes[0].extend(keys)
            self._changes[3].update(zip(keys, table[begin:full], strict=False))

    def _give(self, count: int, ids: list[int]) -> None:
        """`count` blocks without reusable content go to the end of the list; those without ids were never drawn."""
        unnamed = count - len(ids)
        if unnamed:
            drawn = self._drawn
            drawn.count -= unnamed
            split = max(0, len(drawn.ids) - unnamed)
            ids += drawn.ids[split:]
            del drawn.ids[split:]
        self._list[UnnamedBlocks(count, ids)] = None
        self._listed += count
        self._blocks.free += count

    def _settle(self) -> None:
        """Draw from the head of the list what was taken by counting."""
        owed = self._listed - self._blocks.free
        if not owed:
            return
        free, drawn, index, shelf = self._list, self._drawn, self._index, self._shelf
        watched = bool(self._copies) or self._changes is not None or self._was_stored is not None
        # Counting has taken them already; which blocks they are follows from the order of the list alone, whenever that
        # is looked up.
        self._listed -= owed
        drawn.count += owed
        while owed:
            head, _ = free.popitem(last=False)
            if not isinstance(head, UnnamedBlocks):
                owed -= 1
                if watched:
                    id_ = self._drop(head)
                else:  # the same without a call for each block
                    del index[shelf.keys[head]]
                    shelf.spare.append(head)
                    id_ = shelf.ids[head]
                if id_ is not None:
                    drawn.ids.append(id_)
                continue
            count = min(owed, head.count)
            head.count -= count
            owed -= count
            split = max(0, len(head.ids) - count)
            drawn.ids += head.ids[split:]
            del head.ids[split:]
            if head.count:
                free[head] = None
                free.move_to_end(head, last=False)

    def _drop(self, block: int) -> int | None:
        """Remove this block from the index; another one of the same content may take its place. Returns its id."""
        key, id_, copies = self._shelf.keys[block], self._shelf.ids[block], None
        if self._copies:
            copies = self._copies.get(key)
        if copies is None:
            del self._index[key]
            if self._changes is not None:
                self._changes[2].append(key)
                if id_ is not None:
                    self._changes[3][key] = id_
            if self._was_stored is not None:
                self._was_stored.setdefault(key, True)
        else:
            if self._index[key] == block:
                self._index[key] = copies.pop(0)
            else:
                copies.remove(block)
            if not copies:
                del self._copies[key]
        self._shelf.spare.append(block)
        return id_

    def _forgotten(self, one: int | UnnamedBlocks) -> UnnamedBlocks:
        if isinstance(one, UnnamedBlocks):
            return one
        id_ = self._drop(one)
        return UnnamedBlocks(1, [] if id_ is None else [id_])

    # ---- checks ---------------------------------------------------------------------------------------------

    def held(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that these sequences hold beside plain ones of their own, minus those counted more than once."""
        stored = [block for seq in sequences if seq in self._holds for block in self._holds[seq].blocks]
        return len(set(stored)) - len(stored)

    def check(self) -> None:
        """Integrity: the list and what is held make up all blocks, references are right, no id is doubled."""
        self._settle()
        shelf, plain = self._shelf, [entry for entry in self._list if isinstance(entry, UnnamedBlocks)]
        stored = [entry for entry in self._list if not isinstance(entry, UnnamedBlocks)]
        assert len(stored) + sum(entry.count for entry in plain) == self._listed == self._blocks.free
        held = Counter(block for hold in self._holds.values() for block in hold.blocks)
        assert all(shelf.refs[block] == count for block, count in held.items())
        assert not any(shelf.refs[block] for block in stored)
        indexed = [*self._index.values(), *(block for copies in self._copies.values() for block in copies)]
        assert sorted(indexed) == sorted([*held, *stored])
        assert all(shelf.keys[block] == key for key, block in self._index.items())
        assert sorted([*indexed, *shelf.spare]) == list(range(len(shelf.keys)))
        ids = [id_ for block in indexed if (id_ := shelf.ids[block]) is not None]
        ids += [i for entry in plain for i in entry.ids] + self._drawn.ids
        assert len(ids) == len(set(ids)) <= self._fresh <= self._blocks.total

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._index)} stored, {self.hit_tokens}/{self.queried_tokens} tokens found>"
