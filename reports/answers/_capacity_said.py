"""What a search found, in words: the rate with its interval, what binds, what it took. All forms say it alike."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.experiments.capacity.conditions import Share
from reports import _format
from reports._format import clean

HEADS = ("rate (req/s)", "seeds", "attainment", "least", "most", "queue grew")
BOUND_HEADS = ("bound", "goal", "own capacity (req/s)", "attainment at capacity")
RUNNING = "This search was killed, or still goes on; the command that began it, with the same --out, ends it."
AROUND = 7
"""Rates of the sweep that is advised, each the same ratio above the one below it."""

LONE = 0.05
"""A lowest rate below this share of the next is that of requests one by one, which no curve needs to reach."""

_ENDS = ("low", "high")

_MORE = re.compile(r"--max-seeds (\d+)")


def headline(info: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """One line: the rate and how sure it is."""
    start = f"capacity at {percent(one['goal'])}"
    if one["state"] == "unreachable":
        return f"{start}: 0 req/s, the goal is not reachable at any rate"
    if one["capacity_rps"] is None:
        return f"{start}: {_between(one) or 'not found'}{_unresolved(one)}"
    if one["low_rps"] is None:
        rate = f"{start}: {_format.number(one['capacity_rps'])} req/s"
        return rate + ("" if info["one_traffic"] else " (no interval)") + _unresolved(one)
    half = (one["high_rps"] - one["low_rps"]) / 2
    digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 3  # two digits of the half-width
    rate, low, high = (f"{one[key]:,.{digits}f}" for key in ("capacity_rps", "low_rps", "high_rps"))
    interval = f"{low} .. {high}, +-{100 * one['half_width']:.1f}%"
    return f"{start}: {rate} req/s ({percent(info['confidence'])} interval {interval})" + _unresolved(one)


def _between(one: Mapping[str, Any]) -> str:
    """The rates that were tried on both sides of the goal, where they are the answer; empty where there are none."""
    told = one.get("bracket") or {}
    low, high = (None if told.get(f"{end}_rate_rps") is None else f"{told[f'{end}_rate_rps']:g}" for end in _ENDS)
    if low and high:
        return f"between {low} and {high} req/s"
    if low:
        return f"above {low} req/s (every rate tried was sustained)"
    return f"below {high} req/s (no rate tried was sustained)" if high else ""


def good(one: Mapping[str, Any]) -> bool | None:
    """Whether an answer is good news (found, or the rate asked for is carried) or bad; None: open."""
    verdict = (one["at"] or {}).get("verdict")
    if verdict is not None:
        return {"carried": True, "not carried": False}.get(verdict)
    return {"resolved": True, "unreachable": False}.get(one["state"])


def _unresolved(one: Mapping[str, Any]) -> str:
    return ", unresolved" if one["state"] == "unresolved" else ""


def sentences(info: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[str]:
    if one["at"]:
        yield _verdict(info, one)
    if one["binding"]:
        yield f"{clean(one['binding'])} binds: it is the first that gives way as the rate grows."
    if one["per_gpu_rps"] is not None and (info["gpus"] or 0) > 1:
        yield f"{_format.number(one['per_gpu_rps'])} req/s per GPU ({info['gpus']} GPUs)."
    if one["why"]:
        yield because(one)
    if one["needs"]:
        yield f"It would take {clean(one['needs'], None)}"
    if one["capacity_rps"] is not None and one["state"] != "unreachable":
        yield _stands_on(info, one)
    elif one.get("bracket"):
        yield "".join(_tried(one["bracket"]))


def _tried(bracket: Mapping[str, Any]) -> Iterator[str]:
    """What stands behind a bracket."""
    yield "No estimate, but rates that were tried: "
    yield "; ".join(
        f"{bracket[f'{end}_rate_rps']:g} req/s was {side}{' (the queue grew)' if bracket[f'{end}_grew'] else ''}, "
        f"{_format.count(bracket[f'{end}_requests'], 'request')} of {_format.count(bracket[f'{end}_seeds'], 'seed')}"
        for end, side in zip(_ENDS, ("sustained", "not sustained"), strict=True)
        if bracket[f"{end}_rate_rps"] is not None
    )
    yield "."


def because(one: Mapping[str, Any]) -> str:
    """Why the goal is open or out of reach, as a sentence."""
    text = f"{'unresolved: ' if one['state'] == 'unresolved' else ''}{clean(one['why'], None)}"
    return text[:1].upper() + text[1:]


def lone(rates_rps: Sequence[float]) -> bool:
    """Whether the first of these rising rates is that of requests one by one."""
    return len(rates_rps) > 1 and rates_rps[0] < LONE * rates_rps[1]


def _verdict(info: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    rate, verdict = f"{one['at']['rate_rps']:g} req/s", one["at"]["verdict"]
    if verdict not in ("carried", "not carried"):
        return f"{rate} is not decided: no interval among the rates tried leaves it out."
    good = verdict == "carried"
    told = f"{rate} is {'sustained' if good else 'not sustained'}"
    if one["low_rps"] is not None:
        return f"{told}: it lies {'below' if good else 'above'} the whole interval."
    if one["state"] == "unreachable":
        return f"{told}."
    if info["one_traffic"]:
        return f"{told}: it is {'not ' if good else ''}above the capacity of this recording."
    return f"{told} by the rates that were tried."


def _stands_on(info: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    if info["one_traffic"]:
        return "It is that of one recorded traffic, at other speeds; nothing is drawn, so there is no interval."
    means = "corrected for what each seed happened to draw" if info["adjusted"] else "as found"
    requests = one.get("requests") or info["run"]["requests"]
    return (
        f"Of {one['seeds']} seeds with {requests:,} requests a trial (warm-up cut: {clean(info['run']['warmup'])}); "
        f"attainment {means}."
    )


def bounds_title(info: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    return f"each bound by itself, goal {percent(one['goal'])}" if len(info["answers"]) > 1 else "each bound by itself"


def bound_rows(one: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    return [
        (
            clean(bound["text"]),
            percent(bound["goal"]),
            "not among the rates tried" if bound["capacity_rps"] is None else _format.number(bound["capacity_rps"]),
            _format.share(bound["attainment"]),
        )
        for bound in one["bounds"]
    ]


def heads(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The heads of the curve; of a bound on a percentile it is the share of values within it, and no attainment."""
    return tuple("within" if head == "attainment" and _percentile(info) else head for head in HEADS)


