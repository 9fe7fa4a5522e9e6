"""The answer of `bench place` in words: the best of each algorithm, all candidates, what was left out."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from reports import _format
from reports._format import clean, in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look

Info = Mapping[str, Any]

RUNNING = "The placement is not over; the same command with the same --out goes on."
HEADS = ("algorithm", "tp,pp", "GPU", "GPUs", "req/s", "req/s per GPU", "95% interval", "misses above it")
NO_INTERVAL = "One seed gives no interval."
MOST = 12
"""Candidates that a table shows; all of them are in the JSON."""


def text(info: Info, look: Look = PLAIN) -> str:
    """The answer for a terminal: candidates first, then what was left out, then the best."""
    if "best" not in info:
        return look.bold(RUNNING) + "\n"
    heads = heads_of(info)
    parts = [look.bold(title) + "\n" + _curve.text(heads, rows, left=3, look=look) for title, rows in tables(info)]
    if info["skipped"]:
        parts.append(look.bold("left out") + "\n" + "\n".join(_wrapped(line, "  ") for line in skipped(info)))
    parts.append(_wrapped(cost(info)))
    parts.append("\n".join(_wrapped(f"note: {one['message']}.", "  ") for one in info["warnings"]))
    parts.append(
        "\n".join([look.judged(headline(info), bool(info["best"])), *(_wrapped(s, "  ") for s in sentences(info))])
    )
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def markdown(info: Info) -> str:
    """The same in markdown."""
    if "best" not in info:
        return RUNNING + "\n"
    parts = [f"**{in_markdown(headline(info), None)}**\n\n{in_markdown(' '.join(sentences(info)), None)}"]
    heads = heads_of(info)
    parts += [f"{in_markdown(title, None)}\n\n{_curve.markdown(heads, rows, left=3)}" for title, rows in tables(info)]
    parts += [in_markdown(f"Left out: {line}", None) for line in skipped(info)]
    parts += [in_markdown(f"Note: {one['message']}.", None) for one in info["warnings"]]
    parts.append(cost(info))
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def headline(info: Info) -> str:
    """The best placement in one line."""
    left = info["cost"]["left"]
    if not info["best"]:
        return "interrupted before any placement was known" if left else "no placement keeps the SLO at any rate"
    best = info["best"][0]
    objective = info["objective"]
    worth = "" if objective["name"] == "gpu" else f", {_number(best['value'])} {objective['unit']}"
    so_far = f"interrupted; best so far, {_format.count(left, 'candidate')} not searched" if left else "best"
    return f"{so_far}: {_named(best)}, {_gpus(best)}, {_per_gpu(best)}{worth}"


def sentences(info: Info) -> Iterator[str]:
    """What to know about the best of each algorithm."""
    best = info["best"]
    for one in best:
        yield from _of_one(one)
    if info["cost"]["left"]:
        yield "The same command with the same --out goes on; without one it starts again."
    for one in best[1:]:
        if one["value"] > 0:
            times = best[0]["value"] / one["value"]
            much = f"{times:.3g} times that" if f"{times:.3g}" != "1" else "as much as that"
            yield f"That of {best[0]['algorithm']} is worth {much} of {one['algorithm']}."
    for one in best:
        if "replicated" in one:
            yield _replicated(one)


def _of_one(one: Info) -> Iterator[str]:
    whole = f"{_bounded(one, one['rate_rps'])} req/s in all"
    yield f"{one['algorithm']}: {_named(one)}, {_gpus(one)}, {_per_gpu(one)}, {whole}."
    if one["ties"]:
        yield f"As good, but not on fewer GPUs: {_listed(one['ties'])}."
    if one["not_apart"]:
        yield f"The seeds do not tell it from {_listed(one['not_apart'])}."


def _replicated(one: Info) -> str:
    whole = one["replicated"]
    members = " and ".join(f"{m['count']} x {clean(m['name'])}" for m in whole["members"])
    fits = "" if whole["fits"] else ", which is more than the cluster has"
    return (
        f"{_number(whole['target_rps'])} req/s by {one['algorithm']}: {members}, {_gpus(whole)}{fits}; "
        f"they carry {_number(whole['rate_rps'])} req/s."
    )


def tables(info: Info, most: int = MOST) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """A title and at most so many rows for each algorithm and kind of replica."""
    for (algorithm, kind), group in groupby(info["candidates"], key=lambda one: (one["algorithm"], one["kind"])):
        every = [*group]
        more = f" (the best {most} of {len(every)})" if len(every) > most else ""
        what = {
            "colocated": "colocated replicas",
            "pair": "pairs",
            "prefill": "prefill alone",
            "decode": "decode alone",
        }
        yield f"{algorithm}: {what[kind]}{more}", [_row(info, one) for one in every[:most]]


def heads_of(info: Info) -> tuple[str, ...]:
    """Heads of the table of candidates; the worth stands there where it is not the rate."""
    return HEADS if info["objective"]["name"] == "gpu" else (*HEADS, info["objective"]["unit"])


def _row(info: Info, one: Info) -> tuple[str, ...]:
    row = (
        one["algorithm"], one["name"], one["hardware"], str(one["gpus"]), _bounded(one, one["rate_rps"]),
        _bounded(one, one["rate_per_gpu_rps"]), interval(one), one["binding"] or "-",
    )  # fmt: skip
    return row if info["objective"]["name"] == "gpu" else (*row, _number(one["value"]))


def interval(one: Info) -> str:
    """The interval of a rate per GPU."""
    if one["low_per_gpu_rps"] is None:
        return "-"
    return f"{_format.number(one['low_per_gpu_rps'])} to {_format.number(one['high_per_gpu_rps'])}"


def skipped(info: Info) -> Iterator[str]:
    """What was left out, those of one reason together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in info["skipped"]:
        reasons.setdefault((one["hardware"], one["reason"]), []).append(one["name"])
    for (hardware, reason), names in reasons.items():
        yield f"{', '.join(names)} on {hardware}: {clean(reason, None)}"


