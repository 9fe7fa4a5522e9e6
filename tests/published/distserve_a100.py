"""OPT-13B with ShareGPT lengths on A100: real runs of vLLM and of DistServe at several rates, request by request.

Source: LLMServe/DistServe, branch feat-add-simulator @0da64e6, `simdistserve/benchmarks/alignment/data-ground-truth`.
Of each configuration every other rate is calibrated on (`requests_fit`), and the runs at the other
rates are simulated and scored: once from the lowest rate on, once from the next. A target is that of the worse half,
because the choice of the half must not matter. DistServe's own simulator is run beside it, on
the same requests.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.experiments.validate import Pair, Target, Validation, measured_runs
from harness.experiments.validate.answer import FACTOR, RMSE, errors, scored, target
from harness.experiments.validate.simulated import Traffic
from harness.registry import make
from published import form
from published.requests_fit import Seen, Terms, decode_terms, held_tokens, idle_prefill, mixed_file, mixed_terms

BOUNDS = ((0.2, 0.1), (0.25, 0.1))
"""(TTFT, TPOT) bounds in seconds; those of the public simulator's errors."""
PUBLISHED = (11.05, 13.05)
"""RMSE in points that DistServe's own simulator was found to have under these bounds, over other runs than these."""
PEER = "DistServe's own simulator"
SATURATED = 5.0
"""A run is saturated where its p90 of TTFT is so many times the median TTFT at the lowest rate."""
LEVEL = 1.5
"""Where the p90 of TPOT is above so many medians, answers have waited for the decode side: no times to fit."""
BLOCK_TOKENS = 16
UTILISATION = 0.95
"""Share of the GPU's memory in these runs (evaluation/2-benchmark-serving/2-start-api-server.py)."""
UNRECORDED = (2, 1, 1, 1)
"""Prefill TP and PP, decode TP and PP where the file does not have them: the default of the repository."""
_FOUR_GPUS = 400
_COUNT = re.compile(r"-(\d+)-[\d.]+$")


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
    """Calibrate each configuration on either half of its rates, and simulate its runs at the other rates."""
    curves = measured(data)
    with tempfile.TemporaryDirectory() as folder:
        files, all_notes = halves_of(curves, Path(folder))
        halves = [measured_runs.validate(path).pairs for path in files]
        peer = [pair for path in peer_of(curves, Path(folder)) for pair in measured_runs.validate(path).pairs]
    lowest = {name: _lowest(runs) for name, runs in curves.items()}
    targets, beside = _targets(halves, peer, lowest)
    return Validation(
        name="distserve-a100",
        title="OPT-13B, ShareGPT, A100-80G: vLLM and DistServe, attainment and latencies at each rate",
        setting=(RULE, *beside, *all_notes),
        pairs=tuple(pair for half in halves for pair in half),
        targets=tuple(targets),
    )


def convert(data: Path, folder: Path) -> list[Path]:
    """The runs that each half is scored on, with their backends; and all runs by DistServe's own simulator."""
    curves = measured(data)
    return [*halves_of(curves, folder)[0], *peer_of(curves, folder)]


def measured(data: Path) -> dict[str, list[Run]]:
    """The runs of each configuration."""
    curves: dict[str, list[Run]] = {}
    for run in _runs(data / "profiles" / "distserve_a100_opt13b_sharegpt_requests.parquet"):
        curves.setdefault(run.curve, []).append(run)
    return curves


