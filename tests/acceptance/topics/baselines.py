"""Static batching of Hugging Face Transformers and Text Generation Inference beside vLLM, as vLLM announced them (K01).

All requests wait from the start, so that the ratio of throughputs is that of the times until the last answer.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from statistics import fmean

from acceptance.near import spelled
from acceptance.rows import Place, Row
from acceptance.topics._trials import trial
from harness.options import respelled

SEEDS = 5
LENGTHS = "lognormal:prompt_mean_tokens=163.2,output_mean_tokens=355.9,output_cv=1,max_total_tokens=2048"
"""Mean of what is left of it: 161.4 and 338.0 tokens, as of ShareGPT in vLLM; the variation is an assumption."""
CARDS: Mapping[str, tuple[str, str, str]] = {
    "LLaMA-13B on A100-40GB": ("llama2-13b", "a100-40g", ",blocks=983"),
    "LLaMA-7B on A10G": ("llama2-7b", "a10g", ""),
}
"""Model, GPU, and the KV memory where it is published: 12 GiB in blocks of 16 tokens."""
BATCHES = range(1, 8)
"""Of sequences of 2,048 tokens seven fit the memory of both."""
VLLM, TGI, HF = "vllm-v0", "tgi", "static:batch={}"
KV = {VLLM: "paged:block_tokens=16{}", TGI: "reserve-oracle:block_tokens=16{}"}
RESERVED = "reserve-max:max_tokens=2048{}"
HOST = "roofline:seq_s=0.000351"
"""Host work per running sequence as fitted to vLLM on H100; without it the host costs as much for any batch."""


def rows(place: Place) -> Iterator[Row]:
    """S65, static batches against vLLM; S66, Text Generation Inference against vLLM."""
    del place
    for letter, card in zip("ab", CARDS, strict=True):
        yield from _card(letter, card)


def _card(letter: str, card: str) -> Iterator[Row]:
    static = {batch: _gain(card, HF.format(batch)) for batch in BATCHES}
    heavy = {policy: _gain(card, policy, HOST) for policy in (HF.format(1), HF.format(7), TGI)}
    against = f"against --policy {VLLM}, kv={_kv(card, VLLM)}; 1,500 requests at once, means of {SEEDS} seeds, roofline"
    yield Row(
        f"S65.{letter}", "Hugging Face Transformers", "simulated", f"{card}: vLLM has 14 to 24 times the throughput",
        f"{spelled(static.values(), 3)} times, static batches of 1 to 7", "7 to 30 at every batch",
        all(7 <= gain <= 30 for gain in static.values()), _command(card, HF.format(7)),
        f"{against}. Batches are padded and reserve 2,048 tokens a sequence; which batch was published is not known. "
        f"Sensitive to the work of the host: with {HOST} {heavy[HF.format(1)]:.3g} times at 1, "
        f"{heavy[HF.format(7)]:.3g} at 7.",
    )  # fmt: skip
    gain = _gain(card, TGI)
    yield Row(
        f"S66.{letter}", "Text Generation Inference", "simulated",
        f"{card}: vLLM has 2.2 to 2.5 times the throughput", f"{gain:.2f} times", "above 1, at most 2.5",
        1 < gain <= 2.5, _command(card, TGI),
        f"{against}. One answer a request; prompt and requested output are reserved. Scheduling and memory alone: the "
        f"rest of the published ratio is the engine (kernels, host) of 2023. With {HOST} {heavy[TGI]:.2f} times.",
    )  # fmt: skip


def _gain(card: str, policy: str, latency: str = "roofline") -> float:
    """Throughput of vLLM over that of a policy, mean over the seeds."""
    return fmean(_seconds(card, policy, latency, seed) / _seconds(card, VLLM, latency, seed) for seed in range(SEEDS))


@cache
def _seconds(card: str, policy: str, latency: str, seed: int) -> float:
    """Seconds until the last answer."""
    options = {**_system(card, policy), "latency": latency, "lengths": LENGTHS, "seed": seed}
    table = trial(None, backend="sim", workload="chatbot", rate=100_000, requests=1500, **options).table
    assert set(table["status"].to_pylist()) == {"ok"}
    return max(float(stamps[-1]) for stamps in table["token_s"].to_pylist())


def _system(card: str, policy: str) -> dict[str, str]:
    model, hardware, _ = CARDS[card]
    return {"model": model, "hardware": hardware, "policy": policy, "kv": _kv(card, policy)}


def _kv(card: str, policy: str) -> str:
    return KV.get(policy, RESERVED).format(CARDS[card][2])


def _command(card: str, policy: str) -> str:
    system = " ".join(f"--{name} {value}" for name, value in respelled(_system(card, policy)).items())
    return f"bench run --latency roofline {system} --workload chatbot --lengths {LENGTHS} --rate 100000 --requests 1500"
