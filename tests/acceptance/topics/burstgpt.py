"""BurstGPT: rows of its files, the spread of generated gaps, and bursts that no Poisson process has (K26)."""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import sqrt
from pathlib import Path

import numpy as np

from acceptance.near import spelled
from acceptance.rows import Place, Row
from harness.registry import make
from harness.stats import arrivals
from workloads import traces

SYSTEM = "BurstGPT"
FOLDER = "traces/burstgpt"
FILES: Mapping[str, tuple[int, float]] = {
    "BurstGPT_1.csv": (1_429_737, 1.78), "BurstGPT_2.csv": (3_858_400, 1.92), "BurstGPT_3.csv": (5_344_021, 7.26),
}  # fmt: skip
"""Rows (of part 2 as printed, in hundreds), and failed ones in percent."""
EXCERPTS = ("BurstGPT_1.head379.csv", "BurstGPT_3.head100.csv")
API = "burstgpt:service=api,mode=figure6"
SEEDS = 5
DRAWN = 400_000
DAY_S = 54 * 1200.0
"""What figure 6 shows of a day."""
WIDTHS_S = (10.0, 60.0, 1200.0)
DISPERSION = (6.1, 15.1, 198.0)
"""Of the API service, drawn from the parameters of figure 6, in bins of those widths."""


def rows(place: Place) -> Iterator[Row]:
    """S54: counts, gaps, and bursts of the API service."""
    yield _excerpts(place)
    for letter, name in zip("bcd", FILES, strict=True):
        yield _file(f"S54.{letter}", name, place)
    yield _spread()
    yield from _bursts()


def _excerpts(place: Place) -> Row:
    published, command = "379 rows, 15 of them failed; 100 rows", f"bench trace info {EXCERPTS[0]}"
    if place.data is None or not all((place.data / FOLDER / name).exists() for name in EXCERPTS):
        return Row("S54.a", SYSTEM, "real", published, "not run", "exact", None, command,
                   "Needs the folder of public measurements.")  # fmt: skip
    (first, failed), (second, _) = (_counted(place.data / FOLDER / name) for name in EXCERPTS)
    return Row(
        "S54.a", SYSTEM, "real", published, f"{first} rows, {failed} of them failed; {second} rows", "exact",
        (first, failed, second) == (379, 15, 100), command,
        f"{' and '.join(EXCERPTS)}: the beginnings of two published files, one of each format",
    )  # fmt: skip


def _file(row: str, name: str, place: Place) -> Row:
    """Rows and failures of a whole file, which its user downloads."""
    wanted, failed_percent = FILES[name]
    path = None if place.data is None else place.data / FOLDER / name
    published, command = f"{name}: {wanted:,} rows, {failed_percent:g} % failed", f"bench trace info {name}"
    band = "rows exact (part 2: to 100), failed +-0.05 points"
    if path is None or not path.exists():
        return Row(row, SYSTEM, "real", published, "not run", band, None, command,
                   f"{FOLDER}/{name} is not in the folder of traces; bench trace download fetches it")  # fmt: skip
    count, failed = _counted(path)
    exact = count == wanted or (name == "BurstGPT_2.csv" and abs(count - wanted) <= 100)
    return Row(
        row, SYSTEM, "real", published, f"{count:,} rows, {failed / count:.2%} failed",
        band,
        exact and abs(100 * failed / count - failed_percent) <= 0.05, command,
    )  # fmt: skip


def _counted(path: Path) -> tuple[int, int]:
    """Rows of a file, and those that failed."""
    trace = traces.read(str(path))
    failed = sum(count for reason, count in trace.facts["dropped"].items() if "fail" in reason)
    return int(trace.facts["rows"]), int(failed)


def _spread() -> Row:
    """CV of gamma gaps of the published shapes."""
    shapes = (0.25, 0.5)
    found = [
        [_cv(_gaps(f"burstgpt-published:shape={shape}", seed)) for seed in range(SEEDS)] for shape in shapes
    ]  # fmt: skip
    wanted = [1 / sqrt(shape) for shape in shapes]
    worst = max(abs(cv / one - 1) for one, several in zip(wanted, found, strict=True) for cv in several)
    return Row(
        "S54.e", SYSTEM, "simulated", "CV of gamma gaps of shape 0.25 and 0.5: 2.0 and 1.41 (1 / sqrt(shape))",
        f"{spelled([float(np.mean(several)) for several in found], 4)}; off by {worst:.1%} at most",
        "+-3 %, every seed", worst <= 0.03,
        "bench trace generate chatbot --arrivals burstgpt-published:shape=0.25 --requests 400000 -o gamma.parquet "
        "&& bench trace info gamma.parquet",
        f"{DRAWN:,} gaps, {SEEDS} seeds",
    )  # fmt: skip


def _gaps(spec: str, seed: int) -> np.ndarray:
    times = make("arrivals", spec).times(np.random.default_rng(seed))
    return np.diff(np.fromiter(islice(times, DRAWN), float))


def _cv(gaps_s: np.ndarray) -> float:
    return float(gaps_s.std() / gaps_s.mean())


def _bursts() -> Iterator[Row]:
    """Dispersion of counts and the busiest second and minute of a day of the API service."""
    days = [_day(API, seed) for seed in range(SEEDS)]
    poisson = [_day(f"poisson:rate_rps={len(day) / DAY_S}", seed) for seed, day in enumerate(days)]
    rate_rps = make("arrivals", API).mean_rate_rps
    ask = (
        f"bench trace generate chatbot --arrivals {API} --rate {rate_rps:.4g} --duration 18h -o api.parquet "
        "&& bench trace info api.parquet"
    )
    pairs = [*zip(days, poisson, strict=True)]
    peaks = {width: [(_peak(a, width), _peak(b, width)) for a, b in pairs] for width in (1, 60)}
    yield Row(
        "S54.f", SYSTEM, "simulated",
        "the busiest second and minute exceed those of a Poisson process of the same rate",
        "; ".join(
            f"{width} s: {_span([a for a, _ in both])} times the mean (Poisson {_span([b for _, b in both])})"
            for width, both in peaks.items()
        ),
        "above Poisson in every seed", all(a > b for both in peaks.values() for a, b in both), ask,
        f"{SEEDS} seeds; the API service has the bursts, conversation is nearly Poisson around its daily curve",
    )  # fmt: skip
    found = [float(np.median([arrivals.dispersion(day, width) for day in days])) for width in WIDTHS_S]
    yield Row(
        "S54.g", SYSTEM, "formula",
        f"variance over mean of counts in 10 s, 1 min, 20 min: {spelled(DISPERSION, 3)} (Poisson 1)",
        spelled(found, 3), "factor 1.5",
        all(2 / 3 <= a / b <= 1.5 for a, b in zip(found, DISPERSION, strict=True)), ask,
        f"median of {SEEDS} seeds; published: drawn from the gamma parameters of figure 6",
    )  # fmt: skip


def _day(spec: str, seed: int) -> np.ndarray:
    """(N,) arrival times of one day of figure 6."""
    times = make("arrivals", spec).times(np.random.default_rng(seed))
    found = []
    for at_s in times:
        if at_s >= DAY_S:
            return np.array(found)
        found.append(at_s)
    raise AssertionError("arrivals are endless")


def _peak(at_s: np.ndarray, width_s: float) -> float:
    """The fullest bin over the mean one."""
    counts = arrivals.counts(at_s, width_s).filled()
    return float(counts.max() / counts.mean())


def _span(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