def cost(info: Info) -> str:
    """What the search took."""
    spent = info["cost"]
    left = f", {spent['left']} candidates left" if spent["left"] else ""
    return (
        f"cost: {_format.count(spent['candidates'], 'candidate')}, {_format.count(spent['trials'], 'trial')}, "
        f"{spent['requests']:,} requests, "
        f"{_format.seconds(spent['wall_s'])}{left}"
    )


def _named(one: Info) -> str:
    return f"{clean(one['name'])} on {clean(one['hardware'])}"


def _gpus(one: Info) -> str:
    return f"{one['gpus']:,} GPU{'' if one['gpus'] == 1 else 's'}"


def _per_gpu(one: Info) -> str:
    told = f"{_bounded(one, one['rate_per_gpu_rps'])} req/s per GPU"
    if one["low_per_gpu_rps"] is None:
        return told
    mean = "" if one["mean_per_gpu_rps"] == one["rate_per_gpu_rps"] else f"mean {_number(one['mean_per_gpu_rps'])}, "
    return f"{told} ({mean}95%: {interval(one)})"


def _listed(units: Sequence[Info]) -> str:
    return ", ".join(f"{_named(one)} ({_gpus(one)}, {_number(one['rate_per_gpu_rps'])})" for one in units)


def _bounded(one: Info, rate_rps: float) -> str:
    """A rate, with a word before it where no rate was shown to be too high."""
    return f"{'at least ' if one.get('at_least') else ''}{_number(rate_rps)}"


def _number(value: float) -> str:
    return _format.number(value, 4)


def _wrapped(sentence: str, indent: str = "") -> str:
    return "\n".join(wrap(clean(sentence, None), 98, initial_indent=indent, subsequent_indent=indent + "  "))
