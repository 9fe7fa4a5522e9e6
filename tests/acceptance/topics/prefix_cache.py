"""The prefix cache inside a replica (K16) and the pool of Mooncake (K17), beside what their papers say of them."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from acceptance.rows import Place, Row
from backends.engine_process.core import EngineCore
from backends.simulator.core import Core
from workloads import traces
from workloads.trace_tools import cache

CACHE, POOL = "prefix cache", "Mooncake pool"
BLOCK_TOKENS = 16
MOONCAKE = "traces/mooncake"
VLLM_BLOCKS = 983
"""KV memory of LLaMA-13B on an A100-40GB, 12 GiB, in blocks of 16 tokens (Kwon et al., vLLM, SOSP 2023, table 1)."""
SATURATED = {
    "workload": "chatbot", "model": "llama2-13b", "hardware": "a100-40g", "requests": 600, "rate": 2000,
    "lengths": "lognormal:prompt_mean_tokens=40,prompt_cv=0.5,output_mean_tokens=40,output_cv=0.5",
}  # fmt: skip
HOST = "roofline:seq_s=0.000351"
"""With the host's work per sequence as fitted to vLLM on H100, to show how far a verdict depends on it."""
ASK = "bench run --backend sim --latency roofline --workload shared-prefix --prefix-cache on"
ROUTED = {
    "model": "llama3-70b", "hardware": "a100-80g", "tp": 4, "replicas": 16, "policy": "vllm-v1:budget=8192",
    "prefix-cache": "on",
}  # fmt: skip


def rows(place: Place) -> Iterator[Row]:
    """S40: token counts, hits, TTFT and throughput with shared prefixes. S41: hits of a pool on the Mooncake trace."""
    yield from _identical_prompts()
    yield _hits_and_ttft()
    yield _throughput()
    yield from _pool(place)
    yield _routing(place)


def _identical_prompts() -> Iterator[Row]:
    lengths = (17, 80, 341, 1000)
    for id_, clock, computed, command in (
        ("S40.a", "simulator", _computed_by_simulator(lengths), ASK),
        ("S40.b", "engine", _computed_by_engine(lengths), ASK.replace("sim", "engine")),
    ):
        yield Row(
            id_, CACHE, "exact", f"a second identical prompt computes 1 to {BLOCK_TOKENS} tokens",
            f"{clock}: " + ", ".join(f"{n} of {prompt}" for n, prompt in zip(computed, lengths, strict=True)), "exact",
            list(computed) == [(prompt - 1) % BLOCK_TOKENS + 1 for prompt in lengths], command,
            "whole blocks are shared, and one token must run to produce the next" if id_ == "S40.a" else
            "tokens computed by a real transformer; its answer does not change",
        )  # fmt: skip


