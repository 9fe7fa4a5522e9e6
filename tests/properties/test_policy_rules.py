"""What each policy promises of its batches: budgets, turns, chunks, and preemption order."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.serving.replica import Replica
from harness.api import Request
from harness.registry import make

PAGED = "paged:block_tokens=4,watermark=0"


class Steps:
    """A replica stepped by hand; `seen` holds per batch what ran, and who decoded, prefilled, waited or gave way."""

    def __init__(self, policy: str, blocks: int = 4000, memory: str = PAGED) -> None:
        self.replica = Replica(make("policies", policy), make("kv", memory), blocks)
        self.seen: list[dict] = []
        self.done: list = []
        self.now_s = 0.0

    def add(self, *requests: Request) -> None:
        for request in requests:
            assert self.replica.add(request, self.now_s) is None

    def step(self) -> dict | None:
        could = {s.request.id for s in self.replica.decoding} | {s.request.id for s in self.replica.parked}
        batch = self.replica.schedule(self.now_s)
        if batch is None:
            return None
        decodes = [s.request.id for s in self.replica.decoding] if batch.decode_seqs else []
        self.seen.append(
            {
                "tokens": batch.tokens(), "decodes": decodes,
                "prefills": [(s.request.id, n) for s, n in batch.prefills],
                "new": [s.request.id for s, _ in batch.prefills if s.computed == 0], "could": could,
                "preempted": [s.request.id for s in batch.preempted], "waiting": len(self.replica.waiting),
                "left": sum(s.need() for s in self.replica.prefilling) - sum(n for _, n in batch.prefills),
            }
        )  # fmt: skip
        self.now_s += 1.0
        self.done += self.replica.commit(batch, array("d", (self.now_s,)))
        self.replica.check()
        return self.seen[-1]

    def run(self, requests) -> list[dict]:
        """All steps until everything is served, requests arriving at their seconds."""
        later = sorted(requests, key=lambda r: -r.scheduled_s)
        while True:
            while later and later[-1].scheduled_s <= self.now_s:
                self.add(later.pop())
            if self.step() is None:
                if not later:
                    return self.seen
                self.now_s = later[-1].scheduled_s


def at_once(*shapes: tuple[int, int]) -> list[Request]:
    return [Request(i, 0.0, prompt, output) for i, (prompt, output) in enumerate(shapes)]


@pytest.mark.parametrize(
    ("policy", "budget"),
    [("sarathi:budget=32,max_seqs=8", 32), ("sarathi:budget=64,max_seqs=8,low=16,stages=4,span_tokens=120", 64),
     ("fastgen:budget=32,max_seqs=8", 32), ("vllm-v1:budget=32,max_seqs=8", 32),
     ("vllm-v1:budget=12,max_seqs=6,long_prefill=5", 12)],
)  # fmt: skip
@given(
    rows=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=20),
    blocks=st.sampled_from([40, 4000]),
)
@settings(max_examples=8, deadline=None)
def test_no_batch_exceeds_its_budget(policy, budget, rows, blocks):
    """A batch over the budget is a late token for everybody in it (E12, K04.a, I3)."""
    requests = [Request(i, float(at), p, o) for i, (at, p, o) in enumerate(sorted(rows))]
    steps = Steps(policy, blocks)
    seen = steps.run(requests)
    pieces = {r.id: 0 for r in requests}
    for batch in seen:
        for i, n in batch["prefills"]:
            pieces[i] += n

    assert max(batch["tokens"] for batch in seen) <= budget
    for seq in steps.done:  # pieces of a prompt add up to it (K05.c), and to more only where it ran again
        assert seq.prompt <= pieces[seq.request.id]
        assert seq.preemptions or seq.prompt == pieces[seq.request.id]


@pytest.mark.parametrize("policy", ["sarathi:budget=32,max_seqs=8", "sarathi:budget=64,max_seqs=8,low=16"])
def test_stall_free_batches_hold_every_decode(policy, draw):
    """A decode left out is the stall that Sarathi-Serve forbids (E12, K04.b)."""
    seen = Steps(policy).run(draw(40, rate_rps=0.5, prompt=(1, 200)))

    assert all(batch["could"] == set(batch["decodes"]) for batch in seen)


def test_dynamic_splitfuse_fills_every_pass_while_there_is_a_backlog(draw):
    """Passes of unequal size waste the throughput that equal ones have (K05.a, E12)."""
    seen = Steps("fastgen:budget=48,max_seqs=32").run(draw(40, rate_rps=100.0, prompt=(20, 300)))
    backlog = [batch for batch in seen if batch["waiting"] or batch["left"]]

    assert len(backlog) > 50
    assert {48} == {batch["tokens"] for batch in backlog}


def test_splitfuse_skips_a_decode_without_a_block_instead_of_preempting_it():
    """Memory would be thrown away that the next finished sequence makes room for."""
    steps = Steps("fastgen:budget=64", blocks=5)
    steps.add(*at_once((8, 9), (7, 3)))
    seen = steps.run([])

    assert [0, 1] == seen[1]["decodes"]  # the last free block goes to 0, and 1 has room in its own
    assert [0] == seen[2]["decodes"]  # 1 needs a block and finds none: it sits out
    assert not any(batch["preempted"] for batch in seen[:3])
    assert {0, 1} == {seq.request.id for seq in steps.done}


def test_a_deadlock_under_splitfuse_costs_the_youngest_only():
    """With every block taken and every sequence in need of one, none would ever run again."""
    steps = Steps("fastgen:budget=64", blocks=4)
    steps.add(*at_once((8, 8), (8, 8)))
    seen = steps.run([])

    assert [[1]] == [batch["preempted"] for batch in seen if batch["preempted"]]
    assert [0, 1] == [seq.request.id for seq in steps.done]
    assert [0, 1] == [seq.preemptions for seq in steps.done]


def test_tgi_lets_prompts_wait_until_they_are_enough_or_overdue():
    """Each prefill stops all decodes: prompts that join one by one would make every answer stutter (queue.rs)."""
    steps = Steps("tgi:waiting_served_ratio=0.5,max_waiting_tokens=6", memory="reserve-oracle:block_tokens=4")
    steps.add(*at_once((4, 30), (4, 30), (4, 30), (4, 30)))
    steps.step()
    steps.add(Request(4, 0.0, 4, 2))
    few = [steps.step() for _ in range(6)]
    steps.add(*(Request(i, 0.0, 4, 2) for i in (5, 6)))
    enough = steps.step()

    assert [[], [], [], [], [], [(4, 4)]] == [batch["prefills"] for batch in few]
    assert [(5, 4), (6, 4)] == enough["prefills"]


def test_tgi_counts_prompts_that_fit_not_those_that_wait():
    """Under a long queue every answer that ends would let one prompt in, and stop the others for it."""
    steps = Steps("tgi:max_waiting_tokens=100", blocks=12, memory="reserve-oracle:block_tokens=4")
    steps.add(*at_once((4, 4), (4, 8), (4, 12), (4, 12), (4, 12)))
    seen = steps.run([])

    assert [[0, 1, 2], [3, 4]] == [batch["new"] for batch in seen if batch["new"]]


def test_chunk_only_alternates_and_never_mixes(draw):
    """Chunks beside decodes would be Sarathi-Serve's other half, and the ablation would compare nothing."""
    seen = Steps("chunk-only:budget=24,max_seqs=8").run(draw(40, rate_rps=0.5, prompt=(1, 100), output=(2, 30)))

    assert not any(batch["prefills"] and batch["decodes"] for batch in seen)
    assert max(sum(n for _, n in batch["prefills"]) for batch in seen) <= 24
    for before, batch in zip(seen, seen[1:], strict=False):
        if before["prefills"] and batch["prefills"]:
            assert not batch["could"], "a prefill turn follows a prefill turn only where no sequence decodes"


