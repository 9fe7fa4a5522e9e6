"""Clusters of the engine beside the simulator: paced ones at a quarter of the speed of an A100; one that computes."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import backends.latency
from acceptance.rows import Place, Row
from acceptance.topics._paced import LATENCY, System, against_simulator, run
from acceptance.topics._trials import trial
from harness.data.folder import Run, load
from harness.experiments.fit.answer import FitOptions, from_steps

SLOWDOWN = 4
"""Clusters are tried at a quarter of the speed: their processes share the cores of this machine."""
LINK = f"{600 // SLOWDOWN}GBps"
"""The NVLink of an A100, at a quarter of the speed too."""
LAYOUTS: Mapping[str, Mapping[str, object]] = {
    "2p1d": {"prefill": 2, "decode": 1, "link": LINK},
    "1p2d": {"prefill": 1, "decode": 2, "link": LINK},
    "freeness": {"replicas": 2, "router": "freeness", "link": LINK},
    "replicas": {"replicas": 4},
}
COMPUTED: Mapping[str, object] = {
    "prefill": 2, "decode": 1, "workload": "uniform:prompt_max_tokens=400,output_max_tokens=40", "rate": 16,
    "arrivals": "gamma:cv=4", "duration": "30s",
}  # fmt: skip
"""Traffic of the engine that computes: bursts, so that requests queue though its processes have cores to share."""
FITTED, COMPARED = (100, 101), (0, 1, 2)
"""Seeds of the runs that latency model and link come from, and of those that are simulated."""
MOST_OFF = 0.1
STAGES = ("queue", "prefill", "hand-off", "decode")


def rows(place: Place) -> Iterator[Row]:
    """S27.d and S27.e, in 20 minutes, most of which the engine sleeps."""
    latency = f"abc:{quarter_speed(place.work / 'quarter.toml')}"
    for name, layout in LAYOUTS.items():
        title = " ".join(f"--{option} {value}" for option, value in layout.items())
        system = System(
            f"S27.d.{name}", title, latency, "ttft=1.2,tpot=0.24", "20s", layout, f"{LATENCY} times {SLOWDOWN}"
        )
        yield against_simulator(system, place)
    yield _computed(place)


def quarter_speed(file: Path) -> Path:
    """A file with the constants of LATENCY, every step four times as long."""
    stored = Path(backends.latency.__file__).with_name("abc.toml").read_text(encoding="utf-8")
    constants = tomllib.loads(stored)["main"]["vllm"]["opt-13b"]["tp1"]  # in milliseconds
    slow = {name: [SLOWDOWN * ms / 1000 for ms in each] for name, each in constants.items()}
    file.write_text("".join(f"{name}_s = {each}\n" for name, each in slow.items()), encoding="utf-8")
    return file


def _computed(place: Place) -> Row:
    """S27.e: mean stages of a cluster of the NumPy engine, and of the simulator with its step times and its link."""

    def served(name: str, seed: int) -> Run:
        out = place.work / f"computed-{name}-{seed}"
        run(out, backend="engine:threads=1,nice=0", seed=seed, **COMPUTED)
        return load(out)

    fit_to = [served("fit", seed) for seed in FITTED]
    fitted = place.work / "computed.toml"
    from_steps([str(one.path) for one in fit_to], FitOptions("linear"), fitted)
    copy_s = float(np.mean(np.concatenate([copies_s(one) for one in fit_to])))
    backend = f"sim:latency=file:{fitted},kv_blocks={fit_to[0].info.backend['kv_blocks']}"
    link = f"1000000GBps:latency={1000 * copy_s:.4f}ms"
    simulated = [trial(backend=backend, link=link, seed=seed, **COMPUTED).table for seed in COMPARED]
    engine, again = (
        stages_s([served(name, seed).requests for seed in COMPARED]) for name in ("compared", "again")
    )  # the same requests twice
    ours = stages_s(simulated)
    off = {stage: b / a - 1 for stage, a, b in zip(STAGES, engine, ours, strict=True)}
    noise = {stage: b / a - 1 for stage, a, b in zip(STAGES, engine, again, strict=True)}
    worst = max(off, key=lambda stage: abs(off[stage]))
    steady = all(abs(one) <= MOST_OFF for one in noise.values())
    means = ", ".join(
        f"{stage} {1000 * a:.2f} {1000 * b:.2f} ({off[stage]:+.0%})"
        for stage, a, b in zip(STAGES, engine, ours, strict=True)
    )
    return Row(
        "S27.e", "simulator against the engine that computes, --prefill 2 --decode 1", "real",
        "none: stage means within 10 %", f"worst stage {worst} {off[worst]:+.0%}; ms on engine and simulator: {means}",
        f"each stage within {MOST_OFF:.0%}", all(abs(one) <= MOST_OFF for one in off.values()) if steady else None,
        "python tests/acceptance/run.py --only S27.e",
        f"{COMPUTED['workload']} at {COMPUTED['rate']}/s, {COMPUTED['arrivals']}, {COMPUTED['duration']}, seeds "
        f"{', '.join(map(str, COMPARED))} pooled; step times (linear) and link, {1000 * copy_s:.2f} ms a copy, from "
        f"seeds {', '.join(map(str, FITTED))}. Hand-off: from the end of the prompt to the first decode. The engine "
        "and itself, run again: "
        f"{', '.join(f'{stage} {share:+.0%}' for stage, share in noise.items())}"
        f"{'.' if steady else ', so that this decides nothing.'}",
    )  # fmt: skip


def stages_s(tables: Sequence[pa.Table]) -> tuple[float, ...]:
    """Mean seconds of the STAGES of requests that were handed over."""
    table = pa.concat_tables([table.filter(pc.is_valid(table["decode_start_s"])) for table in tables])
    arrived, start, end, decode = (
        table[name].to_numpy() for name in ("arrived_s", "prefill_start_s", "prefill_end_s", "decode_start_s")
    )
    last = np.array([stamps[-1] for stamps in table["token_s"].to_pylist()])
    parts = (start - arrived, end - start, decode - end, last - decode)
    return tuple(float(np.mean(part)) for part in parts)


def copies_s(run: Run) -> np.ndarray:
    """Seconds of the hand-offs that found the decode replica idle, and no other hand-off under way: a copy alone."""
    assert run.steps is not None
    steps = run.steps.filter(pc.greater(run.steps["decode_seqs"], 0))
    table = run.requests.filter(pc.is_valid(run.requests["handoff_end_s"]))
    spans = [
        np.stack([of[first].to_numpy(), of[last].to_numpy()])
        for of, first, last in ((steps, "start_s", "end_s"), (table, "handoff_start_s", "handoff_end_s"))
    ]
    starts, ends = np.concatenate(spans, axis=1)
    begin, end = spans[1]
    overlapping = [int(np.sum((starts < b) & (ends > a))) for a, b in zip(begin, end, strict=True)]
    alone: np.ndarray = (end - begin)[np.array(overlapping) == 1]  # itself
    return alone
