"""`bench theory knee`: where batching stops to pay."""

from typing import Any

import click

from harness.cli.theories import _given


@click.command("knee", short_help="Where batching stops to pay, prefill and decode.")
@click.option("--phase", default="prefill,decode", show_default=True, metavar="NAMES", help="prefill, decode or both.")
@click.option("--batch", default="1..128", show_default=True, metavar="N", help="1..128 (doubling) or 1,2,8.")
@click.option("--length", default="128..1024", show_default=True, metavar="TOKENS",
              help="Prompt, and context of a decode: 128..1k (doubling) or 256,512.")  # fmt: skip
@_given.model
@_given.hardware
@_given.latency
@click.option("--tp", "tps", default="1", show_default=True, metavar="N", help="GPUs a stage; several by commas.")
@click.option("--pp", "pps", default="1", show_default=True, metavar="N", help="Pipeline stages; several by commas.")
@_given.form
def command(
    phase: str,
    batch: str,
    length: str,
    model: str,
    hardware: str,
    latency: str,
    tps: str,
    pps: str,
    form: str,
    out: str | None,
) -> int:
    """Tokens per second of one step by batch size, prompt length and parallelism (DistServe, figures 3 and 5).

    A batch passes every pipeline stage, so --pp raises throughput and leaves the time of a step as it is.
    """
    from harness.errors import no_such
    from harness.experiments.theory import tables as theory_tables
    from harness.experiments.theory.batching import decode_tokens_per_s, prefill_tokens_per_s

    phases = [one.strip() for one in phase.split(",")]
    for one in phases:
        if one not in ("prefill", "decode"):
            raise no_such("phase", one, ("prefill", "decode"))
    batches, lengths = _given.whole_numbers(batch, "--batch"), _given.whole_numbers(length, "--length")
    rates = {"prefill": prefill_tokens_per_s, "decode": decode_tokens_per_s}
    degrees = [(tp, pp) for tp in _given.whole_numbers(tps, "--tp") for pp in _given.whole_numbers(pps, "--pp")]
    tables = []
    for name in phases:
        rows = []
        for tp, pp in degrees:
            priced = _given.priced(latency, model=model, hardware=hardware, tp=tp, pp=pp)
            for tokens in lengths:
                at = [(size, rates[name](priced, size, tokens)) for size in batches]
                peak = max(rate for _, rate in at)
                per_step = tokens if name == "prefill" else 1
                rows += [(tp, pp, tokens, size, pp * size * per_step / rate, rate, rate / peak) for size, rate in at]
        length_head = "prompt" if name == "prefill" else "context"
        heads: list[tuple[str, theory_tables.Unit]] = [("tp", "count"), ("pp", "count"), (length_head, "count"),
            ("batch", "count"), ("step", "s"), ("throughput", "tokens_per_s"), ("of its best", "share")]  # fmt: skip
        tables.append(theory_tables.table(name.capitalize(), heads, rows))
    return _given.tell(theory_tables.answer(
        "knee", {"model": model, "hardware": hardware, "latency": latency, "phases": phases, "batches": batches,
                 "lengths": lengths, "tp_pp": [list(one) for one in degrees]},
        [f"{model} on {hardware} by {latency}."], tables,
        ["'of its best' is the share of the highest throughput among the batches that are shown."],
        [_picture(one) for one in tables],
    ), form, out)  # fmt: skip


def _picture(table: Any) -> Any:
    """Throughput over the batch, a line for each degree of parallelism and length."""
    from harness.experiments.theory import tables as theory_tables

    lines: dict[str, list[tuple[float, float]]] = {}
    for tp, pp, tokens, size, _, rate, _ in table.rows:
        lines.setdefault(f"tp {tp}, pp {pp}, {tokens:,} tokens", []).append((size, rate))
    return theory_tables.Picture(
        f"{table.title} throughput by batch", "sequences in a step", "tokens per second",
        tuple(theory_tables.Line(name, tuple(points)) for name, points in lines.items()),
    )  # fmt: skip