def test_a_prefill_turn_of_chunk_only_takes_new_prompts_only_when_none_is_unfinished():
    """Its source runs unfinished prompts alone, even below the budget (simple_chunking_scheduler.py)."""
    steps = Steps("chunk-only:budget=10,max_seqs=8")
    steps.add(*at_once((13, 2), (4, 2)))
    seen = steps.run([])

    assert [[(0, 10)], [(0, 3)], [], [(1, 4)], []] == [batch["prefills"] for batch in seen]


@pytest.mark.parametrize(
    ("computed", "tokens"), [(0, 256), (49, 256), (50, 192), (100, 128), (150, 64), (199, 64), (5000, 64)]
)
def test_dynamic_chunks_shrink_along_the_prompt(computed, tokens):
    """Late chunks read all that is stored before them, so equal chunks take longer and longer."""
    policy = make("policies", "sarathi:budget=256,low=64,stages=4,span_tokens=200")

    assert tokens == policy.budget - policy._below_budget(computed)


def test_dynamic_chunks_are_those_of_the_source():
    """128 to 2,048 in 16 stages, rounded to 32, decodes counted against the chunk (sarathi_scheduler.py)."""
    steps = Steps("sarathi:budget=2048,low=128,stages=16,span_tokens=8192", blocks=9000)
    steps.add(Request(0, 0.0, 8192, 1))
    sizes = [batch["tokens"] for batch in steps.run([])]

    assert [2048, 1536, 1152, 896, 640, 512, 384, 256, 256, 128, 128, 128, 128] == sizes


