"""How an SLO is written: `ttft=0.25,tpot=100ms,ttft@long=2,p99:itl=0.2`."""

import re

from harness.api import Bound, Metric, Slo
from harness.errors import UsageError, no_such
from harness.measure import metrics
from harness.spec import seconds

_BOUND = re.compile(r"(?:[pP](?P<percentile>[^:=@]*):)?(?P<metric>[^:=@]*)(?:@(?P<tag>[^=]*))?(?:=(?P<limit>.*))?")


def parse(text: str, *, goal: float = 0.9) -> Slo:
    """The SLO of `metric=seconds` parts joined by commas: 'ttft=0.25,tpot=100ms,ttft@long=2,p99:itl=0.2'.

    `@class` binds one class of traffic, in the place of the bound for all; `p99:` binds a percentile of the
    run instead of each request; an empty text has no bounds. Raises UsageError for whatever it cannot take.
    """
    if not 0 < goal <= 1:
        raise UsageError(f"The goal must be a share above 0 and up to 1, got {goal:g}.")
    bounds: list[Bound] = []
    for part in text.split(",") if text.strip() else []:
        bound = _bound(part.strip(), text)
        if any(_key(bound) == _key(other) for other in bounds):
            raise UsageError(f"'{text}': the bound on {_name(bound)} is given twice.")
        bounds.append(bound)
    return Slo(tuple(bounds), goal)


def text(slo: Slo) -> str:
    """The text that `parse` reads back into the same bounds."""
    return ",".join(bound_text(bound) for bound in slo.bounds)


def bound_text(bound: Bound) -> str:
    """One bound as it is written, in seconds: 'p99:ttft@long=2'."""
    return f"{_name(bound)}={_plain(bound.limit)}"


def _name(bound: Bound) -> str:
    percentile = "" if bound.percentile is None else f"p{_plain(bound.percentile)}:"
    return f"{percentile}{bound.metric}{'' if bound.tag is None else '@' + bound.tag}"


def _plain(value: float) -> str:
    return repr(value).removesuffix(".0")


def _key(bound: Bound) -> tuple[object, ...]:
    return bound.metric, bound.tag, bound.percentile


def _bound(part: str, whole: str) -> Bound:
    match = _BOUND.fullmatch(part)
    if not part or match is None:
        where = f"'{part}'" if part == whole.strip() else f"'{whole}': '{part}'"
        raise UsageError(f"{where} is no bound; write metric=seconds, such as ttft=0.25,tpot=100ms.")
    name, limit, tag = match["metric"].strip(), match["limit"], match["tag"]
    metric = _metric(name)
    if limit is None or not limit.strip():
        raise UsageError(
            f"'{whole}': the bound on {name} has no value; write {metric.name}=0.25 or {metric.name}=250ms."
        )
    if tag is not None and not tag.strip():
        raise UsageError(f"'{whole}': no class of traffic follows the @; write {metric.name}@class={limit}.")
    limit_s = seconds(limit, f"'{whole}': {name}")
    if limit_s <= 0:
        raise UsageError(f"'{whole}': the bound on {name} must be above 0 s, got {limit.strip()}.")
    return Bound(metric.name, limit_s, tag.strip() if tag else None, _percentile(match["percentile"], whole))


def _metric(name: str) -> Metric:
    known = {n: m for n, m in metrics().items() if m.unit == "s"}
    plain = name.lower().replace("-", "_")
    if plain not in known:
        raise no_such("latency metric", name, known)
    return known[plain]


def _percentile(given: str | None, whole: str) -> float | None:
    if given is None:
        return None
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 < value <= 100:
        raise UsageError(f"'{whole}': 'p{given}:' is no percentile; write p99:metric=seconds, above 0 and up to 100.")
    return value
