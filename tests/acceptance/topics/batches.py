"""What latency models say of batches: chunks, the knee, and tensor or pipeline parallelism in decode."""

import json
from collections.abc import Iterator

from acceptance.near import near, spelled
from acceptance.rows import Place, Row
from backends.latency._constants import named
from harness import registry
from harness.experiments.theory.batching import chunked, decode_tokens_per_s, prefill_tokens_per_s

_PROMPTS = (2047, 4095, 8191, 16383)


def rows(place: Place) -> Iterator[Row]:
    """Chunks (S12, E14), the knee (S29) and parallelism in decode (S30)."""
    yield from _chunks()
    yield _foretold(place)
    yield _additive()
    yield from _knee()
    yield from _parallel()


def _chunks() -> Iterator[Row]:
    table = registry.make("latency", "table:yi-34b-tp2")
    measured = {512: (1.15, 1.19, 1.12, 0.995), 2048: (0.999, 1.02, 0.94, 0.81)}
    for letter, (chunk, published) in zip("ab", measured.items(), strict=True):
        obtained = [chunked(table, prompt, chunk).ratio for prompt in _PROMPTS]
        yield Row(
            f"S12.{letter}", "chunk overhead", "formula",
            f"chunks of {chunk}, prompts 2,047 to 16,383: {spelled(published, 3)} times as long",
            spelled(obtained, 3), "3 %", near(published, obtained, relative=0.03),
            f"bench theory chunking:chunk={chunk},model=yi-34b,tp=2,latency=table:yi-34b-tp2 "
            "--over prompt=2047,4095,8191,16383",
            "The table holds these measurements as mean chunks by stored tokens, so this checks its interpolation.",
        )  # fmt: skip
    found = [chunked(table, prompt, 512) for prompt in (512, 2048, 16384)]
    yield Row(
        "S12.c", "chunk overhead", "formula", "KV of earlier chunks is loaded N (N - 1) / 2 times: 0, 6, 496",
        spelled(one.reloads for one in found), "exact", [one.reloads for one in found] == [0, 6, 496],
        "bench theory chunking:chunk=512 --over prompt=512,2048,16384",
    )  # fmt: skip


def _foretold(place: Place) -> Row:
    """What the prefills of figure 2 alone say of chunks of 512, without the measured chunks."""
    held = {key: value for key, value in named("table.toml", "yi-34b-tp2").items() if key != "chunks"}
    file = place.work / "table.json"
    file.write_text(json.dumps(held), encoding="utf-8")
    table = registry.make("latency", f"table:{file}")
    obtained = [chunked(table, prompt, 512).ratio for prompt in _PROMPTS]
    return Row(
        "S12.d", "chunk overhead", "formula", "the same chunks of 512, predicted from prefills alone: 1.15 to 0.995",
        spelled(obtained, 3), "none", None,
        "bench theory chunking:chunk=512,model=yi-34b,tp=2,latency=mixed:yi-34b-tp2 --over prompt=2047,4095,8191,16383",
        "Without the measured chunks the table charges attention by a square term, which long chunked prompts lack.",
    )  # fmt: skip


def _additive() -> Row:
    model = registry.make("latency", "abc:distserve", model="opt-13b")
    one, two, three = (model.step_s([(n, 0)], 0, 0) for n in (1, 2, 3))
    squared_s = (three - 2 * two + one) / 2
    base_s, worst = one - (two - one - 3 * squared_s) - squared_s, 0.0
    for prompt, chunk in ((2048, 512), (1999, 300), (777, 64)):
        found = chunked(model, prompt, chunk)
        worst = max(worst, abs(found.chunked_s - found.whole_s - (found.chunks - 1) * base_s))
    return Row(
        "E14", "abc under chunking", "formula", "in chunks = in one piece + (chunks - 1) x a", f"off by {worst:.0e} s",
        "1e-9 s", worst < 1e-9, "bench theory chunking:prompt=2048,chunk=512,latency=abc:distserve",
    )  # fmt: skip


def _knee() -> Iterator[Row]:
    model = registry.make("latency", "abc:distserve", model="opt-13b")
    rates = {size: prefill_tokens_per_s(model, size, 512) for size in (1, 2, 4, 8, 16, 32, 64, 128)}
    share = rates[8] / max(rates.values())
    yield Row(
        "S29.a", "batching knee, OPT-13B", "formula", "prefill is flat beyond 512 tokens: B 8 >= 85 % of the peak",
        f"{100 * share:.0f} % of the peak ({100 * rates[1] / max(rates.values()):.0f} % at B 1)", ">= 85 %",
        share >= 0.85, "bench theory knee:phase=prefill,length=512,latency=abc:distserve",
    )  # fmt: skip
    gains = [decode_tokens_per_s(model, 128, n) / decode_tokens_per_s(model, 1, n) for n in (128, 256, 512)]
    yield Row(
        "S29.b", "batching knee, OPT-13B", "formula", "decode is near linear: B 128 gives 25x B 1 and more",
        f"{spelled(gains, 3)}x at context 128, 256, 512", ">= 25x", min(gains) >= 25,
        "bench theory knee:phase=decode,latency=abc:distserve --over length=128,256,512",
    )  # fmt: skip


def _parallel() -> Iterator[Row]:
    steps_s = [
        registry.make("latency", "abc:distserve", model="opt-13b", tp=tp).decode_s(128, 128 * 512) for tp in (1, 2, 4)
    ]
    yield Row(
        "S30.a", "decode by TP, OPT-13B", "formula", "B 128, context 512, TP 1/2/4: 65.4, 42.0, 27.5 ms",
        f"{', '.join(f'{1e3 * s:.1f}' for s in steps_s)} ms", "0.1 ms",
        near((0.0654, 0.0420, 0.0275), steps_s, absolute=1e-4),
        "bench theory knee:phase=decode,length=512,latency=abc:distserve --over tp=1,2,4",
    )  # fmt: skip
    one, two = (
        decode_tokens_per_s(registry.make("latency", "abc:distserve", model="opt-13b", pp=pp), 128, 256)
        for pp in (1, 2)
    )
    yield Row(
        "S30.b", "decode by PP, OPT-13B", "formula", "two stages give 1.9x the throughput and more",
        f"{two / one:.2f}x", ">= 1.9x", two / one >= 1.9,
        "bench theory knee:phase=decode,length=256,latency=abc:distserve --over pp=1,2",
        "Two batches of 128 in flight, one per stage.",
    )  # fmt: skip
