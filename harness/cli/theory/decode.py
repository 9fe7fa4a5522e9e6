"""`bench theory slo`, `knee` and `speculative`: objectives from a decode step, where batching saturates, drafts."""

from collections.abc import Iterator
from typing import Any

import click

from harness import catalog, registry
from harness.cli import _terminal
from harness.cli._options import COUNT, Value, formats
from harness.cli.theory._options import (
    NUMBERS,
    WHOLE_NUMBERS,
    form_options,
    hardware,
    latency,
    model,
    option,
    priced,
    show,
    system_options,
)  # fmt: skip
from harness.data.host import versions
from harness.errors import UsageError, no_such
from harness.experiments.theory import tables
from harness.experiments.theory.simulated import drafted_speed_up
from harness.experiments.theory.tables import Line
from harness.spec import parse


def _context(value: object, name: str) -> int:
    from harness.experiments.theory.batching import tokens

    return tokens(str(value), name)


def _shares(value: object, name: str) -> list[float]:
    found: list[float] = NUMBERS.check(value, name)  # type: ignore[assignment]  # numbers above 0
    if max(found) > 1:
        raise UsageError(f"{name} must be shares of at most 1, got '{value}'.")
    return found


@click.command("slo", short_help="SLOs as multiples of a decode step, after Sarathi-Serve.")
@option("--derive", "names", default="strict,relaxed", metavar="NAMES",
        help="strict (5 decode steps), relaxed (25), or a number of steps: 10x.")  # fmt: skip
@system_options
@option("--pp", type=COUNT, default=1, metavar="N", help="Pipeline stages.")
@option("--batch", type=COUNT, default=32, metavar="N", help="Sequences in the decode step.")
@option("--context", type=Value(_context), default="4k", metavar="TOKENS", help="Context tokens per sequence.")
@formats
def slo(names: str, form: str, context: int, **system: Any) -> int:
    """Derive ITL objectives as multiples of a decode step of this system, as Sarathi-Serve defines its SLOs: p99 of
    ITL within 5 steps (strict) or 25 (relaxed) of 32 sequences with 4k tokens of context each.

    The published SLOs of table 3 are listed below.
    """
    _terminal.show(form, _derived(names, context, **system))
    return 0


def _derived(
    names: str, context: int, *, model: str, hardware: str, latency: str, tp: int, pp: int, batch: int
) -> tables.TheorySloAnswer:
    from harness.experiments.theory.batching import decode_step_s, derive, published

    timed = priced(latency, model=model, hardware=hardware, tp=tp, pp=pp)
    own = registry.system_of(timed)
    if pp > 1 and "pp" not in own:
        raise UsageError(
            f"'{parse(latency).name}' knows no pipeline stages; leave out --pp, or take --latency roofline."
        )
    step_s = decode_step_s(timed, batch=batch, context=context, stages=pp)
    named = {"model": model, "hardware": hardware} if "model" in own else {}
    beyond = _beyond(model, hardware, tp * pp, batch, context) if named else []
    return tables.TheorySloAnswer(
        versions=dict(versions()),
        system=tables.PricedSystem(**named, latency=latency, tp=tp, pp=pp),
        batch=batch,
        context_tokens=context,
        decode_step_s=step_s,
        derived=derive(step_s, names),
        published=dict(published()),
        warnings=[{"code": "extrapolated", "message": message} for message in beyond],
    )


def _beyond(model: str, hardware: str, gpus: int, batch: int, context: int) -> list[str]:
    """What the system could not hold, though a latency model answers all the same."""
    most, found = catalog.model(model).max_tokens, []
    if context > most:
        found.append(f"{model} takes at most {most:,} tokens, so {context:,} tokens of context are an extrapolation")
    try:
        room = 16 * catalog.kv_capacity_blocks(model, hardware, tp=gpus, utilisation=0.9, block_tokens=16)
    except UsageError as error:  # the weights alone do not fit
        return [*found, str(error).rstrip(".")]
    if room < batch * context:
        found.append(f"the KV of {batch:,} x {context:,} tokens does not fit: there is room for {room:,} tokens")
    return found


@click.command("knee", short_help="Batch size at which prefill and decode throughput saturates.")
@option("--phase", default="prefill,decode", metavar="NAMES", help="prefill, decode or both.")
@option("--batch", "batches", type=WHOLE_NUMBERS, default="1..128", metavar="N", help="1..128 (doubling) or 1,2,8.")
@option("--length", "lengths", type=WHOLE_NUMBERS, default="128..1024", metavar="TOKENS",
        help="Prompt length, or context of a decode: 128..1k (doubling) or 256,512.")  # fmt: skip
