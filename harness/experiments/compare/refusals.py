"""What must be equal in two runs before their difference means anything, and everything else in which they differ."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from harness.data.codec import encode, inner
from harness.data.folder import Run
from harness.errors import no_such
from harness.experiments.compare.compare_json import Difference, Refusal
from harness.experiments.compare.pairing import Matched, Pair, Searched, Source, schedule_of
from harness.options import SCHEDULE
from harness.stats.paired import LEAST_PAIRS

PASSING = ("salt", "notes", "capabilities", "timeouts", "address", "addresses")
"""Facts of a backend that change with every run, or repeat its URL."""

_OWN = ("workload", "rate", "seed", "requests")
"""Options of a schedule that a search varies, or that stand in a field of their own."""

OUTPUT_LENGTHS = "output-lengths"

TURNS = "turns"

OTHERS = ("pairs", "runs", OUTPUT_LENGTHS, TURNS)
"""What can be refused beside the fields: too few pairs, runs of the base without a partner, longer answers; and runs
that were not made in turns, which decide nothing."""


LATER = ("definition", "horizon", "model", "hardware")
"""Fields that a version of bench may not have stored, which is no difference; all others decide what was sent."""


def refusal(difference: Difference) -> Refusal:
    """A difference with its sentence: 'the model differs: opt-13b in the base, llama2-7b in the head'."""
    field, base, head = difference.field, difference.base, difference.head
    verb = "differ" if field in ("requests", "runs", OUTPUT_LENGTHS) else "differs"
    message = f"the {field.replace('-', ' ')} {verb}: {base} in the base, {head} in the head"
    if field == "pairs":
        message = f"{base}, {head}: with fewer than that no difference can be distinguished from noise"
    return Refusal(field, base, head, message)


def checked(text: str) -> frozenset[str]:
    """The fields of `--allow-different a,b`. Raises UsageError for an unknown one."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in FIELDS and name not in OTHERS:
            raise no_such("field to allow a difference in", name, [*FIELDS, *OTHERS])
    return frozenset(names)


def found(matched: Matched, *, rescored: bool) -> list[Difference]:
    """Everything that forbids a comparison, each once; other SLOs do not where both sides are `rescored`."""
    differing = (
        Difference(name, _text(base), _text(head))
        for pair in matched.pairs
        for name, get in FIELDS.items()
        if not (rescored and name == "slo")
        if (base := _stated(get(pair.base))) != (head := _stated(get(pair.head)))
        if not (None in (base, head) and name in LATER and _versions_differ(pair))
    )
    return [*dict.fromkeys(differing), *_too_few(matched.pairs), *_without_partner(matched)]


def _too_few(pairs: Sequence[Pair]) -> Iterator[Difference]:
    """Fewer than three pairs of runs under a wall clock, at any point, have no power to decide anything."""
    counts = Counter(tuple(pair.point.items()) for pair in pairs)
    least = min(counts.values(), default=0)
    if least < LEAST_PAIRS and not all(map(is_virtual, pairs)):
        at_point = " at a point" if len(counts) > 1 else ""
        yield Difference("pairs", f"{least} pair{'s' if least != 1 else ''} there{at_point}", f"{LEAST_PAIRS} needed")


def _without_partner(matched: Matched) -> Iterator[Difference]:
    """Runs of the base that no run of the head answers to: what they guarded is not compared any more.

    Searches take as many seeds as they need, so that one may have more than the other.
    """
    unpaired = [run for run in matched.alone_base if not isinstance(run, Searched)]
    if unpaired and matched.pairs:
        names = ", ".join(str(run.path) for run in unpaired[:3]) + (", ..." if len(unpaired) > 3 else "")
        yield Difference("runs", f"{len(unpaired)} without a partner ({names})", "nothing of the same schedule")


def in_turns(pairs: Sequence[Pair]) -> bool:
    """Whether the runs were made in turns, by the start times that are stored with them: those of a pair one after the
    other, and at each point of a sweep either side first in half of the pairs.

    Else their difference is also that of two occasions: with a day effect of 2 % and runs of the base in one night,
    those of the head in another, 1 in 4 comparisons of equal systems found a difference (tests/perf). A virtual clock
    knows no occasions.
    """
    if all(run.info.virtual for pair in pairs for run in (pair.base, pair.head)):
        return True
    runs = [(_started(run), number, side) for number, pair in enumerate(pairs)
            for side, run in enumerate((pair.base, pair.head))]  # fmt: skip
    ordered = sorted((time, number, side) for time, number, side in runs if time is not None)
    firsts = ordered[::2]
    head_first = Counter(tuple(pairs[number].point.items()) for _, number, side in firsts if side)
    return (
        len(ordered) == len(runs)
        and all(first[1] == other[1] for first, other in zip(firsts, ordered[1::2], strict=True))
        and all(
            abs(count - 2 * head_first[point]) <= 1
            for point, count in Counter(tuple(pair.point.items()) for pair in pairs).items()
        )
    )


