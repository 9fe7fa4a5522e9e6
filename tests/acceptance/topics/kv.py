"""KV in memory and on links: sizes, slots, capacities, hand-offs, and how full each memory mode gets."""

import csv
from collections.abc import Iterator

from acceptance.near import near, spelled
from acceptance.rows import Place, Row
from backends.systems.distserve import kv_tokens
from harness import catalog
from harness.experiments.theory.forms import builtin as forms
from harness.experiments.theory.simulated import Traffic, filled
from harness.spec import link_bytes_per_s

_GIB = 2**30
_SEEDS = (0, 1, 2)


def rows(place: Place) -> Iterator[Row]:
    """Sizes (E1 to E4), the saturated replica (S05) and hand-offs (S31)."""
    yield from _sizes()
    yield _capacities(place)
    yield from _modes()
    yield _block_sizes()
    yield from _hand_offs()


def _sizes() -> Iterator[Row]:
    published = {
        "opt-13b": 819_200, "opt-66b": 2_359_296, "opt-175b": 4_718_592, "llama3-70b": 327_680, "yi-34b": 245_760,
        "deepseek-v3": 70_272,
    }  # fmt: skip
    obtained = {name: catalog.kv_bytes_per_token(catalog.model(name)) for name in published}
    yield Row(
        "E1", "KV bytes a token", "formula", "; ".join(f"{name} {size:,}" for name, size in published.items()),
        "; ".join(f"{size:,}" for size in obtained.values()), "exact", published == obtained,
        "bench theory kv:length=1 --over model=opt-13b,opt-66b,opt-175b,llama3-70b,yi-34b,deepseek-v3",
        "The shape of Yi-34B is unverified in the source.",
    )  # fmt: skip
    kv_bytes = 512 * obtained["opt-66b"]
    rate = 10 * kv_bytes * 8 / 1e9
    yield Row(
        "E2", "KV of a prompt", "formula", "512 tokens of OPT-66B: 1,207,959,552 B = 1.125 GiB; 10 req/s: 96.6 Gbps",
        f"{kv_bytes:,} B = {kv_bytes / _GIB:g} GiB; {rate:.1f} Gbps", "exact",
        kv_bytes == 1_207_959_552 and round(rate, 1) == 96.6, "bench theory kv:model=opt-66b,length=512,rate=10",
        "The paper prints 1.13 GB and 90 Gbps: its GB are GiB.",
    )  # fmt: skip
    slots = [gib * _GIB // obtained[name] for name, gib in (("opt-13b", 12), ("opt-66b", 21), ("opt-175b", 264))]
    yield Row(
        "E3", "vLLM table 1", "formula", "slots of 12, 21, 264 GiB: 15,728; 9,557; 60,074", spelled(slots, 4), "exact",
        slots == [15_728, 9_557, 60_074], "bench theory kv:model=opt-13b,memory=12GiB",
    )  # fmt: skip


def _capacities(place: Place) -> Row:
    band, published = "exact", "all 76 rows of max_num_tokens.csv, e.g. 13B (1,1) 66,144"
    command = "python -m pytest tests/theory/test_distserve_simulator.py"
    if place.data is None:
        return Row("E4", "capacities (simdistserve)", "exact", published, "not run", band, None, command,
                   "Needs the folder of public measurements.")  # fmt: skip
    with (place.data / "profiles" / "simdistserve_max_num_tokens.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    equal = sum(
        int(row["max_num_tokens"])
        == kv_tokens(row["model"].split("/")[1], int(row["tp"]), int(row["pp"]))
        for row in found
    )  # fmt: skip
    return Row("E4", "capacities (simdistserve)", "exact", published, f"{equal} of {len(found)} rows equal", band,
               equal == len(found) == 76, command)  # fmt: skip


def _modes() -> Iterator[Row]:
    published = {"paged": (96.3, 30.42), "oracle": (38.2, 13.62), "pow2": (26.8, None), "max": (20.4, 7.00)}
    command = "bench theory memory:model=opt-13b,memory=12GiB --over kv=paged,oracle,pow2,max"
    note = (
        "Lengths are lognormal with ShareGPT's means as reported by vLLM and an assumed variation (1.0); "
        "reserved memory comes from a buddy allocator. Paging has only a lower bound: 96.3 % is from a real engine."
    )
    for letter, (mode, (used, batch)) in zip("abcd", published.items(), strict=True):
        found = [filled(mode, 15_728, Traffic(seed=seed)) for seed in _SEEDS]
        shares, batches = [100 * one.used for one in found], [one.batch for one in found]
        holds = min(shares) >= 95 if mode == "paged" else near([used] * len(shares), shares, absolute=6.0)
        if batch is not None:
            holds = holds and near([batch] * len(batches), batches, relative=0.15)
        yield Row(
            f"S05.{letter}", f"vLLM memory, {mode}", "simulated",
            f"{used} % of KV memory used" + ("" if batch is None else f"; mean batch {batch:g}"),
            f"{_span(shares)} %; mean batch {_span(batches)}",
            (">= 95 %" if mode == "paged" else "+-6 points") + ("" if batch is None else "; batch +-15 %"),
            holds, command, note if mode == "paged" else "",
        )  # fmt: skip


def _block_sizes() -> Row:
    published = {1: 100.0, 8: 99.2, 16: 98.3, 32: 96.6, 64: 93.5, 128: 86.8, 256: 76.9}
    obtained = [
        sum(100 * filled(f"paged:{size}", 15_728, Traffic(seed=seed)).used for seed in _SEEDS) / len(_SEEDS)
        for size in published
    ]
    return Row(
        "S05.e", "vLLM memory, blocks", "simulated",
        f"blocks of {', '.join(map(str, published))} tokens: {spelled(published.values(), 3)} %",
        f"{', '.join(f'{share:.1f}' for share in obtained)} %", "+-1 point",
        near([*published.values()], obtained, absolute=1.0),
        "bench theory memory:model=opt-13b,memory=12GiB --over kv=paged:1,paged:8,paged:16,paged:32,paged:64,paged:256",
        "Published: from a simulation of the specification, not from the paper.",
    )  # fmt: skip


def _span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"


def _hand_offs() -> Iterator[Row]:
    size = {name: 512 * catalog.kv_bytes_per_token(catalog.model(name)) for name in ("opt-66b", "opt-175b")}
    needed = 10 * size["opt-66b"] * 8 / 1e9
    yield Row(
        "S31.a", "hand-off", "formula", "OPT-66B, 512 tokens at 10 req/s: 1.125 GiB, 96.6 Gbps (paper 1.13, 90)",
        f"{size['opt-66b'] / _GIB:g} GiB, {needed:.1f} Gbps", "exact", round(needed, 1) == 96.6,
        "bench theory kv:model=opt-66b,length=512,rate=10 --over link=25Gbps,800Gbps,600GBps",
    )  # fmt: skip
    times = [size["opt-175b"] / link_bytes_per_s(name) for name in ("600GBps", "25Gbps")]
    yield Row(
        "S31.b", "hand-off", "formula", "OPT-175B, 512 tokens: 4.0 ms on 600 GB/s, 0.77 s on 25 Gbps",
        f"{times[0] * 1e3:.1f} ms, {times[1]:.2f} s", "exact",
        (round(times[0], 4), round(times[1], 2)) == (0.004, 0.77),
        "bench theory kv:model=opt-175b,tp=8,length=512 --over link=600GBps,25Gbps",
    )  # fmt: skip
    names = ("25Gbps", "800Gbps", "600GBps")
    links = {name: forms.kv("opt-66b", link=name, latency="abc:distserve", tp=4)[0] for name in names}
    hidden, prefill_s = [row["hidden"] for row in links.values()], links["25Gbps"]["prefill_s"]
    yield Row(
        "S31.c", "hand-off", "formula", "hidden over 800 Gbps and NVLink, not over 25 Gbps",
        ", ".join(f"{name} {'hidden' if row['hidden'] else 'not hidden'} ({row['transfer_s'] * 1e3:.0f} ms)"
                  for name, row in links.items()),
        "exact", hidden == [False, True, True],
        "bench theory kv:model=opt-66b,tp=4,length=512,rate=10,latency=abc:distserve "
        "--over link=25Gbps,800Gbps,600GBps",
        f"behind a prefill of {prefill_s * 1e3:.0f} ms, by DistServe's constants of OPT-66B on 4 GPUs",
    )  # fmt: skip
