"""`bench theory slo`: objectives that follow from a latency model."""

from typing import Any

import click

from harness import catalog
from harness.cli.theories import _given
from harness.errors import UsageError


@click.command("slo", short_help="SLOs as multiples of a decode step, after Sarathi-Serve.")
@click.option("--derive", "names", default="strict,relaxed", show_default=True, metavar="NAMES",
              help="strict (5 decode steps), relaxed (25), or a number of steps: 10x.")  # fmt: skip
@click.option("--model", default="opt-13b", show_default=True, metavar="NAME", help="See 'bench list models'.")
@click.option("--hardware", default="a100-80g", show_default=True, metavar="NAME", help="See 'bench list hardware'.")
@click.option("--latency", default="roofline", show_default=True, metavar="SPEC", help="See 'bench list latency'.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="GPUs a stage.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Pipeline stages.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, metavar="N",
              help="Sequences in the decode step.")  # fmt: skip
@click.option("--context", default="4k", show_default=True, metavar="TOKENS", help="Tokens of context of each.")
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True,
              metavar="NAME", help="text, markdown or json.")  # fmt: skip
def command(names: str, form: str, context: str, **system: Any) -> int:
    """How long may the next token take? So many decode steps of this system, as Sarathi-Serve defines its SLOs:
    the p99 of ITL within 5 steps (strict) or 25 (relaxed) of 32 sequences with 4k tokens of context each.

    The published SLOs of table 3 stand below.
    """
    from harness.cli import _terminal
    from harness.experiments.theory.batching import tokens

    _terminal.tell(form, _derived(names, tokens(context, "--context"), **system))
    return 0


def _derived(
    names: str, context: int, *, model: str, hardware: str, latency: str, tp: int, pp: int, batch: int
) -> dict[str, Any]:
    import dataclasses

    from harness import registry
    from harness.data.host import versions
    from harness.experiments.theory.batching import decode_step_s, derive, published
    from harness.spec import parse

    timed = _given.priced(latency, model=model, hardware=hardware, tp=tp, pp=pp)
    own = registry.system_of(timed)
    if pp > 1 and "pp" not in own:
        raise UsageError(
            f"'{parse(latency).name}' knows no pipeline stages; leave out --pp, or take --latency roofline."
        )
    step_s = decode_step_s(timed, batch=batch, context=context, stages=pp)
    named = {"model": model, "hardware": hardware} if "model" in own else {}  # constants know neither
    beyond = _beyond(model, hardware, tp * pp, batch, context) if named else []
    return {
        "schema": 1,
        "kind": "theory_slo",
        "versions": versions(),
        "exit_code": 0,
        "system": {**named, "latency": latency, "tp": tp, "pp": pp},
        "batch": batch,
        "context_tokens": context,
        "decode_step_s": step_s,
        "derived": [dataclasses.asdict(one) | {"slo": one.slo} for one in derive(step_s, names)],
        "published": {name: dataclasses.asdict(row) for name, row in published().items()},
        "warnings": [{"code": "extrapolated", "message": said} for said in beyond],
    }


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