def _twice(prompt: int) -> list[Any]:
    from harness.api import Request

    ids = tuple(range(-(-prompt // BLOCK_TOKENS)))
    return [Request(i, 100.0 * i, prompt, 4, ids, BLOCK_TOKENS) for i in range(2)]


def _computed_by_simulator(lengths: tuple[int, ...]) -> list[int]:
    from harness import registry

    computed = []
    for prompt in lengths:
        sim = registry.make("backends", "sim", prefix_cache="on", policy="vllm-v0")
        list(sim.simulate(_twice(prompt)))
        computed.append(int(sim.steps_table()["prefill_tokens"].to_pylist()[-4]))  # then come three decodes
    return computed


def _computed_by_engine(lengths: tuple[int, ...]) -> list[int]:
    from harness import registry

    core = Core.of(policy="vllm-v0", prefix_cache="on")
    computed = []
    for prompt in lengths:
        model = registry.make("executors", "llama", seed=0)
        model.allocate(200, BLOCK_TOKENS)
        content = registry.make("content", "tokens")
        engine = EngineCore(core.replica(core.memory(), 200), model, content.token_ids, lambda: 0.0)
        prefills, answers = [], []
        for request in _twice(prompt):
            turn = engine.turn([request])
            prefills.append(turn.step.prefill_tokens)
            answers.append(list(turn.token_ids))
            while not turn.ended:
                turn = engine.turn()
                answers[-1] += turn.token_ids
        computed.append(prefills[-1] if answers[0] == answers[1] else -1)
    return computed


def _hits_and_ttft() -> Row:
    bound = _share_of_all_but_first(_simulated({"workload": "shared-prefix", "requests": 1000}).plan.schedule.table)
    off, on = (
        _simulated({"workload": "shared-prefix", "requests": 1000, "prefix-cache": word}).table
        for word in ("off", "on")
    )
    hit = _sum(on, "cached_tokens") / _sum(on, "prompt_tokens")
    before_s, after_s = (_mean_ttft_s(table) for table in (off, on))
    return Row(
        "S40.c", CACHE, "simulated", "hits below those of an unlimited cache; TTFT falls",
        f"{hit:.1%} of prompt tokens found (unlimited at most {bound:.1%}); mean TTFT {1e3 * before_s:.1f} -> "
        f"{1e3 * after_s:.1f} ms", "hits at most the bound, TTFT lower", 0 < hit <= bound and after_s < before_s,
        f"{ASK} --requests 1000", "the preset's 4 req/s: half of the prompts share 80 tokens, half 341",
    )  # fmt: skip


def _throughput() -> Row:
    gains = {tokens: _gain(tokens) for tokens in (80, 341)}
    (plain, orca), (plain_long, orca_long) = gains[80], gains[341]
    heavy = [_gain(tokens, latency=HOST)[1] for tokens in (80, 341)]
    return Row(
        "S40.d", CACHE, "simulated", "throughput 1.67x (80 shared tokens) and 3.58x (341) that of Orca (Oracle)",
        f"{orca:.2f}x and {orca_long:.2f}x; {plain:.2f}x and {plain_long:.2f}x that of vLLM without the cache",
        "both above 1, larger for 341", 1 < orca < orca_long and 1 < plain < plain_long,
        "for cache in on off; do bench run --backend sim:kv=paged:blocks=983 --latency roofline "
        "--model llama2-13b --hardware a100-40g --policy vllm-v0 "
        f"--prefix-cache $cache --workload chatbot --lengths {SATURATED['lengths']} "
        "--prefixes shared:count=1,tokens=341 --rate 2000 --requests 600; done",
        "600 requests at once, 40/40 unique tokens each (assumed; the paper translates sentences), 12 GiB of KV; "
        f"requests a second up to the last answer. With {HOST} {heavy[0]:.2f}x and {heavy[1]:.2f}x that of Orca.",
    )  # fmt: skip


def _gain(tokens: int, **latency: str) -> tuple[float, float]:
    """Throughput with the cache over that without it, and over that of Orca with exact reservations."""
    shared = {**SATURATED, **latency, "prefixes": f"shared:count=1,tokens={tokens}"}
    paged = {**shared, "policy": "vllm-v0", "backend": f"sim:kv=paged:blocks={VLLM_BLOCKS}"}
    on, off, orca = (
        1 / _makespan_s(_simulated(options).table)
        for options in (
            {**paged, "prefix-cache": "on"},
            paged,
            {**shared, "policy": "orca:max_batch=1000", "backend": f"sim:kv=reserve-oracle:blocks={VLLM_BLOCKS}"},
        )
    )
    return on / off, on / orca


def _simulated(options: dict[str, object]) -> Any:
    from harness.experiments.trial import simulate
    from harness.options import Given, run_spec

    return simulate(run_spec(Given({"backend": "sim", "latency": "roofline", "seed": 0, **options})))


def _share_of_all_but_first(schedule: pa.Table) -> float:
    """Share of prompt tokens in named blocks that an earlier prompt named: what a cache without end could find."""
    seen: set[int] = set()
    found = 0
    for row in schedule.select(["prefix_ids", "prefix_block_tokens", "prompt_tokens"]).to_pylist():
        ids = row["prefix_ids"]
        known = next((i for i, one in enumerate(ids) if one not in seen), len(ids))
        found += min(known * row["prefix_block_tokens"], row["prompt_tokens"] - 1)
        seen.update(ids)
    return found / _sum(schedule, "prompt_tokens")


def _sum(table: pa.Table, column: str) -> float:
    import pyarrow.compute as pc

    return float(pc.sum(table[column]).as_py() or 0)


def _mean_ttft_s(table: pa.Table) -> float:
    first = [stamps[0] for stamps in table["token_s"].to_pylist()]
    return float(sum(first) - _sum(table, "scheduled_s")) / len(first)


def _makespan_s(table: pa.Table) -> float:
    return float(max(stamps[-1] for stamps in table["token_s"].to_pylist()))


def _pool(place: Place) -> Iterator[Row]:
    trace = _trace(place, "conversation")
    published = {"lru:tokens=3M": 0.371, "lru:tokens=50M": 0.992}
    for letter, (spec, share) in zip("ab", published.items(), strict=True):
        obtained = None if trace is None else trace(spec) / trace(None)
        yield _replayed(f"S41.{letter}", f"{share:.3f} of all hits with {spec}", obtained, share, spec)
    obtained = None if trace is None else trace(None)
    yield _replayed("S41.c", "0.366 of all blocks found at most", obtained, 0.366, "lru:tokens=10G")
    trace = _trace(place, "synthetic")
    obtained = None if trace is None else trace("lru:tokens=3M") / trace(None)
    yield _replayed("S41.d", "0.484 of all hits (paper 48 %)", obtained, 0.484, "lru:tokens=3M", "synthetic")


def _routing(place: Place) -> Row:
    """S42 without its pool of all nodes: what the routers make of caches that are each replica's own."""
    file = None if place.data is None else place.data / MOONCAKE / "conversation_trace.jsonl"
    obtained, note = "not run", f"{MOONCAKE}/conversation_trace.jsonl is not in the folder of traces"
    routers = ("prefix-aware", "load", "random")
    if file is not None and file.exists():
        options = {"trace": str(file), "limit": 2000, **ROUTED}
        ttfts_s = [_mean_ttft_s(_simulated({**options, "router": router}).table) for router in routers]
        obtained = ", ".join(f"{name} {ttft_s:.2f} s" for name, ttft_s in zip(routers, ttfts_s, strict=True))
        note = "no gate: caches of one replica each, without a pool; the first 2,000 requests on 16 x 4 A100-80GB"
    return Row(
        "S42", "Mooncake routing", "simulated",
        "mean TTFT: global cache 3.07, local cache 3.58, load 5.27, random 19.65 s", obtained,
        "printed for information", None,
        "bench run --trace conversation_trace.jsonl --limit 2000 --backend sim --latency roofline "
        "--model llama3-70b --tp 4 --replicas 16 "
        "--policy vllm-v1:budget=8192 --prefix-cache on --router prefix-aware", note,
    )  # fmt: skip


def _replayed(
    id_: str, published: str, obtained: float | None, share: float, spec: str, name: str = "conversation"
) -> Row:
    file = f"{name}_trace.jsonl"
    return Row(
        id_, POOL, "real", published, "not run" if obtained is None else f"{obtained:.4f}", "+-0.005",
        None if obtained is None else abs(obtained - share) <= 0.005, f"bench trace info {file} --cache {spec}",
        f"Mooncake {name} trace, blocks of 512 tokens" if obtained is not None
        else f"{MOONCAKE}/{file} is not in the folder of traces; bench trace download fetches it",
    )  # fmt: skip


def _trace(place: Place, name: str) -> Any:
    """A function from the spec of a cache (None: without end) to its share of hits; None where there is no trace."""
    file = None if place.data is None else place.data / MOONCAKE / f"{name}_trace.jsonl"
    if file is None or not file.exists():
        return None
    trace = traces.read(str(file))

    def share(spec: str | None) -> float:
        lru = cache.Lru() if spec is None else cache.from_spec(spec, trace.block_tokens)
        return float(lru.replay(trace.table).ratio)

    return share
