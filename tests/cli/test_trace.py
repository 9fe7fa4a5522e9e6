"""Every command of `bench trace` does what it says; whatever is typed wrongly is answered by one sentence."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from scipy.stats import spearmanr

from harness.cli import main
from harness.data.schedule import Schedule
from workloads import catalog, traces

Bench = Callable[..., tuple[int, str, str]]
Transcript = Callable[[str, Mapping[str, str]], None]
ROWS = 400


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Run `bench trace ...` in a folder of its own; gives exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["trace", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """A CSV of 400 Poisson requests in about 200 s, half of them tagged."""
    rng = np.random.default_rng(1)
    at_s = np.cumsum(rng.exponential(0.5, ROWS)) - 0.1
    lines = [
        f"{at:.6f},{prompt},{output},{'api' if i % 2 else 'chat'}"
        for i, (at, prompt, output) in enumerate(
            zip(at_s, rng.integers(1, 5000, ROWS), rng.integers(1, 900, ROWS), strict=True)
        )
    ]
    (tmp_path / "plain.csv").write_text("\n".join(["at_s,prompt_tokens,output_tokens,tag", *lines]) + "\n")
    return "plain.csv"


@pytest.fixture
def mooncake(tmp_path: Path) -> str:
    """JSON lines on ticks of 3 s, with blocks that all prompts or some share."""
    rng = np.random.default_rng(2)
    rows = []
    for i in range(300):
        ids = [0, *(rng.integers(1, 40, 3).cumsum() + 1).tolist()]
        rows.append({"timestamp": 3000 * (i // 10), "input_length": 512 * 4, "output_length": 50, "hash_ids": ids})
    (tmp_path / "moon.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "moon.jsonl"


@pytest.fixture
def chat(tmp_path: Path) -> str:
    """BurstGPT rows of release 3: whole seconds, conversations of three turns, a failure."""
    lines = ["Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    lines += [f"{7 * i}.0,s{i // 3},2.0,ChatGPT,{10 + i},{5 + i},{15 + 2 * i},Conversation log" for i in range(60)]
    lines.append("500.0,,2.0,GPT-4,10,0,10,API log")
    (tmp_path / "chat.csv").write_text("\n".join(lines))
    return "chat.csv"


class TestInfo:
    """`bench trace info`."""

    def test_json_agrees_with_numpy(self, bench: Bench, plain: str) -> None:
        """A script would read other numbers than the trace has."""
        _, out, _ = bench("info", plain, "--format", "json")
        facts = json.loads(out)
        trace = traces.read(plain)
        prompt = trace.table["prompt_tokens"].to_numpy()
        gaps_s = np.diff(trace.at_s)

        assert ROWS == facts["requests"] == facts["file"]["requests"]
        assert prompt.mean() == pytest.approx(facts["lengths"]["prompt_tokens"]["mean"])
        assert np.percentile(prompt, 90) == pytest.approx(facts["lengths"]["prompt_tokens"]["p90"])
        assert gaps_s.std(ddof=1) / gaps_s.mean() == pytest.approx(facts["gaps"]["cv"])
        assert (ROWS - 1) / trace.at_s[-1] == pytest.approx(facts["rate_rps"])
        output = trace.table["output_tokens"].to_numpy()
        assert spearmanr(prompt, output).statistic == pytest.approx(facts["lengths"]["spearman"])
        assert facts["ticks"] is None

    @pytest.mark.usefixtures("bench", "plain", "mooncake", "chat")
    def test_what_it_prints_golden(self, transcript: Transcript, tmp_path: Path) -> None:
        """A reader would not learn how much, how long and how bursty a trace is."""
        rows = [f"{i},{10 if i % 4 else 1000},{i % 4 + 1},{'chat' if i % 4 else 'api'}" for i in range(4000)]
        (tmp_path / "two.csv").write_text("\n".join(["at_s,prompt_tokens,output_tokens,tag", *rows, "4000,1,1,"]))
        (tmp_path / "one.csv").write_text("at_s,prompt_tokens,output_tokens\n3,1,1\n")
        transcript("trace-info.txt", {
            "Poisson arrivals, half of the requests tagged": "trace info plain.csv",
            "of a slice, and of it what a condition leaves":
                "trace info plain.csv --start 1min --stop 2min --where tag=api",
            "ticks of 3 s are no bursts; a pool can be sized":
                "trace info moon.jsonl --cache lru:blocks=8 --cache lru:tokens=1M",
            "conversations, and one row that is no request": "trace info chat.csv",
            "two kinds of traffic have no common mean": "trace info two.csv",
            "one row divides nothing by zero": "trace info one.csv",
        })  # fmt: skip

    def test_pictures_are_offline(self, bench: Bench, chat: str) -> None:
        """A page would need the network, or leave out what the terminal says."""
        code, _, err = bench("info", chat, "--html", "chat.html")
        page = Path("chat.html").read_text()

        assert 0 == code
        assert "chat.html" in err
        assert "20 with 60 requests" in page
        assert not re.search(r'(src|href)="https?://', page)


class TestPublishedFigures:
    """The published figures, through the command that a user would type."""

    def test_azure_2023(self, bench: Bench, shared_data: Path) -> None:
        """The best-known trace would be described by other numbers than everybody else's."""
        file = shared_data / "traces/azure2023/AzureLLMInferenceTrace_conv.csv"
        facts = json.loads(bench("info", str(file), "--format", "json")[1])
        lengths, counts = facts["lengths"], facts["counts"]

        assert (19_366, 5.530) == (facts["requests"], round(facts["rate_rps"], 3))
        assert (1.094, None) == (round(facts["gaps"]["cv"], 3), facts["ticks"])
        assert [1.39, 3.87, 16.41] == [round(counts["dispersion"][width], 2) for width in ("1", "10", "60")]
        assert 0.69 == round(counts["acf"]["10"], 2)
        assert 1.04 == round(facts["gaps"]["window_cv"]["300"]["p50"], 2)
        assert (1155, 1020, 211, 129) == tuple(
            round(lengths[side][key]) for side in ("prompt_tokens", "output_tokens") for key in ("mean", "p50")
        )
        assert 0.07 == round(lengths["spearman"], 2)
        assert facts["file"]["known"].startswith("Azure")

    def test_mooncake_conversation(self, bench: Bench, shared_data: Path) -> None:
        """A grid would pass for bursts, or a pool look larger than it is."""
        file = shared_data / "traces/mooncake/conversation_trace.jsonl"
        caches = ("--cache", "lru:tokens=3M", "--cache", "lru:tokens=50M")
        facts = json.loads(bench("info", str(file), *caches, "--format", "json")[1])
        ticks, prefixes = facts["ticks"], facts["prefixes"]
        shares = [prefixes["caches"][f"lru:tokens={size}"]["share_of_endless"] for size in ("3M", "50M")]

        assert (1180, 10.2) == (ticks["ticks"], round(ticks["mean"], 1))
        assert [1.10, 2.31, 2.86, 8.06] == [round(ticks["dispersion"][width], 2) for width in ("3", "30", "60", "300")]
        assert [0.15, 0.17] == [round(value, 2) for value in ticks["acf"]]
        assert (288_500, 182_790) == (prefixes["blocks"], prefixes["distinct"])
        assert 0.3664 == round(prefixes["endless_hit_ratio"], 4)
        assert [0.371, 0.992] == pytest.approx(shares, abs=0.005)