def halves_of(curves: Mapping[str, Sequence[Run]], folder: Path) -> tuple[list[Path], list[str]]:
    """The files of both halves, and how each is calibrated, in sentences."""
    files, all_notes = [], []
    for first in (0, 1):
        seen = {name: calibration(runs, first) for name, runs in curves.items()}
        flat = [name for name, runs in seen.items() if runs[0].shape is not None and not any(map(_is_level, runs))]
        notes = [f"{name} is left out of half {first + 1}: every run to calibrate on is saturated." for name in flat]
        latencies = folder.resolve() / f"half-{first + 1}"
        latencies.mkdir(exist_ok=True)
        systems = fitted({name: runs for name, runs in seen.items() if name not in flat}, latencies)
        notes += [
            f"{name}, half {first + 1}: calibrated on {', '.join(run.name for run in seen[name])}. {words}"
            for name, (_, words) in systems.items()
        ]
        rest = [run for name in systems for run in curves[name] if run not in seen[name]]
        backends = {name: options for name, (options, _) in systems.items()}
        lowest = {name: _lowest(runs) for name, runs in curves.items()}
        queued = [run.name for run in rest if np.quantile(run.seen.ttft_s, 0.9) > SATURATED * lowest[run.curve]]
        targets: list[form.Options] = [{"metric": _attainment(one), "how": RMSE, "limit": 7.0} for one in BOUNDS]
        if queued:
            targets.append({"metric": "ttft_p90_s", "how": FACTOR, "limit": 2.0, "runs": queued})
        files.append(written(folder, f"half-{first + 1}", rest, backends, (RULE, *notes), targets))
        all_notes += notes
    return files, all_notes


def peer_of(curves: Mapping[str, Sequence[Run]], folder: Path) -> list[Path]:
    """The file of all runs by DistServe's simulator; none where it has constants for none of the configurations."""
    known = {name: options for name, runs in curves.items() if _is_known(options := peer_options(runs[0]))}
    runs = [run for name in known for run in curves[name]]
    return [written(folder, "peer", runs, known, (f"{PEER}, as it was released.",))] if runs else []


def _is_known(options: form.Options) -> bool:
    try:
        make("backends", "sim", **options)
    except UsageError:
        return False
    return True


def written(
    folder: Path, which: str, runs: Sequence[Run], backends: Mapping[str, form.Options], setting: Sequence[str],
    targets: Sequence[form.Options] = (),
) -> Path:  # fmt: skip
    """The file of these runs, with the measured times of their requests, and the backend of each configuration."""
    times = [pd.DataFrame({"ttft_s": run.seen.ttft_s, "tpot_s": run.seen.tpot_s}) for run in runs]
    requests = form.requests({run.name: run.seen.traffic for run in runs})
    rows = [{"run": run.name, "backend": run.curve, "rate_rps": run.rate_rps, "curve": run.curve} for run in runs]
    return form.write(
        folder, f"distserve-a100-{which}",
        title=f"OPT-13B, ShareGPT, A100-80G: vLLM and DistServe at each rate, {which}",
        setting=setting,
        backends=backends,
        requests=requests.join(pd.concat(times, ignore_index=True)),
        runs=pd.DataFrame(rows),
        slo={_attainment(bounds): f"ttft={bounds[0]},tpot={bounds[1]}" for bounds in BOUNDS},
        metrics=[*map(_attainment, BOUNDS), "ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s"],
        targets=targets,
    )  # fmt: skip


RULE = (
    "Of each configuration every other rate is calibrated on and the other rates are scored, once from the lowest rate "
    "on and once from the next; a target is that of the worse of these halves. Runs "
    "whose file names no configuration are taken as the default P(2,1) D(1,1), those of 400 and 800 requests as "
    "P(2,1) D(1,2): requests are 100 per GPU and per request per second and GPU, and these fit four GPUs, not three."
)


def peer_options(run: Run) -> dict[str, object]:
    """DistServe's simulator as it was released, for the configuration of a run."""
    options: dict[str, object] = {"compat": "distserve_sim", "model": "opt-13b", "hardware": "a100-80g"}
    if run.shape is None:
        return options | {"latency": "abc:vllm"}
    prefill_tp, prefill_pp, decode_tp, decode_pp = run.shape
    prefill, decode = f"1:tp={prefill_tp},pp={prefill_pp}", f"1:tp={decode_tp},pp={decode_pp}"
    return options | {"latency": "abc:distserve", "prefill": prefill, "decode": decode}


