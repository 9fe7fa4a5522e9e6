"""Fits the parameters of the arrivals `burstgpt` to its published tables.

    python tools/fit_burstgpt.py DATA_FOLDER         writes workloads/arrivals/figures/burstgpt.json

The tables are figures 4 and 6 of arXiv 2401.17644, and the requests per hour of the first 31 days of part 1.

No generated arrivals are used. All rates are per second or hour as named.
"""

import csv
import json
import math
import re
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from workloads.arrivals._services import shape_table

FIGURES = Path(__file__).parents[1] / "workloads" / "arrivals" / "figures"
QUIET_DAYS = slice(0, 8)  # of part 1: hardly any API traffic, so the day totals are those of conversation
WEEKEND = (3, 4)  # of these, and every seventh day after them
BUSY_HOURS = slice(9, 24)  # where the counts of figure 4 exceed their own noise
STEADY_H = 10.0  # figure 6: before it, conversation has too few requests per window for a shape
BLOCK_H = 6  # of the idle share: longer than the hours by which the series misdates rows of quiet hours
LAGS_H = np.arange(1, 13)
WINDOWS_PER_H = 3

SOURCE = {
    "source": "HPMLL/BurstGPT, arXiv 2401.17644v5: figures 4 and 6; requests per hour and per day of the first 31 days "
    "of part 1; shares of the rows of part 1",
    "licence": "CC-BY-4.0 (data of HPMLL/BurstGPT)",
}


def main(data: Path) -> None:
    """Write the figures."""
    text = json.dumps(figures(data), indent=1)
    text = re.sub(r"\[[^\[\]]*\]", lambda found: " ".join(found.group().split()), text)  # a list on one line
    (FIGURES / "burstgpt.json").write_text(text + "\n", encoding="utf-8")


def figures(data: Path) -> dict[str, Any]:
    """Parameters of `burstgpt`, rounded to the precision of the tables."""
    folder = data / "traces" / "burstgpt"
    hourly = np.array([float(r["requests"]) for r in _rows(folder / "BurstGPT_1.hourly_days00-30.csv")])  # (744,)
    facts = json.loads((folder / "file_facts.json").read_text())["files"]["BurstGPT_without_fails_1.csv"]
    share = round(facts["API log"] / (facts["API log"] + facts["Conversation log"]), 3)
    rows = _rows(folder / "paper_figures" / "fig6_gamma_per_20min.csv")
    names = {"start_h": "start_hour", "gamma_shape": "gamma_shape_alpha", "mean_gap_s": "mean_gap_s"}
    windows = {
        name: {key: np.array([float(r[n]) for r in rows if r["service"] == name]) for key, n in names.items()}
        for name in ("api", "conversation")
    }
    inside = api_windows(windows["api"]["gamma_shape"], windows["api"]["mean_gap_s"])
    service = conversation(folder, hourly, windows["conversation"])
    return {
        **SOURCE,
        "rate_rps": round(float(hourly.mean()) / 3600, 4),
        "api_share": share,
        "conversation": service,
        "api": {**campaigns(hourly, service, share, inside["window_sd"]), **inside},
        "figure6": {name: {key: col.tolist() for key, col in table.items()} for name, table in windows.items()},
    }


def conversation(folder: Path, hourly: np.ndarray, windows: dict[str, np.ndarray]) -> dict[str, Any]:
    """Daily curve, weekend, noise and gap law of the conversation service.

    The curve is the sum of the medians of both models in figure 4. The noise of an hour is what the quartiles of
    figure 4 spread beyond the noise of a renewal process. The gap law is the median shape of figure 6.
    """
    boxes = list(_rows(folder / "paper_figures" / "fig4_5_requests_per_hour_boxes.csv"))
    q1, median, q3 = (
        np.array([[float(r[key]) for r in boxes if r["service"] == f"{model}_conv"] for model in ("ChatGPT", "GPT-4")])
        for key in ("q1", "median", "q3")
    )  # (2, 24) each
    shape = float(np.median(windows["gamma_shape"][windows["start_h"] >= STEADY_H]))
    spread = np.log(q3 / q1)[:, BUSY_HOURS] / (2 * 0.6745)  # standard deviations of a normal law
    noise = np.sqrt(np.maximum(spread**2 - 1 / (shape * median[:, BUSY_HOURS]), 0))
    days = hourly.reshape(-1, 24).sum(axis=1)[QUIET_DAYS]
    weekend = days[list(WEEKEND)].mean() / np.delete(days, WEEKEND).mean()
    return {
        "requests_per_hour": median.sum(axis=0).tolist(),
        "weekend_factor": round(float(weekend), 2),
        "noise_sd": round(float(np.median(noise[0])), 2),  # ChatGPT: GPT-4 has counts too small
        "gamma_shape": round(shape, 3),
    }


def api_windows(shapes: np.ndarray, mean_gaps_s: np.ndarray) -> dict[str, Any]:
    """Variation inside campaigns, from the 54 windows of figure 6.

    The gamma shape has the windows' own law, and the memory of its logarithm from one window to the next. The rate
    has the spread of its logarithm, less what counting (1 / (shape * requests)) adds, and its correlation with the
    logarithm of the shape; given the shape it has no memory of its own (0.18 in all, of which the shape gives 0.10).
    Both refer to the normal score of the shape, from which `burstgpt` draws.
    """
    log_shape, log_rate = np.log(shapes), -np.log(mean_gaps_s)
    counting = float(np.mean(mean_gaps_s / 1200 / shapes))
    spread = math.sqrt(float(log_rate.var(ddof=1)) - counting)
    joint = float(np.cov(log_shape, log_rate)[0, 1] / log_shape.std(ddof=1) / spread)
    memory, straight = score_memory(shapes, _correlation(log_shape, 1))
    return {
        "window_sd": round(spread, 3),
        "window_shape_correlation": round(joint / straight, 2),
        "shape_memory": round(memory, 2),
        "shapes": np.sort(shapes).tolist(),
    }


