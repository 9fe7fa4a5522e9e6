"""`bench theory kv`: size of KV, its hand-off over links, and modes of memory."""

from collections.abc import Iterator
from typing import Any

import click

from harness import catalog
from harness.cli.theories import _given

_PUBLISHED = {"paged": (0.963, 30.42), "oracle": (0.382, 13.62), "pow2": (0.268, None), "max": (0.204, 7.0)}
"""Share of the KV memory that holds tokens, and mean batch, of OPT-13B (Kwon et al., vLLM, SOSP 2023)."""


@click.command("kv", short_help="Size of KV, its hand-off over links, and modes of memory.")
@_given.model
@_given.hardware
@_given.latency
@_given.tp
@click.option("--length", default="512", show_default=True, metavar="TOKENS", help="Prompt: 512, 128,512 or 128..2k.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, metavar="RPS",
              help="Prompts handed off per second.")  # fmt: skip
@click.option("--link", "links", default="25Gbps,800Gbps,600GBps", show_default=True, metavar="RATES",
              help="25Gbps (bits) or 600GBps (bytes); several by commas.")  # fmt: skip
@click.option("--memory", metavar="SIZE", help="KV memory, such as 12GiB: how many tokens it holds.")
@click.option("--kv", "modes", metavar="MODES", help="With --memory: simulate a saturated replica under paged, oracle, "
              "pow2, max or any spec of 'bench list kv'; several by commas.")  # fmt: skip
@click.option("--requests", type=click.IntRange(min=10), default=1500, show_default=True, metavar="N",
              help="Of the saturated replica.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of its lengths.")
@_given.form
def command(
    model: str, hardware: str, latency: str, tp: int, length: str, rate: float, links: str, memory: str | None,
    modes: str | None, requests: int, seed: int, form: str, out: str | None,
) -> int:  # fmt: skip
    """How large is the KV of a prompt, what does handing it to another replica take, and how well is memory used?

    A hand-off is hidden where the link keeps up and a prompt's transfer, layer by layer, ends with its prefill.
    """
    from harness.errors import UsageError
    from harness.experiments.theory import tables as theory_tables

    if modes and not memory:
        raise UsageError("--kv needs --memory, the size of the KV memory, such as 12GiB.")
    shape, _ = catalog.model(model), catalog.hardware(hardware)
    per_token = catalog.kv_bytes_per_token(shape)
    lengths = _given.whole_numbers(length, "--length")
    heads: list[tuple[str, theory_tables.Unit]] = [("tokens", "count"), ("KV", "bytes"), ("bytes", "count"),
                                          ("Gbit/s at the rate", "number")]  # fmt: skip
    sizes = theory_tables.table(
        "Size", heads, [(n, n * per_token, n * per_token, rate * n * per_token * 8 / 1e9) for n in lengths]
    )
    tables = [sizes, _handed(lengths, per_token, rate, links, _prefill_s(latency, model, hardware, tp))]
    slots = _slots(memory, per_token, model) if memory else None
    if modes and slots:
        tables.append(_modes(modes, slots, requests, seed))
    sentences = [f"{model}: {per_token:,} bytes of KV a token; {rate:g} prompts are handed off per second."]
    if slots is not None:
        sentences.append(f"{memory} hold {slots:,} tokens.")
    return _given.tell(theory_tables.answer(
        "kv", {"model": model, "hardware": hardware, "latency": latency, "tp": tp, "lengths": lengths, "rate_rps": rate,
               "links": links, "memory": memory, "kv": modes, "requests": requests, "seed": seed,
               "kv_bytes_per_token": per_token, "slots": slots},
        sentences, tables, [*_notes(model, bool(modes))],
    ), form, out)  # fmt: skip


def _notes(model: str, modes: bool) -> Iterator[str]:
    if model == "opt-66b":
        yield "DistServe prints 1.13 GB and 90 Gbps for 512 tokens at 10 a second: GiB, in decimal units 96.6 Gbps."
    if modes:
        yield ("Saturated: a long queue, ShareGPT's mean lengths (161 in, 338 out), every sequence in every step. "
               "oracle and pow2 come from a buddy allocator. 'published' is vLLM's OPT-13B in 12 GiB.")  # fmt: skip


def _slots(memory: str, per_token: int, model: str) -> int:
    """Tokens that the memory holds. Raises UsageError where it holds none."""
    from harness.errors import UsageError
    from harness.spec import size_bytes

    slots = int(size_bytes(memory, "--memory") // per_token)
    if slots < 1:
        raise UsageError(
            f"--memory must hold a token of {model}, {per_token:,} bytes, got '{memory}'; give a size such as 12GiB."
        )
    return slots


def _prefill_s(latency: str, model: str, hardware: str, tp: int) -> Any:
    """Seconds of a prefill by its tokens; None where the latency model does not know this system."""
    from harness.errors import UsageError

    try:
        priced = _given.priced(latency, model=model, hardware=hardware, tp=tp)
    except UsageError:
        if latency != "roofline":
            raise
        return lambda _: None
    return lambda tokens: priced.step_s([(tokens, 0)], 0, 0)


def _handed(lengths: list[int], per_token: int, rate: float, links: str, prefill_s: Any) -> Any:
    from harness.experiments.theory import tables as theory_tables
    from harness.experiments.theory.kv import Link, link_bytes_per_s

    rows = []
    for name in links.split(","):
        speed = link_bytes_per_s(name)
        for tokens in lengths:
            link, own_s = Link(name.strip(), speed, tokens * per_token, rate), prefill_s(tokens)
            rows.append((link.name, tokens, speed, link.transfer_s, link.busy, own_s,
                         None if own_s is None else link.hidden(own_s)))  # fmt: skip
    return theory_tables.table("Hand-off", [
        ("link", "text"), ("tokens", "count"), ("rate", "bytes_per_s"), ("transfer", "s"),
                                   ("link in use", "share"), ("prefill", "s"), ("hidden", "yes")], rows)  # fmt: skip


def _modes(modes: str, slots: int, requests: int, seed: int) -> Any:
    from harness.experiments.theory import tables as theory_tables
    from harness.experiments.theory.simulated import Traffic, filled

    rows = []
    for mode in _several(modes):
        one = filled(mode, slots, Traffic(requests=requests, seed=seed))
        rows.append((mode, one.used, one.of_all, one.batch, *_PUBLISHED.get(mode, (None, None))))
    return theory_tables.table("A saturated replica", [
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
