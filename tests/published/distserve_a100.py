"""OPT-13B with ShareGPT lengths on A100: real runs of vLLM and of DistServe at several rates, request by request.

Source: LLMServe/DistServe, branch feat-add-simulator @0da64e6, `simdistserve/benchmarks/alignment/data-ground-truth`.
Each run is left out in turn and scored by a latency model that is fitted to the other runs of its configuration, as
`bench validate --fit mixed` does. DistServe's own simulator is run beside it, on the same requests.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from msgspec.structs import replace

from backends.systems import distserve
from harness.errors import UsageError
from harness.experiments.validate import measured_runs
from harness.experiments.validate.answer import FACTOR, RMSE, Pair, Validation, errors
from harness.experiments.validate.measurements import Floats, Traffic
from published import form

BOUNDS = ((0.2, 0.1), (0.25, 0.1))
"""(TTFT, TPOT) bounds in seconds; those of the public simulator's errors."""
PUBLISHED = (11.05, 13.05)
"""RMSE in points that DistServe's own simulator was found to have under these bounds, over other runs than these."""
PEER = "DistServe's own simulator"
NAME = "distserve-a100"
SATURATED = 5.0
"""A run is saturated where its p90 of TTFT is so many times the median TTFT at the lowest rate."""
LATENCY = "mixed"
"""The model that is fitted: the default of `bench fit`."""
UTILISATION = 0.95
"""Share of the GPU's memory in these runs (evaluation/2-benchmark-serving/2-start-api-server.py)."""
UNRECORDED = (2, 1, 1, 1)
"""Prefill TP and PP, decode TP and PP where the file does not have them: the default of the repository."""
_FOUR_GPUS = 400
_COUNT = re.compile(r"-(\d+)-[\d.]+$")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The requests of a measured run with TTFT and TPOT, each (requests,) seconds, in order of arrival."""

    traffic: Traffic
    ttft_s: Floats
    tpot_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A measured run; `shape` is prefill TP, PP, decode TP, PP, None of all where prefill and decode share GPUs."""

    name: str
    system: str
    shape: tuple[int, int, int, int] | None
    rate_rps: float
    seen: Seen

    @property
    def curve(self) -> str:
        """The configuration, which all its rates share."""
        if self.shape is None:
            return self.system
        prefill_tp, prefill_pp, decode_tp, decode_pp = self.shape
        return f"{self.system} P({prefill_tp},{prefill_pp}) D({decode_tp},{decode_pp})"


def validate(data: Path) -> Validation:
    """Each run by what was fitted to the others of its configuration, beside DistServe's simulator."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = convert(data, Path(folder))
        found = measured_runs.validate(path, latency=LATENCY)
    return replace(found, setting=[*found.setting, *_beside(measured(data))])


def convert(data: Path, folder: Path) -> list[Path]:
    """All runs with the backend of their configuration, for `bench validate --fit`."""
    curves = measured(data)
    runs = [run for several in curves.values() for run in several]
    times = [pd.DataFrame({"ttft_s": run.seen.ttft_s, "tpot_s": run.seen.tpot_s}) for run in runs]
    requests = form.requests({run.name: run.seen.traffic for run in runs})
    rows = [{"run": run.name, "backend": run.curve, "rate_rps": run.rate_rps, "curve": run.curve} for run in runs]
    path = form.write(
        folder, NAME,
        title="OPT-13B, ShareGPT, A100-80G: vLLM and DistServe at each rate",
        setting=(RULE,),
        backends={name: options_of(several[0]) for name, several in curves.items()},
        requests=requests.join(pd.concat(times, ignore_index=True)),
        runs=pd.DataFrame(rows),
        slo={_attainment(bounds): f"ttft={bounds[0]},tpot={bounds[1]}" for bounds in BOUNDS},
        metrics=[*map(_attainment, BOUNDS), "ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s"],
        targets=[
            *({"metric": _attainment(bounds), "how": RMSE, "limit": 6.0, "published": f"{PEER}, other runs: {points}"}
              for bounds, points in zip(BOUNDS, PUBLISHED, strict=True)),
            *({"metric": "ttft_p90_s", "how": FACTOR, "limit": 2.0, "runs": names}
              for names in [saturated(curves)] if names),
        ],
    )  # fmt: skip
    return [path]


def measured(data: Path) -> dict[str, list[Run]]:
    """The runs of each configuration."""
    curves: dict[str, list[Run]] = {}
    for run in _runs(data / "profiles" / "distserve_a100_opt13b_sharegpt_requests.parquet"):
        curves.setdefault(run.curve, []).append(run)
    return curves


def saturated(curves: Mapping[str, Sequence[Run]]) -> list[str]:
    """The runs in which most requests queue."""
    lowest = {name: min(runs, key=lambda run: run.rate_rps) for name, runs in curves.items()}
    return [
        run.name
        for name, runs in curves.items()
        for run in runs
        if np.quantile(run.seen.ttft_s, 0.9) > SATURATED * np.median(lowest[name].seen.ttft_s)
    ]


def options_of(run: Run) -> dict[str, object]:
    """The configuration of a run without step times."""
    common: dict[str, object] = {"model": "opt-13b", "hardware": "a100-80g", "utilisation": UTILISATION}
    if run.shape is None:
        return common | {"policy": "vllm-v0"}
    return common | _sides_of(run.shape)


def _sides_of(shape: tuple[int, int, int, int]) -> dict[str, object]:
    prefill_tp, prefill_pp, decode_tp, decode_pp = shape
    return {"prefill": f"1:tp={prefill_tp},pp={prefill_pp}", "decode": f"1:tp={decode_tp},pp={decode_pp}"}


def peer_of(curves: Mapping[str, Sequence[Run]]) -> Iterator[Pair]:
    """All runs by DistServe's simulator, as it was released, where it has constants for their configuration."""
    for runs in curves.values():
        for run in runs:
            traffic = run.seen.traffic
            requests = zip(traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens, strict=True)
            try:
                simulated = distserve.simulated([(float(at), int(p), int(o)) for at, p, o in requests], _cluster(run))
            except UsageError:
                break
            for metric, of in QUANTITIES.items():
                yield Pair(run.name, metric, of(run.seen.ttft_s, run.seen.tpot_s), of(*simulated), curve=run.curve)


