"""Replay the same sessions of agents with AIPerf and with bench, and hold both against what was recorded.

Both replay a corpus of small sessions in Weka's format (answers of 12 tokens, think times of 0.2 to 0.8 s), 4 sessions
at a time, against `bench serve` with a simulated GPU and a prefix cache, and tell by their own records of the requests:

- order: sessions whose requests were sent in the recorded order, each after the answer to the one before;
- think error: (start of a request - end of the answer before) - the recorded think time, median and largest;
- hit rate: cached share of the prompt tokens, by the server's usage in its log, beside that of the recorded blocks.

    python session_replay.py [FOLDER OF AIPERF'S PROGRAMS]      default: .nightly/aiperf/bin
"""

import json
import runpy
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from clients import NIGHTLY, OURS, called, serving

SESSIONS, AT_ONCE, BLOCK, OUTPUT = 8, 4, 64, 12
SERVER = "sim:model=llama3.1-8b,hardware=h100,prefix_cache=on,kv=paged:block_tokens=16"
Spans = dict[str, list[tuple[float, float]]]
"""Per session the start and end of each request in seconds, by turn."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What one tool did: when it sent what, and the server's count of prompt and cached tokens."""

    name: str
    spans: Spans
    prompt_tokens: int
    cached_tokens: int


def corpus(folder: Path, seed: int = 0) -> dict[str, list[float]]:
    """Write the sessions, a file each; their think times by the id of the session."""
    rng, thinks = np.random.default_rng(seed), {}
    folder.mkdir()
    for number in range(SESSIONS):
        name, blocks, at_s, requests = f"trace_{number:04}", 8, 0.0, []
        for turn in range(3 + number):  # as many turns as no other session has
            think_s = round(float(rng.uniform(0.2, 0.8)), 3) if turn else 0.0
            at_s = round(at_s + think_s + (0.1 if turn else 0.0), 3)
            requests.append({
                "t": at_s, "type": "s", "model": "m", "in": blocks * BLOCK, "out": OUTPUT, "api_time": 0.1,
                "hash_ids": list(range(1, blocks + 1)), "think_time": think_s, "stop": "end_turn",
                "input_types": ["text"], "output_types": ["text"],
            })  # fmt: skip
            blocks += int(rng.integers(1, 5))
        thinks[name] = [r["think_time"] for r in requests]
        whole = {"id": name, "models": ["m"], "block_size": BLOCK, "hash_id_scope": "local", "tool_tokens": 0,
                 "system_tokens": 0, "requests": requests}  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(whole))
    return thinks


def recorded(folder: Path) -> tuple[int, float]:
    """Tokens of all prompts, and the share of their blocks that an earlier prompt of their session has."""
    sessions = [json.loads(path.read_text())["requests"] for path in folder.glob("*.json")]
    found = sum(len({*a["hash_ids"]} & {*b["hash_ids"]}) for s in sessions for a, b in zip(s, s[1:], strict=False))
    blocks = sum(len(r["hash_ids"]) for s in sessions for r in s)
    return blocks * BLOCK, found / blocks


def aiperf(programs: Path, url: str, traces: Path, tokenizer: Path, folder: Path) -> Spans:
    """AIPerf finds a tokenizer by a relative path only, and not under HF_HUB_OFFLINE."""
    folder.mkdir()
    (folder / "tok").symlink_to(tokenizer)
    command = [
        programs / "aiperf", "profile", "--model", "demo", "--url", url, "--endpoint-type", "chat", "--streaming",
        "--input-file", traces, "--custom-dataset-type", "weka_trace", "--use-think-time-only",
        "--conversation-num", f"{SESSIONS}", "--concurrency", f"{AT_ONCE}", "--tokenizer", "./tok",
        "--use-server-token-count", "--ui", "none", "--output-artifact-dir", folder / "out",
    ]  # fmt: skip
    called(command, folder)
    turns: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    for line in (folder / "out" / "profile_export.jsonl").read_text().splitlines():
        about = json.loads(line)["metadata"]
        turns[about["conversation_id"]][about["turn_index"]] = (
            about["request_start_ns"] / 1e9, about["request_end_ns"] / 1e9
        )  # fmt: skip
    return {session: [found[turn] for turn in sorted(found)] for session, found in turns.items()}


