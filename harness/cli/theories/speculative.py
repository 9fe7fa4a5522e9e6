"""`bench theory speculative`: tokens per step and speed-up of speculative decoding."""

from collections.abc import Iterator

import click

from harness.cli.theories import _given
from harness.experiments.theory.tables import Line


@click.command("speculative", short_help="Tokens per step and speed-up of speculative decoding.")
@click.option("--k", "drafts", default="4", show_default=True, metavar="N", help="Drafted tokens; several by commas.")
@click.option("--alpha", default="0.7", show_default=True, metavar="SHARE",
              help="Chance that a draft is accepted after those before it; several by commas.")  # fmt: skip
@click.option("--cost", type=click.FloatRange(0, 1), default=0.1, show_default=True, metavar="SHARE",
              help="A draft, of a decode step.")  # fmt: skip
@click.option("--batch", default="1..128", show_default=True, metavar="N", help="1..128 (doubling) or 1,2,8.")
@click.option("--context", default="512", show_default=True, metavar="TOKENS", help="Of each sequence.")
@click.option("--simulate", is_flag=True, help="Lay the simulator over the form.")
@_given.system
@_given.form
def command(
    drafts: str, alpha: str, cost: float, batch: str, context: str, simulate: bool, model: str, hardware: str,
    latency: str, tp: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """How much faster is decoding with drafts that are verified, each accepted by itself (Leviathan et al.)?

    The gain shrinks as the batch grows: past the knee, tokens that are verified cost as much as tokens that count.
    """
    from harness.errors import UsageError
    from harness.experiments.theory import tables
    from harness.experiments.theory.batching import batched_speed_up, speed_up, tokens_per_step

    ks, batches = _given.whole_numbers(drafts, "--k"), _given.whole_numbers(batch, "--batch")
    shares = _given.numbers(alpha, "--alpha")
    if max(shares) > 1:
        raise UsageError(f"--alpha must be shares of at most 1, got '{alpha}'.")
    tokens = _given.whole_numbers(context, "--context")[0]
    priced = _given.priced(latency, model=model, hardware=hardware, tp=tp)
    cases = [(k, a, size) for k in ks for a in shares for size in batches]
    rows = [(k, a, size, batched_speed_up(priced, size, tokens, k, a, cost)) for k, a, size in cases]
    heads: list[tuple[str, tables.Unit]] = [("k", "count"), ("alpha", "share"), ("batch", "count"),
                                          ("speed-up", "ratio")]  # fmt: skip
    simulated: list[tuple[float, ...]] = [()] * len(rows)
    if simulate:
        from harness.experiments.theory.simulated import drafted_speed_up

        heads.append(("simulated", "ratio"))
        system = {"model": model, "hardware": hardware, "latency": latency, "tp": tp}
        simulated = [
            (drafted_speed_up(size, tokens, f"k={k},alpha={a!r},cost={cost!r}", **system),) for k, a, size in cases
        ]
    return _given.tell(tables.answer(
        "speculative", {"k": ks, "alpha": shares, "cost": cost, "batches": batches, "context_tokens": tokens,
                        "model": model, "hardware": hardware, "latency": latency, "tp": tp, "simulate": simulate},
        [f"Drafts cost {cost:g} of a decode step each; alpha is the chance that the next one is accepted."],
        [tables.table("One sequence, bound by memory", [("k", "count"), ("alpha", "share"),
                    ("drafts accepted", "share"), ("tokens a step", "number"), ("speed-up", "ratio")],
                    [(k, a, (tokens_per_step(k, a) - 1) / k, tokens_per_step(k, a), speed_up(k, a, cost))
                     for k in ks for a in shares]),
         tables.table(f"Speed-up by batch, {tokens:,} tokens of context, by {latency}", heads,
                    [(*row, *more) for row, more in zip(rows, simulated, strict=True)])],
        ["Simulated: equal requests that come at once, 200 tokens each, whose context grows from the one given."]
        if simulate else [],
        [tables.Picture("Speed-up by batch", "sequences in a step", "times as fast", tuple(_lines(rows, simulated)))],
    ), form, out)  # fmt: skip


def _lines(rows: list[tuple[int, float, int, float]], simulated: list[tuple[float, ...]]) -> Iterator[Line]:
    """For each number of drafts and share the form, and what was simulated over it."""
    from harness.experiments.theory.tables import Line

    for k, a in dict.fromkeys((row[0], row[1]) for row in rows):
        name, ours = f"k {k}, alpha {a:.0%}", [row for row in rows if row[:2] == (k, a)]
        yield Line(name, tuple((row[2], row[3]) for row in ours))
        marks = [(row[2], found[0]) for row, found in zip(rows, simulated, strict=True) if row[:2] == (k, a) and found]
        yield Line(name, tuple(marks), simulated=True)