def _started(source: Source) -> datetime | None:
    """When a run began; None where that is not stored. Other tools leave out the zone."""
    try:
        start_time = datetime.fromisoformat(source.info.started or "")
    except ValueError:
        return None
    return start_time if start_time.tzinfo else start_time.replace(tzinfo=UTC)


def is_virtual(pair: Pair) -> bool:
    """Whether both runs are of a simulator, and so without noise."""
    return all(not isinstance(run, Searched) and run.info.virtual for run in (pair.base, pair.head))


def others(pairs: Sequence[Pair]) -> list[Difference]:
    """Everything recorded in which base and head differ: options, hardware, versions.

    A field that is new in the version of bench of one side is no difference.
    """
    differences: list[Difference] = []
    for pair in pairs:
        base, head = _facts(pair.base), _facts(pair.head)
        fields = base.keys() & head.keys() if _versions_differ(pair) else base.keys() | head.keys()
        names = (name for name in dict.fromkeys([*base, *head]) if name in fields and base.get(name) != head.get(name))
        differences += [Difference(name, _text(base.get(name)), _text(head.get(name))) for name in names]
    return list(dict.fromkeys(differences))


def _versions_differ(pair: Pair) -> bool:
    base, head = (run.info.versions.get("bench") for run in (pair.base, pair.head))
    return base != head


def _facts(source: Source) -> dict[str, object]:
    """The options of a run and what it ran with, flat; of a simulator the machine plays no part."""
    info = source.info
    server = inner(encode(info), "server")  # other tools may have a version
    parts: dict[str, Mapping[str, object]] = {
        "": {k: v for k, v in info.backend.items() if k not in PASSING and isinstance(v, str | int | float | None)},
        "option ": {k: v for k, v in info.spec.items() if k not in info.backend},
        "version of ": info.versions,
        "server ": {k: v for k, v in server.items() if k in ("kind", "version")},
        "host ": {} if info.virtual else {k: v for k, v in info.host.items() if k != "load"},
    }
    return {f"{prefix}{name}": value for prefix, part in parts.items() for name, value in part.items()}


def _workload(source: Source) -> str | None:
    if isinstance(source, Run):
        sent = source.info.workload
        return " ".join(text for text in (sent.name, sent.lengths) if text) or None
    if source.search.workload is None:
        return None
    spec = source.info.spec  # a search has many schedules: its options are all that is known of them
    options = (f"{name}={spec[name]}" for name in SCHEDULE if name not in _OWN and name in spec)
    return " ".join([source.search.workload, *options])


def _hardware(source: Source) -> object:
    """The GPU of a simulator; else the machine that the client ran on, which for an engine is also the system."""
    simulated = source.info.backend.get("hardware")
    if simulated or source.info.virtual:
        return simulated
    host = source.info.host
    return ", ".join(str(host[key]) for key in ("cpu", "cores", "machine") if host.get(key) is not None) or None


def _horizon(source: Source) -> object:
    """How long the runs of a simulated search last: capacities over different periods are not comparable."""
    if not isinstance(source, Searched):
        return None
    lasting = dict.fromkeys(answer.horizon.horizon_s for answer in source.search.answers if answer.horizon is not None)
    return ", ".join(f"{seconds:g} s" for seconds in lasting) or None


def _requests(source: Source) -> object:
    if isinstance(source, Searched):
        return source.search.run.requests
    planned = source.info.schedule.requests
    return len(source.requests) if planned is None else planned


FIELDS: Mapping[str, Callable[[Source], object]] = MappingProxyType(
    {
        "tool": lambda source: source.info.source.tool or "bench",
        "workload": _workload,
        "requests": _requests,
        "schedule": schedule_of,
        "slo": lambda source: source.info.slo.text,
        "definition": lambda source: source.search.definition if isinstance(source, Searched) else None,
        "horizon": _horizon,
        "backend": lambda source: source.info.backend.get("backend"),
        "model": lambda source: source.info.backend.get("model"),
        "hardware": _hardware,
        "schema": lambda source: (source.search if isinstance(source, Searched) else source.info).schema,
    }
)
"""What must be equal, and how it is read from a run."""


def _stated(value: object) -> str | None:
    """A field as text; None where it is not known."""
    return None if value is None else str(value)


def _text(value: object) -> str:
    text = "none" if value is None else str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text
