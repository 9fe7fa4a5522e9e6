"""`bench theory prefill` and `chunking`: TTFT where prefill is a queue, and what chunked prefill costs."""

from collections.abc import Iterator
from math import isclose
from typing import TYPE_CHECKING, Any

import click

from harness.cli._options import COUNT, DURATION, SEED
from harness.cli.theory._options import NUMBERS, WHOLE_NUMBERS, form_options, option, priced, show, system_options
from harness.experiments.theory import tables
from harness.experiments.theory.queueing import Prefill, crossover
from harness.experiments.theory.simulated import chunked_prompt_s, prefill_times_s
from harness.experiments.theory.tables import Line, Picture

if TYPE_CHECKING:
    from harness.experiments.theory.batching import Chunked


@click.command("prefill", short_help="TTFT of prefill as a queue; tensor or pipeline parallelism.")
@option("--execution", "--D", "execution_s", type=DURATION, default="1s", metavar="TIME",
        help="Prefill time of a prompt on one GPU.")  # fmt: skip
@option("--rate", "rates", type=NUMBERS, metavar="RPS",
        help="Prompts per second, one or several. [default: half of the capacity of one GPU]")  # fmt: skip
@option("--tp", type=COUNT, default=2, metavar="N", help="Tensor parallelism.")
@option("--pp", type=COUNT, default=2, metavar="N", help="Pipeline parallelism.")
@option("--speedup", "--K", "speedups", type=NUMBERS, default="1.6", metavar="X",
        help="Speed-up of prefill on --tp GPUs over one; several for the crossover.")  # fmt: skip