@model
@hardware
@latency
@option("--tp", "tps", type=WHOLE_NUMBERS, default="1", metavar="N", help="GPUs per stage, comma-separated.")
@option("--pp", "pps", type=WHOLE_NUMBERS, default="1", metavar="N", help="Pipeline stages, comma-separated.")
@form_options
def knee(
    phase: str, batches: list[int], lengths: list[int], model: str, hardware: str, latency: str, tps: list[int],
    pps: list[int], form: str, out: str | None,
) -> int:  # fmt: skip
    """Tokens per second of one step by batch size, prompt length and parallelism (DistServe, figures 3 and 5).

    A batch passes every pipeline stage, so --pp raises throughput and does not change the time of a step.
    """
    from harness.experiments.theory.batching import decode_tokens_per_s, prefill_tokens_per_s

    phases = [one.strip() for one in phase.split(",")]
    for one in phases:
        if one not in ("prefill", "decode"):
            raise no_such("phase", one, ("prefill", "decode"))
    rates = {"prefill": prefill_tokens_per_s, "decode": decode_tokens_per_s}
    degrees = [(tp, pp) for tp in tps for pp in pps]
    shown = []
    for name in phases:
        rows = []
        for tp, pp in degrees:
            timed = priced(latency, model=model, hardware=hardware, tp=tp, pp=pp)
            for tokens in lengths:
                at = [(size, rates[name](timed, size, tokens)) for size in batches]
                peak = max(rate for _, rate in at)
                per_step = tokens if name == "prefill" else 1
                rows += [(tp, pp, tokens, size, pp * size * per_step / rate, rate, rate / peak) for size, rate in at]
        length_head = "prompt" if name == "prefill" else "context"
        heads: list[tuple[str, tables.Unit]] = [("tp", "count"), ("pp", "count"), (length_head, "count"),
            ("batch", "count"), ("step", "s"), ("throughput", "tokens_per_s"), ("of its best", "share")]  # fmt: skip
        shown.append(tables.table(name.capitalize(), heads, rows))
    return show(tables.answer(
        "knee", {"model": model, "hardware": hardware, "latency": latency, "phases": phases, "batches": batches,
                 "lengths": lengths, "tp_pp": [list(one) for one in degrees]},
        [f"{model} on {hardware} by {latency}."], shown,
        ["'of its best' is the share of the highest throughput among the batches that are shown."],
        [_picture(one) for one in shown],
    ), form, out)  # fmt: skip


def _picture(table: Any) -> Any:
    """Throughput over the batch, a line for each degree of parallelism and length."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for tp, pp, tokens, size, _, rate, _ in table.rows:
        lines.setdefault(f"tp {tp}, pp {pp}, {tokens:,} tokens", []).append((size, rate))
    return tables.Picture(
        f"{table.title} throughput by batch", "sequences in a step", "tokens per second",
        tuple(tables.Line(name, tuple(points)) for name, points in lines.items()),
    )  # fmt: skip


@click.command("speculative", short_help="Tokens per step and speed-up of speculative decoding.")
@option("--k", "ks", type=WHOLE_NUMBERS, default="4", metavar="N", help="Draft tokens, comma-separated.")
@option("--alpha", "shares", type=Value(_shares), default="0.7", metavar="SHARE",
        help="Acceptance rate of a draft token after accepted ones, comma-separated.")  # fmt: skip
@option("--cost", type=click.FloatRange(0, 1), default=0.1, metavar="SHARE",
        help="Cost of a draft token, as a share of a decode step.")  # fmt: skip
@option("--batch", "batches", type=WHOLE_NUMBERS, default="1..128", metavar="N", help="1..128 (doubling) or 1,2,8.")
@option("--context", type=WHOLE_NUMBERS, default="512", metavar="TOKENS", help="Context tokens per sequence.")
@option("--simulate", is_flag=True, help="Also run the simulator.")
@system_options
@form_options
def speculative(
    ks: list[int], shares: list[float], cost: float, batches: list[int], context: list[int], simulate: bool,
    model: str, hardware: str, latency: str, tp: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """Speed-up of decoding with verified drafts, each accepted independently (Leviathan et al.).

    The gain shrinks with the batch size: beyond the knee, verified tokens cost as much as generated ones.
    """
    from harness.experiments.theory.batching import batched_speed_up, speed_up, tokens_per_step

    tokens = context[0]
    timed = priced(latency, model=model, hardware=hardware, tp=tp)
    cases = [(k, a, size) for k in ks for a in shares for size in batches]
    rows = [(k, a, size, batched_speed_up(timed, size, tokens, k, a, cost)) for k, a, size in cases]
    heads: list[tuple[str, tables.Unit]] = [("k", "count"), ("alpha", "share"), ("batch", "count"),
                                          ("speed-up", "ratio")]  # fmt: skip
    simulated: list[tuple[float, ...]] = [()] * len(rows)
    if simulate:
        heads.append(("simulated", "ratio"))
        system = {"model": model, "hardware": hardware, "latency": latency, "tp": tp}
        simulated = [
            (drafted_speed_up(size, tokens, f"k={k},alpha={a!r},cost={cost!r}", **system),) for k, a, size in cases
        ]
    return show(tables.answer(
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
    for k, a in dict.fromkeys((row[0], row[1]) for row in rows):
        name, ours = f"k {k}, alpha {a:.0%}", [row for row in rows if row[:2] == (k, a)]
        yield Line(name, tuple((row[2], row[3]) for row in ours))
        marks = [(row[2], found[0]) for row, found in zip(rows, simulated, strict=True) if row[:2] == (k, a) and found]
        yield Line(name, tuple(marks), simulated=True)
