"""How far prompts sent as text are from the tokens that were planned, request by request, worst first.

    python tests/perf/prompt_lengths.py FOLDER... [--requests 40] [--seed 1]

Each FOLDER holds a `tokenizer.json`, and the chat template of its model or none; `builtin-50272` is the tokenizer of
`bench serve` for a model of that vocabulary. Behind a server with that tokenizer
prompts of 50, 200, 1,000 and 8,000 tokens are sent as chats and as completions, half of them behind a shared prefix,
with a salt; the server counts them. `without`: the server does not answer `/tokenize`. Printed are the median and the
largest of |counted - planned| / planned, the questions before the run, and how long they took.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

from backends.client import counting
from backends.null import Null
from backends.openai import OpenAI
from backends.server.front import Options
from backends.server.null_service import NullService
from backends.server.run import serving
from backends.server.tokenizer import Builtin, of_folder
from harness.api import Ended, Request
from workloads.content.text import Text

PLANNED_TOKENS = (50, 200, 1000, 8000)
Api = Literal["chat", "completions"]


def requests(tokens: int, count: int, seed: int) -> list[Request]:
    """Prompts of so many tokens, the blocks of half of them drawn from a few prefixes."""
    rng = np.random.default_rng(seed)
    prefixes = [tuple(range(int(start), int(start) + tokens // 32)) for start in rng.integers(0, 1 << 40, 4)]
    return [Request(i, 0.0, tokens, 1, prefixes[i % 4] * (i % 2), 16) for i in range(count)]


async def sent(folder: Path, api: Api, plans: Sequence[Sequence[Request]]) -> tuple[list[np.ndarray], str]:
    """Relative errors, an array for each plan, and what the client says of lengths."""
    size = folder.name.removeprefix("builtin-")
    tokenizer = Builtin(int(size)) if size.isdecimal() else of_folder(folder)
    assert tokenizer is not None, f"{folder} has no tokenizer.json"
    service = NullService(Null(ttft_s=0.0, itl_s=0.0), tokenizer=tokenizer)
    async with serving(Options(backend="null", port=0), service) as running:
        backend = OpenAI(running.url, api=api, prompt="text", salt="a", metrics="none")
        await backend.open(Text())
        errors = []
        for plan in plans:
            counts = [event.prompt_tokens_server for request in plan async for event in backend.submit(request)
                      if isinstance(event, Ended)]  # fmt: skip
            planned = np.array([request.prompt_tokens for request in plan])
            errors.append(np.abs(np.array(counts, float) - planned) / planned)
        notes = [str(note) for note in backend.describe()["notes"] if str(note).startswith("lengths")]
        await backend.close()
    return errors, notes[0]


async def table(folders: Sequence[Path], count: int, seed: int) -> None:
    """A row for each folder, API and length."""
    plans = [requests(tokens, count, seed) for tokens in PLANNED_TOKENS]
    rows, notes, ask = [], [], counting.tokenizer
    for folder in folders:
        for api in ("chat", "completions"):
            exact, note = await sent(folder, api, plans)
            counting.tokenizer = _none  # type: ignore[assignment]
            learned, _ = await sent(folder, api, plans)
            counting.tokenizer = ask
            notes.append(f"{folder.name}, {api}: {note}")
            for tokens, *pair in zip(PLANNED_TOKENS, learned, exact, strict=True):
                figures = "   ".join(f"{median(errors):>8.2%} {max(errors):>8.2%}" for errors in pair)
                rows.append((max(pair[1]), f"{folder.name:<18} {api:<12} {tokens:>6,}  {figures}"))
    print(f"{'tokenizer':<18} {'api':<12} {'tokens':>6}  {'without':>8} {'largest':>8}   {'with':>8} {'largest':>8}")
    for _, row in sorted(rows, key=lambda row: -row[0]):
        print(row)
    print(*notes, sep="\n")


async def _none(control: object, model: str) -> None:  # in place of the question to the server
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    asyncio.run(table(given.folders, given.requests, given.seed))
