"""`bench theory ping-pong`: attention and experts apart, with micro-batches between them."""

from collections.abc import Iterator
from typing import Any

import click

from harness.cli.theories import _given
from harness.experiments.theory.tables import Line


@click.command("ping-pong", short_help="Attention and experts apart, with micro-batches between them.")
@click.option("--Ta", "attention", default="1ms", show_default=True, metavar="TIME",
              help="Attention of a micro-batch and layer.")  # fmt: skip
@click.option("--Te", "experts", default="1ms", show_default=True, metavar="TIME", help="Its experts.")
@click.option("--Tc", "transfers", default="0.3ms", show_default=True, metavar="TIME",
              help="A transfer, one way; several by commas.")  # fmt: skip
@click.option("--m", "counts", default="1..4", show_default=True, metavar="N",
              help="Micro-batches: 3, 1,2,3 or 1..4.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1, 1000), default=56, show_default=True, metavar="N", help="Layers.")
@_given.form
def command(attention: str, experts: str, transfers: str, counts: str, layers: int, form: str, out: str | None) -> int:
    """How long does a decode step take with attention and experts on different GPUs (MegaScale-Infer)?

    The formula (Ta + Te + 2 Tc) + Tf (m L - 1) is exact from m = 2 (1 + Tc / Tf) micro-batches on; the simulation
    beside it follows every micro-batch, and is longer with fewer.
    """
    from harness.experiments.theory import tables
    from harness.experiments.theory.moe import PingPong

    ta, te = _given.seconds(attention, "--Ta"), _given.seconds(experts, "--Te")
    several = [_given.seconds(one, "--Tc") for one in transfers.split(",")]
    ms = _counts(counts)
    rows = []
    for tc in several:
        one = PingPong(ta, te, tc, layers)
        shares = {m: one.busy_share(m) for m in {*ms, *(m - 1 for m in ms if m > 1)}}
        rows += [
            (m, tc, one.least, m >= one.least, one.formula_s(m), one.simulated_s(m), shares[m],
             shares[m] / shares[m - 1] if m > 1 else None)
            for m in ms
        ]  # fmt: skip
    return _given.tell(tables.answer(
        "ping-pong", {"attention_s": ta, "experts_s": te, "transfers_s": several, "layers": layers, "m": ms},
        [f"{layers} layers, {ta * 1e3:g} ms of attention and {te * 1e3:g} ms of experts a micro-batch and layer."],
        [tables.table("A decode step",
                    [("m", "count"), ("transfer", "s"), ("needs m of", "number"), ("hidden", "yes"), ("formula", "s"),
                     ("simulated", "s"), ("of the ideal", "share"), ("over m - 1", "ratio")], rows)],
        [("'of the ideal' is the share of the step in which the slower side works; 'over m - 1' the gain in throughput "
         "by the last micro-batch.")],
        [tables.Picture("A decode step by micro-batches", "micro-batches", "step (s)", tuple(_lines(rows)))],
    ), form, out)  # fmt: skip


def _counts(given: str) -> list[int]:
    """'1..4' or '1,2,3'."""
    import re

    from harness.errors import UsageError

    if match := re.fullmatch(r"(\d+)\.\.(\d+)", given.strip()):
        found = [*range(int(match[1]), int(match[2]) + 1)]
    else:
        found = (
            [int(one) for one in given.split(",") if one.strip().isdigit()] if "," in given or given.isdigit() else []
        )
    if not found or min(found) < 1 or max(found) > 1000:
        raise UsageError(f"--m must be micro-batches from 1 to 1,000, such as 3, 1,2,3 or 1..4, got '{given}'.")
    return found


def _lines(rows: list[tuple[Any, ...]]) -> Iterator[Line]:
    """For each transfer the formula, and the simulated steps over it."""
    from harness.experiments.theory.tables import Line

    for tc in dict.fromkeys(row[1] for row in rows):
        for column in (4, 5):
            points = tuple((row[0], row[column]) for row in rows if row[1] == tc)
            yield Line(f"transfer {tc * 1e3:g} ms", points, simulated=column == 5)
