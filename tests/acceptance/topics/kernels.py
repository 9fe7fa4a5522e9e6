"""Kernels: weights of few bits (MARLIN, Tilus) and attention of unequal lengths (FlashInfer)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import get_args

from acceptance.near import near, spelled
from acceptance.rows import Place, Row
from acceptance.topics._trials import quantile, trial
from harness.catalog import hardware
from harness.experiments.theory.attention import Decodes, LengthShape, lengths_of, share_needed
from harness.experiments.theory.weights import TILUS, Weights, marlin
from harness.registry import make

A10 = hardware("a10")
RATIO = A10.bf16_flops / A10.bandwidth_bytes_per_s
INT4 = Weights(bits=4, group=128, flops=RATIO)
SEEDS = range(5)
SHAPES: tuple[LengthShape, ...] = get_args(LengthShape)


def rows(place: Place) -> Iterator[Row]:
    """MARLIN (S60), FlashInfer's balance (S61) and bit widths (S62)."""
    del place
    yield from _marlin()
    yield from _end_to_end()
    yield from _attention()
    yield from _bits()


def _marlin() -> Iterator[Row]:
    batches = [2**power for power in range(8)]
    derived = (3.878, 3.877, 3.876, 3.873, 3.867, 3.855, 3.269, 1.642)
    ideal = [INT4.speed_up(batch) for batch in batches]
    yield Row(
        "S60.a", "MARLIN", "formula", f"ideal curve, batch 1 to 128: {spelled(derived)}", spelled(ideal), "0.0005",
        near(derived, ideal, absolute=0.0005), "bench theory weights:bits=4,gpu=a10 --over batch=1:128:x2",
        "A10, 18,432 x 73,728, groups of 128, activations counted. The figure shows 3.87, 3.86 (batch 16), 3.85, 3.27, "
        "1.64.",
    )  # fmt: skip
    measured = marlin().at(INT4, "a10")
    shares = [speed_up / INT4.speed_up(batch) for batch, speed_up in measured.items()]
    yield Row(
        "S60.b", "MARLIN", "formula",
        f"measured at batch {', '.join(map(str, measured))}: {spelled(measured.values(), 3)}",
        f"of the ideal curve: {', '.join(f'{share:.1%}' for share in shares)}", "94 % to 101 %",
        all(0.94 <= share <= 1.01 for share in shares), "bench theory weights:bits=4,gpu=a10 --over batch=1:128:x2",
        "Read off the figure of the repository to about 0.02; not read at 32 and 64.",
    )  # fmt: skip


def _end_to_end() -> Iterator[Row]:
    """Llama-2-7B on one A10, one request at a time and in batches."""
    run = {"model": "llama2-7b", "hardware": "a10", "lengths": "fixed:prompt=64,output=64", "arrivals": "constant"}
    times_s = []
    for latency in ("roofline", "roofline:weight_bits=4.125"):
        table = trial(backend="sim", latency=latency, rate=0.2, requests=20, **run).table
        times_s.append(quantile(table, "tpot", 0.5))
    plain_s, int4_s = times_s
    rest_s = plain_s - (plain_s - int4_s) / (1 - 1 / INT4.bound)
    command = (
        "bench run --backend sim --model llama2-7b --hardware a10 --latency roofline:weight_bits=4.125 "
        "--lengths fixed:prompt=64,output=64 --arrivals constant --rate 0.2 --requests 20"
    )
    yield Row(
        "S60.c", "MARLIN", "simulated", "Llama-2-7B in vLLM: up to 2.8 times (abstract)",
        f"TPOT {plain_s * 1e3:.1f} ms with FP16, {int4_s * 1e3:.1f} ms with int4: {plain_s / int4_s:.2f} times",
        "2.3 to 3.0", 2.3 <= plain_s / int4_s <= 3.0, command,
        "A10, one request at a time, 64 tokens in and 64 out; the setting of the published figure is not known. Decode "
        f"steps of 16, 32 and 64 sequences: {_steps('llama2-7b')} times; of Llama-3.1-8B {_steps('llama3.1-8b')}.",
    )  # fmt: skip
    yield Row(
        "S60.d", "MARLIN", "simulated", "what the kernel does not touch: 3.8 ms of a step, from 2.8 times of 25 ms",
        f"{rest_s * 1e3:.1f} ms", "3 to 6 ms", 3e-3 <= rest_s <= 6e-3, command,
    )  # fmt: skip