class TestCheck:
    """`bench trace check`."""

    @pytest.mark.usefixtures("bench", "plain", "chat")
    def test_what_it_prints_golden(self, transcript: Transcript, tmp_path: Path) -> None:
        """Good traces would fail in scripts, or rows that are no requests pass unseen."""
        at_s = np.cumsum(np.random.default_rng(3).exponential(1, 50))
        for name, rows in {
            "AzureLLMInferenceTrace_conv.csv": ["5,1,1"],
            "fine.csv": [f"{at:.6f},{i + 1},5" for i, at in enumerate(at_s) for _ in range(2)],
            "coarse.csv": [f"{i},{1 + i // 30},5" for i in range(50) for _ in range(2)],
            "fall.csv": ["5,1,1", "3,1,1", "6,0,1"],
            "bad.csv": ["5,1,1", "3,many,1"],
        }.items():
            (tmp_path / name).write_text("\n".join(["at_s,prompt_tokens,output_tokens", *rows]))
        transcript("trace-check.txt", {
            "clean": "trace check plain.csv",
            "a failure": "trace check chat.csv",
            "invented rows under an official name": "trace check AzureLLMInferenceTrace_conv.csv --reader csv",
            "a file that was joined with itself": "trace check fine.csv",
            "equal rows under stamps in whole seconds": "trace check coarse.csv",
            "stamps that fall, and what else there is": "trace check fall.csv",
            "a file that nothing can use": "trace check bad.csv",
        })  # fmt: skip

    def test_official_files_are_clean(self, bench: Bench, shared_data: Path) -> None:
        """The grid of Mooncake, for which its format is known, would be an error."""
        for file in ("azure2023/AzureLLMInferenceTrace_conv.csv", "mooncake/conversation_trace.jsonl"):
            code, out, _ = bench("check", str(shared_data / "traces" / file), "--format", "json")

            assert 0 == code
            assert [] == json.loads(out)["odd"]