def _targets(
    halves: Sequence[Sequence[Pair]], peer: Sequence[Pair], lowest: Mapping[str, float]
) -> tuple[list[Target], list[str]]:
    """The targets, each of the worse half, and how both halves and DistServe's simulator compare, in sentences."""
    found, notes = [], []
    for bounds, published in zip(BOUNDS, PUBLISHED, strict=True):
        metric = _attainment(bounds)
        worse = max(halves, key=lambda half: errors(half, metric).rmse)
        same = [_rmse(_same(half, peer), metric) for half in halves]
        other = f"{PEER} on the same runs: {_rmse(_same(worse, peer), metric)} points; {published} over other runs"
        both = " and ".join(_rmse(half, metric) for half in halves)
        found.append(target(worse, metric, f"{RMSE}, the worse of two halves ({both})", 7.0, other))
        notes.append(
            f"Attainment within {1000 * bounds[0]:.0f} and {1000 * bounds[1]:.0f} ms: "
            f"{both} points in the two halves; "
            f"{PEER} on the same runs {' and '.join(same)}."
        )
    ours, others = ([_factor(pairs, lowest) for pairs in side] for side in (halves, [_same(h, peer) for h in halves]))
    notes.append(
        f"Largest factor of the p90 of TTFT in saturation: {' and '.join(map(_times, ours))} in the two halves; "
        f"{PEER} on the same runs {' and '.join(map(_times, others))}."
    )
    if (worst := max(filter(None, ours), default=None)) is not None:
        other = f"{PEER} on the same runs: {_times(max(filter(None, others), default=None))} times"
        both = " and ".join(map(_times, ours))
        found.append(
            Target("ttft_p90_s", f"{FACTOR} in saturation, the worse of two halves ({both})", 2.0, worst, other)
        )
    return found, notes


def _same(pairs: Sequence[Pair], others: Sequence[Pair]) -> list[Pair]:
    """Of the others those of the same runs."""
    runs = {pair.setting for pair in pairs}
    return [pair for pair in others if pair.setting in runs]


def _rmse(pairs: Sequence[Pair], metric: str) -> str:
    return f"{errors(pairs, metric).rmse:.2f}" if pairs else "not simulated"


def _times(factor: float | None) -> str:
    return "not simulated" if factor is None else f"{factor:.3g}"


def _factor(pairs: Sequence[Pair], lowest: Mapping[str, float]) -> float | None:
    """The largest factor between measured and simulated p90 of TTFT of the saturated runs, None without one."""
    return max((
        max(pair.simulated / pair.measured, pair.measured / pair.simulated)
        for pair in scored(pairs, "ttft_p90_s")
        if pair.measured > SATURATED * lowest[pair.curve]
    ), default=None)  # fmt: skip


def _lowest(runs: Sequence[Run]) -> float:
    """The median TTFT at the lowest rate."""
    return float(np.median(min(runs, key=lambda run: run.rate_rps).seen.ttft_s))


def _attainment(bounds: tuple[float, float]) -> str:
    return f"attainment_{1000 * bounds[0]:.0f}ms_{1000 * bounds[1]:.0f}ms_pct"


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


def calibration(runs: Sequence[Run], first: int = 0) -> list[Run]:
    """The runs at every other rate, from the lowest (0) or the next (1) on. Raises UsageError where they are all."""
    rates = sorted({run.rate_rps for run in runs})
    if len(rates) < 2:
        raise UsageError(f"{runs[0].curve} was measured at one rate; nothing is left to score beside the calibration.")
    return [run for run in runs if run.rate_rps in rates[first::2]]