def curve_title(info: Mapping[str, Any]) -> str:
    text = info.get("curve_of") or "joint"
    if _percentile(info):
        return f"share within {clean(text)} as found, by rate"
    whom = "" if text == "joint" else f" of {clean(text)}"
    return f"attainment{whom} as found, by rate"


def _percentile(info: Mapping[str, Any]) -> bool:
    return Share(str(info.get("curve_of") or ""), 0, 0).is_percentile


def curve_rows(info: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    return [
        (
            f"{p['rate_rps']:g}",
            str(p["seeds"]),
            *(_format.share(p[name]) for name in ("attainment", "least", "most")),
            f"in {p['overloaded']}" if p["overloaded"] else "",
        )
        for p in info.get("curve") or []
    ]


def cost(info: Mapping[str, Any]) -> str:
    spent = info["cost"]
    trials, probes = (_format.count(spent[f"{name}s"], name) for name in ("trial", "probe"))
    told = f"cost: {_format.count(spent['requests'], 'request')} in {trials} and {probes}"
    if invalid := info.get("invalid"):
        told += (
            f" ({_format.count(len(invalid), 'trial')} not valid and left out: {clean(invalid[0], 300).rstrip('.')})"
        )
    sending = "" if info["clock"] == "virtual" else f", {_time(spent['system_s'])} of traffic"
    return f"{told}{sending}; {_time(spent['wall_s'])} of waiting."


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def percent(value: float) -> str:
    return f"{100 * value:.6g}%"


def again(info: Mapping[str, Any], **more: str) -> str:
    """The command that makes this search, with other values where `more` names them."""
    told = info.get("definition")
    asked = [one["goal"] for one in info.get("answers") or []] or info.get("goals") or []
    goals = ",".join(percent(goal) for goal in asked)
    own = {"goal": goals or None, "definition": None if told in (None, "joint") else clean(told)}
    usual = [] if _spec(info).get("seed") else ["seed"]
    if (info.get("run") or {}).get("fixed") is False:  # naming the usual number would fix it
        usual.append("requests")
    return _command("capacity", info, {**own, **more}, leave_out=usual)


def _spec(info: Mapping[str, Any]) -> Mapping[str, Any]:
    return info.get("spec") or {}


def advice(info: Mapping[str, Any]) -> tuple[str, str]:
    """What to do next, and the command that does it."""
    if "answers" not in info or info["state"] == "interrupted":
        return "end the search, with the same --out", again(info)
    if all(one["state"] == "unreachable" for one in info["answers"]):
        return "try bounds that can be kept", again(info, slo="ttft=1,tpot=0.2")
    seeds = [found for one in info["answers"] if (found := _MORE.search(one["needs"] or ""))]
    if seeds:
        most = max(seeds, key=lambda found: int(found[1]))[1]
        return "decide what is open, with the same --out", f"{again(info)} --max-seeds {most}"
    command = around(info)
    if not command:
        return "give the search more to work with, with the same --out", f"{again(info)} --max-seeds 40"
    return "see latencies and stages around it", command


def around(info: Mapping[str, Any]) -> str:
    """A sweep over the rates around what was found; empty where nothing was."""
    rates = [rate for one in info["answers"] for rate in _near(one)]
    if not rates:
        return ""
    low, high = 0.5 * min(rates), 1.3 * max(rates)
    each = [low * (high / low) ** (number / (AROUND - 1)) for number in range(AROUND)]
    return _command(
        "sweep",
        info,
        {"rate": ",".join(_format.option(rate, 2) for rate in each)},
        leave_out=("goal", "requests", "seed"),
    )


def _near(one: Mapping[str, Any]) -> list[float]:
    """The capacity, or the ends of a bracket with two sides."""
    if one["capacity_rps"]:
        return [one["capacity_rps"]]
    ends = [(one.get("bracket") or {}).get(f"{end}_rate_rps") for end in _ENDS]
    return [float(end) for end in ends if end] if all(ends) else []


def _command(name: str, info: Mapping[str, Any], own: Mapping[str, str | None], leave_out: Sequence[str]) -> str:
    """The options of the runs, then those of the command itself."""
    given = {**{key: value for key, value in _spec(info).items() if key not in leave_out}, **own}
    words = [
        part
        for option, value in given.items()
        if value is not None
        for part in (f"--{clean(option)}", shlex.quote(clean(value, None)))
    ]
    return " ".join(["bench", name, *words])
