"""`bench theory prefill`: TTFT where prefill is a queue."""

import math
from collections.abc import Iterator
from typing import Any

import click

from harness.cli.theories import _given


@click.command("prefill", short_help="TTFT of prefill as a queue; tensor or pipeline parallelism.")
@click.option("--execution", "--D", default="1s", show_default=True, metavar="TIME",
              help="Prefill of one prompt on one GPU.")  # fmt: skip
@click.option("--rate", "rates", metavar="RPS", help="Prompts per second, one or several. [default: half of what one "
              "GPU carries]")  # fmt: skip
@click.option("--tp", type=click.IntRange(min=1), default=2, show_default=True, metavar="N",
              help="GPUs side by side.")  # fmt: skip
@click.option("--pp", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Pipeline stages.")
@click.option("--speedup", "--K", default="1.6", show_default=True, metavar="X",
              help="How much faster --tp GPUs prefill than one; several for the crossover.")  # fmt: skip
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="They share the rate at random.")  # fmt: skip
@click.option("--simulate", is_flag=True, help="Lay the simulator over the forms.")
@click.option("--requests", type=click.IntRange(min=100), default=100_000, show_default=True, metavar="N",
              help="Of each simulation.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of the arrivals.")
@_given.form
def command(
    execution: str, rates: str | None, tp: int, pp: int, speedup: str, replicas: int, simulate: bool, requests: int,
    seed: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """TTFT of prompts of equal length that arrive at random and are prefilled one at a time (M/D/1).

    One GPU, --tp GPUs side by side and --pp stages are compared, after DistServe; below the crossover of
    rate x execution time tensor parallelism has the lower mean, above it the pipeline.
    """
    from harness.experiments.theory import tables
    from harness.experiments.theory.queueing import crossover

    execution_s = _given.seconds(execution, "--execution")
    speedups = _given.numbers(speedup, "--speedup")
    at = _given.numbers(rates, "--rate") if rates else [replicas * 0.5 / execution_s]
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
    return _given.tell(tables.answer(
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
        busy = 1.0 if math.isclose(busy, 1.0) else busy  # 20 req/s of 50 ms come to 1 less a rounding error
        told = (one.mean_s(rate), *(one.quantile_s(rate, q) for q in (0.9, 0.99))) if busy < 1 else (None,) * 3
        more = _simulated(one, rate, *simulated) if simulated and busy < 1 else (None,) * 3 if simulated else ()
        yield (name, rate, min(busy, 1.0), *told, *more)


def _forms(execution_s: float, tp: int, pp: int, speedup: float, replicas: int) -> dict[str, Any]:
    from harness.experiments.theory.queueing import Prefill

    found = {"one GPU": Prefill(execution_s, replicas=replicas)}
    if tp > 1:
        found[f"tp {tp}, {speedup:g}x"] = Prefill(execution_s, tp=tp, speedup=speedup, replicas=replicas)
    if pp > 1:
        found[f"pp {pp}"] = Prefill(execution_s, pp=pp, replicas=replicas)
    return found


def _picture(forms: dict[str, Any], rows: list[tuple[Any, ...]]) -> Any:
    """Mean TTFT over the rate, up to where the last queue but the busiest 5 % is stable."""
    from harness.experiments.theory.tables import Line, Picture

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

    from harness.experiments.theory.simulated import prefill_times_s

    times = prefill_times_s(form, rate, requests, seed)
    return float(times.mean()), float(np.quantile(times, 0.9)), float(np.quantile(times, 0.99))