def fitted(seen: Mapping[str, Sequence[Run]], folder: Path) -> dict[str, tuple[dict[str, object], str]]:
    """Options of the simulator for each configuration, calibrated on these runs, and what they are in words."""
    apart = {name: runs for name, runs in seen.items() if runs[0].shape is not None}
    found = {name: _colocated(runs, folder) for name, runs in seen.items() if name not in apart}
    if apart:
        found |= _apart(apart, folder)
    common: dict[str, object] = {"model": "opt-13b", "hardware": "a100-80g", "utilisation": UTILISATION}
    return {name: (common | found[name][0], found[name][1]) for name in seen}


def _colocated(runs: Sequence[Run], folder: Path) -> tuple[dict[str, object], str]:
    """vLLM: one latency model for prompts and decodes, and as much KV as a run with a queue has held."""
    terms = mixed_terms([run.seen for run in runs])
    lowest = min(runs, key=lambda run: run.rate_rps)
    full = [run for run in runs if np.quantile(run.seen.ttft_s, 0.9) > SATURATED * np.median(lowest.seen.ttft_s)]
    options: dict[str, object] = {"policy": "vllm-v0", "latency": mixed_file(folder / "mixed.toml", terms)}
    note = f"Steps of {terms.format()}"
    if full:
        blocks = _blocks(max(full, key=lambda run: run.rate_rps).seen, options)
        options["kv_blocks"] = blocks
        note += f"; KV for {BLOCK_TOKENS * blocks:,} tokens, with which as much is held as where a queue had formed"
    return options, f"{note}; policy vllm-v0."


def _apart(curves: Mapping[str, Sequence[Run]], folder: Path) -> dict[str, tuple[dict[str, object], str]]:
    """DistServe: prompts from requests that met an idle prefill side, decodes from runs whose answers did not wait."""
    level = {name: [run.seen for run in runs if _is_level(run)] for name, runs in curves.items()}
    shapes = {name: runs[0].shape or UNRECORDED for name, runs in curves.items()}
    decodes = decode_terms([(shapes[name][3], level[name]) for name in curves])
    return {
        name: _sides(shapes[name], idle_prefill(level[name]), terms, folder / str(place))
        for place, (name, terms) in enumerate(zip(curves, decodes, strict=True))
    }


def _is_level(run: Run) -> bool:
    """Whether answers did not wait for the decode side: where they did no step time can be found."""
    return bool(np.quantile(run.seen.tpot_s, 0.9) <= LEVEL * np.median(run.seen.tpot_s))


def _sides(
    shape: tuple[int, int, int, int], prompts: Terms, decodes: Terms, folder: Path
) -> tuple[dict[str, object], str]:
    prefill_tp, prefill_pp, decode_tp, decode_pp = shape
    folder.mkdir()
    # what a decode side computes again takes as much longer as it has fewer GPUs
    decodes = replace(decodes, token_s=prompts.token_s * prefill_tp / decode_tp)
    prefill = mixed_file(folder / "prefill.toml", prompts, prefill_pp)
    decode = mixed_file(folder / "decode.toml", decodes, decode_pp)
    wait_s = max(0.0, decodes.once_s - decodes.base_s / 2)  # half a step passes before a new sequence joins
    options: dict[str, object] = {
        "prefill": f"1:tp={prefill_tp},pp={prefill_pp},latency={prefill}",
        "decode": f"1:tp={decode_tp},pp={decode_pp},latency={decode}",
        "link": f"nvlink:latency={wait_s!r}",
    }
    note = f"Prefill {prompts.format()}; decode {decodes.format()}; hand-off {1000 * wait_s:.1f} ms beside NVLink"
    return options, f"{note}; policies distserve-prefill and distserve-decode."


def _blocks(seen: Seen, options: Mapping[str, object]) -> int:
    """KV blocks with which the simulated run holds as many tokens as the measured one did."""
    measured = held_tokens(seen)
    blocks = measured / BLOCK_TOKENS
    for _ in range(4):
        ours = form.times(seen.traffic, {"model": "opt-13b", **options, "kv_blocks": round(blocks)})
        blocks *= measured / held_tokens(Seen(seen.traffic, ours.ttft_s, ours.tpot_s))
    return round(blocks)
