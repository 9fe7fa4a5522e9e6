"""A replayed trace is the recorded one: stamps, lengths, order, links; and what was done to it stands in the run."""

import csv
import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from harness.data.schedule import Schedule, links
from harness.spec import parse
from workloads import replay, traces, transforms
from workloads.replay import Replay

CONVERSATIONS = [  # at, prompt, output, session, parent
    (0.0, 10, 5, "a", None), (1.0, 20, 5, "b", None), (2.0, 30, 5, "a", 0), (2.5, 7, 7, None, None),
    (9.0, 40, 5, "a", 2),
]  # fmt: skip


@pytest.fixture
def conversations(tmp_path: Path) -> str:
    """A plain CSV of two conversations and a request that belongs to none."""
    file = tmp_path / "dialog.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["at_s", "prompt_tokens", "output_tokens", "session", "parent"])
        writer.writerows([["" if cell is None else cell for cell in row] for row in CONVERSATIONS])
    return str(file)


def drawn(path: str, **options: object) -> pa.Table:
    """The schedule of a replayed trace."""
    return Schedule.draw(replay.load(path, **options).workload, seed=3).table


def test_rows_tagged_offline_are_offline_requests(tmp_path: Path) -> None:
    """A batch beside an online trace would be served as if people waited for it."""
    file = tmp_path / "both.csv"
    file.write_text("at_s,prompt_tokens,output_tokens,tag\n0,10,5,offline\n0,20,5,\n1,30,5,chat\n", encoding="utf-8")
    requests = Schedule.draw(replay.load(str(file)).workload, seed=0)

    assert [True, False, False] == [r.extra is not None and r.extra.offline for r in requests]


