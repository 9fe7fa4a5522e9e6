"""`bench theory handoff`: hand-off of KV in blocks or in one piece."""

import click

from harness import catalog
from harness.cli.theories import _given


@click.command("handoff", short_help="Hand-off of KV in blocks or in one piece.")
@click.option("--block", default="16..128", show_default=True, metavar="TOKENS", help="16..128 (doubling) or 16,64.")
@click.option("--length", default="2048", show_default=True, metavar="TOKENS", help="Prompt.")
@click.option("--link", default="200Gbps", show_default=True, metavar="RATE", help="25Gbps or 600GBps.")
@click.option("--control", default="10us", show_default=True, metavar="TIME", help="What each piece costs besides.")
@_given.model
@_given.form
def command(block: str, length: str, link: str, control: str, model: str, form: str, out: str | None) -> int:
    """What does a hand-off take in one piece per block and layer, and in one per layer (after P/D-Serve)?"""
    from harness.experiments.theory import tables
    from harness.experiments.theory.kv import link_bytes_per_s, segmented_s, segments

    shape = catalog.model(model)
    rate, control_s = link_bytes_per_s(link), _given.seconds(control, "--control")
    rows = []
    for tokens in _given.whole_numbers(length, "--length"):
        kv_bytes = tokens * catalog.kv_bytes_per_token(shape)
        whole_s = segmented_s(kv_bytes, segments(tokens, None, shape.layers), control_s, rate)
        for size in _given.whole_numbers(block, "--block"):
            pieces = segments(tokens, size, shape.layers)
            cut_s = segmented_s(kv_bytes, pieces, control_s, rate)
            rows.append((tokens, size, kv_bytes, pieces, cut_s, whole_s, 1 - whole_s / cut_s))
    return _given.tell(tables.answer(
        "handoff", {"model": model, "link": link, "control_s": control_s},
        [f"{model} over {link}; every piece costs {control_s * 1e6:g} us besides its bytes."],
        [tables.table("Pieces per block and layer, and per layer",
                    [("prompt", "count"), ("block", "count"), ("KV", "bytes"), ("pieces", "count"), ("in blocks", "s"),
                     ("in one piece", "s"), ("saved", "share")], rows)],
        ["P/D-Serve reports 46% less time for contiguous transfers; the cost of a piece is ours, give yours."],
    ), form, out)  # fmt: skip
