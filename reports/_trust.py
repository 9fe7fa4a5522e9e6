"""How far the numbers of a run go, in words: what was left out to warm up, intervals within the run, the checks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.cut import restored
from harness.folder import Run
from reports import _data, _numbers
from reports._clean import clean
from reports._facts import part

KNEE = "Near the knee one run decides nothing (see bench capacity)."
"""What must be said of every statement about one rate."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of the run: its name, its state, what was found, and the remedy."""

    name: str
    state: str
    said: str
    remedy: str
    failed: bool


def warmup(run: Run) -> str:
    """'12 of 2,200 requests, due in the first 16.0 s, are not measured (mser5)'; empty where nothing was asked for."""
    cut = restored(run.info)
    total = _numbers.count(run.requests.num_rows, "request")
    if not cut.stationary:
        return f"no place to cut was found ({clean(cut.rule)}), so all of {total} are measured"
    if cut.rule == "none":
        return ""
    if not cut.requests:
        return f"nothing to cut was found ({clean(cut.rule)}), so all of {total} are measured"
    are = "is" if cut.requests == 1 else "are"
    return (
        f"{cut.requests:,} of {total}, due before {_numbers.seconds(cut.at_s)}, {are} not measured ({clean(cut.rule)})"
    )


def interval(info: Mapping[str, Any]) -> str:
    """The intervals within the run, or the sentence that says why there are none; empty where neither is stored."""
    told, summary = part(info, "within"), part(info, "summary")
    # an interval of attainment is to be expected where there are bounds on single requests
    asked = bool(summary.get("bounds")) and summary.get("attainment") is not None
    parts = list(_intervals(told, asked=asked))
    if parts and part(told, "metrics"):
        parts[-1] += f" ({_sure(told)} within this run; other seeds may differ by more)"
    return "; ".join([*parts, clean(told["why_not"], 400)] if told.get("why_not") else parts)


def attained(info: Mapping[str, Any]) -> str:
    """'90.3% to 91.9% within this run (95%)': the interval of attainment, or that it has none; empty where unknown."""
    told = part(info, "within")
    share = part(told, "attainment")
    if share:
        low, high = (_numbers.share(share.get(end)) for end in ("low", "high"))
        return f"{low} to {high} within this run ({_sure(told)}; other seeds may differ by more)"
    if told.get("at_least") is not None:
        return f"at least {_numbers.share(told['at_least'])} ({_sure(told)}, if requests were independent)"
    return "without an interval" if told else ""


def checks(info: Mapping[str, Any]) -> tuple[Checked, ...]:
    """The checks of a run, in the order of reading."""
    found = []
    for told in info.get("checks") or []:
        if isinstance(told, Mapping):
            name, state, said, remedy = (clean(told.get(k) or "", 600) for k in ("check", "state", "said", "remedy"))
            shown = "not checked" if state == "unknown" else state
            found.append(Checked(name, shown, said, remedy, state == "failed"))
    return tuple(found)


def _intervals(told: Mapping[str, Any], *, asked: bool) -> Iterator[str]:
    measured, share = part(told, "metrics"), part(told, "attainment")
    if told.get("at_least") is not None:
        least = _numbers.share(told["at_least"])
        yield f"attainment at least {least} ({_sure(told)}, if requests were independent)"
    elif share:
        yield f"attainment {_numbers.share(share['low'])} to {_numbers.share(share['high'])}"
    elif measured and asked:
        yield "attainment without an interval: fewer than 1% of the requests miss, or meet"
    for name, of in measured.items():
        known = []
        for word in ("mean", "p99"):
            if isinstance(of.get(word), list):
                unit = _numbers.unit_of(of[word])
                low, high = (_numbers.in_unit(end_s, unit) for end_s in of[word])
                known.append(f"{word} {low} to {high} {unit}")
        if known:
            yield f"{_data.label(name)} {', '.join(known)}"


def _sure(told: Mapping[str, Any]) -> str:
    return f"{100 * float(told.get('confidence') or 0.95):g}%"
