"""`bench theory moe`: tokens an expert needs, and what its traffic costs."""

from collections.abc import Iterator
from typing import Any

import click

from harness import catalog
from harness.cli.theories import _given
from harness.errors import UsageError


@click.command("moe", short_help="Tokens an expert needs, and what its traffic costs.")
@click.option("--preset", type=click.Choice(["deepseek-v3"]), default="deepseek-v3", show_default=True, metavar="NAME",
              help="deepseek-v3: 256 routed experts, 8 a token, 7168 x 2048, FP8.")  # fmt: skip
@click.option("--gpu", "gpus", default="h800,h20", show_default=True, metavar="NAMES",
              help="Several by commas; see 'bench list hardware'.")  # fmt: skip
@click.option("--local", type=click.IntRange(min=1), default=30, show_default=True, metavar="N",
              help="Sequences of one GPU.")  # fmt: skip
@click.option("--inner", type=click.IntRange(min=1), default=7168, show_default=True, metavar="N", help="Width of the "
              "model.")  # fmt: skip
@click.option("--columns", type=click.IntRange(min=1), default=2048, show_default=True, metavar="N",
              help="Width of an expert.")  # fmt: skip
@click.option("--experts", type=click.IntRange(min=1), default=256, show_default=True, metavar="N",
              help="Routed experts.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(min=1), default=8, show_default=True, metavar="N",
              help="Routed experts that a token visits.")  # fmt: skip
@click.option("--element-bytes", type=click.IntRange(1, 2), default=1, show_default=True, metavar="N",
              help="1: FP8, 2: BF16.")  # fmt: skip
@click.option("--link", default="50GBps", show_default=True, metavar="RATE", help="Of expert parallelism, per GPU.")
@click.option("--tokens", type=click.IntRange(min=1), default=32, show_default=True, metavar="N",
              help="Of a GPU in one exchange.")  # fmt: skip
@_given.form
def command(
    preset: str, gpus: str, local: int, inner: int, columns: int, experts: int, top_k: int, element_bytes: int,
    link: str, tokens: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """How many tokens must an expert get to be bound by arithmetic, and over how many GPUs must experts be spread?

    Two modes: 'slide' reckons 2M FLOP per byte and rounds up to tens, as the lecture does; 'exact' takes the whole
    formula. Below stands what all-to-all exchanges cost where nothing hides them.
    """
    from harness.experiments.theory import tables
    from harness.experiments.theory.kv import link_bytes_per_s
    from harness.experiments.theory.moe import Experts, Traffic

    if top_k > experts:
        raise UsageError(f"--top-k {top_k} is more than the {experts} --experts.")
    shape = Experts(inner, columns, experts, top_k, element_bytes)
    traffic = Traffic(tokens=tokens, targets=top_k + 1, link_bytes_per_s=link_bytes_per_s(link))
    names = [name.strip() for name in gpus.split(",")]
    ridges = {name: _ridge(name, element_bytes) for name in names}
    return _given.tell(tables.answer(
        "moe", {"preset": preset, "gpus": names, "local": local, "inner": inner, "columns": columns,
                "experts": experts, "top_k": top_k, "element_bytes": element_bytes, "link": link, "tokens": tokens},
        [f"{experts} routed experts of {inner} x {columns}, {top_k} a token, {local} sequences on each GPU."],
        [
            tables.table("Tokens an expert needs, and GPUs over which experts are spread",
                       [("GPU", "text"), ("mode", "text"), ("FLOP/B of the GPU", "number"), ("least M", "count"),
                        ("M", "count"), ("tokens in flight", "count"), ("GPUs", "number"), ("rounded up", "count"),
                        ("FLOP/B at M", "number")],
                       [row for name, ridge in ridges.items() for row in _plans(shape, name, ridge, local)]),
            tables.table("Exchanges of one GPU",
                       [("tokens", "count"), ("link", "bytes_per_s"), ("dispatch + combine", "s"), ("a layer", "s"),
                        (f"{traffic.layers} layers", "s"), ("at most", "tokens_per_s")],
                       [(tokens, traffic.link_bytes_per_s, traffic.exchange_s, traffic.layer_s, traffic.token_s,
                         1 / traffic.token_s)]),
        ],
        [f"Endless batches reach {shape.intensity(float('inf')):,.1f} FLOP/B; a GPU with more cannot be filled ('-').",
         ("Exchanges: 1 byte an element out, 2 back, 7,000 elements a token, to the routed experts and a shared one; "
         "a layer has two micro-batches, so two exchanges (after 'Insights into DeepSeek-V3').")],
    ), form, out)  # fmt: skip


def _ridge(gpu: str, element_bytes: int) -> float:
    found = catalog.hardware(gpu)
    if element_bytes == 1 and found.fp8_flops is None:
        raise UsageError(f"{gpu} has no FP8 tensor cores; use --element-bytes 2.")
    ridge: float = found.peak_flops(element_bytes) / found.bandwidth_bytes_per_s
    return ridge


def _plans(shape: Any, gpu: str, ridge: float, local: int) -> Iterator[tuple[Any, ...]]:
    from math import ceil

    from harness.experiments.theory.moe import exact, slide

    plans = {"slide": slide(shape, ridge, local), "exact": exact(shape, ridge, local)}
    for mode, plan in plans.items():
        if plan is None:
            yield (gpu, mode, ridge, *(None,) * 6)
        else:
            yield (gpu, mode, ridge, plan.least, plan.rows, plan.tokens, plan.width, ceil(plan.width),
                   shape.intensity(plan.rows))  # fmt: skip