class TestExactness:
    """Acceptance test A2: gaps, lengths and order identical to 1 us; rows in = rows out + named drops."""

    def test_azure(self, shared_data: Path) -> None:
        """The system under test would see other gaps than production did."""
        file = shared_data / "traces/azure2023/AzureLLMInferenceTrace_conv.csv"
        with file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        ticks = [_ticks(row["TIMESTAMP"]) for row in rows]
        table = drawn(str(file))

        assert [int(row["ContextTokens"]) for row in rows] == table["prompt_tokens"].to_pylist()
        assert [int(row["GeneratedTokens"]) for row in rows] == table["output_tokens"].to_pylist()
        assert np.abs((np.array(ticks) - ticks[0]) / 1e7 - table["scheduled_s"].to_numpy()).max() < 1e-6

    def test_mooncake(self, shared_data: Path) -> None:
        """Prefixes would be shared by other prompts than those that shared them."""
        file = shared_data / "traces/mooncake/conversation_trace.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        table = drawn(str(file))

        assert [row["hash_ids"] for row in rows] == table["prefix_ids"].to_pylist()
        assert {512} == set(table["prefix_block_tokens"].to_pylist())
        assert [row["input_length"] for row in rows] == table["prompt_tokens"].to_pylist()
        assert np.abs([row["timestamp"] / 1000 for row in rows] - table["scheduled_s"].to_numpy()).max() < 1e-6

    def test_burstgpt(self, shared_data: Path) -> None:
        """Failed rows would be sent, or vanish without being counted."""
        file = shared_data / "traces/burstgpt/BurstGPT_1.head379.csv"
        with file.open(newline="") as stream:
            rows = [row for row in csv.DictReader(stream) if row["Response tokens"] != "0"]
        loaded = replay.load(str(file))
        table = Schedule.draw(loaded.workload, seed=0).table
        first = float(rows[0]["Timestamp"])

        assert [float(row["Timestamp"]) - first for row in rows] == table["scheduled_s"].to_pylist()
        assert {"API log": "api", "Conversation log": "conversation"}[rows[0]["Log Type"]] == table["tag"][0].as_py()
        assert 379 == len(table) + sum(loaded.provenance["dropped"].values())

    def test_the_seed_changes_nothing(self, conversations: str) -> None:
        """A recorded trace would depend on the seed of the run."""
        workload = replay.load(conversations).workload

        assert Schedule.draw(workload, seed=1).sha256 == Schedule.draw(workload, seed=2).sha256

    def test_chunks_are_joined_without_a_seam(self) -> None:
        """Long traces would lose or repeat a row where chunks meet, or point to rows of another chunk."""
        rows = 2 * replay.CHUNK + 17
        parent = np.maximum(np.arange(rows) - 3, 0)
        columns = {
            "at_s": np.arange(rows) / 8,
            "prompt_tokens": np.arange(rows) % 999 + 1,
            "output_tokens": np.ones(rows, np.int64),
            "session": np.arange(rows) % 3,
            "turn": pa.array(np.arange(rows) // 3, pa.int32()),
            "parent": pa.array(parent, mask=np.arange(rows) < 3),
            "prefix_ids": pa.array([[i, i + 1] for i in range(rows)], pa.list_(pa.int64())),
        }
        trace = traces.Trace(pa.table(columns), 16, {"file": "made", "start_s": None})
        table = Schedule.draw(Replay(trace, "answered"), seed=0).table
        child, parents = links(table)

        assert list(range(rows)) == table["id"].to_pylist()
        assert columns["prompt_tokens"].tolist() == table["prompt_tokens"].to_pylist()
        assert (np.arange(3, rows) == child).all()
        assert (np.arange(3, rows) - 3 == parents).all()
        assert [rows - 1, rows] == table["prefix_ids"][rows - 1].as_py()
        assert {16} == set(table["prefix_block_tokens"].to_pylist())


def _ticks(stamp: str) -> int:
    """Stamps of the Azure trace in units of 100 ns, which datetime cannot hold."""
    whole, fraction = stamp.split(".")
    return int(datetime.fromisoformat(whole).timestamp()) * 10**7 + int(fraction.ljust(7, "0"))


class TestTurns:
    """Later turns at recorded times, or after the answer."""

    def test_recorded_turns_do_not_wait(self, conversations: str) -> None:
        """A slow system would be spared the load that production had."""
        table = drawn(conversations)

        assert [row[0] for row in CONVERSATIONS] == table["scheduled_s"].to_pylist()
        assert [[]] * 5 == table["after"].to_pylist()
        assert 2 == len(set(table["session"].to_pylist()) - {None})

    def test_answered_turns_follow_the_one_before(self, conversations: str) -> None:
        """A question would be sent before the answer that it is about."""
        table = drawn(conversations, turns="answered")

        assert [[], [], [0], [], [2]] == table["after"].to_pylist()
        assert [row[0] for row in CONVERSATIONS] == table["scheduled_s"].to_pylist()
        assert [0.0] * 5 == table["delay_s"].to_pylist()
        assert [0, 0, 1, 0, 2] == table["turn"].to_pylist()

    def test_answered_turns_after_a_filter(self, conversations: str) -> None:
        """The third turn would wait for a second one that is never sent."""
        table = drawn(conversations, turns="answered", where="prompt_tokens!=30")

        assert [[], [], [], [0]] == table["after"].to_pylist()

    def test_a_slice_that_begins_in_a_conversation(self, conversations: str) -> None:
        """The first turn inside would wait for one before the slice."""
        table = drawn(conversations, turns="answered", start_s=1.5)

        assert [[], [], [0]] == table["after"].to_pylist()
        assert [0.5, 1.0, 7.5] == table["scheduled_s"].to_pylist()


class TestOptions:
    """What is done to a trace on its way, and that it is reported and repeatable."""

    def test_order_of_the_steps(self, conversations: str) -> None:
        """A limit would count what the filter drops, or time be compressed before it is cut."""
        options = {"start_s": 1, "stop_s": 8, "where": "prompt_tokens!=20", "limit": 2, "scale": "compress:2"}
        table = drawn(conversations, **options)

        assert [30, 7] == table["prompt_tokens"].to_pylist()
        assert [0.5, 0.75] == table["scheduled_s"].to_pylist()

    def test_every_transformation_is_in_the_facts(self, conversations: str) -> None:
        """A report would pass a changed trace for the recorded one."""
        loaded = replay.load(
            conversations, where="prompt_tokens<=30", scale="thin:1", jitter="1ms", turns="answered", seed=5
        )
        facts = loaded.provenance

        assert "prompt_tokens<=30" == facts["where"]
        assert "thin:1" == facts["scale"][0]["step"]
        assert "[0 s, 0.001 s)" in facts["jitter"]
        assert (5, "answered") == (facts["seed"], facts["turns"])
        for text in ("where=prompt_tokens<=30", "scale=thin:1", "jitter=1ms", "turns=answered"):
            assert text in loaded.arrivals_text
        assert 4 == loaded.requests

    def test_the_reported_transformation_is_a_spec(self, tmp_path: Path) -> None:
        """A comma in a file name, or between conditions, would end the run before it begins."""
        (tmp_path / "a,b.csv").write_text("t,in,out\n0,1,1\n60,5,5\n")
        loaded = replay.load(
            str(tmp_path / "a,b.csv"),
            reader="at=t,prompt=in,output=out",
            where="prompt<=9,output<=9",
            scale="superpose:2,shift=1min",
        )

        assert "trace" == parse(loaded.arrivals_text).name
        assert 4 == loaded.requests

    def test_seeds_draw_scale_and_jitter(self, shared_data: Path) -> None:
        """A scaled run could not be repeated from its seed, or all seeds would give the same one."""
        file = str(shared_data / "traces/mooncake/conversation_trace.jsonl")
        one, same, other = (drawn(file, limit=500, scale="thin:0.5", jitter="grain", seed=seed) for seed in (1, 1, 2))

        assert one == same
        assert one["scheduled_s"] != other["scheduled_s"]

    def test_jitter_does_not_change_what_is_kept(self, shared_data: Path) -> None:
        """Two runs with and without jitter would be of different requests."""
        file = str(shared_data / "traces/mooncake/conversation_trace.jsonl")
        plain = drawn(file, limit=500, scale="thin:0.5", seed=4)
        moved = drawn(file, limit=500, scale="thin:0.5", jitter="grain", seed=4)

        assert plain["prompt_tokens"] == moved["prompt_tokens"]
        assert plain["scheduled_s"] != moved["scheduled_s"]

    def test_jitter_is_in_recorded_time(self, tmp_path: Path) -> None:
        """Copies that are turned by a random time sit on no grid any more, so that the grain would not be found."""
        rows = "".join(f"{3 * (i // 4)},{i + 1},1\n" for i in range(200))
        (tmp_path / "ticks.csv").write_text("at_s,prompt_tokens,output_tokens\n" + rows)
        loaded = replay.load(str(tmp_path / "ticks.csv"), jitter="grain", scale="superpose:2+compress:3")
        gaps_s = np.diff(Schedule.draw(loaded.workload, seed=0).table["scheduled_s"].to_numpy())

        assert "[0 s, 3 s)" in loaded.provenance["jitter"]
        assert 400 == loaded.requests
        assert (gaps_s > 0).all()
        assert gaps_s.max() < 3


def test_ten_million_rows_need_no_python_objects() -> None:
    """A week of the Azure trace would not fit into memory; here: chunks share the columns of the trace."""
    rows = 300_000
    columns = {name: np.ones(rows, np.int64) for name in ("prompt_tokens", "output_tokens")}
    trace = traces.Trace(pa.table({"at_s": np.arange(rows) / 1000, **columns}), 512, {"file": "made"})
    before = pa.total_allocated_bytes()
    sizes = [chunk.num_rows for chunk in Replay(trace).start(np.random.default_rng(0))]

    assert rows == sum(sizes)
    assert replay.CHUNK == max(sizes)
    assert pa.total_allocated_bytes() - before < 200 * replay.CHUNK


def test_facts_follow_the_rows(conversations: str) -> None:
    """The number of requests in a report would be that of the file."""
    trace = replay.changed(replay.read(conversations), scale="superpose:3", seed=1)

    assert 15 == len(trace) == trace.facts["requests"]
    assert trace is transforms.first(trace, None)