class TestWriting:
    """`convert`: other formats, parts, other loads."""

    @pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
    def test_round_trips_are_exact(self, bench: Bench, plain: str, chat: str, ending: str) -> None:
        """A converted trace would be another trace."""
        for source in (plain, chat):
            assert 0 == bench("convert", source, "-o", f"out.{ending}", "--force")[0]
            before, after = traces.read(source).table, traces.read(f"out.{ending}").table

            assert before.column_names == after.column_names
            for name in before.column_names:
                assert before[name].to_pylist() == after[name].to_pylist()

    @pytest.mark.parametrize("ending", ["parquet", "jsonl"])
    def test_prefixes_survive(self, bench: Bench, mooncake: str, ending: str) -> None:
        """A converted trace would share nothing, or other blocks."""
        bench("convert", mooncake, "-o", f"out.{ending}")
        before, after = traces.read(mooncake), traces.read(f"out.{ending}")

        assert before.table["prefix_ids"].to_pylist() == after.table["prefix_ids"].to_pylist()
        assert before.block_tokens == after.block_tokens

    def test_parquet_explains_itself(self, bench: Bench, mooncake: str) -> None:
        """The origin of the rows of a file and their units would be unknown."""
        bench("convert", mooncake, "-o", "out.parquet")
        with pq.ParquetFile("out.parquet") as file:
            schema, stored = file.schema_arrow, file.metadata.metadata
        origin = json.loads(stored[b"bench.source"])
        _, out, _ = bench("info", "out.parquet")

        assert b"trace" == schema.metadata[b"bench.table"]
        assert b"512" == schema.metadata[b"bench.block_tokens"]
        assert b"s" == schema.field("at_s").metadata[b"unit"]
        assert b"tokens" == schema.field("prompt_tokens").metadata[b"unit"]
        assert traces.read(mooncake).facts["sha256"] == origin["sha256"]
        assert "made from  moon.jsonl" in out

    @pytest.mark.usefixtures("bench")
    def test_what_is_written_golden(self, transcript: Transcript, tmp_path: Path) -> None:
        """A file of one's own could not be read, or rows out of order never be used."""
        (tmp_path / "mine.csv").write_text("when,in,out\n1,2,3\n4,5,6\n")
        (tmp_path / "fall.csv").write_text("at_s,prompt_tokens,output_tokens\n1,1,1\n5,2,1\n3,3,1\n")
        (tmp_path / "mine.toml").write_text(
            """about = "Mine."\nrate_rps = 2.0\nlengths = "fixed"\n[provenance]\nsource = "me"\n"""
        )
        transcript("trace-convert.txt", {
            "names of columns": "trace convert mine.csv -o out.csv --reader at=when,prompt=in,output=out",
            "its rows": "cat out.csv",
            "rows out of order": "trace convert fall.csv -o sorted.csv",
            "their rows": "cat sorted.csv",
            "a workload as a trace": "trace generate chatbot -o w.csv --rate 5 --duration 1min --arrivals gamma:cv=2",
            "a preset of one's own is one": "trace generate mine.toml --requests 5 -o mine2.csv",
            "a download into a file": "trace download azure-2023-code -o mine.csv",
            "turns without the time of their answers":
                "trace generate chatbot --sessions fixed:turns=2,think=0 --requests 6 -o 'two words.parquet'",
        })  # fmt: skip

    def test_a_failure_leaves_what_was_there(self, bench: Bench, plain: str, tmp_path: Path) -> None:
        """A broken source would cost the good file that was to be replaced."""
        bench("convert", plain, "-o", "out.parquet")
        before = Path("out.parquet").read_bytes()
        (tmp_path / "bad.csv").write_text("at_s,prompt_tokens,output_tokens\n1,1,1\n2,x,1\n")
        code, _, _ = bench("convert", "bad.csv", "-o", "out.parquet", "--force")

        assert 2 == code
        assert before == Path("out.parquet").read_bytes()
        assert not list(Path().glob("*.part"))

    def test_slices(self, bench: Bench, plain: str) -> None:
        """A slice would hold other rows, or not say which it left out."""
        code, out, _ = bench("convert", plain, "-o", "out.parquet", "--where", "tag=api,prompt<=2500", "--limit", "50")
        before = traces.read(plain).table.to_pylist()
        wanted = [r for r in before if r["tag"] == "api" and r["prompt_tokens"] <= 2500][:50]
        after = traces.read("out.parquet").table

        assert 0 == code
        assert [r["prompt_tokens"] for r in wanted] == after["prompt_tokens"].to_pylist()
        assert np.array([r["at_s"] - wanted[0]["at_s"] for r in wanted]) == pytest.approx(after["at_s"].to_numpy())
        assert "not tag=api" in out
        assert "after the first 50" in " ".join(out.split())

    def test_scaling_says_what_it_did(self, bench: Bench, plain: str) -> None:
        """Load would be changed in one way and reported in another."""
        code, out, _ = bench("convert", plain, "--scale", "superpose:2+compress:4", "-o", "out.parquet", "--seed", "5")
        again = bench("convert", plain, "--scale", "superpose:2+compress:4", "-o", "again.parquet", "--seed", "5")[0]
        _, text, _ = bench("info", "out.parquet")

        assert (0, 0) == (code, again)
        assert "superpose:2: rate x copies" in out
        assert "compress:4: rate x factor" in out
        assert "superpose:2; compress:4; seed 5" in text
        assert 2 * ROWS == len(traces.read("out.parquet"))
        assert traces.read("out.parquet").table == traces.read("again.parquet").table
        assert 8 * traces.read(plain).mean_rate_rps == pytest.approx(traces.read("out.parquet").mean_rate_rps, rel=0.02)


