"""Everything that has a name: plug-ins of all kinds, presets, configurations, models and GPUs.

A page of pictures of what a workload draws: `bench explain NAME --html FILE`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness import compose, configs, registry
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.data.schedule import Schedule


OPTION: Mapping[str, str] = MappingProxyType(
    {
        "presets": "--workload NAME",
        "configs": "--config NAME",
        "backends": "--backend NAME",
        "models": "--backend sim --model NAME",
        "hardware": "--backend sim --hardware NAME",
        "latency": "--backend sim --latency NAME",
        "policies": "--policy NAME",
        "routers": "--router NAME",
        "kv": "--kv NAME",
        "admission": "--admission NAME",
        "executors": "what carries out a batch of the engine",
        "arrivals": "--arrivals NAME",
        "lengths": "--lengths NAME",
        "sessions": "--sessions NAME",
        "content": "--content NAME",
        "readers": "--trace FILE --reader NAME",
        "metrics": "--slo NAME=SECONDS",
        "profiles": "bench slo RUN --profile NAME",
        "reports": "bench report --format NAME",
        "results": "bench report FILE, bench slo FILE, bench compare FILE FILE",
    }
)
"""Kind -> how its members are used."""
_FILES = {"models": "models.toml", "hardware": "hardware.toml"}


def kinds() -> list[str]:
    """Kinds of names, in the order in which they are shown."""
    return list(OPTION)


def table(kind: str) -> dict[str, Any]:
    """Entries of `models` or `hardware`, as they stand in their file."""
    path = registry.folder("harness.catalog") / _FILES[kind]
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def glossary() -> tuple[dict[str, str], dict[str, str]]:
    """Terms with their explanations, and other words for them."""
    data = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
    return data["terms"], data["aliases"]


def names(kind: str) -> list[str]:
    """Sorted names of a kind."""
    if kind == "presets":
        return compose.presets()
    if kind == "configs":
        return configs.names()
    if kind in _FILES:
        return sorted(table(kind))
    return registry.names(kind)


def rows(kind: str) -> list[tuple[str, str]]:
    """(name, one line about it) of a kind."""
    if kind == "presets":
        return [(name, preset_line(name)) for name in names(kind)]
    if kind == "configs":
        return [(name, configs.about(name)) for name in names(kind)]
    if kind in _FILES:
        return [(name, str(entry.get("title") or entry.get("source", ""))) for name, entry in table(kind).items()]
    return [(name, registry.summary(kind, name)) for name in names(kind)]


def preset_line(name: str) -> str:
    """The first words of what a preset says about itself."""
    values = tomllib.loads(compose.preset_text(name))
    return " ".join(str(values.get("about", "")).split())


REQUESTS = 20_000
"""Requests that are drawn, or as many as there are."""

FEWEST = 300
"""Arrivals that are drawn at least where the rate soon stays what it is."""

SEED = 0
HELD = "fixed"
"""Lengths with which arrivals are drawn that were asked for alone, and which are then not shown."""

DRAWABLE = ("presets", "arrivals", "lengths")
"""Kinds of names of which there is something to draw."""


def facts(kind: str, spec: str) -> dict[str, Any]:
    """What `reports.traffic.page` is given of a preset, of arrivals or of lengths: one schedule and its law.

    Raises UsageError for a kind that draws nothing.
    """
    if kind not in DRAWABLE:
        raise UsageError(f"'{spec}' is of the kind {kind}, which draws no traffic; --html goes with {_listed()}.")
    loaded = compose.load_workload(HELD, arrivals=spec) if kind == "arrivals" else compose.load_workload(spec)
    return {**_drawn(loaded, arrivals=kind != "lengths", lengths=kind != "arrivals")}


def _drawn(loaded: Any, *, arrivals: bool, lengths: bool) -> dict[str, Any]:
    from harness.data.schedule import Schedule  # heavy

    schedule = Schedule.draw(loaded.workload, seed=SEED, requests=REQUESTS)
    found: dict[str, Any] = {"name": "drawn", "source": f"{len(schedule):,} requests drawn with seed {SEED}"}
    if arrivals:
        found |= _arrivals(schedule, loaded)
    if lengths:
        found |= {name: schedule.table[name] for name in ("prompt_tokens", "output_tokens")}
    return found


def _arrivals(schedule: Schedule, loaded: Any) -> dict[str, Any]:
    """Times of what waits for no answer, the law of their gaps, the rate that was declared."""
    import numpy as np  # heavy

    from harness.validity.fidelity import by_itself

    if loaded.rate_rps is None:
        return {"texts": ["A closed loop has no arrivals to draw: requests come when answers come."]}
    times_s = schedule.table["scheduled_s"].to_numpy()[by_itself(schedule.table)]
    found: dict[str, Any] = {"times_s": times_s}
    if loaded.gap_cdf is not None:
        law = {"name": "declared law", "cdf": loaded.gap_cdf, "operational_time": loaded.operational_time}
        found["gap_law"] = law
    if loaded.operational_time is not None and len(times_s) > FEWEST:
        end_s = _settled(loaded.operational_time, times_s)
        edges = np.linspace(0.0, end_s, 401)
        rps = np.diff(loaded.operational_time(edges)) / np.diff(edges)
        found["rate"] = {"at_s": (edges[1:] + edges[:-1]) / 2, "rps": rps, "name": "declared"}
        found["times_s"] = shown = times_s[times_s <= end_s]
        found["source"] = f"{len(shown):,} requests drawn with seed {SEED}"
    elif loaded.arrivals_rps:
        found["rate"] = {"at_s": [0.0, float(times_s[-1])], "rps": [loaded.arrivals_rps] * 2, "name": "declared mean"}
    return found


def _settled(operational_time: Any, times_s: Any) -> float:
    """Up to when to draw (s): where the rate stays what it is soon, five times as long as it changes, else all."""
    import numpy as np  # heavy

    edges = np.linspace(0.0, float(times_s[-1]), 20_001)
    arrivals = np.diff(operational_time(edges))
    moving = np.flatnonzero(np.abs(arrivals - arrivals[-1]) > 1e-6 * arrivals.max())
    changes_s = float(edges[moving[-1] + 1]) if len(moving) else float(times_s[-1])
    return min(float(times_s[-1]), max(5 * changes_s, float(times_s[FEWEST])))


def _listed() -> str:
    return f"{', '.join(DRAWABLE[:-1])} and {DRAWABLE[-1]}"
