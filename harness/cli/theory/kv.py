"""`bench theory kv`, `handoff` and `kv-reuse`: size of KV, its transfer over links, and reuse of stored KV."""

from collections.abc import Iterator
from typing import Any

import click

from harness import catalog
from harness.cli._options import COUNT, DURATION, SEED
from harness.cli.theory._options import (
    NUMBERS,
    WHOLE_NUMBERS,
    form_options,
    model,
    option,
    priced,
    show,
    system_options,
)  # fmt: skip
from harness.errors import UsageError
from harness.experiments.theory import tables
from harness.experiments.theory.kv import Link, Reuse, link_bytes_per_s, segmented_s, segments
from harness.experiments.theory.simulated import Traffic, filled
from harness.spec import size_bytes

_PUBLISHED = {"paged": (0.963, 30.42), "oracle": (0.382, 13.62), "pow2": (0.268, None), "max": (0.204, 7.0)}
"""Share of the KV memory that holds tokens, and mean batch, of OPT-13B (Kwon et al., vLLM, SOSP 2023)."""


@click.command("kv", short_help="Size of KV, its transfer over links, and memory allocation modes.")
@system_options
@option("--length", "lengths", type=WHOLE_NUMBERS, default="512", metavar="TOKENS",
        help="Prompt length: 512, 128,512 or 128..2k.")  # fmt: skip
@option("--rate", type=click.FloatRange(min=0, min_open=True), default=10.0, metavar="RPS",
        help="Prompts transferred per second.")  # fmt: skip
@option("--link", "links", default="25Gbps,800Gbps,600GBps", metavar="RATES",
        help="25Gbps (bits) or 600GBps (bytes), comma-separated.")  # fmt: skip
@option("--memory", metavar="SIZE", help="KV memory, such as 12GiB; reports its capacity in tokens.")
@option("--kv", "modes", metavar="MODES", help="With --memory: simulate a saturated replica under paged, oracle, pow2, "
        "max or any spec of 'bench list kv', comma-separated.")  # fmt: skip