class TestFitAndGenerate:
    """`fit` and `generate` as commands; what they compute is tested with the models."""

    def test_a_model_and_its_draws(self, bench: Bench, plain: str) -> None:
        """A model could be written but not used, or drawn from differently at each call."""
        code, out, _ = bench("fit", plain, "-o", "model.json", "--html", "fit.html")
        drawn = ("--requests", "500", "--rate", "10", "--seed", "3")
        one = bench("generate", "model.json", "-o", "one.parquet", *drawn)
        two = bench("generate", "model.json", "-o", "two.parquet", *drawn)

        assert (0, 0, 0) == (code, one[0], two[0])
        assert "req/s" in out
        assert "<html" in Path("fit.html").read_text()
        assert 500 == len(traces.read("one.parquet"))
        assert traces.read("one.parquet").table == traces.read("two.parquet").table
        assert 10 == pytest.approx(traces.read("one.parquet").mean_rate_rps, rel=0.2)

    def test_quality_as_json(self, bench: Bench, plain: str) -> None:
        """A script could not judge a fit."""
        _, out, _ = bench("fit", plain, "-o", "model.json", "--format", "json")

        assert "curve_distance" in json.loads(out)

    @pytest.mark.nightly
    def test_a_bursty_workload_has_the_rate_that_a_run_of_it_has(self, bench: Bench) -> None:
        """Of the same words `run` sent 4 req/s, and `generate` between 0.78 and 10.5."""
        bench("generate", "chatbot", "--arrivals", "azure", "--rate", "4", "--duration", "1min", "-o", "out.parquet")
        workload = catalog.load("chatbot", arrivals="azure", rate_rps=4.0, duration_s=60.0).workload
        sent, rows = Schedule.draw(workload, seed=0, duration_s=60.0).table, traces.read("out.parquet").table

        assert sent["prompt_tokens"].to_pylist() == rows["prompt_tokens"].to_pylist()
        assert 4 == pytest.approx(len(rows) / 60, rel=0.02)

    def test_blocks_of_two_sizes_become_those_of_one(self) -> None:
        """Blocks of 64 tokens would be read as blocks of 16, and a prefix cache find a quarter of them."""
        from harness.data.records import schedule_chunk
        from workloads.trace_tools.write import block_tokens, trace_table

        chunk = schedule_chunk(
            4, id=[0, 1, 2, 3], scheduled_s=[0.0, 1.0, 2.0, 3.0], prompt_tokens=[999] * 4, output_tokens=[1] * 4,
            prefix_ids=[[7, 8], [7], [], [3, 4]], prefix_block_tokens=[64, 64, 512, 16],
        )  # fmt: skip
        found = trace_table(chunk)["prefix_ids"].to_pylist()

        assert 16 == block_tokens(chunk)
        assert [8, 4, 0, 2] == list(map(len, found))
        assert found[0][:4] == found[1]
        assert 10 == len({block for row in found for block in row})

    def test_json_lines_tell_the_size_of_their_blocks(self, bench: Bench) -> None:
        """Blocks of 16 tokens would be read as blocks of 512 after a change of format."""
        from workloads import traces

        bench("generate", "chatbot", "--prefixes", "shared:tokens=80", "--requests", "20", "-o", "blocks.parquet")
        assert 0 == bench("convert", "blocks.parquet", "-o", "blocks.jsonl")[0]
        one, other = (traces.read(name, None, traces.Slice()) for name in ("blocks.parquet", "blocks.jsonl"))

        assert 16 == one.block_tokens == other.block_tokens
        assert one.table["prefix_ids"].to_pylist() == other.table["prefix_ids"].to_pylist()

    def test_links_of_a_workload_survive(self) -> None:
        """Conversations that are drawn would be strangers' requests once written."""
        from harness.data.records import schedule_chunk
        from workloads.trace_tools.write import trace_table

        chunk = schedule_chunk(
            4, id=[10, 11, 12, 13], scheduled_s=[0.0, 1.0, 2.0, 3.0], prompt_tokens=[1] * 4, output_tokens=[1] * 4,
            session=[5, 5, None, 5], turn=[0, 1, 0, 2], after=[[], [10], [], [10, 11]],
        )  # fmt: skip
        table = trace_table(chunk)

        assert [None, 0, None, 1] == table["parent"].to_pylist()
        names = ["at_s", "prompt_tokens", "output_tokens", "session", "turn", "parent", "delay_s", "api_s"]
        assert names == table.column_names


