"""Experts: tokens they need, traffic between them, ping-pong pipelines; and when stored KV pays."""

from collections.abc import Iterator
from math import inf

from acceptance.near import near, spelled
from acceptance.rows import Place, Row
from harness.catalog import hardware
from harness.experiments.theory.forms import builtin as forms
from harness.experiments.theory.moe import ExpertMatrix, PingPong

_MOE = "DeepSeek-V3 roofline"
_PING_PONG = "MegaScale-Infer ping-pong"


def rows(place: Place) -> Iterator[Row]:
    """Rooflines (S35, E15), traffic (E16), ping-pong (S37, E17) and reuse (S43, E18)."""
    del place
    yield from _roofline()
    yield from _ping_pong()
    yield from _reuse()


def _ridge(gpu: str, element_bytes: int) -> float:
    found = hardware(gpu)
    ridge: float = found.peak_flops(element_bytes) / found.bandwidth_bytes_per_s
    return ridge


def _roofline() -> Iterator[Row]:
    shape, h800, h20 = ExpertMatrix(), _ridge("h800", 1), _ridge("h20", 1)
    plans = [forms.moe(gpu) for gpu in ("h800", "h20")]
    names = ("least_m", "m", "tokens_in_flight", "gpus")
    obtained = tuple(slide[name] for slide, _ in plans for name in names)
    yield Row(
        "S35.a", _MOE, "formula", "slide mode: M 295 -> 300, 9,600 tokens, 320 GPUs; H20 37 -> 40, 1,280, 42 (42.67)",
        spelled(obtained), "exact", near((295, 300, 9600, 320, 37, 40, 1280, 128 / 3), obtained, relative=1e-9),
        "bench theory moe --over gpu=h800,h20",
    )  # fmt: skip
    found = [exact[name] for _, exact in plans for name in ("m", "whole_gpus")]
    yield Row(
        "S35.b", _MOE, "formula", "exact mode: M 363 -> 388 GPUs (H800), 38 -> 41 (H20)", spelled(found), "exact",
        found == [363, 388, 38, 41], "bench theory moe --over gpu=h800,h20",
    )  # fmt: skip
    ridges = (h800, h20, _ridge("a100-80g", 2))
    yield Row(
        "E15.a", "ridge of the roofline", "formula", "H800 591, H20 74, A100 153 FLOP/B", spelled(ridges, 3), "exact",
        [round(r) for r in ridges] == [591, 74, 153], "bench theory moe --over gpu=h800,h20",
        "DistServe prints 156 for the A100: 2.0 instead of 2.039 TB/s.",
    )  # fmt: skip
    at = [shape.intensity(m) for m in (300, 295, 40, inf)]
    yield Row(
        "E15.b", _MOE, "formula", "FLOP/B at M 300, 295, 40 and without end: 504.9, 497.8, 78.0, 3185.8",
        ", ".join(f"{value:.1f}" for value in at), "0.05", near((504.9, 497.8, 78.0, 3185.8), at, absolute=0.05),
        "bench theory moe --over gpu=h800,h20",
    )  # fmt: skip
    (traffic,) = forms.exchange()
    exchange_s, layer_s, token_s, rate = traffic.values()
    yield Row(
        "E16", "expert parallelism", "formula", "120.96 us an exchange, 241.92 us a layer, 14.76 ms, 67 tok/s",
        f"{exchange_s * 1e6:.2f} us, {layer_s * 1e6:.2f} us, {token_s * 1e3:.2f} ms, {rate:.1f} tok/s", "exact",
        near((120.96e-6, 241.92e-6, 14.757e-3), (exchange_s, layer_s, token_s), relative=1e-4),
        "bench theory exchange:link=50GBps,tokens=32",
        "The source cuts 67.8 to 67.",
    )  # fmt: skip


def _ping_pong() -> Iterator[Row]:
    one = PingPong(1.0, 1.0, 0.3, 56)
    shares = [one.busy_share(m) for m in (1, 2, 3)]
    gains = (shares[1] / shares[0], shares[2] / shares[1])
    yield Row(
        "S37.a", _PING_PONG, "formula", "Ta = Te = 1, Tc = .3: gains 1.98 (m 1 to 2) and 1.30 (2 to 3)",
        spelled(gains), "1 %", near((1.98, 1.30), gains, relative=0.01),
        "bench theory ping-pong:transfer=0.3ms,layers=56 --over m=1,2,3,4",
        "The paper reports about 1.9 and 1.10 to 1.38 on real GPUs.",
    )  # fmt: skip
    yield Row(
        "S37.b", _PING_PONG, "formula", "m >= 2 (1 + Tc / Tf): 2.6, so 3 micro-batches hide the transfers",
        f"{one.least:g}; of the ideal {spelled(shares, 3)}", "exact",
        near((0.385, 0.764, 0.991), shares, absolute=1e-3),
        "bench theory ping-pong:transfer=0.3ms,layers=56 --over m=1,2,3,4",
    )  # fmt: skip
    cases = ((3, 0.3), (3, 0.5), (4, 0.6), (4, 1.0))
    steps = [PingPong(1.0, 1.0, transfer, 56) for _, transfer in cases]
    simulated = [step.simulated_s(m) for step, (m, _) in zip(steps, cases, strict=True)]
    formula = [step.formula_s(m) for step, (m, _) in zip(steps, cases, strict=True)]
    yield Row(
        "E17.a", _PING_PONG, "exact", "169.6, 170.0, 226.2, 227.0 where transfers are hidden",
        f"{spelled(simulated)} simulated, {spelled(formula)} by the formula", "exact",
        near((169.6, 170.0, 226.2, 227.0), simulated, relative=1e-9) and near(formula, simulated, relative=1e-9),
        "bench theory ping-pong --over m=3,4 --over transfer=0.3ms,0.5ms,0.6ms,1ms",
    )  # fmt: skip
    few = PingPong(1.0, 1.0, 0.6, 56)
    yield Row(
        "E17.b", _PING_PONG, "exact", "m 3, Tc .6: 181.2 against 170.2 of the formula",
        f"{few.simulated_s(3):.1f} against {few.formula_s(3):.1f}", "exact",
        near((181.2, 170.2), (few.simulated_s(3), few.formula_s(3)), relative=1e-9),
        "bench theory ping-pong:transfer=0.6ms,m=3",
    )  # fmt: skip


def _reuse() -> Iterator[Row]:
    peaks = (312e12, 989e12)
    obtained = [forms.kv_reuse(8192, peak)[0]["least_link_bytes_per_s"] / 1e9 for peak in peaks]
    yield Row(
        "S43", "Mooncake bound", "formula", "5.86 and 18.6 GB/s (paper 6 and 19)", f"{spelled(obtained, 3)} GB/s",
        "1 %", near((5.86, 18.6), obtained, relative=0.01),
        "bench theory kv-reuse:prefix=8192 --over peak=312e12,989e12",
    )  # fmt: skip
    sides = [
        forms.kv_reuse(8192, peak, link=f"{factor * threshold}GBps")[0]["pays"]
        for peak, threshold in zip(peaks, obtained, strict=True)
        for factor in (0.99, 1.01)
    ]
    yield Row(
        "E18", "Mooncake bound", "formula", "loading is faster than computing above the threshold, slower below",
        f"1 % below: {'slower' if not sides[0] and not sides[2] else 'faster'}; "
        f"1 % above: {'faster' if sides[1] and sides[3] else 'slower'}", "exact", sides == [False, True, False, True],
        "bench theory kv-reuse --over peak=312e12,989e12 --over link=40Gbps,50Gbps,140Gbps,150Gbps",
    )  # fmt: skip