def _steps(model: str) -> str:
    """How many times as long decode steps of FP16 take, 96 tokens of context each."""
    plain, int4 = (make("latency", f"roofline:model={model},hardware=a10{bits}") for bits in ("", ",weight_bits=4.125"))
    return spelled([plain.decode_s(n, 96 * n) / int4.decode_s(n, 96 * n) for n in (16, 32, 64)], 3)


def _decodes(shape: LengthShape, seed: int) -> Decodes:
    tokens = lengths_of(shape, 16, 1024, 4224, seed)
    return Decodes(tuple(-(-one // 16) for one in tokens), heads=8, slots=264)


def _attention() -> Iterator[Row]:
    plans = {shape: [_decodes(shape, seed) for seed in SEEDS] for shape in SHAPES}
    means = {shape: sum(one.speed_up for one in several) / len(SEEDS) for shape, several in plans.items()}
    least = min(one.speed_up for several in plans.values() for one in several)
    yield Row(
        "S61.a", "FlashInfer", "formula",
        "unbalanced over balanced makespan: 2.0 constant, 2.0 uniform, 8.3 Zipf-like (a model, drawn otherwise)",
        ", ".join(f"{mean:.1f} {shape}" for shape, mean in means.items()), "above 1, largest for zipf",
        least > 1 and max(means, key=lambda shape: means[shape]) == "zipf",
        "bench theory attention --over lengths=constant,uniform,zipf",
        "16 decodes, 8 KV heads, 264 thread blocks, 5 seeds of uniform lengths; zipf: 4,224 tokens over the rank.",
    )  # fmt: skip
    every = [one for several in plans.values() for one in several]
    whole = sum(sum(one.chunks) == sum(one.pages) for one in every)
    bounded = sum(one.unbalanced_pages >= one.balanced_pages >= one.ideal_pages for one in every)
    yield Row(
        "S61.b", "FlashInfer", "exact", "chunks sum to the pages; total / slots <= balanced <= unbalanced",
        f"{whole} and {bounded} of {len(every)} batches", "exact", whole == bounded == len(every),
        "bench theory attention:seed=0 --over lengths=constant,uniform,zipf",
    )  # fmt: skip
    needed = {shape: [share_needed(cut, means[shape]) for cut in (0.29, 0.69)] for shape in SHAPES}
    texts = [
        f"{shape} {' and '.join('none' if share is None else f'{share:.0%}' for share in shares)}"
        for shape, shares in needed.items()
    ]
    yield Row(
        "S61.c", "FlashInfer", "formula", "ITL 29 % to 69 % lower than compiler backends (abstract)",
        f"share of attention that explains 29 % and 69 %: {'; '.join(texts)}", "-", None, "bench theory attention",
        "Not a measurement: reduction = share x (1 - 1 / gain of attention).",
    )  # fmt: skip


def _bits() -> Iterator[Row]:
    several = [Weights(bits, 128, RATIO) for bits in range(1, 9)]
    bounds = [one.bound for one in several]
    expected = (14.22, 7.529, 5.12, 3.879, 3.122, 2.612, 2.246, 1.969)
    falls = all(a > b for a, b in pairwise(bounds))
    yield Row(
        "S62.a", "Tilus", "formula", f"bound 16 / (bits + 16 / g), 1 to 8 bits: {spelled(expected)}",
        spelled(bounds), "0.005", near(expected, bounds, absolute=0.005) and falls,
        "bench theory weights --over bits=1:8:1", "groups of 128; falls with every bit",
    )  # fmt: skip
    # at the crossover, arithmetic takes exactly as long as reading the weights
    sides = [
        (2 * batch / RATIO - one.weight_bytes) * sign > 0
        for one in several
        for batch, sign in ((one.crossover * 0.999, -1), (one.crossover * 1.001, 1))
    ]
    yield Row(
        "S62.b", "Tilus", "formula", "crossover at 4 bits, groups of 128, A10: batch 53.7",
        f"{INT4.crossover:.1f}; arithmetic is longer only above it for {sum(sides) // 2} of 8 widths", "exact",
        round(INT4.crossover, 1) == 53.7 and all(sides), "bench theory weights:gpu=a10 --over bits=1:8:1",
    )  # fmt: skip
    yield Row(
        "S62.c", "Tilus", "formula", "1.03 times as fast as MARLIN (abstract)",
        f"at 4 bits and batch 16 {TILUS * marlin().at(INT4, 'a10')[16]:.2f} times FP16, the bound is {INT4.bound:.2f}",
        "-", None, "bench theory weights:bits=4", "data only, not measured again; Tilus measured on other GPUs",
    )  # fmt: skip
