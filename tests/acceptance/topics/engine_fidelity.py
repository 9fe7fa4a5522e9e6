"""The simulator against the project's own engine: attainment at several rates of the same schedules."""

import json
from collections.abc import Iterator
from pathlib import Path

from acceptance.rows import Place, Row

STORED = Path(__file__).parents[1] / "simulator_against_engine.json"
"""What `tests/perf/simulator_against_engine.py --store` writes."""


def rows(place: Place) -> Iterator[Row]:
    """S27: what `tests/perf/simulator_against_engine.py` has stored; it needs minutes of a quiet machine."""
    del place
    yield _engine()


def _engine() -> Row:
    system, published = "simulator against the engine", "DistServe's simulator against its system: 2 points"
    band, command = "at most 2 points at 7 rates", "python tests/perf/simulator_against_engine.py"
    if not STORED.exists():
        return Row("S27", system, "real", published, "not run", band, None, command, "Needs a quiet machine.")
    found = json.loads(STORED.read_text(encoding="utf-8"))
    rates, real, ours = found["rates_rps"], found["measured_pct"], found["simulated_pct"]
    worst = max(abs(a - b) for a, b in zip(real, ours, strict=True))
    sides = ", ".join(f"{r:g}/s {a:.1f} {b:.1f}" for r, a, b in zip(rates, real, ours, strict=True))
    itself = max(abs(a - b) for a, b in zip(real, found["again_pct"], strict=True))
    note = (
        f"Rate, engine, simulator: % within {found['slo']}; {found['when']}; latency fitted on other runs. The engine "
        f"and itself, run again: at most {itself:.1f} points apart."
    )
    return Row(
        "S27", system, "real", published, f"{worst:.1f} points at most: {sides}", band,
        worst <= 2.0 and len(rates) >= 7, command, note,
    )  # fmt: skip
