"""The answer of `bench capacity` in words: rates with their intervals, what binds, what it took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from reports import _numbers
from reports._clean import clean
from reports.answers import _table

_HEADS = ("rate (req/s)", "seeds", "attainment", "least", "most", "queue grew")
_RUNNING = "This search was killed, or still goes on; the command that began it, with the same --out, ends it."
_BOUND_HEADS = ("bound", "goal", "own capacity (req/s)", "attainment at capacity")


def text(info: Mapping[str, Any]) -> str:
    """The answer for a terminal, at most 100 columns."""
    if "answers" not in info:
        return _RUNNING + "\n"
    parts = ["\n".join(line for one in info["answers"] for line in _lines(info, one))]
    parts += [
        _bounds_title(info, one) + "\n" + _table.text(_BOUND_HEADS, _bound_rows(one))
        for one in info["answers"]
        if len(one["bounds"]) > 1
    ]
    if info["curve"]:
        parts.append(_curve_title(info) + "\n" + _table.text(_HEADS, _curve_rows(info)))
    parts.append(_wrapped(_cost(info)))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def markdown(info: Mapping[str, Any]) -> str:
    """The same in markdown."""
    if "answers" not in info:
        return _RUNNING + "\n"
    parts = [f"**{_headline(info, one)}**\n\n{' '.join(_sentences(info, one))}" for one in info["answers"]]
    parts += [
        _bounds_title(info, one) + "\n\n" + _table.markdown(_BOUND_HEADS, _bound_rows(one))
        for one in info["answers"]
        if len(one["bounds"]) > 1
    ]
    if info["curve"]:
        parts.append(_curve_title(info) + "\n\n" + _table.markdown(_HEADS, _curve_rows(info)))
    parts.append(_cost(info))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _lines(info: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[str]:
    yield _headline(info, one)
    for sentence in _sentences(info, one):
        yield _wrapped(sentence, "  ")


def _wrapped(sentence: str, indent: str = "") -> str:
    return "\n".join(wrap(sentence, 98, initial_indent=indent, subsequent_indent=indent))


def _headline(info: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """One line: the rate and how sure it is."""
    start = f"capacity at {_share(one['goal'])}"
    if one["state"] == "unreachable":
        return f"{start}: 0 req/s, the goal is not reachable at any rate"
    if one["capacity_rps"] is None:
        return f"{start}: not found"
    if one["low_rps"] is None:
        rate = f"{start}: {_numbers.number(one['capacity_rps'])} req/s"
        return rate + ("" if info["one_traffic"] else " (no interval)") + _unresolved(one)
    rate, low, high = _alike(one["capacity_rps"], one["low_rps"], one["high_rps"])
    interval = f"{low} .. {high}, +-{100 * one['half_width']:.1f}%"
    return f"{start}: {rate} req/s ({_share(info['confidence'])} interval {interval})" + _unresolved(one)


def _alike(rate_rps: float, low_rps: float, high_rps: float) -> Iterator[str]:
    """A rate and its interval, down to the second digit of what is not known of it."""
    half = (high_rps - low_rps) / 2
    digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 3
    return (f"{value:,.{digits}f}" for value in (rate_rps, low_rps, high_rps))


def _unresolved(one: Mapping[str, Any]) -> str:
    return ", unresolved" if one["state"] == "unresolved" else ""


def _sentences(info: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[str]:
    if one["at"]:
        yield _verdict(one)
    if one["binding"]:
        yield f"{clean(one['binding'])} binds: it is the first that gives way as the rate grows."
    if one["per_gpu_rps"] is not None and (info["gpus"] or 0) > 1:
        yield f"{_numbers.number(one['per_gpu_rps'])} req/s per GPU ({info['gpus']} GPUs)."
    if one["why"]:
        yield f"{'Unresolved: ' if one['state'] == 'unresolved' else ''}{clean(one['why'], None)}"
    if one["needs"]:
        yield f"It would take {clean(one['needs'], None)}"
    if one["capacity_rps"] is not None and one["state"] != "unreachable":
        yield _stands_on(info, one)


def _verdict(one: Mapping[str, Any]) -> str:
    rate = f"{one['at']['rate_rps']:g} req/s"
    return {
        "carried": f"{rate} is carried: it lies below the whole interval.",
        "not carried": f"{rate} is not carried: it lies above the whole interval.",
    }.get(one["at"]["verdict"], f"{rate} is not decided: it lies inside the interval.")


def _stands_on(info: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    if info["one_traffic"]:
        return "It is that of one recorded traffic, at other speeds; nothing is drawn, so there is no interval."
    means = "corrected for what each seed happened to draw" if info["adjusted"] else "as found"
    return (
        f"Of {one['seeds']} seeds with {info['run']['requests']:,} requests a trial (warm-up cut: "
        f"{clean(info['run']['warmup'])}); attainment {means}."
    )


def _bounds_title(info: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    return f"each bound by itself, goal {_share(one['goal'])}" if len(info["answers"]) > 1 else "each bound by itself"


def _bound_rows(one: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    return [
        (
            clean(bound["text"]),
            _share(bound["goal"]),
            "higher than tried" if bound["capacity_rps"] is None else _numbers.number(bound["capacity_rps"]),
            _numbers.share(bound["attainment"]),
        )
        for bound in one["bounds"]
    ]


def _curve_title(info: Mapping[str, Any]) -> str:
    text = info.get("curve_of") or "joint"
    whom = "" if text == "joint" else f" of {clean(text)}"
    return f"attainment{whom} as found, by rate"


def _curve_rows(info: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    return [
        (
            f"{p['rate_rps']:g}",
            str(p["seeds"]),
            *(_numbers.share(p[name]) for name in ("attainment", "least", "most")),
            f"in {p['overloaded']}" if p["overloaded"] else "",
        )
        for p in info["curve"]
    ]


def _cost(info: Mapping[str, Any]) -> str:
    cost = info["cost"]
    trials, probes = (_numbers.count(cost[f"{name}s"], name) for name in ("trial", "probe"))
    told = f"cost: {_numbers.count(cost['requests'], 'request')} in {trials} and {probes}"
    sending = "" if info["clock"] == "virtual" else f", {_time(cost['system_s'])} of traffic"
    return f"{told}{sending}; {_time(cost['wall_s'])} of waiting."


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _share(value: float) -> str:
    return f"{100 * value:.6g}%"
