"""Stored runs simulated again: the requests that were sent, when they were due, beside what was measured of them.

What decides inside the real system (policy, KV memory, replicas) is taken over from the run where it tells it, so that
only the latency model has to be named. It should have been fitted on other runs than those compared here.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness import registry
from harness.api import Request, Simulator, Slo
from harness.data.records import to_table
from harness.data.schedule import requests_of
from harness.errors import BenchError, UsageError
from harness.experiments import imports
from harness.experiments.rescore.reading import Source, sources
from harness.experiments.validate.answer import LARGEST, Pair, Validation, target, validation
from harness.metrics.objective import Seen, parse_slo, restored_slo, score
from harness.spec import parse

POINTS = 2.0
"""Points of attainment within which simulator and engine must agree (Zhong et al., DistServe, OSDI 2024, table 2)."""
TAKEN_OVER = ("policy", "kv", "kv_blocks", "replicas", "router", "admission", "preempt", "speculate")
"""Facts of a run's backend that its simulation shares, unless the spec says otherwise."""
QUANTILES = (0.5, 0.9, 0.99)
PUBLISHED = "DistServe's own simulator against its system: at most 2 points (table 2)"
ENDED = ("ok", "truncated")


def validate(paths: Sequence[str], backend: str, bounds: str | None) -> Validation:
    """Simulate every run below the paths with `backend`. Raises UsageError for what cannot be repeated."""
    runs = [source for path in paths for source in sources(path)]
    requested = None if bounds is None else parse_slo(bounds)
    pairs = [pair for source in runs for pair in _pairs(source, backend, requested)]
    shares = list(dict.fromkeys(pair.metric for pair in pairs if pair.metric.endswith("_pct")))
    names = {str(source.info.backend.get("backend", "a system")) for source in runs}
    return validation(
        name="stored runs",
        title=f"{len(runs)} run{'s' * (len(runs) != 1)} of {' and '.join(sorted(names))}, simulated by {backend}",
        setting=_setting(runs),
        pairs=pairs,
        targets=[target(pairs, metric, LARGEST, POINTS, PUBLISHED) for metric in shares],
    )


def _setting(found: Sequence[Source]) -> Iterator[str]:
    yield "The same requests, due at the same times; answers as long as they were served."
    yield "Nothing is calibrated on these runs: the latency model is the one that --backend names."
    left_out = sum(source.left_out for source in found)
    if left_out:
        yield f"{left_out:,} requests of the warm-up are simulated too, and not scored."


def _pairs(source: Source, backend: str, requested: Slo | None) -> Iterator[Pair]:
    """Attainment and quantiles of TTFT and TPOT of one run. Raises UsageError, with its path."""
    try:
        simulated = _simulated(source, backend)
    except UsageError as error:
        raise UsageError(f"'{source.path}': {error}") from None
    rate = source.info.workload.rate_rps
    coords: dict[str, Any] = {"x": rate, "curve": "" if rate is None else "runs"}
    name = source.path.name if rate is None else f"{source.path.name} at {rate:g} req/s"
    slo = requested or restored_slo(source.info)
    if any(bound.percentile is None for bound in slo.bounds):
        shares = [100 * score(table, slo).attainment for table in (_whole(source), simulated)]
        yield Pair(name, "attainment_pct", shares[0], shares[1], **coords)
    seen = Seen(simulated)
    for metric in ("ttft", "tpot"):
        sides = [_finite(source.seen.values(metric)[source.seen.ok]), _finite(seen.values(metric)[seen.ok])]
        if all(len(side) for side in sides):
            for q in QUANTILES:
                real, obtained = (float(np.quantile(side, q)) for side in sides)
                yield Pair(name, f"{metric}_p{100 * q:.0f}_s", real, obtained, **coords)


def _finite(values: np.ndarray) -> np.ndarray:
    finite: np.ndarray = values[np.isfinite(values)]
    return finite


def _whole(source: Source) -> pa.Table:
    """The measured requests with all their tokens."""
    return pa.concat_tables(source.seen.pieces())


