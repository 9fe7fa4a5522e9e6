"""`bench theory chunking`: what cutting a prompt into chunks costs."""

import click

from harness.cli.theories import _given
from harness.experiments.theory.batching import Chunked


@click.command("chunking", short_help="What cutting a prompt into chunks costs.")
@click.option("--chunk", default="512,1024,2048", show_default=True, metavar="TOKENS", help="Tokens a step.")
@click.option(
    "--prompt", default="2k..16k", show_default=True, metavar="TOKENS", help="2k..16k (doubling) or 2047,4095."
)
@click.option("--simulate", is_flag=True, help="Send each prompt through the simulator, with chunks as its budget.")
@_given.system
@_given.form
def command(
    chunk: str,
    prompt: str,
    simulate: bool,
    model: str,
    hardware: str,
    latency: str,
    tp: int,
    form: str,
    out: str | None,
) -> int:
    """How much longer does a prompt take in chunks than in one piece?

    Every chunk reads the KV of all before it: N (N - 1) / 2 chunk-loads in N chunks (DistServe, section 2.3).
    """
    from harness.experiments.theory import tables
    from harness.experiments.theory.batching import chunked

    priced = _given.priced(latency, model=model, hardware=hardware, tp=tp)
    chunks, prompts = _given.whole_numbers(chunk, "--chunk"), _given.whole_numbers(prompt, "--prompt")
    found = [chunked(priced, tokens, size) for tokens in prompts for size in chunks]
    heads: list[tuple[str, tables.Unit]] = [("prompt", "count"), ("chunk", "count"), ("chunks", "count"),
        ("KV chunk-loads", "count"), ("in chunks", "s"), ("in one piece", "s"), ("ratio", "ratio")]  # fmt: skip
    rows = [(one.prompt, one.chunk, one.chunks, one.reloads, one.chunked_s, one.whole_s, one.ratio) for one in found]
    simulated: list[tuple[float, ...]] = [()] * len(found)
    if simulate:
        from harness.experiments.theory.simulated import chunked_prompt_s

        heads.append(("simulated", "s"))
        system = {"model": model, "hardware": hardware, "latency": latency, "tp": tp}
        simulated = [(chunked_prompt_s(one.prompt, one.chunk, **system),) for one in found]
    return _given.tell(tables.answer(
        "chunking", {"model": model, "hardware": hardware, "latency": latency, "tp": tp, "chunks": chunks,
                     "prompts": prompts, "simulate": simulate},
        [f"One prompt alone, by {latency}."],
        [tables.table("In chunks and in one piece", heads,
                    [(*row, *more) for row, more in zip(rows, simulated, strict=True)])],
        _notes(found, latency),
        [tables.Picture("A prompt in chunks, against one piece", "prompt (tokens)", "times as long", tuple(
            tables.Line(f"chunks of {size:,}", tuple((one.prompt, one.ratio) for one in found if one.chunk == size))
            for size in chunks
        ))],
    ), form, out)  # fmt: skip


def _notes(found: list[Chunked], latency: str) -> list[str]:
    """What a ratio below 1 means, where there is one: reading KV again cannot make chunks faster."""
    if all(one.ratio > 0.999 for one in found):
        return []
    told = (
        f"A ratio below 1: by the step times of {latency} one long piece takes longer than its chunks together, "
        "although they read KV again; --latency roofline tells what that alone costs."
    )
    return [told]