def test_vllm_v1_takes_memory_chunk_by_chunk():
    """Blocks for a whole prompt at admission would keep others out that fit meanwhile."""
    steps = Steps("vllm-v1:budget=8,max_seqs=4", blocks=30)
    steps.add(Request(0, 0.0, 40, 2))
    held = []
    while steps.step() is not None:
        held.append(30 - steps.replica.blocks.free)

    assert [2, 4, 6, 8, 10, 0] == held


def test_vllm_v1_does_not_admit_in_a_step_that_preempted(draw):
    """What was just thrown out would be let in again, step after step."""
    seen = Steps("vllm-v1:budget=64,max_seqs=16", blocks=40).run(draw(40, rate_rps=1.0, prompt=(1, 60), output=(5, 60)))
    preempting = [batch for batch in seen if batch["preempted"]]

    assert len(preempting) > 5
    assert not any(batch["new"] for batch in preempting)


def test_vllm_v1_caps_the_share_of_one_long_prompt():
    """A long prompt would keep short ones waiting although the budget has room for both."""
    steps = Steps("vllm-v1:budget=32,max_seqs=4,long_prefill=10")
    steps.add(*at_once((35, 1), (35, 1), (8, 1)))
    seen = steps.run([])

    assert [(0, 10), (1, 10), (2, 8)] == seen[0]["prefills"]


def test_vllm_v1_serves_in_order_of_admission_where_the_budget_is_short():
    """Decodes admitted after long prompts would overtake them (its loop goes over running sequences in order)."""
    steps = Steps("vllm-v1:budget=8,max_seqs=8,long_prefill=4")
    steps.add(*at_once((4, 9), (1, 9)))
    steps.step()
    steps.add(Request(2, 1.0, 40, 1), Request(3, 1.0, 40, 1), Request(4, 1.0, 1, 9))
    first, second = steps.step(), steps.step()

    assert [(2, 4), (3, 2)] == first["prefills"]
    assert [(2, 4), (3, 2)] == second["prefills"]
    assert [0, 1] == second["decodes"]


@pytest.mark.parametrize(("order", "victim"), [("fcfs", 2), ("priority", 1)])
def test_vllm_v1_takes_memory_from_the_last_or_the_least_urgent(order, victim):
    """Paying users would be thrown out before those who can wait."""
    steps = Steps(f"vllm-v1:budget=64,max_seqs=8,order={order}", blocks=6)
    steps.add(*(replace(r, priority=p) for r, p in zip(at_once((8, 8), (8, 8), (8, 8)), (0, 5, 0), strict=True)))
    seen = steps.run([])

    assert victim == next(batch["preempted"][0] for batch in seen if batch["preempted"])


def test_vllm_v1_admits_the_most_urgent_first():
    """A queue by arrival is no queue by priority."""
    steps = Steps("vllm-v1:budget=8,max_seqs=1,order=priority")
    steps.add(*(replace(r, priority=p) for r, p in zip(at_once((8, 1), (8, 1), (8, 1)), (7, 9, 2), strict=True)))
    seen = steps.run([])

    assert [[2], [0], [1]] == [batch["new"] for batch in seen]
