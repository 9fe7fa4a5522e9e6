"""`bench theory weights` and `attention`: what weights of few bits gain, and attention of unequal lengths."""

import click

from harness import catalog
from harness.cli._options import COUNT, SEED
from harness.cli.theory._options import WHOLE_NUMBERS, counts, form_options, option, show
from harness.experiments.theory import tables
from harness.experiments.theory.attention import SHAPES, Decodes, lengths_of, share_needed
from harness.experiments.theory.tables import Line, Picture
from harness.experiments.theory.weights import TILUS, Weights, marlin

FLASHINFER = (0.29, 0.69)
"""Published reductions of ITL against backends of compilers (FlashInfer, MLSys 2025, abstract)."""


@click.command("weights", short_help="Speed-up of weights of 1 to 8 bits.")
@option("--bits", type=counts("bits", 8), default="1..8", metavar="N", help="Bits of a weight: 4, 2,4,8 or 1..8.")
@option("--group", type=COUNT, default=128, metavar="N", help="Weights that share an FP16 scale.")
@option("--gpu", default="a10", metavar="NAME", help="GPU (bench list hardware).")
@option("--batch", "batches", type=WHOLE_NUMBERS, default="1..128", metavar="N", help="1..128 (doubling) or 1,2,8.")
@option("--inner", type=COUNT, default=18432, metavar="N", help="Rows of the matrix.")
@option("--columns", type=COUNT, default=73728, metavar="N", help="Columns of the matrix.")
@form_options
def weights(
    bits: list[int], group: int, gpu: str, batches: list[int], inner: int, columns: int, form: str, out: str | None
) -> int:
    """Speed-up over FP16 of a linear layer whose weights have few bits, by the roofline.

    The bound is that of reading weights alone, 16 / (bits + 16 / group). From the crossover on, arithmetic takes
    longer than reading the weights. MARLIN's published speed-ups stand beside the roofline where they were measured.
    """
    found = catalog.hardware(gpu)
    ratio = found.peak_flops(2) / found.bandwidth_bytes_per_s
    several = [Weights(one, group, ratio, inner, columns) for one in dict.fromkeys(bits)]
    shown = [
        tables.table("Reading weights alone",
                     [("bits", "count"), ("bytes a weight", "number"), ("bound", "ratio"),
                      ("crossover batch", "number")],
                     [(one.bits, one.weight_bytes, one.bound, one.crossover) for one in several]),
        tables.table("Speed-up by batch size, with activations", [
            ("batch", "count"), *((f"{one.bits} bit{'s' * (one.bits > 1)}", "ratio") for one in several)
        ], [(batch, *(one.speed_up(batch) for one in several)) for batch in batches]),
    ]  # fmt: skip
    lines = [Line(f"{one.bits} bits", tuple((batch, one.speed_up(batch)) for batch in batches)) for one in several]
    for one in several:
        if measured := marlin().at(one, gpu):
            rows = [(batch, one.speed_up(batch), measured.get(batch)) for batch in sorted({*batches, *measured})]
            shown.append(tables.table(
                "MARLIN, published",
                [("batch", "count"), ("roofline", "ratio"), ("MARLIN", "ratio"), ("of it", "share")],
                [(batch, ideal, real, None if real is None else real / ideal) for batch, ideal, real in rows],
            ))  # fmt: skip
    return show(tables.answer(
        "weights", {"bits": bits, "group": group, "gpu": gpu, "batch": batches, "inner": inner, "columns": columns},
        [f"{inner:,} x {columns:,} weights on {gpu}, {ratio:.1f} FLOP per byte, FP16 activations."], shown,
        [(f"MARLIN was read off a figure to about 0.02. Tilus reports {TILUS}x of MARLIN; data only, not measured "
          "again.")],
        [Picture("Speed-up over FP16", "batch", "speed-up", tuple(lines))],
    ), form, out)  # fmt: skip


@click.command("attention", short_help="Decode attention of unequal lengths, balanced or not.")
@option("--lengths", default=",".join(SHAPES), metavar="NAMES",
        help="constant, uniform (half of --length to all of it), zipf (--longest over the rank).")  # fmt: skip
@option("--requests", type=COUNT, default=16, metavar="N", help="Decodes in the batch.")
@option("--length", type=COUNT, default=1024, metavar="TOKENS", help="Context of constant and uniform lengths.")
@option("--longest", type=COUNT, default=4224, metavar="TOKENS", help="Longest context of zipf.")
@option("--heads", type=COUNT, default=8, metavar="N", help="KV heads on one GPU.")
@option("--slots", type=COUNT, default=264, metavar="N", help="Thread blocks at once: two on each of 132 SMs (H100).")
@option("--page", type=COUNT, default=16, metavar="TOKENS", help="Tokens of a KV page.")
@option("--seed", type=SEED, default=0, metavar="N", help="Seed of uniform lengths.")
@form_options
def attention(
    lengths: str, requests: int, length: int, longest: int, heads: int, slots: int, page: int, seed: int, form: str,
    out: str | None,
) -> int:  # fmt: skip
    """Makespan of decode attention: one work item per request and KV head, or chunks of equal size as FlashInfer plans
    them: the smallest chunk, of 128 tokens at least, such that all chunks run at once.

    The second table has the share of attention in a step with which that gain explains a published reduction of ITL.
    """
    plans = {}
    for name in dict.fromkeys(one.strip() for one in lengths.split(",")):
        tokens = lengths_of(name, requests, length, longest, seed)
        plans[name] = Decodes(tuple(-(-one // page) for one in tokens), heads, slots, page)
    return show(tables.answer(
        "attention", {"lengths": [*plans], "requests": requests, "length_tokens": length, "longest_tokens": longest,
                      "heads": heads, "slots": slots, "page_tokens": page, "seed": seed},
        [f"{requests} decodes with {heads} KV heads over {slots} thread blocks at once."],
        [
            tables.table("Makespan in KV pages",
                         [("lengths", "text"), ("longest", "count"), ("chunk", "count"), ("unbalanced", "count"),
                          ("balanced", "count"), ("total / slots", "number"), ("unbalanced / balanced", "ratio"),
                          ("balanced / ideal", "ratio")],
                         [(name, max(one.pages), one.chunk_pages, one.unbalanced_pages, one.balanced_pages,
                           one.ideal_pages, one.speed_up, one.balanced_pages / one.ideal_pages)
                          for name, one in plans.items()]),
            tables.table("Share of attention in a step that explains a published reduction of ITL",
                         [("lengths", "text"), *((f"-{cut:.0%}", "share") for cut in FLASHINFER)],
                         [(name, *(share_needed(cut, one.speed_up) for cut in FLASHINFER))
                          for name, one in plans.items()]),
        ],
        [("FlashInfer reports ITL 29% to 69% lower than backends of compilers; '-': balance alone cannot explain it. "
          "A chunk takes as long as it has pages; merging chunks is free.")],
    ), form, out)  # fmt: skip
