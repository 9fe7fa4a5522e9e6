"""Closed forms of LLM serving, each a function of its parameters that returns the rows of one table.

The name of a column ends in its unit (`_s`, `_bytes`, `_bytes_per_s`, `_tokens_per_s`, `_rps`, `_share`, `_ratio`);
None stands where a row has no value. What follows the first paragraph of a docstring is printed below the table.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, floor, inf, isclose
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from harness import catalog, registry
from harness.api import LatencyModel
from harness.catalog import Shape
from harness.errors import UsageError
from harness.experiments.theory import batching, queueing, simulated
from harness.experiments.theory.attention import Decodes, LengthShape, lengths_of, share_needed
from harness.experiments.theory.moe import Decode, ExpertMatrix, PingPong, colocated, deployments
from harness.experiments.theory.tables import Row
from harness.experiments.theory.weights import Weights, marlin
from harness.spec import link_bytes_per_s, parse

STEPS = MappingProxyType({"strict": 5, "relaxed": 25})
"""Decode steps that a token may take (Sarathi-Serve, section 5.1)."""
REDUCTIONS = (0.29, 0.69)
"""Published reductions of ITL against backends of compilers (FlashInfer, MLSys 2025, abstract)."""
MEMORY_USE: Mapping[str, tuple[float, float | None]] = MappingProxyType({
    "paged": (0.963, 30.42), "oracle": (0.382, 13.62), "pow2": (0.268, None), "max": (0.204, 7.0)
})  # fmt: skip
"""Share of the KV memory that holds tokens, and mean batch, of OPT-13B in 12 GiB (Kwon et al., vLLM, SOSP 2023)."""
ELEMENT_BYTES = 2
"""KV of BF16."""
ATTENTION_FLOPS, LINEAR_FLOPS = 4, 22
"""FLOP of a prompt of n tokens and width d are layers * (4 n^2 d + 22 n d^2) (Mooncake; gated feed-forward)."""
SLIDE_STEP = 10
"""Tokens of an expert are rounded up to multiples of this on the slide."""
EXCHANGED_BYTES, EXCHANGE_LAYERS = (1.0 + 2.0) * 7000, 61
"""Bytes of a token to one expert and back, and layers of DeepSeek-V3 (Insights into DeepSeek-V3)."""
SHOWN_DIVISIONS = 5
"""Divisions of attention and experts that `afd` lists, the best first."""
MOST_TOKENS = 1_000_000
"""Tokens of a step whose experts are drawn."""
MOST_VISITS = 1_000_000
"""Visits of micro-batches to layers that are simulated."""


def _timed(latency: str, **system: object) -> LatencyModel:
    """Return the latency model of that spec. Raises UsageError for one that has no step times of its own."""
    timed = registry.make("latency", latency, **system)
    if not isinstance(timed, LatencyModel):
        raise UsageError(f"'{latency}' repeats the steps of a stored run, and has no step of its own; name another.")
    return timed


def slo(
    model: str = "opt-13b", hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1, pp: int = 1,
    batch: int = 32, context_tokens: int = 4096,
) -> list[Row]:  # fmt: skip
    """Derive ITL objectives as multiples of a decode step: p99 of ITL within 5 steps (strict) or 25 (relaxed).

    'fits' is whether the model takes that context and the GPUs hold the KV of all sequences; a latency model prices a
    step that does not fit all the same. The published capacities also need a median scheduling delay of at most 2 s.
    For Yi-34B the public run of the paper's repository took 87.9 ms a step, which probably included overhead of the
    engine: more than the 40 ms that its strict SLO stands for.

    Source: Agrawal et al., Sarathi-Serve, OSDI 2024, section 5.1 and table 3.
    """
    timed = _timed(latency, model=model, hardware=hardware, tp=tp, pp=pp)
    system = registry.system_of(timed)
    if pp > 1 and "pp" not in system:
        raise UsageError(f"'{parse(latency).name}' has no pipeline stages; leave out pp, or use latency=roofline.")
    step_s = batching.decode_step_s(timed, batch=batch, context=context_tokens, stages=pp)
    fits = _fits(model, hardware, tp * pp, batch, context_tokens) if "model" in system else None
    paper = batching.published().get(model) if "model" in system else None
    published_s = {"strict": paper.strict_s, "relaxed": paper.relaxed_s} if paper else {}
    return [
        {"slo": name, "decode_step_s": step_s, "steps": steps, "itl_p99_s": steps * step_s,
         "bound": f"p99:itl={steps * step_s:.4g}", "published_s": limit_s,
         "over_published_ratio": steps * step_s / limit_s if limit_s else None, "fits": fits}
        for name, steps in STEPS.items() for limit_s in [published_s.get(name)]
    ]  # fmt: skip


def _fits(model: str, hardware: str, gpus: int, batch: int, context_tokens: int) -> bool:
    try:
        room = 16 * catalog.kv_capacity_blocks(model, hardware, tp=gpus, utilisation=0.9, block_tokens=16)
    except UsageError:  # the weights alone do not fit
        return False
    return context_tokens <= catalog.model(model).max_tokens and batch * context_tokens <= room


def prefill(
    execution_s: float = 1.0, rate_rps: float | None = None, tp: int = 2, pp: int = 2, speedup: float = 1.6,
    replicas: int = 1, simulate: bool = False, requests: int = 100_000, seed: int = 0,
) -> list[Row]:  # fmt: skip
    """Compare the TTFT of prompts of equal length on one GPU, on `tp` GPUs and in `pp` pipeline stages.

    An M/D/1 queue: prompts of `execution_s` on one GPU arrive at random and are prefilled one at a time; `tp` GPUs are
    `speedup` times as fast. No rate stands for half of what one GPU sustains. A queue that is busy all the time grows
    without end and has no TTFT ('-'). The simulation has `requests` prompts.

    Source: Zhong et al., DistServe, OSDI 2024, section 3.1; Franx 2001 (distribution of waiting times).
    """
    rate = replicas * 0.5 / execution_s if rate_rps is None else rate_rps
    forms = {"one GPU": queueing.Prefill(execution_s, replicas=replicas)}
    if tp > 1:
        forms[f"tp {tp}, {speedup:g}x"] = queueing.Prefill(execution_s, tp=tp, speedup=speedup, replicas=replicas)
    if pp > 1:
        forms[f"pp {pp}"] = queueing.Prefill(execution_s, pp=pp, replicas=replicas)
    rows: list[Row] = []
    for name, form in forms.items():
        busy = form.utilisation(rate)
        stable = busy < 1 and not isclose(busy, 1.0)  # 20 req/s of 50 ms come to 1 less a rounding error
        row: Row = {
            "replica": name, "rate_rps": rate, "busy_share": busy if stable else 1.0,
            "mean_ttft_s": form.mean_s(rate) if stable else None,
            "p90_ttft_s": form.quantile_s(rate, 0.9) if stable else None,
            "p99_ttft_s": form.quantile_s(rate, 0.99) if stable else None,
        }  # fmt: skip
        if simulate:
            row |= _simulated_prefill(form, rate, requests, seed) if stable else {}
        rows.append(row)
    return rows


def _simulated_prefill(form: queueing.Prefill, rate: float, requests: int, seed: int) -> Row:
    import numpy as np  # heavy

    times_s = simulated.prefill_times_s(form, rate, requests, seed)
    quantiles: Row = {f"simulated_p{p}_s": float(np.quantile(times_s, p / 100)) for p in (90, 99)}
    return {"simulated_mean_s": float(times_s.mean())} | quantiles


def crossover(speedup: float = 1.6, ways: int = 2, execution_s: float = 1.0, replicas: int = 1) -> list[Row]:
    """Find the load from which on a pipeline has a lower mean TTFT than tensor parallelism over as many GPUs.

    The load is the rate times the time of a prompt on one GPU, per replica. No crossover ('-') where tensor parallelism
    stays ahead as long as both queues are stable.

    Source: Zhong et al., DistServe, OSDI 2024, section 3.1.
    """
    if ways < 2:
        raise ValueError("ways must be at least 2; a pipeline has two stages or more.")
    load = queueing.crossover(speedup, ways)
    return [{"load": load, "rate_rps": None if load is None else load / execution_s * replicas}]


def kv(
    model: str = "opt-13b", length_tokens: int = 512, rate_rps: float = 10.0, link: str = "200Gbps",
    memory_bytes: float | None = None, hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1,
) -> list[Row]:  # fmt: skip
    """Size the KV of a prompt, and time its transfer from a prefill to a decode replica.

    A transfer is hidden if the link keeps up with the rate and the layer-wise transfer of a prompt ends with its
    prefill. 'room' is how many tokens memory_bytes hold. For 512 tokens of OPT-66B at 10 a second DistServe prints
    1.13 GB and 90 Gbps: GiB, in decimal units 96.6 Gbps.

    Source: Zhong et al., DistServe, OSDI 2024, sections 3.3 and 6.3.
    """
    per_token = catalog.kv_bytes_per_token(catalog.model(model))
    catalog.hardware(hardware)
    size = length_tokens * per_token
    transfer_s = size / link_bytes_per_s(link)
    try:
        prefill_s = _timed(latency, model=model, hardware=hardware, tp=tp).step_s([(length_tokens, 0)], 0, 0)
    except UsageError:
        if latency != "roofline":
            raise
        prefill_s = None  # roofline times no system of this shape
    row: Row = {
        "bytes_per_token": per_token, "kv_bytes": size, "bytes": size, "gbps": rate_rps * size * 8 / 1e9,
        "transfer_s": transfer_s, "in_use_share": rate_rps * transfer_s, "prefill_s": prefill_s,
        "hidden": None if prefill_s is None else rate_rps * transfer_s < 1 and transfer_s <= prefill_s,
    }  # fmt: skip
    return [row if memory_bytes is None else {**row, "room": int(memory_bytes // per_token)}]


def memory(
    kv: str = "paged", model: str = "opt-13b", memory_bytes: float = 12 * 2.0**30, tp: int = 1, requests: int = 1500,
    seed: int = 0,
) -> list[Row]:  # fmt: skip
    """Simulate a saturated replica: the share of its KV memory that holds tokens, and the mean batch.

    `kv` is paged, oracle, pow2, max or a spec of 'bench list kv'. A long queue waits from the start, with ShareGPT's
    mean lengths (161 in, 338 out) and every sequence in every step. oracle and pow2 come from a buddy allocator.
    'published' is vLLM's OPT-13B in 12 GiB.

    Source: Kwon et al., vLLM, SOSP 2023, figures 2 and 13.
    """
    slots = int(memory_bytes // catalog.kv_bytes_per_token(catalog.model(model)))
    traffic = simulated.Traffic(requests=requests, seed=seed)
    filled = simulated.filled(kv, slots, traffic, model=model, tp=tp)
    share, batch = MEMORY_USE.get(kv, (None, None))
    return [{"simulated_use_share": filled.used, "simulated_use_of_all_share": filled.of_all,
             "simulated_batch": filled.batch, "published_use_share": share, "published_batch": batch}]  # fmt: skip


def handoff(
    model: str = "opt-13b", block_tokens: int = 16, length_tokens: int = 2048, link: str = "200Gbps",
    control_s: float = 10e-6,
) -> list[Row]:  # fmt: skip
    """Time a transfer of KV in one piece per block and layer, and in one piece per layer.

    Every piece costs `control_s` besides its bytes. P/D-Serve reports 46 % less time for contiguous transfers; it does
    not print the cost of a piece.

    Source: P/D-Serve, arXiv 2408.08147.
    """
    shape = catalog.model(model)
    size = length_tokens * catalog.kv_bytes_per_token(shape)
    bytes_s, pieces = size / link_bytes_per_s(link), shape.layers * ceil(length_tokens / block_tokens)
    blocks_s, whole_s = pieces * control_s + bytes_s, shape.layers * control_s + bytes_s
    return [{"kv_bytes": size, "pieces": pieces, "in_blocks_s": blocks_s, "in_one_piece_s": whole_s,
             "saved_share": 1 - whole_s / blocks_s}]  # fmt: skip


def kv_reuse(
    prefix_tokens: int = 8192, peak_flops: float = 312e12, gpus: int = 8, link: str = "200Gbps", hidden: int = 8192,
    layers: int = 80, group: float = 8,
) -> list[Row]:  # fmt: skip
    """Find the link from which on loading the KV of a prefix is faster than computing it again.

    The defaults are LLaMA3-70B with 8 query heads to a KV head, on 8 A800 at their peak FLOP/s (H800: 989e12). Mooncake
    prints 6 and 19 GB/s for 8,192 tokens on 8 of each.

    Source: Mooncake, FAST 2025, equation 2.
    """
    kv_bytes = layers * prefix_tokens * 2 * hidden * ELEMENT_BYTES / group
    flops = layers * (ATTENTION_FLOPS * prefix_tokens**2 * hidden + LINEAR_FLOPS * prefix_tokens * hidden**2)
    load_s, compute_s = kv_bytes / link_bytes_per_s(link), flops / (peak_flops * gpus)
    return [{"kv_bytes": kv_bytes, "least_link_bytes_per_s": kv_bytes / compute_s, "load_s": load_s,
             "compute_s": compute_s, "pays": load_s < compute_s}]  # fmt: skip


def knee(
    phase: Literal["prefill", "decode"] = "prefill", length_tokens: int = 512, batch: int = 128,
    model: str = "opt-13b", hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1, pp: int = 1,
) -> list[Row]:  # fmt: skip
    """Find the batch, of up to `batch` sequences, at which the throughput of a step saturates.

    A prompt, or the context of a decode, has length_tokens. A batch passes every pipeline stage, so stages raise the
    throughput and do not change the time of a step. 'of best' is the share of the highest throughput in these rows.

    Source: Zhong et al., DistServe, OSDI 2024, figures 3 and 5.
    """
    timed = _timed(latency, model=model, hardware=hardware, tp=tp, pp=pp)
    rate_of = batching.prefill_tokens_per_s if phase == "prefill" else batching.decode_tokens_per_s
    sizes = [*(1 << n for n in range(batch.bit_length()) if 1 << n < batch), batch]
    rates = {size: rate_of(timed, size, length_tokens) for size in sizes}
    per_sequence = length_tokens if phase == "prefill" else 1
    return [{"batch": size, "step_s": pp * size * per_sequence / rate, "throughput_tokens_per_s": rate,
             "of_best_share": rate / max(rates.values())} for size, rate in rates.items()]  # fmt: skip


def chunking(
    chunk_tokens: int = 512, prompt_tokens: int = 2048, simulate: bool = False, model: str = "opt-13b",
    hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1,
) -> list[Row]:  # fmt: skip
    """Compare the time of a prompt in chunks with its time in one piece.

    Every chunk reads the KV of all before it: N (N - 1) / 2 chunk-loads in N chunks. A ratio below 1 comes from step
    times by which one long piece takes longer than its chunks together; latency=roofline has the cost of reading alone.

    Source: Zhong et al., DistServe, OSDI 2024, section 2.3.
    """
    system = {"model": model, "hardware": hardware, "tp": tp}
    cut = batching.chunked(_timed(latency, **system), prompt_tokens, chunk_tokens)
    row: Row = {"chunks": cut.chunks, "kv_chunk_loads": cut.reloads, "in_chunks_s": cut.chunked_s,
                "in_one_piece_s": cut.whole_s, "chunks_ratio": cut.ratio}  # fmt: skip
    if simulate:
        row["simulated_s"] = simulated.chunked_prompt_s(prompt_tokens, chunk_tokens, latency=latency, **system)
    return [row]


def speculative(
    k: int = 4, alpha: float = 0.7, batch: int = 1, cost: float = 0.1, context_tokens: int = 512,
    simulate: bool = False, model: str = "opt-13b", hardware: str = "a100-80g", latency: str = "roofline", tp: int = 1,
) -> list[Row]:  # fmt: skip
    """Compute the speed-up of decoding with `k` verified drafts, each accepted with probability `alpha`.

    A draft costs `cost` of a decode step. 'memory bound' is the speed-up of one sequence whose verification takes as
    long as a decode; 'in batch' that of `batch` sequences by the latency model, where verified tokens cost as much as
    generated ones beyond the knee. The simulation has equal requests that come at once, with 200 tokens each.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023.
    """
    if alpha > 1 or cost > 1:
        raise ValueError("alpha and cost are shares of at most 1.")
    system = {"model": model, "hardware": hardware, "tp": tp}
    tokens = batching.tokens_per_step(k, alpha)
    row: Row = {
        "accepted_share": (tokens - 1) / k, "tokens_per_step": tokens,
        "memory_bound_ratio": batching.speed_up(k, alpha, cost),
        "in_batch_ratio": batching.batched_speed_up(_timed(latency, **system), batch, context_tokens, k, alpha, cost),
    }  # fmt: skip
    if simulate:
        drafts = f"k={k},alpha={alpha!r},cost={cost!r}"
        row["simulated_ratio"] = simulated.drafted_speed_up(batch, context_tokens, drafts, latency=latency, **system)
    return [row]


def moe(
    gpu: str = "h800", local: int = 30, inner: int = 7168, columns: int = 2048, experts: int = 256, top_k: int = 8,
    element_bytes: int = 1,
) -> list[Row]:  # fmt: skip
    """Find the tokens that make an expert compute-bound, and the GPUs over which experts are spread for that.

    'slide' takes 2M FLOP per byte and rounds up to tens; 'exact' is the full formula. `local` sequences run on each
    GPU. 'ridge' is FLOP per byte of the GPU, 'intensity' those of an expert with m tokens, 'endless' those of endless
    batches; no numbers ('-') for a GPU that not even these fill. The defaults are DeepSeek-V3's experts in FP8
    (element_bytes 2: BF16).

    Source: DeepSeek-V3, arXiv 2412.19437, section 3.4; S. Feng, LLMs Serving Techniques I.
    """
    if top_k > experts:
        raise ValueError(f"top_k must be at most the {experts} experts, got {top_k}.")
    if element_bytes not in (1, 2):
        raise ValueError(f"element_bytes must be 1 (FP8) or 2 (BF16), got {element_bytes}.")
    device, shape = catalog.hardware(gpu), ExpertMatrix(inner, columns, element_bytes)
    if element_bytes == 1 and device.fp8_flops is None:
        raise ValueError(f"{gpu} has no FP8 tensor cores; use element_bytes=2.")
    ridge = device.peak_flops(element_bytes) / device.bandwidth_bytes_per_s
    least = {"slide": floor(ridge / 2 * element_bytes), "exact": shape.rows_for(ridge)}
    rows: list[Row] = []
    for mode, m in least.items():
        rows.append({"mode": mode, "ridge": ridge, "endless": shape.intensity(inf)})
        if m is not None:
            spread_m = ceil(m / SLIDE_STEP) * SLIDE_STEP if mode == "slide" else m
            tokens = spread_m * experts / top_k
            rows[-1] |= {
                "least_m": m, "m": spread_m, "tokens_in_flight": round(tokens), "gpus": tokens / local,
                "whole_gpus": ceil(tokens / local), "intensity": shape.intensity(spread_m),
            }  # fmt: skip
    return rows


def exchange(tokens: int = 32, top_k: int = 8, link: str = "50GBps") -> list[Row]:
    """Time the exchanges of expert parallelism: the tokens of a GPU go to their experts and come back.

    1 byte an element out, 2 back, 7,000 elements a token, to the routed experts and a shared one. Each of 61 layers has
    two micro-batches that take turns, so two exchanges, none of them overlapped. The last column is the most tokens per
    second of a sequence.

    Source: Insights into DeepSeek-V3, arXiv 2505.09343.
    """
    exchange_s = EXCHANGED_BYTES * tokens * (top_k + 1) / link_bytes_per_s(link)
    layer_s = 2 * exchange_s
    token_s = EXCHANGE_LAYERS * layer_s
    return [{"exchange_s": exchange_s, "layer_s": layer_s, "token_s": token_s, "at_most_tokens_per_s": 1 / token_s}]


def experts(
    redundant: int = 0, model: str = "deepseek-v3-fp8", tp: int = 4, dp: int = 8, copies: int = 1, fail: bool = False,
    shared: bool = False, tokens: int = 1024, skew: float = 1.01, seeds: int = 5,
) -> list[Row]:  # fmt: skip
    """Draw the load of the GPUs that share the experts of a layer: the most loaded one over the mean of all.

    Means over `seeds` draws in which `tokens` tokens of each GPU choose experts: with experts in their order and none
    redundant ('in order'), and placed by the counters of the step before ('placed', with the least and the most).
    'idle' is the share of a step in which the mean GPU waits. How strongly tokens prefer some experts is a model, a
    power law with exponent `skew` (0: all alike), not a measurement. fail=true adds the failure of one GPU: the share
    of GPUs whose failure stops all, and the loss of throughput where tokens go to the least loaded live copy.

    The default is DeepSeek-V3's unit of prefill (32 GPUs); that of decode is dp=80,redundant=63,shared=true,tokens=30.

    Source: DeepSeek-V3, arXiv 2412.19437, section 3.4; deepseek-ai/EPLB (placement); ai-dynamo/aiconfigurator (skew);
    Expert-as-a-Service, arXiv 2509.17863 (failures).
    """
    from harness.experiments.theory.moe import ExpertUnit, failure, imbalance  # heavy

    shape = Shape(tp, dp=dp, ep=tp * dp)
    unit = ExpertUnit(catalog.model(model), shape, redundant, shared, copies)
    per_gpu = unit.per_gpu  # refuses a wrong unit before anything is drawn
    if tokens * shape.gpus > MOST_TOKENS:
        raise ValueError(f"{tokens:,} tokens on {shape.gpus:,} GPUs are more than {MOST_TOKENS:,} tokens a step.")
    drawn = [imbalance(unit, tokens * shape.gpus, skew, seed) for seed in range(seeds)]
    placed = [draw.placed for draw in drawn]
    row: Row = {
        "experts_a_gpu": per_gpu, "tokens_an_expert": drawn[0].tokens,
        "hottest": round(fmean(draw.hottest for draw in drawn)), "in_order_ratio": fmean(d.in_order for d in drawn),
        "placed_ratio": fmean(placed), "least_ratio": min(placed), "most_ratio": max(placed),
        "idle_share": 1 - 1 / fmean(placed),
    }  # fmt: skip
    if fail:
        after = [failure(unit, tokens * shape.gpus, skew, seed) for seed in range(seeds)]
        losses = [draw.loss for draw in after if draw.loss is not None]
        row |= {
            "stopping_share": fmean(draw.stops for draw in after), "loss_share": fmean(losses) if losses else None,
            "largest_loss_share": max((draw.worst for draw in after if draw.worst is not None), default=None),
        }  # fmt: skip
    return [row]


def ping_pong(
    m: int = 3, transfer_s: float = 0.3e-3, attention_s: float = 1e-3, experts_s: float = 1e-3, layers: int = 56
) -> list[Row]:
    """Time a decode step with attention and experts on different GPUs, in `m` micro-batches.

    The times are those of a micro-batch and layer, a transfer one way. The formula, attention + experts + 2 transfers +
    slower side x (m layers - 1), is exact from 'least m' = 2 (1 + transfer / slower side) on; the simulation follows
    every micro-batch, and is longer with fewer. 'of ideal' is the share of the step in which the slower side works,
    'gain' the gain in throughput by the last micro-batch.

    Source: MegaScale-Infer, arXiv 2504.02263.
    """
    if m * layers > MOST_VISITS:
        raise ValueError(f"{m:,} micro-batches in {layers:,} layers are more than {MOST_VISITS:,} visits.")
    step = PingPong(attention_s, experts_s, transfer_s, layers)
    share = step.busy_share(m)
    return [{"least_m": step.least, "hidden": m >= step.least, "formula_s": step.formula_s(m),
             "simulated_s": step.simulated_s(m), "of_ideal_share": share,
             "gain_ratio": share / step.busy_share(m - 1) if m > 1 else None}]  # fmt: skip


def afd(
    experts: int | None = None, model: str = "mixtral-8x22b", gpu: str = "a100-80g", context_tokens: int = 650,
    itl_s: float = 0.15, link: str = "200Gbps",
) -> list[Row]:  # fmt: skip
    """Compare the best deployments with attention and experts on different GPUs with the best colocated replica.

    Decode tokens per second and GPU with steps within itl_s; no experts stand for those of the model. 'gain' is over
    the colocated replica. Only 3 or 4 micro-batches (m) that hide the transfers count. 'rule' is the number of
    attention nodes that balances both sides, k1 E / (k3 K). Constants are those of the peaks; arithmetic and memory
    traffic add up for both; tokens choose experts evenly.

    Source: MegaScale-Infer, arXiv 2504.02263.
    """
    decode = Decode(catalog.model(model), catalog.hardware(gpu), context_tokens, itl_s, link_bytes_per_s(link))
    if experts is not None:
        if experts < decode.experts.per_token:
            raise ValueError(f"a token of {model} visits {decode.experts.per_token} experts, got {experts}.")
        decode = replace(decode, model=replace(decode.model, experts=replace(decode.experts, routed=experts)))
    together = colocated(decode)
    rows: list[Row] = [
        {"system": f"colocated, tp {together.tp}, pp {together.pp}", "gpus": together.tp * together.pp,
         "sequences": together.batch * together.pp, "per_gpu_tokens_per_s": together.rate}
    ] if together else []  # fmt: skip
    best = sorted(deployments(decode), key=lambda division: -division.rate)[:SHOWN_DIVISIONS]
    return rows + [
        {"system": f"attention tp {apart.tp_a}, experts tp {apart.tp_e}", "gpus": apart.gpus,
         "sequences": apart.batch * apart.m * apart.nodes, "per_gpu_tokens_per_s": apart.rate,
         "gain_ratio": apart.rate / together.rate if together else None, "m": apart.m, "nodes": apart.nodes,
         "rule": apart.rule}
        for apart in best
    ]  # fmt: skip


def weights(
    bits: int = 4, gpu: str = "a10", batch: int = 16, group: int = 128, inner: int = 18432, columns: int = 73728
) -> list[Row]:
    """Compute the speed-up over FP16 of a linear layer whose weights have few bits, by the roofline.

    The bound is that of reading weights alone, 16 / (bits + 16 / group). From the crossover batch on, arithmetic takes
    longer than reading the weights; the speed-up counts FP16 activations too. MARLIN's published speed-ups, read off a
    figure to about 0.02, stand beside it for the batches, matrix and GPU of that figure. Tilus reports 1.03x of MARLIN.

    Source: Frantar et al., MARLIN, PPoPP 2025; Ding et al., Tilus, arXiv 2504.12984.
    """
    if bits > 8:
        raise ValueError(f"bits must be from 1 to 8, got {bits}.")
    device = catalog.hardware(gpu)
    layer = Weights(bits, group, device.peak_flops(2) / device.bandwidth_bytes_per_s, inner, columns)
    speed_up = layer.speed_up(batch)
    measured = marlin().at(layer, gpu).get(batch)
    return [{"bytes_per_weight": layer.weight_bytes, "bound_ratio": layer.bound, "crossover_batch": layer.crossover,
             "speed_up_ratio": speed_up, "marlin_ratio": measured,
             "of_roofline_share": None if measured is None else measured / speed_up}]  # fmt: skip


def attention(
    lengths: LengthShape = "zipf", requests: int = 16, length_tokens: int = 1024,
    longest_tokens: int = 4224, heads: int = 8, slots: int = 264, page_tokens: int = 16, seed: int = 0,
) -> list[Row]:  # fmt: skip
    """Compute the makespan of decode attention of unequal lengths: whole requests, or chunks of equal size.

    In KV pages, over `slots` thread blocks at once (two on each of 132 SMs of an H100). Unbalanced: one work item per
    request and KV head. Balanced: chunks as FlashInfer plans them, the smallest of 128 tokens and more such that all
    run at once; merging them is free. Lengths are length_tokens, uniform from half of it, or longest_tokens over the
    rank (zipf). The last columns are the share of attention in a step with which that gain explains the published
    reductions of ITL by 29 % and 69 %; none ('-'): balance alone cannot.

    Source: FlashInfer, MLSys 2025, abstract, and include/flashinfer/attention/scheduler.cuh.
    """
    tokens = lengths_of(lengths, requests, length_tokens, longest_tokens, seed)
    plan = Decodes(tuple(-(-length // page_tokens) for length in tokens), heads, slots, page_tokens)
    shares: Row = {f"cut_{cut:.0%}_share": share_needed(cut, plan.speed_up) for cut in REDUCTIONS}
    row: Row = {
        "longest": max(plan.pages), "chunk": plan.chunk_pages, "unbalanced": plan.unbalanced_pages,
        "balanced": plan.balanced_pages, "ideal": plan.ideal_pages, "gain_ratio": plan.speed_up,
        "over_ideal_ratio": plan.balanced_pages / plan.ideal_pages,
    }  # fmt: skip
    return [row | shares]
