"""`bench theory speculative`: tokens per step and speed-up of speculative decoding."""

from __future__ import annotations

import click

from harness.cli.theories import _given


@click.command("speculative", short_help="Tokens per step and speed-up of speculative decoding.")
@click.option("--k", "drafts", default="4", show_default=True, metavar="N", help="Drafted tokens; several by commas.")
@click.option("--alpha", default="0.7", show_default=True, metavar="SHARE",
              help="Share of drafts that are accepted; several by commas.")  # fmt: skip
@click.option("--cost", type=click.FloatRange(0, 1), default=0.1, show_default=True, metavar="SHARE",
              help="A draft, of a decode step.")  # fmt: skip
@click.option("--batch", default="1..128", show_default=True, metavar="N", help="1..128 (doubling) or 1,2,8.")
@click.option("--context", default="512", show_default=True, metavar="TOKENS", help="Of each sequence.")
@_given.system
@_given.form
def command(
    drafts: str, alpha: str, cost: float, batch: str, context: str, model: str, hardware: str, latency: str, tp: int,
    form: str, out: str | None,
) -> int:  # fmt: skip
    """How much faster is decoding with drafts that are verified, each accepted by itself (Leviathan et al.)?

    The gain shrinks as the batch grows: past the knee, tokens that are verified cost as much as tokens that count.
    """
    from harness.errors import UsageError
    from harness.theory import told
    from harness.theory.speculation import batched_speed_up, speed_up, tokens_per_step

    ks, batches = _given.whole_numbers(drafts, "--k"), _given.whole_numbers(batch, "--batch")
    shares = _given.numbers(alpha, "--alpha")
    if max(shares) > 1:
        raise UsageError(f"--alpha must be shares of at most 1, got '{alpha}'.")
    tokens = _given.whole_numbers(context, "--context")[0]
    priced = _given.priced(latency, model=model, hardware=hardware, tp=tp)
    pairs = [(k, a) for k in ks for a in shares]
    return _given.tell(told.answer(
        "speculative", {"k": ks, "alpha": shares, "cost": cost, "batches": batches, "context_tokens": tokens,
                        "model": model, "hardware": hardware, "latency": latency, "tp": tp},
        [f"Drafts cost {cost:g} of a decode step each."],
        [told.table("One sequence, bound by memory", [("k", "count"), ("accepted", "share"),
                    ("tokens a step", "number"), ("speed-up", "ratio")],
                    [(k, a, tokens_per_step(k, a), speed_up(k, a, cost)) for k, a in pairs]),
         told.table(f"Speed-up by batch, {tokens:,} tokens of context, by {latency}",
                    [("k", "count"), ("accepted", "share"), ("batch", "count"), ("speed-up", "ratio")],
                    [(k, a, size, batched_speed_up(priced, size, tokens, k, a, cost))
                     for k, a in pairs for size in batches])],
        pictures=[told.Picture("Speed-up by batch", "sequences in a step", "times as fast", tuple(
            told.Line(f"k {k}, {a:.0%} accepted", tuple(
                (size, batched_speed_up(priced, size, tokens, k, a, cost)) for size in batches))
            for k, a in pairs
        ))],
    ), form, out)  # fmt: skip
