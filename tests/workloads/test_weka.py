"""Sessions of coding agents: every request is there once, and waits for what it waited for when it was recorded."""

import gzip
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from harness.errors import UsageError
from workloads import traces, transforms
from workloads.trace_tools import cache
from workloads.trace_tools import write as written


def request(t: float, tokens: int, ids: list[int], out: int = 5, **more: object) -> dict[str, object]:
    """A request as the format has it; ids name whole blocks of 64 tokens."""
    named = {"t": t, "type": "n", "model": "m", "in": tokens, "out": out, "hash_ids": ids, "stop": ""}
    return {**named, "input_types": ["text"], "output_types": ["text"], **more}


def conversation(*requests: dict[str, object], **more: object) -> dict[str, object]:
    named = {"id": "c", "models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    return {**named, "tool_tokens": 64, "system_tokens": 10, "requests": [*requests], **more}


def agent(t: float, duration_ms: float | None, *requests: dict[str, object], name: str = "a1") -> dict[str, object]:
    named = {"t": t, "type": "subagent", "agent_id": name, "subagent_type": "Explore", "duration_ms": duration_ms}
    return {**named, "status": "completed", "tool_tokens": 64, "system_tokens": 0, "requests": [*requests]}


TWO_AGENTS = conversation(
    request(0, 130, [1, 2], api_time=8.0, think_time=0.0),
    agent(30, 21_000, request(0, 70, [9], api_time=3.0, think_time=0.0),
          request(10, 140, [9, 10], api_time=10.0, think_time=7.0)),
    agent(25, 16_000, request(0, 70, [9], api_time=12.0, think_time=0.0), name="a2"),
    agent(11, None, request(1, 70, [11], api_time=100.0, think_time=0.0), name="a3"),
    request(40, 200, [1, 2, 3], api_time=2.0, think_time=32.0),
    request(50, 70, [4], think_time=8.0),
    request(60, 130, [4, 5], api_time=1.0),
)  # fmt: skip


def write(folder: Path, *conversations: dict[str, Any]) -> str:
    for number, one in enumerate(conversations):
        (folder / f"trace_{number:04}.json").write_text(json.dumps(one), encoding="utf-8")
    return str(folder)


def column(trace: traces.Trace, name: str) -> list[Any]:
    values: list[Any] = trace.table[name].to_pylist()
    return values


def test_sub_agents_start_beside_their_parent_and_are_waited_for(tmp_path: Path) -> None:
    """A parent would go on before the work it has ordered is done, or its sub-agents would work one by one."""
    trace = traces.read(write(tmp_path, TWO_AGENTS))
    rows = list(zip(*(column(trace, c) for c in ("agent", "at_s", "parent", "joins", "delay_s")), strict=True))

    assert [
        (None, 0, None, [], 0), ("a1", 9, 0, [], 1), ("a2", 9, 0, [], 1), ("a3", 12, 0, [], 4), ("a1", 19, 1, [], 7),
        (None, 40, 0, [4, 2], 11), (None, 50, 5, [], 8), (None, 60, 6, [], 10),
    ] == rows  # fmt: skip
    assert ["main", *["subagent"] * 4, *["main"] * 3] == column(trace, "tag")
    assert [8, 3, 12, 100, 10, 2, None, 1] == column(trace, "api_s")
    assert [74, 64, 64, 64, 64, 74, 74, 74] == column(trace, "common_tokens")


def test_files_are_found_by_endings_of_any_case(tmp_path: Path) -> None:
    """Sessions of B.JSON would be left out without a word."""
    write(tmp_path, conversation(request(0, 128, [1, 2])), conversation(request(0, 64, [1])))
    (tmp_path / "trace_0001.json").rename(tmp_path / "B.JSON")

    assert 2 == traces.read(str(tmp_path)).table.num_rows


def test_ids_of_one_conversation_are_not_those_of_another(tmp_path: Path) -> None:
    """Conversations that had nothing in common would share the cache, and global ones would not."""
    local, everywhere = conversation(request(0, 128, [1, 2])), {"hash_id_scope": "global"}
    shared = conversation(request(0, 64, [1]), **everywhere)
    ids = column(traces.read(write(tmp_path, local, local, shared, shared)), "prefix_ids")

    assert [[1], [1]] == ids[2:]
    assert 5 == len({one for names in ids for one in names})


def test_blocks_keep_their_ids_beside_a_conversation_that_cannot_be_used(tmp_path: Path) -> None:
    """All blocks of the file would be the same one, and every prompt a hit."""
    chats = [conversation(request(0, 192, [1, 2, 3])), conversation(request(0, -1, []))]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    trace = traces.read(str(tmp_path / "chats.jsonl"), reader="weka:max_unusable=0.6")

    (ids,) = column(trace, "prefix_ids")
    assert [0, 1, 2] == [block - ids[0] for block in ids]


def test_conversations_follow_one_another(tmp_path: Path) -> None:
    """Clocks of conversations have nothing to do with one another; all would start at one instant."""
    trace = traces.read(write(tmp_path, TWO_AGENTS, conversation(request(7, 64, [1]), request(9, 64, [1]))))

    assert [0] * 8 + [1] * 2 == column(trace, "session")
    assert [112, 114] == column(trace, "at_s")[8:]
    assert [None, 8] == column(trace, "parent")[8:]


def test_a_request_without_an_answer_hands_its_turn_before_on(tmp_path: Path) -> None:
    """A failed turn would cut its conversation in two, or leave it silently."""
    file = write(tmp_path, conversation(request(0, 64, [1]), request(1, 64, [1], out=0), request(2, 64, [1])))
    trace = traces.read(file)

    assert [None, 0] == column(trace, "parent")
    assert (3, {"out is 0": 1}) == (trace.facts["rows"], trace.facts["dropped"])


@pytest.mark.parametrize("packed", ["gz", "indented", "lines"])
def test_files_of_every_kind_hold_the_same(tmp_path: Path, packed: str) -> None:
    """A corpus would have to be unpacked and put into another form by hand."""
    many = [TWO_AGENTS, conversation(request(0, 64, [1]))]
    (folder := tmp_path / "corpus").mkdir()
    expected = traces.read(write(folder, *many)).table
    target = tmp_path / f"corpus.{packed}"
    if packed == "lines":
        target.write_text("\n".join(map(json.dumps, many)), encoding="utf-8")
    else:
        (target := tmp_path / "other").mkdir()
        for number, one in enumerate(many):
            text = json.dumps(one, indent=None if packed == "gz" else 2).encode()
            (target / f"{number}.json{'.gz' if packed == 'gz' else ''}").write_bytes(
                gzip.compress(text) if packed == "gz" else text
            )

    assert expected.equals(traces.read(str(target)).table)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"requests": [request(0, 64, [1, 2])]}, "request 0: 64 tokens fill at most 1 blocks of 64, got 2 hash_ids"),
        ({"requests": [request(0, 64, [-1])]}, "ids of blocks must be from 0"),
        ({"requests": [request(0, 64, [1], type="x")]}, "request 0: type must be n, s or subagent, got 'x'"),
        ({"requests": [request(-1, 64, [1])]}, "request 0, t: must not be negative"),
        ({"requests": [3]}, "request 0, t: "),
        ({"requests": "many"}, "a list expected"),
        ({"block_size": 16}, "take --reader weka:block_tokens=16"),
        ({"hash_id_scope": "ours"}, "local or global expected, got 'ours'"),
        ({"requests": [agent(9, 5.0, request(0, 64, None))]}, "request 0 of the sub-agent: hash_ids must be a list"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_file_is_reported_by_name(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    """One damaged file among hundreds would be a traceback, or wrong load."""
    with pytest.raises(UsageError, match=r"trace_0001\.json', line 1") as found:
        traces.read(write(tmp_path, TWO_AGENTS, {**TWO_AGENTS, **changes}))

    assert what in str(found.value)


def test_an_empty_file_of_a_folder_is_left_out_by_name(tmp_path: Path) -> None:
    """A session that was never written would keep all others from being replayed."""
    for name, text in {"a.json": "", "m.json": " \n", "z.json": "[]"}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="holds only blank lines"):
        traces.read(str(tmp_path))
    facts = traces.read(write(tmp_path, *[conversation(request(0, 64, [1]))] * 7)).facts

    assert (10, 7) == (facts["rows"], facts["requests"])
    assert {"no row of a trace ('a.json' holds only blank lines and comments)": 3} == facts["dropped"]


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    """An empty folder would be an empty run."""
    (tmp_path / "note.txt").write_text("nothing", encoding="utf-8")

    with pytest.raises(UsageError, match="is a folder"):
        traces.read(str(tmp_path))


def test_an_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """A downloaded corpus would be 'a binary file'."""
    for name, opened in (("a.zip", zipfile.ZipFile), ("a.tar", tarfile.open)):
        with opened(tmp_path / name, "w") as archive:  # type: ignore[operator]  # both take these
            (archive.write if name == "a.zip" else archive.add)(__file__, "a.json")

        with pytest.raises(UsageError, match=r"archive.*unpack it"):
            traces.read(str(tmp_path / name))


def test_contexts_are_made_shorter_in_one_proportion(tmp_path: Path) -> None:
    """Scaled sessions would share more or less of their prompts than the recorded ones."""
    ids = list(range(100))
    grown = [request(i, 64 * (60 + 10 * i), [*ids[: 60 + 10 * i - 5], *range(1000 + i * 10, 1005 + i * 10)], out=10)
             for i in range(4)]  # fmt: skip
    trace = traces.read(write(tmp_path, conversation(*grown), conversation(request(0, 640, ids[:10]))))
    scaled = transforms.scaled(trace, "context:2890", np.random.default_rng(0))
    names = column(scaled, "prefix_ids")
    alike = [sum(1 for _ in _common(a, b)) for a, b in zip(names, names[1:4], strict=False)]

    assert [1920, 2240, 2560, 2880, 640] == column(scaled, "prompt_tokens")
    assert [30, 35, 40, 45, 10] == [len(n) for n in names]
    assert [28, 33, 38] == alike  # of 55, 65, 75 of the recorded blocks
    assert (1, 4) == (scaled.facts["context"]["sessions"], scaled.facts["context"]["requests"])  # type: ignore[index]


def _common(a: list[int], b: list[int]) -> list[int]:
    return [x for i, x in enumerate(a) if a[: i + 1] == b[: i + 1]]


@pytest.fixture(scope="module")
def corpus(shared_data: Path) -> Path:
    """The folder of the 133 files."""
    folder = shared_data / "agentic" / "weka"
    if not folder.is_dir():
        pytest.skip("the agentic traces are not on this machine")
    return folder


@pytest.fixture(scope="module")
def trace(corpus: Path) -> traces.Trace:
    """All of them."""
    return traces.read(str(corpus))


@pytest.mark.nightly
class TestCorpus:
    """The 133 published sessions that the project has."""

    def test_rows_in_are_requests_and_named_drops(self, corpus: Path, trace: traces.Trace) -> None:
        """Requests would vanish, or be there twice."""
        given = []
        for file in sorted(corpus.iterdir()):
            own = json.loads(gzip.decompress(file.read_bytes()))["requests"]
            given += [r for r in own if r["type"] != "subagent"]
            given += [r for agent in own if agent["type"] == "subagent" for r in agent["requests"]]
        there = [r for r in given if r["out"] > 0]

        assert 8951 == len(given) == trace.facts["rows"]
        assert {"out is 0": 8} == trace.facts["dropped"]
        assert len(there) == len(trace) == 8943
        for name, key in (("prompt_tokens", "in"), ("output_tokens", "out")):
            assert sorted(r[key] for r in there) == sorted(column(trace, name))
        assert sum(len(r["hash_ids"]) for r in there) == pc.sum(pc.list_value_length(trace.table["prefix_ids"])).as_py()
        assert 133 == len(set(column(trace, "session")))

    def test_think_times_are_those_of_the_files(self, corpus: Path, trace: traces.Trace) -> None:
        """Users of a replay would be faster or slower than the recorded ones."""
        given = []
        for file in sorted(corpus.iterdir()):
            after_agent = False
            for number, r in enumerate(json.loads(gzip.decompress(file.read_bytes()))["requests"]):
                if r["type"] == "n" and number and not after_agent and r["out"] and "think_time" in r:
                    given.append((r["in"], r["think_time"]))
                after_agent = r["type"] == "subagent"
        there = set(zip(column(trace, "prompt_tokens"), column(trace, "delay_s"), strict=True))

        assert 6_900 < len(given)
        assert set(given) <= there

    def test_sub_agents_that_ended_are_joined(self, trace: traces.Trace) -> None:
        """A parent would not wait for its 18 sub-agents, or wait for the 4 in the background."""
        counts = np.asarray(trace.table["joins"].combine_chunks().value_lengths())
        rows = np.asarray(trace.table["parent"].fill_null(-1))
        flat = np.asarray(trace.table["joins"].combine_chunks().flatten())

        assert 18 == counts.sum() == len(set(flat.tolist()))
        assert (rows < np.arange(len(trace))).all()
        assert (flat < np.repeat(np.arange(len(trace)), counts)).all()
        assert 133 == (rows < 0).sum()

    def test_what_was_seen_before(self, trace: traces.Trace) -> None:
        """The share of prompt blocks seen before, by which agents differ from all other traffic, would be another."""
        assert 0.964 == pytest.approx(cache.replay(trace.table).ratio, abs=0.0005)

    def test_a_limit_of_the_context_names_what_it_leaves_out(self, trace: traces.Trace) -> None:
        """Long sessions would vanish silently from a run of a model with a small context."""
        cut = transforms.filtered(trace, "context_tokens<=131072")

        assert 8943 == len(cut) + sum(cut.facts["left_out"].values())  # type: ignore[union-attr]
        assert {"in part": 54, "as a whole": 29} == cut.facts["cut_sessions"]

    def test_scaled_contexts_share_the_same_part(self, trace: traces.Trace) -> None:
        """A scaled replay would hit the cache more or less often than the recorded sessions."""
        scaled = transforms.scaled(trace, "context:96000", np.random.default_rng(0))
        longest = pc.max(pc.add(scaled.table["prompt_tokens"], scaled.table["output_tokens"])).as_py()
        recorded, now = (cache.replay(t.table).ratio for t in (trace, scaled))

        assert longest == 96_000
        assert recorded == pytest.approx(now, abs=0.001)

    def test_a_converted_corpus_is_the_same(self, corpus: Path, trace: traces.Trace, tmp_path: Path) -> None:
        """The smaller file would replay other sessions."""
        written.convert(str(corpus), target := str(tmp_path / "agents.parquet"))

        assert trace.table.combine_chunks().equals(
            traces.read(target).table.select(trace.table.column_names).combine_chunks()
        )