def _cluster(run: Run) -> distserve.Cluster:
    if run.shape is None:
        return {"mixed": distserve.Side()}
    prefill_tp, prefill_pp, decode_tp, decode_pp = run.shape
    return {"prefill": distserve.Side(1, prefill_tp, prefill_pp), "decode": distserve.Side(1, decode_tp, decode_pp)}


RULE = (
    "Each run is left out in turn, and the latency model is fitted to the other runs of its configuration. Runs "
    "whose file names no configuration are taken as the default P(2,1) D(1,1), those of 400 and 800 requests as "
    "P(2,1) D(1,2): requests are 100 per GPU and per request per second and GPU, and these fit four GPUs, not three."
)


def _beside(curves: Mapping[str, Sequence[Run]]) -> list[str]:
    """How far DistServe's simulator is on the same runs, a sentence a quantity."""
    pairs = [*peer_of(curves)]
    if not pairs:
        return []
    full = saturated(curves)
    logs = [np.log(one.simulated / one.measured) for one in pairs if one.metric == "ttft_p90_s" and one.setting in full]
    factor = float(np.exp(np.abs(logs).max())) if logs else float("nan")
    points = " and ".join(f"{errors(pairs, _attainment(bounds)).rmse:.2f}" for bounds in BOUNDS)
    return [f"{PEER}, the same runs: {points} points (RMSE of both targets), {factor:.3g} times."]


def _met_pct(bounds: tuple[float, float], ttft_s: Floats, tpot_s: Floats) -> float:
    return float(100 * np.mean((ttft_s <= bounds[0]) & (tpot_s <= bounds[1])))


def _attainment(bounds: tuple[float, float]) -> str:
    return f"attainment_{1000 * bounds[0]:.0f}ms_{1000 * bounds[1]:.0f}ms_pct"


QUANTITIES: Mapping[str, Callable[[Floats, Floats], float]] = {
    **{_attainment(bounds): partial(_met_pct, bounds) for bounds in BOUNDS},
    "ttft_p90_s": lambda ttft_s, _: float(np.quantile(ttft_s, 0.9)),
}
"""What is compared with DistServe's simulator, of the (requests,) TTFT and TPOT of a run."""


def _runs(path: Path) -> Iterator[Run]:
    """The runs of the file, by rate and name."""
    table = pq.read_table(form.needed(path))
    names = np.array(table["run"].to_pylist())
    found = []
    for name in sorted(set(names.tolist())):
        rows = table.filter(names == name)
        column = {c: rows[c].to_numpy().astype(np.float64) for c in ("arrival_s", "ttft_ms", "tpot_ms")}
        tokens = [rows[c].to_numpy().astype(np.int64) for c in ("prompt_len", "output_len")]
        seen = Seen(Traffic(column["arrival_s"], *tokens), column["ttft_ms"] / 1000, column["tpot_ms"] / 1000)
        system = str(rows["system"][0].as_py())
        found.append(Run(name, system, _shape(rows, name, system), float(rows["nominal_rate_rps"][0].as_py()), seen))
    return iter(sorted(found, key=lambda run: (run.rate_rps, run.name)))


def _shape(rows: object, name: str, system: str) -> tuple[int, int, int, int] | None:
    """The configuration in the file, or the one that the number of requests fits."""
    if system == "vllm":
        return None
    columns = ("prefill_tp", "prefill_pp", "decode_tp", "decode_pp")
    sizes = [int(rows[c][0].as_py()) for c in columns]  # type: ignore[index]  # a table of pyarrow
    if min(sizes) > 0:
        return sizes[0], sizes[1], sizes[2], sizes[3]
    count = _COUNT.search(name)
    four = count is not None and int(count[1]) % _FOUR_GPUS == 0 and int(count[1]) % 300 != 0
    return (2, 1, 1, 2) if four else UNRECORDED