@pytest.mark.usefixtures("plain", "mooncake")
def test_wrong_lines(tmp_path: Path, refusals: Callable[..., None]) -> None:
    """A typing error would be a traceback, or half a file."""
    (tmp_path / "taken.csv").write_text("mine")
    (tmp_path / "model.bin").write_bytes(bytes(range(256)))
    (tmp_path / "semi.csv").write_text("when;tokens in;tokens out\n1;2;3\n")
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/chunk-0-trace.csv").write_text("0,0.5,1.0,Gamma,1,2\n600,0,0,,,\n")

    refusals("wrong-trace.txt")


def test_converting_is_done_in_blocks(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million rows would have to fit into memory at once."""
    rows = 200_000
    table = pa.table({name: np.arange(1, rows + 1) for name in ("at_s", "prompt_tokens", "output_tokens")})
    pq.write_table(table, tmp_path / "long.parquet")
    sizes: list[int] = []
    taken = traces.Blocks.__iter__

    def watched(blocks: traces.Blocks) -> object:
        for block in taken(blocks):
            sizes.append(block.num_rows)
            yield block

    monkeypatch.setattr(traces.Blocks, "__iter__", watched)
    bench("convert", "long.parquet", "-o", "out.parquet")

    assert rows == sum(sizes)
    assert max(sizes) < rows


def test_a_changed_replay_repeats_from_its_run(bench: Bench, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of a filtered, jittered and scaled trace could not be repeated, or would not say what it was."""
    changes = ["--where", "prompt<=4000,output>2", "--jitter", "50ms", "--scale", "superpose:2+thin:0.5"]
    words = ["--limit", "60", "--turns", "recorded", "--seed", "5", "--backend", "sim", "--no-html", "--quiet"]
    words += ["--model", "llama3-8b"]
    first = main(["run", "--trace", plain, *changes, *words, "--out", "one"])
    second = main(["run", "--config", "one", "--no-html", "--quiet", "--out", "two"])
    out = capsys.readouterr().out
    one, two = (json.loads(Path(name, "run.json").read_text()) for name in ("one", "two"))

    assert (0, 0) == (first, second)
    assert one["schedule"] == two["schedule"]
    assert one["workload"]["provenance"] == two["workload"]["provenance"]
    assert 5 == one["workload"]["provenance"]["seed"]
    assert "scaled by superpose:2" in out
    assert "where prompt<=4000,output>2" in " ".join(out.split())


class TestWhatAFitDrops:
    """Prefixes and sessions of a trace, which single requests do not have."""

    @pytest.fixture
    def model(self, bench: Bench) -> str:
        """A model of conversations of four turns."""
        bench(
            "generate", "chatbot", "--sessions", "fixed:turns=4,think=5s", "--requests", "1200", "-o", "chats.parquet"
        )
        code, out, _ = bench("fit", "chats.parquet", "-o", "chats.json")

        assert (0, False, True) == (
            code,
            "dropped" in out,
            "of those drawn" in " ".join(out.split()),
        )
        return "chats.json"

    def test_whole_sessions_are_generated_with_what_their_prompts_share(self, bench: Bench, model: str) -> None:
        """A model that knows of sessions and prefixes would draw strangers' requests."""
        code, out, _ = bench("generate", model, "--requests", "1200", "-o", "whole.parquet")
        files = ("chats.parquet", "whole.parquet")
        hits = [
            json.loads(bench("info", file, "--format", "json")[1])["prefixes"]["endless_hit_ratio"] for file in files
        ]

        assert (0, False) == (code, "dropped" in out)
        assert hits[0] > 0.5
        assert hits[0] == pytest.approx(hits[1], abs=0.07)

    def test_generate_draws_requests_one_by_one_on_request(self, bench: Bench, model: str) -> None:
        """Single requests would come without a word on what they lack, or not at all."""
        code, out, _ = bench("generate", model, "--sessions", "single", "--requests", "400", "-o", "single.parquet")

        assert 0 == code
        assert "shared prefixes are dropped" in out
        assert "session" not in traces.read("single.parquet").table.column_names

    def test_sessions_of_a_workload_are_no_part_of_a_model(self, bench: Bench, model: str) -> None:
        """They would be left out without a word."""
        command = ("generate", model, "--sessions", "fixed:turns=3", "--requests", "9", "-o", "x.csv")

        assert "--sessions belongs to a workload; the model 'chats.json' brings its own" in bench(*command)[2]

    def test_sessions_without_prefixes_are_drawn_whole(self, bench: Bench) -> None:
        """A trace of conversations would be drawn as requests of strangers, as it names no blocks of prompts."""
        bench(
            "generate", "chatbot", "--sessions", "fixed:turns=4,think=5s", "--requests", "1200", "-o", "chats.parquet"
        )
        names = ["at_s", "prompt_tokens", "output_tokens", "session"]
        csv.write_csv(traces.read("chats.parquet").table.select(names), "chats.csv")
        _, text, _ = bench("fit", "chats.csv", "-o", "named.json")

        assert "begin with all of the one before" in " ".join(text.split())

        code, _, err = bench("generate", "named.json", "--requests", "400", "-o", "drawn.parquet")
        drawn = traces.read("drawn.parquet").table

        assert (0, "") == (code, err)
        assert 4 == max(drawn["session"].value_counts().field("counts").to_pylist())
        assert json.loads(bench("info", "drawn.parquet", "--format", "json")[1])["prefixes"]["endless_hit_ratio"] > 0.5