def score_memory(shapes: np.ndarray, memory: float) -> tuple[float, float]:
    """Correlation of neighbouring scores for which that of neighbouring log-shapes is `memory`; and that of both."""
    scores = np.array([NormalDist().inv_cdf((i + 0.5) / 500) for i in range(500)])
    table = shape_table(shapes)
    logs = np.interp(scores, *table)
    low, high = 0.0, 1.0
    for _ in range(30):
        keep = (low + high) / 2
        after = np.interp(keep * scores[:, None] + math.sqrt(1 - keep**2) * scores, *table)  # (500, 500)
        reached = float(np.mean((logs - logs.mean())[:, None] * (after - logs.mean())) / logs.var())
        low, high = (keep, high) if reached < memory else (low, keep)
    return keep, float(np.corrcoef(scores, logs)[0, 1])


def campaigns(hourly: np.ndarray, service: dict[str, Any], share: float, window_sd: float) -> dict[str, float]:
    """Frequency, duration and spread of campaigns: shot noise fitted to hourly counts.

    Duration: the one whose correlation exp(-lag / duration), averaged over hours and weakened by the noise of
    20-minute windows, is nearest to that of the series at lags of 1 to 12 hours. Daily swing: the first harmonic of the
    hours in which the API requests (what conversation is not expected to send) rise above half of their mean.
    Frequency: the share of idle blocks of 6 hours, which is exp(-frequency * (duration + 6 h)) without a swing; a
    block is idle if it has fewer API requests than conversation requests expected. Spread: the variance of the series.
    """
    noise = math.expm1(window_sd**2) / WINDOWS_PER_H  # relative variance that windows add to an hour
    mean = share * float(hourly.mean())
    relative = float(hourly.var(ddof=1)) / mean**2
    seen = np.array([_correlation(hourly, int(lag)) for lag in LAGS_H])
    durations = np.arange(1, 12, 0.01)
    strengths = [(relative - noise) / (_hour_covariance(d, 0) + noise) for d in durations]
    misfits = [
        sum((s * _hour_covariance(d, int(lag)) / relative - r) ** 2 for lag, r in zip(LAGS_H, seen, strict=True))
        for d, s in zip(durations, strengths, strict=True)
    ]
    best = int(np.argmin(misfits))
    duration_h, strength = float(durations[best]), strengths[best]  # strength: E[R^2] / (active * E[R]^2)
    # (hours,) conversation requests that are expected: figure 4, less on weekends
    curve = np.array(service["requests_per_hour"])
    weekend = [day % 7 in WEEKEND for day in range(len(hourly) // 24)]
    expected = np.concatenate([curve * (service["weekend_factor"] if off else 1.0) for off in weekend])
    blocks = (hourly - 2 * expected).reshape(-1, BLOCK_H).sum(axis=1)
    busy = (hourly - expected) > 0.5 * (hourly - expected).mean()
    begins_h = (np.flatnonzero(busy[1:] & ~busy[:-1]) + 1) % 24 + 0.5
    turn = np.exp(2j * np.pi * begins_h / 24).mean()
    swing, peak_h = 2 * float(abs(turn)), float(np.angle(turn)) * 24 / (2 * math.pi) % 24
    per_hour = _frequency(float((blocks < 0).mean()), duration_h, swing, peak_h)
    return {
        "campaigns_per_day": round(24 * per_hour, 2),
        "begin_swing": round(swing, 2),
        "begin_peak_h": round(peak_h, 1),
        "campaign_h": round(duration_h, 2),
        "campaign_sd": round(math.sqrt(math.log(strength * per_hour * duration_h)), 2),
    }


def _frequency(idle: float, duration_h: float, swing: float, peak_h: float) -> float:
    """Campaigns per hour for which a share `idle` of the blocks of 6 hours from 0h on has none, by bisection."""
    ages_h = np.arange(0.005, 20 * duration_h, 0.01)
    alive = np.exp(-np.maximum(ages_h - BLOCK_H, 0) / duration_h)  # begun so long before the end of a block

    def expected(end_h: int) -> float:
        return float((alive * (1 + swing * np.cos(2 * np.pi * (end_h - ages_h - peak_h) / 24))).sum() * 0.01)

    weights = np.array([expected(end_h) for end_h in range(BLOCK_H, 25, BLOCK_H)])
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if np.exp(-middle * weights).mean() > idle else (low, middle)
    return middle


def _hour_covariance(duration_h: float, lag_h: int) -> float:
    """Covariance of averages over hours, of a process with covariance exp(-u / duration_h)."""
    d, gone = duration_h, -math.expm1(-1 / duration_h)
    return 2 * d * (1 - d * gone) if lag_h == 0 else math.exp(-(lag_h - 1) / d) * (d * gone) ** 2


def _correlation(values: np.ndarray, lag: int) -> float:
    centred = values - values.mean()
    return float(centred[:-lag] @ centred[lag:] / (centred @ centred))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