@option("--replicas", type=COUNT, default=1, metavar="N", help="Replicas that share the rate at random.")
@option("--simulate", is_flag=True, help="Also run the simulator.")
@option("--requests", type=click.IntRange(min=100), default=100_000, metavar="N", help="Requests per simulation.")
@option("--seed", type=SEED, default=0, metavar="N", help="Random seed of the arrivals.")
@form_options
def prefill(
    execution_s: float, rates: list[float] | None, tp: int, pp: int, speedups: list[float], replicas: int,
    simulate: bool, requests: int, seed: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """TTFT of prompts of equal length that arrive at random and are prefilled one at a time (M/D/1).

    Compares one GPU, --tp GPUs and --pp pipeline stages, after DistServe. Below the crossover of rate x execution time
    tensor parallelism has the lower mean, above it the pipeline.
    """
    at = rates or [replicas * 0.5 / execution_s]
    rows = [
        row
        for rate in at
        for row in _rows(rate, execution_s, tp, pp, speedups[0], replicas, (requests, seed) if simulate else None)
    ]
    heads: list[tuple[str, tables.Unit]] = [("replica", "text"), ("rate", "rps"), ("busy", "share"), ("mean TTFT", "s"),
                                          ("P90", "s"), ("P99", "s")]  # fmt: skip
    if simulate:
        heads += [("simulated mean", "s"), ("P90", "s"), ("P99", "s")]
    crossings = [(k, crossover(k, pp) if pp > 1 else None) for k in speedups]
    crossing = tables.table(
        f"Where {pp}-way pipeline parallelism overtakes {pp}-way tensor parallelism",
        [("speed-up", "ratio"), ("rate x execution time", "number"), ("rate", "rps")],
        [(k, c, None if c is None else c / execution_s * replicas) for k, c in crossings],
    )
    return show(tables.answer(
        "prefill", {"execution_s": execution_s, "rates_rps": at, "tp": tp, "pp": pp, "speedups": speedups,
                    "replicas": replicas, "requests": requests if simulate else None, "seed": seed},
        [f"Prompts of {execution_s:g} s on one GPU, on {replicas} replica{'s' * (replicas > 1)}."],
        [tables.table("TTFT", heads, rows), crossing],
        [*_notes(rows, crossing.rows)],
        [_picture(_forms(execution_s, tp, pp, speedups[0], replicas), rows)],
    ), form, out)  # fmt: skip


def _notes(rows: list[tuple[Any, ...]], crossings: tuple[tuple[Any, ...], ...]) -> Iterator[str]:
    """What '-' means, where it stands."""
    if any(None in row for row in rows):
        yield "A queue that is busy all the time grows without end: such a mean is '-'."
    if any(None in row for row in crossings):
        yield "No crossover ('-') where tensor parallelism stays ahead as long as both queues are stable."


def _rows(
    rate: float, execution_s: float, tp: int, pp: int, speedup: float, replicas: int, simulated: tuple[int, int] | None
) -> Iterator[tuple[Any, ...]]:
    for name, one in _forms(execution_s, tp, pp, speedup, replicas).items():
        busy = one.utilisation(rate)
        busy = 1.0 if isclose(busy, 1.0) else busy  # 20 req/s of 50 ms come to 1 less a rounding error
        times_s = (one.mean_s(rate), *(one.quantile_s(rate, q) for q in (0.9, 0.99))) if busy < 1 else (None,) * 3
        more = _simulated(one, rate, *simulated) if simulated and busy < 1 else (None,) * 3 if simulated else ()
        yield (name, rate, min(busy, 1.0), *times_s, *more)


def _forms(execution_s: float, tp: int, pp: int, speedup: float, replicas: int) -> dict[str, Any]:
    found = {"one GPU": Prefill(execution_s, replicas=replicas)}
    if tp > 1:
        found[f"tp {tp}, {speedup:g}x"] = Prefill(execution_s, tp=tp, speedup=speedup, replicas=replicas)
    if pp > 1:
        found[f"pp {pp}"] = Prefill(execution_s, pp=pp, replicas=replicas)
    return found


def _picture(forms: dict[str, Any], rows: list[tuple[Any, ...]]) -> Any:
    """Mean TTFT over the rate, up to where the last queue but the busiest 5 % is stable."""
    lines = []
    for name, one in forms.items():
        most = 0.95 * one.replicas / one.between_s
        rates = [most * (i + 1) / 60 for i in range(60)]
        lines.append(Line(name, tuple((rate, one.mean_s(rate)) for rate in rates)))
        found = tuple((row[1], row[6]) for row in rows if row[0] == name and len(row) > 6 and row[6] is not None)
        lines.append(Line(name, found, simulated=True))
    return Picture("Mean TTFT over the rate", "rate (req/s)", "mean TTFT (s)", tuple(lines), y_log=True)


def _simulated(form: Any, rate: float, requests: int, seed: int) -> tuple[float, ...]:
    import numpy as np

    times = prefill_times_s(form, rate, requests, seed)
    return float(times.mean()), float(np.quantile(times, 0.9)), float(np.quantile(times, 0.99))


@click.command("chunking", short_help="Cost of chunked prefill.")
@option("--chunk", "chunks", type=WHOLE_NUMBERS, default="512,1024,2048", metavar="TOKENS", help="Tokens per step.")
@option("--prompt", "prompts", type=WHOLE_NUMBERS, default="2k..16k", metavar="TOKENS",
        help="Prompt length: 2k..16k (doubling) or 2047,4095.")  # fmt: skip
@option("--simulate", is_flag=True, help="Also run the simulator, with the chunk as its token budget.")
@system_options
@form_options
def chunking(
    chunks: list[int], prompts: list[int], simulate: bool, model: str, hardware: str, latency: str, tp: int, form: str,
    out: str | None,
) -> int:  # fmt: skip
    """Compare the time of a prompt in chunks with its time in one piece.

    Every chunk reads the KV of all previous ones: N (N - 1) / 2 chunk-loads in N chunks (DistServe, section 2.3).
    """
    from harness.experiments.theory.batching import chunked

    timed = priced(latency, model=model, hardware=hardware, tp=tp)
    found = [chunked(timed, tokens, size) for tokens in prompts for size in chunks]
    heads: list[tuple[str, tables.Unit]] = [("prompt", "count"), ("chunk", "count"), ("chunks", "count"),
        ("KV chunk-loads", "count"), ("in chunks", "s"), ("in one piece", "s"), ("ratio", "ratio")]  # fmt: skip
    rows = [(one.prompt, one.chunk, one.chunks, one.reloads, one.chunked_s, one.whole_s, one.ratio) for one in found]
    simulated: list[tuple[float, ...]] = [()] * len(found)
    if simulate:
        heads.append(("simulated", "s"))
        system = {"model": model, "hardware": hardware, "latency": latency, "tp": tp}
        simulated = [(chunked_prompt_s(one.prompt, one.chunk, **system),) for one in found]
    return show(tables.answer(
        "chunking", {"model": model, "hardware": hardware, "latency": latency, "tp": tp, "chunks": chunks,
                     "prompts": prompts, "simulate": simulate},
        [f"One prompt alone, by {latency}."],
        [tables.table("In chunks and in one piece", heads,
                    [(*row, *more) for row, more in zip(rows, simulated, strict=True)])],
        _chunking_notes(found, latency),
        [tables.Picture("A prompt in chunks, against one piece", "prompt (tokens)", "times as long", tuple(
            tables.Line(f"chunks of {size:,}", tuple((one.prompt, one.ratio) for one in found if one.chunk == size))
            for size in chunks
        ))],
    ), form, out)  # fmt: skip


def _chunking_notes(found: "list[Chunked]", latency: str) -> list[str]:
    """What a ratio below 1 means, where there is one: reading KV again cannot make chunks faster."""
    if all(one.ratio > 0.999 for one in found):
        return []
    return [(f"A ratio below 1: by the step times of {latency} one long piece takes longer than its chunks together, "
             "although they read KV again; --latency roofline tells what that alone costs.")]  # fmt: skip