def _simulated(source: Source, backend: str) -> pa.Table:
    """The records of the simulation of the requests that were measured."""
    spec = parse(backend)
    kind = registry.find("backends", spec.name)
    if not issubclass(kind, Simulator):
        raise UsageError(f"--backend '{spec.name}' runs in real time; name a simulator, such as sim:latency=file:PATH.")
    facts = source.info.backend
    fields = {field.name for field in dataclasses.fields(kind) if field.init}
    options = {name: facts[name] for name in TAKEN_OVER if name in fields and facts.get(name) is not None}
    if "kv" in options:
        options["kv"] = _with_pages(str(options["kv"]), facts)
    options = _of_sides(facts, options)
    if facts.get("prefix_cache") and "prefix_cache" in fields:
        options["prefix_cache"] = "on"
    simulator = cast("Simulator", registry.make("backends", spec, **options))
    try:
        records = list(simulator.simulate(_requests(source)))
    except BenchError as error:
        raise UsageError(f"the run cannot be simulated: {error}") from None
    table = to_table(sorted(records, key=lambda record: record.request_id))
    ids = source.table["request_id"]
    return table.filter(pc.is_in(table["request_id"], pa.array(ids.to_pylist(), pa.int64())))


def _with_pages(kv: str, facts: Mapping[str, Any]) -> str:
    """The memory mode with blocks as large as those of the run, where they follow from its model.

    As many blocks of another model's size would be another memory.
    """
    blocks, tokens = facts.get("kv_blocks"), facts.get("kv_tokens")
    mode = registry.make("kv", kv, token_bytes=1)
    if (
        not blocks or not tokens or dataclasses.asdict(mode).get("token_bytes") != 1
    ):  # blocks of so many tokens, or named
        return kv
    return f"{kv}{',' if ':' in kv else ':'}token_bytes={mode.block_tokens // (tokens // blocks)}"


def _of_sides(facts: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What was given, with the prefill and decode replicas where the run had some."""
    sides = {role: of for role in ("prefill", "decode") if isinstance(of := facts.get(role), Mapping)}
    if not sides:
        return given
    given = {name: value for name, value in given.items() if name not in ("replicas", "router", "policy")}
    given |= {name: facts[name] for name in ("handoff",) if name in facts}
    rate, latency_s = facts.get("link_bytes_per_s"), facts.get("link_latency_s", 0.0)
    given["link"] = f"{'none' if rate is None else f'{rate:.17g}Bps'}:latency={latency_s:.17g}"
    policies = {of["policy"] for of in sides.values()}
    if len(policies) == 1:
        given["policy"] = policies.pop()
    for role, of in sides.items():
        own = {"tp": of.get("tp", 1), "router": of["router"], **({} if "policy" in given else {"policy": of["policy"]})}
        given[role] = f"{of['replicas']}:" + ",".join(f"{name}={value}" for name, value in own.items())
    return given


def _requests(source: Source) -> list[Request]:
    """Every request that was sent, warm-up included, in order of time; as long as its answer was."""
    table = imports.open(source.path)[0].requests if source.left_out else _whole(source)
    planned = source.schedule
    prefixes = {} if planned is None else {request.id: request for request in requests_of(planned)}
    return sorted(_made(table, prefixes), key=lambda request: (request.scheduled_s, request.id))


def _made(table: pa.Table, planned: dict[int, Request]) -> Iterator[Request]:
    columns = ("request_id", "scheduled_s", "prompt_tokens", "output_tokens", "output_tokens_asked", "status")
    for number, at_s, prompt, output, requested, status in zip(*(table[c].to_pylist() for c in columns), strict=True):
        length = output if status in ENDED and output else requested
        request = planned.get(number)
        if request is None:
            yield Request(number, at_s, prompt, length)
        else:
            yield dataclasses.replace(
                request, scheduled_s=at_s, prompt_tokens=prompt, output_tokens=length, after=(), delay_s=0.0
            )
