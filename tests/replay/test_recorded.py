"""Recorded step times: a stored run gives itself again, and nothing else."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import VERSION, ActionEvent, Request, RequestRecord, Step
from harness.data.dependencies import Releases
from harness.data.records import actions_table, scheduled_table, steps_table, to_table
from harness.data.schedule import Schedule, digest
from harness.errors import NotValid, UsageError
from replay._alone import serve_alone


def store(folder, records, steps):
    """Write what the simulator needs of a run into its folder."""
    pq.write_table(to_table(records), folder / "requests.parquet")
    pq.write_table(steps, folder / "steps.parquet")
    (folder / "run.json").write_text(json.dumps({"schema": VERSION, "state": "finished"}))


@pytest.fixture
def stored(tmp_path, draw):
    """A simulated run of two replicas as the tables of a run folder, and its requests."""
    requests = draw(120, rate_rps=12.0)
    sim = Sim(replicas=2, policy="vllm-v0", kv_blocks=60)
    records = list(sim.simulate(requests))
    store(tmp_path, records, sim.steps_table())
    return tmp_path, requests, {r.request_id: list(r.token_s) for r in records}


def test_a_run_of_several_replicas_gives_itself_again(stored):
    """The recording knows when each replica was free."""
    folder, requests, stamps = stored
    sim = Sim(replicas=2, policy="vllm-v0", kv_blocks=60, latency=f"recorded:{folder}")

    assert stamps == {r.request_id: list(r.token_s) for r in sim.simulate(requests)}


@pytest.mark.parametrize("fields", [{"policy": "sarathi", "kv_blocks": 60}, {"policy": "vllm-v0", "kv_blocks": 4000}])
def test_another_policy_or_memory_is_distinguished_from_the_recorded_one(stored, fields):
    """Times of one scheduler must not be passed off as times of another."""
    folder, requests, _ = stored
    sim = Sim(replicas=2, latency=f"recorded:{folder}", **fields)

    with pytest.raises(NotValid, match="give it the run's policy, router and memory"):
        list(sim.simulate(requests))


def test_a_folder_that_is_no_recording_is_one_sentence(stored, tmp_path_factory):
    """A wrong folder is the most likely mistake."""
    folder, _, _ = stored
    with pytest.raises(UsageError, match="has no run"):
        Sim(latency=f"recorded:{tmp_path_factory.mktemp('empty')}")
    table = pq.read_table(folder / "requests.parquet")
    column = table.schema.get_field_index("arrived_s")
    unseen = table.set_column(column, table.schema.field(column), pa.nulls(len(table), pa.float64()))
    pq.write_table(unseen, folder / "requests.parquet")

    with pytest.raises(UsageError, match="has no arrived_s"):
        Sim(latency=f"recorded:{folder}")


@pytest.mark.parametrize("status", ["timeout", "cancelled"])
def test_a_run_in_which_requests_were_given_up_is_one_sentence(stored, status):
    """When a client hung up is not recorded: the requests after it would run in other batches."""
    folder, _, _ = stored
    table = pq.read_table(folder / "requests.parquet")
    column = table.schema.get_field_index("status")
    cut = table.set_column(column, table.schema.field(column), pa.array([status, *table["status"].to_pylist()[1:]]))
    pq.write_table(cut, folder / "requests.parquet")

    with pytest.raises(UsageError, match="were given up"):
        Sim(latency=f"recorded:{folder}")


def test_a_run_in_which_a_replica_failed_is_one_sentence(stored):
    """Its requests ended by the failure and not by a decision."""
    folder, _, _ = stored
    pq.write_table(actions_table([ActionEvent("down", 1.0, 1.0, 0, detail="failed")]), folder / "actions.parquet")

    with pytest.raises(UsageError, match="A replica failed"):
        Sim(latency=f"recorded:{folder}")


def test_a_workload_with_fewer_requests_than_the_run_is_one_sentence(stored):
    """Requests of the run would be missing from the table without a word."""
    folder, requests, _ = stored
    sim = Sim(replicas=2, policy="vllm-v0", kv_blocks=60, latency=f"recorded:{folder}")

    with pytest.raises(NotValid, match="give it the run's"):
        list(sim.simulate(requests[:-1]))


def test_a_run_with_follow_ups_gives_itself_again(tmp_path, draw):
    """Turns of a conversation would come at other times in the simulator than in the run it repeats."""
    roots = draw(40, rate_rps=8.0)
    turns = [
        replace(r, id=100 + r.id, session=r.id, turn=1, after=(r.id,), delay_s=0.1 * (r.id % 4)) for r in roots[:30]
    ]
    rows = sorted([*(replace(r, session=r.id) for r in roots), *turns], key=lambda r: r.scheduled_s + r.delay_s)
    rows = [replace(r, scheduled_s=r.scheduled_s + r.delay_s) for r in rows]
    table = scheduled_table(rows)
    schedule = Schedule(table, digest(table))

    def simulate(**fields):
        sim = Sim(policy="vllm-v0", kv_blocks=60, **fields)
        return sim, list(sim.simulate(schedule.planned(), Releases(schedule, pytest.fail)))

    sim, records = simulate()
    store(tmp_path, records, sim.steps_table())
    again = simulate(latency=f"recorded:{tmp_path}")[1]

    assert 70 == len(records)
    assert [(r.request_id, r.scheduled_s, r.sent_s, list(r.token_s)) for r in records] == [
        (r.request_id, r.scheduled_s, r.sent_s, list(r.token_s)) for r in again
    ]


@pytest.mark.parametrize("order", [(11, 5, 10), (10, 11, 5), (5, 11, 10)])
def test_what_arrived_at_one_instant_is_taken_in_the_order_of_sending(order, tmp_path):
    """On a busy machine the engine finds several requests at once, follow-ups among them; ids do not tell which led."""
    first, planned = Request(0, 0.0, 4, 1), Request(5, 1.9, 5, 1)
    follow_ups = [Request(i, 1.8, i, 1, session=i, after=(0,)) for i in (10, 11)]
    sent_s = {0: 0.0} | {i: 1.95 + place / 100 for place, i in enumerate(order)}
    arrived_s = {0: 0.0} | dict.fromkeys(order, 2.0)
    records = [
        RequestRecord(i, 0.0, sent_s[i], [], None, 1, 1, 1, "ok", arrived_s=arrived_s[i]) for i in (0, 5, 10, 11)
    ]
    steps = [Step(0, 0.0, 1.0, 4, 0, 0, 0, 1, 59)]
    steps += [Step(0, 2.0 + k, 3.0 + k, i, 0, 0, 2 - k, 1, 59) for k, i in enumerate(order)]
    store(tmp_path, records, steps_table(steps))
    sim = Sim(policy="orca:max_batch=1", kv_blocks=60, latency=f"recorded:{tmp_path}")
    released = {0: follow_ups}
    done = list(sim.simulate([first, planned], lambda record: released.pop(record.request_id, [])))

    assert [0, *order] == [record.request_id for record in done]
    assert [1.0, 3.0, 4.0, 5.0] == [record.token_s[0] for record in done]


class Noisy:
    """An executor that computes nothing; its steps take times of chance, as on a busy machine."""

    vocab_size, max_tokens = 10, 10_000

    def __init__(self) -> None:
        self.now_s, self._chance = 0.0, np.random.default_rng(4)

    def execute(self, pieces):
        self.now_s += float(self._chance.exponential(0.02))
        return [7 if piece.sample else None for piece in pieces]


@pytest.mark.parametrize("blocks", [40, 4000])
def test_recorded_step_times_give_the_engines_token_times_under_every_policy(each_policy, blocks, draw, tmp_path):
    """S27: a simulator that is off by a step under one policy has a scheduler of its own there."""
    requests = draw(80, rate_rps=6.0, prompt=(1, 150), output=(1, 90))
    noisy, core = Noisy(), Core.of(each_policy)
    replica = core.replica(core.memory(), blocks)
    turns = serve_alone(replica, noisy, lambda r, _: np.ones(r.prompt_tokens, int), requests)
    steps, stamps, records = [turn.step for turn in turns if turn.step], {r.id: [] for r in requests}, []
    for turn in turns:
        for i in turn.tokens:
            stamps[i].append(turn.at_s)
        for ended in turn.ended:
            r = requests[ended.request_id]
            records.append(
                RequestRecord(
                    r.id,
                    r.scheduled_s,
                    r.scheduled_s,
                    stamps[r.id],
                    None,
                    r.prompt_tokens,
                    r.output_tokens,
                    r.output_tokens,
                    "ok",
                    preemptions=ended.preemptions,
                    arrived_s=ended.arrived_s,
                )
            )
    store(tmp_path, records, steps_table(steps))
    sim = Sim(policy=each_policy, kv_blocks=blocks, latency=f"recorded:{tmp_path}")
    simulated = {r.request_id: r for r in sim.simulate(requests)}

    assert 80 == len(records)
    for record in records:
        assert list(record.token_s) == list(simulated[record.request_id].token_s)
        assert record.preemptions == simulated[record.request_id].preemptions