@option("--requests", type=click.IntRange(min=10), default=1500, metavar="N", help="Requests of the saturated replica.")
@option("--seed", type=SEED, default=0, metavar="N", help="Random seed of their lengths.")
@form_options
def kv(
    model: str, hardware: str, latency: str, tp: int, lengths: list[int], rate: float, links: str, memory: str | None,
    modes: str | None, requests: int, seed: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """Size of the KV of a prompt, time of its transfer to another replica, and memory utilization.

    A transfer is hidden if the link sustains the rate and the layer-wise transfer of a prompt ends with its prefill.
    """
    if modes and not memory:
        raise UsageError("--kv needs --memory, the size of the KV memory, such as 12GiB.")
    shape, _ = catalog.model(model), catalog.hardware(hardware)
    per_token = catalog.kv_bytes_per_token(shape)
    heads: list[tuple[str, tables.Unit]] = [("tokens", "count"), ("KV", "bytes"), ("bytes", "count"),
                                          ("Gbit/s at the rate", "number")]  # fmt: skip
    sizes = tables.table(
        "Size", heads, [(n, n * per_token, n * per_token, rate * n * per_token * 8 / 1e9) for n in lengths]
    )
    shown = [sizes, _handed(lengths, per_token, rate, links, _prefill_s(latency, model, hardware, tp))]
    slots = _slots(memory, per_token, model) if memory else None
    if modes and slots:
        shown.append(_modes(modes, slots, requests, seed, model=model, tp=tp))
    sentences = [f"{model}: {per_token:,} bytes of KV a token; {rate:g} prompts are handed off per second."]
    if slots is not None:
        sentences.append(f"{memory} hold {slots:,} tokens.")
    return show(tables.answer(
        "kv", {"model": model, "hardware": hardware, "latency": latency, "tp": tp, "lengths": lengths, "rate_rps": rate,
               "links": links, "memory": memory, "kv": modes, "requests": requests, "seed": seed,
               "kv_bytes_per_token": per_token, "slots": slots},
        sentences, shown, [*_notes(model, bool(modes))],
    ), form, out)  # fmt: skip


def _notes(model: str, modes: bool) -> Iterator[str]:
    if model == "opt-66b":
        yield "DistServe prints 1.13 GB and 90 Gbps for 512 tokens at 10 a second: GiB, in decimal units 96.6 Gbps."
    if modes:
        yield ("Saturated: a long queue, ShareGPT's mean lengths (161 in, 338 out), every sequence in every step. "
               "oracle and pow2 come from a buddy allocator. 'published' is vLLM's OPT-13B in 12 GiB.")  # fmt: skip


def _slots(memory: str, per_token: int, model: str) -> int:
    """Tokens that the memory holds. Raises UsageError where it holds none."""

    slots = int(size_bytes(memory, "--memory") // per_token)
    if slots < 1:
        raise UsageError(
            f"--memory must hold a token of {model}, {per_token:,} bytes, got '{memory}'; give a size such as 12GiB."
        )
    return slots


def _prefill_s(latency: str, model: str, hardware: str, tp: int) -> Any:
    """Seconds of a prefill by its tokens; None where the latency model does not know this system."""

    try:
        timed = priced(latency, model=model, hardware=hardware, tp=tp)
    except UsageError:
        if latency != "roofline":
            raise
        return lambda _: None
    return lambda tokens: timed.step_s([(tokens, 0)], 0, 0)


def _handed(lengths: list[int], per_token: int, rate: float, links: str, prefill_s: Any) -> Any:
    rows = []
    for name in links.split(","):
        speed = link_bytes_per_s(name)
        for tokens in lengths:
            link, own_s = Link(name.strip(), speed, tokens * per_token, rate), prefill_s(tokens)
            rows.append((link.name, tokens, speed, link.transfer_s, link.busy, own_s,
                         None if own_s is None else link.hidden(own_s)))  # fmt: skip
    return tables.table("Hand-off", [
        ("link", "text"), ("tokens", "count"), ("rate", "bytes_per_s"), ("transfer", "s"),
                                   ("link in use", "share"), ("prefill", "s"), ("hidden", "yes")], rows)  # fmt: skip


def _modes(modes: str, slots: int, requests: int, seed: int, **system: object) -> Any:
    rows = []
    for mode in _several(modes):
        one = filled(mode, slots, Traffic(requests=requests, seed=seed), **system)
        rows.append((mode, one.used, one.of_all, one.batch, *_PUBLISHED.get(mode, (None, None))))
    return tables.table("A saturated replica", [
        ("memory", "text"), ("used of given", "share"), ("used of all", "share"),
                                              ("mean batch", "number"), ("published", "share"),
                                              ("published batch", "number")], rows)  # fmt: skip


def _several(specs: str) -> list[str]:
    """'paged:16,paged:block_tokens=64,watermark=0' as two specs: a key without a name goes on with the one before."""
    found: list[str] = []
    for part in specs.split(","):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part.strip())
    return found


@click.command("handoff", short_help="KV transfer in blocks or in one piece.")
@option("--block", "blocks", type=WHOLE_NUMBERS, default="16..128", metavar="TOKENS",
        help="Block size: 16..128 (doubling) or 16,64.")  # fmt: skip
@option("--length", "lengths", type=WHOLE_NUMBERS, default="2048", metavar="TOKENS", help="Prompt length.")
@option("--link", default="200Gbps", metavar="RATE", help="Link bandwidth: 25Gbps or 600GBps.")
@option("--control", "control_s", type=DURATION, default="10us", metavar="TIME", help="Overhead per piece.")
@model
@form_options
def handoff(
    blocks: list[int], lengths: list[int], link: str, control_s: float, model: str, form: str, out: str | None
) -> int:
    """Transfer time of KV in one piece per block and layer, and in one piece per layer (after P/D-Serve)."""
    shape = catalog.model(model)
    rate = link_bytes_per_s(link)
    rows = []
    for tokens in lengths:
        kv_bytes = tokens * catalog.kv_bytes_per_token(shape)
        whole_s = segmented_s(kv_bytes, segments(tokens, None, shape.layers), control_s, rate)
        for size in blocks:
            pieces = segments(tokens, size, shape.layers)
            cut_s = segmented_s(kv_bytes, pieces, control_s, rate)
            rows.append((tokens, size, kv_bytes, pieces, cut_s, whole_s, 1 - whole_s / cut_s))
    return show(tables.answer(
        "handoff", {"model": model, "link": link, "control_s": control_s},
        [f"{model} over {link}; every piece costs {control_s * 1e6:g} us besides its bytes."],
        [tables.table("Pieces per block and layer, and per layer",
                    [("prompt", "count"), ("block", "count"), ("KV", "bytes"), ("pieces", "count"), ("in blocks", "s"),
                     ("in one piece", "s"), ("saved", "share")], rows)],
        ["P/D-Serve reports 46% less time for contiguous transfers; the cost of a piece is ours, give yours."],
    ), form, out)  # fmt: skip


@click.command("kv-reuse", short_help="Link bandwidth at which loading stored KV beats recomputation.")
@option("--prefix", "lengths", type=WHOLE_NUMBERS, default="8192", metavar="TOKENS",
        help="Prefix length: 8192, 1k,8k or 1k..64k.")  # fmt: skip
@option("--gpus", type=COUNT, default=8, metavar="N", help="GPUs per node.")
@option("--flops", "peaks", type=NUMBERS, default="312e12,989e12", metavar="N",
        help="Peak FLOP/s of one GPU, comma-separated (A800, H800).")  # fmt: skip
@option("--link", "links", default="25Gbps,100Gbps,200Gbps", metavar="RATES", help="Links to report times for.")
@option("--hidden", type=COUNT, default=8192, metavar="N", help="Hidden size of the model.")
@option("--layers", type=COUNT, default=80, metavar="N", help="Layers.")
@option("--group", type=click.FloatRange(min=1), default=8, metavar="N", help="Query heads per KV head.")
@form_options
def kv_reuse(
    lengths: list[int], gpus: int, peaks: list[float], links: str, hidden: int, layers: int, group: float, form: str,
    out: str | None,
) -> int:  # fmt: skip
    """Link bandwidth above which loading the KV of a prefix is faster than recomputing it (Mooncake, equation 2).

    The defaults are LLaMA3-70B on 8 GPUs at peak FLOP/s.
    """
    model = Reuse(layers, hidden, group)
    rates = {name.strip(): link_bytes_per_s(name) for name in links.split(",")}
    bounds = [(n, f * gpus / 1e12, model.kv_bytes(n), model.threshold_bytes_per_s(n, f * gpus))
              for n in lengths for f in peaks]  # fmt: skip
    times = []
    for n in lengths:
        for f in peaks:
            for name, rate in rates.items():
                load_s, compute_s = model.times_s(n, f * gpus, rate)
                times.append((name, n, f * gpus / 1e12, load_s, compute_s, load_s < compute_s))
    return show(tables.answer(
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
