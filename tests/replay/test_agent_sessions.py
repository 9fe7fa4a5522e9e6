"""Sessions of agents in the prefix cache of the simulator: its hits are those of an LRU that is written here anew."""

import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from backends.sim import Sim
from harness.data.dependencies import Releases
from harness.data.schedule import Schedule
from workloads import replay
from workloads.trace_tools.write import convert

BLOCK = 64

Corpus = Callable[[int], str]


class Served(NamedTuple):
    """A request as it was served; `ids` name the whole blocks of its prompt."""

    start_s: float
    first_s: float
    end_s: float
    prompt: int
    output: int
    ids: list[int]
    cached: int

    @property
    def unnamed(self) -> int:
        """Blocks of the end of the prompt and of the answer."""
        return -(-(self.prompt + self.output) // BLOCK) - len(self.ids)

    def found(self, held: object) -> int:
        """Tokens of the leading blocks that are held; at least one token is computed."""
        count = 0
        for block in self.ids[: (self.prompt - 1) // BLOCK]:
            if block not in held:  # type: ignore[operator]  # a set, or what behaves as one
                break
            count += 1
        return BLOCK * count


def one_at_a_time(served: list[Served], capacity: int) -> int:
    """Tokens found by a plain LRU, request after request; of one prompt the last block goes first."""
    held: OrderedDict[object, None] = OrderedDict()
    hits = 0
    for number, one in enumerate(served):
        hits += one.found(held)
        for block in [*((number, i) for i in range(one.unnamed)), *reversed(one.ids)]:
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
    return hits


def pinned(served: list[Served], capacity: int) -> int:
    """The same where requests run beside one another: what runs stays, and is found from its first token on.

    Blocks of an answer are taken as it goes on: half of them with the first token, the others at the end.
    """
    events = sorted(
        (at_s, kind, number)
        for number, one in enumerate(served)
        for at_s, kind in ((one.first_s, 0), (one.end_s, 1), (one.start_s, 2))
    )
    free: OrderedDict[object, None] = OrderedDict()
    running, known = Counter[int](), set[int]()
    unnamed = hits = 0
    for _, kind, number in events:
        one = served[number]
        if kind == 0:
            known.update(one.ids)
            unnamed += one.unnamed // 2
        elif kind == 1:
            unnamed -= one.unnamed // 2
            free.update(((number, i), None) for i in range(one.unnamed))
            for block in reversed(one.ids):
                running[block] -= 1
                if not running[block]:
                    del running[block]
                    free[block] = None
        else:
            hits += one.found(known)
            running.update(one.ids)
            for block in one.ids:
                free.pop(block, None)
        while free and len(free) + len(running) + unnamed > capacity:
            known.discard(free.popitem(last=False)[0])  # type: ignore[arg-type]  # unnamed blocks are not known
    return hits


@pytest.fixture(scope="module")
def corpus(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Makes a file that is read fast of so many published sessions."""
    folder = shared_data / "agentic" / "weka"
    if not folder.is_dir():
        pytest.skip("the agentic traces are not on this machine")

    @cache
    def make(most: int) -> str:
        few = tmp_path_factory.mktemp("agents")
        for file in sorted(folder.iterdir())[:most]:
            shutil.copy(file, few)
        convert(str(few), f"{few}.parquet")
        return f"{few}.parquet"

    return make


def serve(corpus: Corpus, users: int, blocks: int, sessions: int) -> list[Served]:
    """Sessions of at most 96,000 tokens, served in the order in which they started."""
    loaded = replay.load(
        corpus(3 * sessions), arrivals=f"closed:users={users},think=0", turns="think-only:cap=60s",
        scale="context:96000", sessions=f"recorded:count={sessions}", seed=0,
    )  # fmt: skip
    schedule = Schedule.draw(loaded.workload, seed=0)
    ids = schedule.table["prefix_ids"].to_pylist()
    sim = Sim(model="llama3.1-70b", hardware="h100", tp=8, prefix_cache="on", kv=f"paged:{BLOCK}", kv_blocks=blocks,
              log_steps=False)  # fmt: skip
    served = []
    for r in sim.simulate(schedule.planned(), Releases(schedule, lambda _: None)):
        assert (r.status, r.prefill_start_s is None, r.cached_tokens is None) == ("ok", False, False)
        times = (r.prefill_start_s or 0.0, r.token_s[0], r.token_s[-1])
        served.append(Served(*times, r.prompt_tokens, r.output_tokens, ids[r.request_id], r.cached_tokens or 0))
    assert len(schedule) == len(served)
    return sorted(served, key=lambda one: one.start_s)


def _nightly(*sizes: int) -> list[object]:
    return [pytest.param(20, size, marks=pytest.mark.nightly) for size in sizes]


@pytest.mark.parametrize(("sessions", "blocks"), [(8, 2_000), *_nightly(1_700, 2_000, 3_000, 6_000, 12_000)])
def test_one_session_at_a_time_hits_as_an_lru_does(corpus: Corpus, sessions: int, blocks: int) -> None:
    """The simulated cache would find more or less than a real one, and every latency with it."""
    served = serve(corpus, 1, blocks, sessions)
    tokens = sum(one.prompt for one in served)
    found = sum(one.cached for one in served)

    assert abs(found - one_at_a_time(served, blocks)) / tokens < 0.001
    assert 0.9 < found / tokens < 0.99


@pytest.mark.parametrize(("sessions", "blocks"), [(8, 5_000), *_nightly(5_000, 6_000, 8_000, 12_000, 24_000)])
def test_sessions_at_once_hit_as_an_lru_does_that_keeps_what_runs(corpus: Corpus, sessions: int, blocks: int) -> None:
    """Users at once would push each other out of the cache more or less than they do."""
    served = serve(corpus, 6, blocks, sessions)
    tokens = sum(one.prompt for one in served)
    found = sum(one.cached for one in served)

    assert abs(found - pinned(served, blocks)) / tokens < 0.001
