"""`bench theory kv-reuse`: the link from which on stored KV beats computing it again."""

import click

from harness.cli.theories import _given


@click.command("kv-reuse", short_help="The link from which on stored KV beats computing it again.")
@click.option("--prefix", default="8192", show_default=True, metavar="TOKENS", help="8192, 1k,8k or 1k..64k.")
@click.option("--gpus", type=click.IntRange(min=1), default=8, show_default=True, metavar="N", help="GPUs of a node.")
@click.option("--flops", default="312e12,989e12", show_default=True, metavar="N",
              help="Peak FLOP/s of one GPU; several by commas (A800, H800).")  # fmt: skip
@click.option("--link", "links", default="25Gbps,100Gbps,200Gbps", show_default=True, metavar="RATES",
              help="For which times are told.")  # fmt: skip
@click.option("--hidden", type=click.IntRange(min=1), default=8192, show_default=True, metavar="N", help="Model width.")
@click.option("--layers", type=click.IntRange(min=1), default=80, show_default=True, metavar="N", help="Layers.")
@click.option("--group", type=click.FloatRange(min=1), default=8, show_default=True, metavar="N",
              help="Query heads to a KV head.")  # fmt: skip
@_given.form
def command(
    prefix: str, gpus: int, flops: str, links: str, hidden: int, layers: int, group: float, form: str, out: str | None
) -> int:
    """From which link on is it faster to load the KV of a prefix than to compute it again (Mooncake, equation 2)?

    The defaults are LLaMA3-70B on 8 GPUs at the peak of their arithmetic.
    """
    from harness.experiments.theory import tables
    from harness.experiments.theory.kv import Reuse, link_bytes_per_s

    model = Reuse(layers, hidden, group)
    lengths = _given.whole_numbers(prefix, "--prefix")
    peaks = _given.numbers(flops, "--flops")
    rates = {name.strip(): link_bytes_per_s(name) for name in links.split(",")}
    bounds = [(n, f * gpus / 1e12, model.kv_bytes(n), model.threshold_bytes_per_s(n, f * gpus))
              for n in lengths for f in peaks]  # fmt: skip
    times = []
    for n in lengths:
        for f in peaks:
            for name, rate in rates.items():
                load_s, compute_s = model.times_s(n, f * gpus, rate)
                times.append((name, n, f * gpus / 1e12, load_s, compute_s, load_s < compute_s))
    return _given.tell(tables.answer(
        "kv-reuse", {"prefix_tokens": lengths, "gpus": gpus, "flops": peaks, "links": [*rates], "hidden": hidden,
                     "layers": layers, "group": group},
        [f"A model of {layers} layers of width {hidden:,}, {group:g} query heads to a KV head, on {gpus} GPUs."],
        [tables.table("The link from which on loading is faster",
                    [("prefix", "count"), ("TFLOP/s", "number"), ("KV", "bytes"), ("link", "bytes_per_s")], bounds),
         tables.table("Over some links",
                    [("link", "text"), ("prefix", "count"), ("TFLOP/s", "number"), ("load", "s"), ("compute", "s"),
                     ("reuse pays", "yes")], times)],
        ["Mooncake prints 6 and 19 GB/s for 8,192 tokens on 8 A800 and 8 H800."],
    ), form, out)  # fmt: skip
