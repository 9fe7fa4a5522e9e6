"""The quality of a fit in sentences."""

from collections.abc import Mapping
from typing import Any

GOOD = 0.5  # root mean square of log2 of the dispersion curve: within a factor 1.4 on average
CLOSE_KS = 0.1


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """What the numbers of `Quality.facts()` say, the dispersion curve first."""
    return [
        text
        for text in (_curve(facts), _gaps(facts), _other_mode(facts), _memory(facts), _rate(facts), _lengths(facts))
        if text
    ]


def _curve(facts: Mapping[str, Any]) -> str:
    found = facts["curve_distance_all"]
    if found["model"] is None:
        return "The trace is too short to tell its burstiness: fewer than 10 bins of the narrowest width."
    widths = facts["widths_s"]
    word = "agrees with" if found["model"] <= GOOD else "DIFFERS FROM"
    usual = facts["curve_distance"]
    band = f", {_factor(usual['model'])} up to 120 s" if usual["model"] is not None and widths[-1] > 120 else ""
    toys = f"Poisson arrivals by {_factor(found['poisson'])}, gamma gaps by {_factor(found['gamma'])}"
    return (
        f"Burstiness {word} the trace: in bins of {widths[0]:g} to {widths[-1]:g} s the dispersion is off by a factor "
        f"of {_factor(found['model'])} (root mean square over widths, median of {facts['seeds']} draws{band}); {toys}; "
        f"up to {_factor(GOOD)} is good."
    )


def _factor(log2: float | None) -> str:
    """A distance in log2 as the factor that it is: 0.5 is '1.41'."""
    return "unknown" if log2 is None else f"{2.0**log2:.3g}" if log2 < 9 else "more than 500"


def _gaps(facts: Mapping[str, Any]) -> str:
    found = facts["gaps_ks"]
    if found["model"] is None:
        return f"The law of the gaps cannot be told: stamps sit on a grid of {_number(facts['grain_s'])} s."
    return (
        f"Gaps: KS distance {found['model']:.3f} (Poisson arrivals {_number(found['poisson'], 3)}; gaps alone say "
        "little about bursts)."
    )


def _other_mode(facts: Mapping[str, Any]) -> str:
    far = [facts["curve_distance_all"]["model"] or 0.0, facts["gaps_ks"]["model"] or 0.0]
    if facts["mode"] != "parametric" or (far[0] <= GOOD and far[1] <= CLOSE_KS):
        return ""
    return "The rate of this trace is hardly lognormal: --mode rate-following may fit better."


def _memory(facts: Mapping[str, Any]) -> str:
    acf = facts["acf"]
    parts = [
        f"{width:g} s {_number(own)} / {_number(median)}"
        for width, own, median in zip(acf["widths_s"], acf["trace"], acf["median"], strict=True)
    ]
    cv = facts["window_cv"]
    inside = f" CV inside {cv['width_s']:g} s: {_number(cv['trace'])} / {_number(cv['median'])}." if cv else ""
    return f"Lag-1 autocorrelation of counts, trace / model: {', '.join(parts)}.{inside}" if parts else inside.strip()


def _rate(facts: Mapping[str, Any]) -> str:
    drawn = facts["rate_rps_drawn"]
    if drawn["low"] is None:
        return ""
    return (
        f"Mean rate of a draw as long as the trace: {drawn['low']:.3g} to {drawn['high']:.3g} req/s in 90 % of the "
        f"draws; of the trace: {facts['rate_rps']:.3g}."
    )


def _lengths(facts: Mapping[str, Any]) -> str:
    found = facts["lengths"]
    return (
        f"Lengths: KS distance prompt {found['prompt_ks']:.3f}, output {found['output_ks']:.3f}; rank correlation, "
        f"trace / model: {_number(found['spearman_trace'])} / {_number(found['spearman_model'])}."
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"