def bench(url: str, traces: Path, folder: Path) -> Spans:
    """Ours: users who replay one session after the other."""
    from harness.data.folder import load

    folder.mkdir()
    command = [
        OURS / "bench", "run", "--trace", traces, "--turns", "think-only", "--arrivals", f"closed:users={AT_ONCE}",
        "--backend", f"openai:url={url}/v1,model=demo,api=chat", "--duration", "10min", "--calibrate", "off",
        "--out", folder / "out",
    ]  # fmt: skip
    called(command, folder, (0, 4))  # a busy machine makes it tell that it was late
    spans: Spans = defaultdict(list)
    rows = sorted(load(folder / "out").requests.to_pylist(), key=lambda row: (row["session"], row["turn"]))
    for row in rows:
        spans[str(row["session"])].append((row["sent_s"], row["ended_s"] or row["token_s"][-1]))
    return spans


def replayed(name: str, spans: Spans, log: Path) -> Replay:
    """With what the server's log has of it."""
    rows: list[dict[str, Any]] = [json.loads(text) for text in log.read_text().splitlines()]
    rows = sorted((row for row in rows if "received_s" in row), key=lambda row: row["received_s"])
    kept = rows[-sum(map(len, spans.values())) :]  # probes came before
    return Replay(name, spans, sum(r["prompt_tokens"] for r in kept), sum(r["cached_tokens"] for r in kept))


def line(found: Replay, thinks: dict[str, list[float]]) -> str:
    """A row of the table; sessions differ in their number of turns."""
    of_length = {len(each): each for each in thinks.values()}
    errors, ordered = [], 0
    for spans in found.spans.values():
        think_s = of_length.get(len(spans))
        pauses = [b[0] - a[1] for a, b in zip(spans, spans[1:], strict=False)]
        ordered += think_s is not None and min(pauses) >= 0
        errors += [] if think_s is None else [pause - wanted for pause, wanted in zip(pauses, think_s[1:], strict=True)]
    requests, total = sum(map(len, found.spans.values())), sum(map(len, thinks.values()))
    middle, most = (np.median(errors) * 1e3, np.max(np.abs(errors)) * 1e3) if errors else (np.nan, np.nan)
    return (
        f"| {found.name} | {requests} of {total} | {ordered} of {len(thinks)} | {middle:.1f} | {most:.1f} "
        f"| {found.cached_tokens / max(1, found.prompt_tokens):.1%} of {found.prompt_tokens:,} |"
    )


def table(programs: Path, folder: Path) -> Iterator[str]:
    """The lines of the table, as the tools end."""
    build: Any = runpy.run_path(str(Path(__file__).with_name("tiny_model.py")))["build"]
    tokenizer, thinks = build(folder / "ascii", "ascii"), corpus(folder / "traces")
    yield "| tool | requests | sessions in order | think error ms, median | largest | prompt tokens cached |"
    yield "|---|---|---|---|---|---|"
    runs = {"aiperf": lambda url: aiperf(programs, url, folder / "traces", tokenizer, folder / "aiperf"),
            "bench": lambda url: bench(url, folder / "traces", folder / "ours")}  # fmt: skip
    for name, run in runs.items():
        place = folder / f"server-{name}"
        place.mkdir()
        with serving(SERVER, "demo", place) as (url, log):  # a server each: an empty cache
            spans = run(url)
        yield line(replayed(name, spans, log), thinks)
    tokens, share = recorded(folder / "traces")
    yield f"| recorded | {sum(map(len, thinks.values()))} | {len(thinks)} | 0 | 0 | {share:.1%} of {tokens:,} |"


if __name__ == "__main__":
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else NIGHTLY / "aiperf" / "bin"
    with tempfile.TemporaryDirectory() as made:
        for text in table(given, Path(made)):
            print(text, flush=True)
