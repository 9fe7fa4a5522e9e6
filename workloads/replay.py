"""A recorded trace as a workload: its stamps, lengths, sessions and shared prefixes."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from harness import registry, untrusted
from harness.api import Arrivals, Content, GapLaw, Loaded, RateCurve
from harness.data.records import listed, schedule_chunk
from harness.errors import UsageError
from harness.spec import Spec, parse, text_of
from workloads import session_replay, session_times, trace_rows, traces, transforms
from workloads._build import settles_s, slowed, timing_of
from workloads.arrivals.closed import Closed
from workloads.content.recorded import Recorded as RecordedPrompts
from workloads.session_replay import Sessions
from workloads.session_times import Answered, ApiScaled, Recorded, ThinkOnly
from workloads.traces import Trace

CHUNK = 65_536
"""Rows of a chunk of the schedule."""

ONE_AT_A_TIME = Closed(users=1, think_s=0.0, law="fixed")

Turns = Literal["recorded", "answered"]


def load(
    path: str,
    *,
    reader: str | None = None,
    start_s: float | None = None,
    stop_s: float | None = None,
    limit: int | None = None,
    where: str | None = None,
    jitter: str | None = None,
    scale: str | None = None,
    turns: str | None = None,
    arrivals: str | None = None,
    rate_rps: float | None = None,
    sessions: str | None = None,
    content: str | None = None,
    seed: int = 0,
    duration_s: float | None = None,
) -> Loaded:
    """The workload that replays a trace file, or a slice of it (see `traces.Slice`).

    In this order: the slice, `where` (conditions, see `transforms.filtered`), `limit`, `jitter` (a time, or 'grain'),
    `scale` (`transforms.scaling`). What was done, and with which seed, stands in the provenance. `turns` says when a
    later turn of a conversation follows (`session_times.turns_of`), `arrivals` when sessions start, at a rate of
    `rate_rps` requests, and `sessions` which of them; steady users have some for `duration_s`. Without these, stamps
    are those of the file; but sessions with clocks of their own are replayed one at a time, each turn its think time
    after the answer before.
    Raises UsageError naming file, line and column for whatever is wrong with the file, and for wrong options.
    """
    timing = None if turns is None else session_times.turns_of(turns)
    of_model = is_model(path)
    chosen = session_replay.sessions_of(sessions, "fitted" if of_model else "recorded")
    prompt_source: Content = registry.make("content", content or "tokens", seed=seed)
    texts = isinstance(prompt_source, RecordedPrompts)
    if texts and ("context" in (scale or "") or chosen.common):
        what = "--sessions recorded:common=" if chosen.common else f"--scale {scale}"
        raise UsageError(f"{what} changes prompts, and --content recorded sends them as they are; leave one out.")
    if of_model:
        flags = {"reader": reader, "start": start_s, "stop": stop_s, "content recorded": texts}
        if wrong := [name for name, value in flags.items() if value]:
            raise UsageError(f"--{wrong[0]} is for a recorded trace; the model '{path}' draws its sessions.")
        trace = sessions_of_model(path, chosen.count, seed, whole=arrivals is not None)
        trace = transforms.first(trace if where is None else transforms.filtered(trace, where), limit)
    else:
        part = {"start_s": start_s, "stop_s": stop_s, "limit": limit, "where": where, "texts": texts}
        trace = _read_again(path, _state(path), reader=reader, **part)
    trace = changed(trace, scale=scale, jitter=jitter, seed=seed)
    names = trace.table.column_names
    if timing not in (None, Recorded()) and "parent" not in names and "session" not in names:
        raise UsageError(f"--turns {turns} needs conversations, and '{path}' names none; leave it out.")
    if arrivals is None and trace.facts.get("stamps") == traces.NO_STAMPS:
        what = "has no column of stamps that is known: give --arrivals, such as poisson --rate 4, or name the column"
        raise UsageError(f"Trace '{path}' {what} (--reader at=NAME,prompt=...,output=...).")
    own_clocks = traces.clock(trace.facts) == "session"
    if traces.clock(trace.facts) == "answers":
        timing = timing or ThinkOnly()
    if arrivals is not None or own_clocks:
        starts: Arrivals = ONE_AT_A_TIME
        if arrivals is not None:
            mean = session_replay.mean_requests(trace, chosen, seed)
            starts = _arrivals(trace, arrivals, rate_rps, mean, own_clocks=own_clocks)
        if sessions is None and arrivals is None:
            chosen = Sessions(order="file")
        timing = timing or (ThinkOnly() if "parent" in names else Recorded())
        return _restarted(trace, timing, chosen, starts, prompt_source, seed, duration_s)
    flags = {"path": path, "reader": reader, "start_s": start_s, "stop_s": stop_s, "limit": limit,
             "where": where, "jitter": jitter, "scale": scale, "turns": turns, "sessions": sessions}  # fmt: skip
    # a comma ends a value of a spec, and file names and conditions may hold some
    given_texts = {key: str(value).replace(",", ";") for key, value in flags.items() if value is not None}
    if sessions is not None or isinstance(timing, ThinkOnly | ApiScaled):
        placed = _restarted(trace, timing or Recorded(), chosen, None, prompt_source, seed)
        return dataclasses.replace(placed, arrivals_text=str(Spec("trace", given_texts)))
    replayed = Replay(trace, "answered" if timing == Answered() else "recorded")
    return Loaded(
        name=str(trace.facts["file"]),
        workload=replayed,
        content=_bound(prompt_source, trace, None),
        arrivals_text=str(Spec("trace", given_texts)),
        lengths_text="those of the trace",
        rate_rps=trace.mean_rate_rps,
        requests=len(trace),
        provenance=replayed.describe(),
        timing="recorded",
    )


def sessions_of_model(path: str, count: int | None, seed: int, *, whole: bool) -> Trace:
    """Sessions drawn from a model file: `count` of them, None for as many as its trace had. Raises UsageError."""
    from workloads.fit import _whole_draw, command  # heavy
    from workloads.fit.model import Model

    model = Model.load(path)
    if model.whole is None:
        raise UsageError(f"'{path}' is a model without whole sessions: {command.NO_WHOLE}.")
    trace = _whole_draw.drawn(model, sessions=count or model.whole["sessions"], whole=whole, seed=seed)
    return transforms.with_facts(trace, file=Path(path).name)


def is_model(path: str) -> bool:
    """Whether a file is a model that `bench trace fit` wrote, by how it begins."""
    file = Path(path)
    if file.suffix != ".json" or not file.is_file():
        return False
    with file.open("rb") as stored:
        return b'"bench_model"' in stored.read(64)


def _arrivals(
    trace: Trace, text: str, rate_rps: float | None, mean_requests: float, *, own_clocks: bool
) -> Arrivals:  # fmt: skip
    """Arrivals of sessions, at the rate (of requests) of their spec, else `rate_rps`, else that of the trace.

    Sessions with clocks of their own have none; they come at the default of the arrivals.
    """
    spec = parse(text)
    names = {f.name for f in dataclasses.fields(registry.find("arrivals", spec.name))}
    target_rps = rate_rps if rate_rps is not None or own_clocks else trace.mean_rate_rps or None
    arguments = {"rate_rps": target_rps} if target_rps is not None and "rate_rps" in names else {}
    process: Arrivals = registry.make("arrivals", spec, **arguments)
    if rate_rps is not None and (not arguments or not math.isclose(process.mean_rate_rps, rate_rps)):
        raise UsageError(f"--rate {rate_rps:g} does not go with --arrivals {text}; leave one of them out.")
    if isinstance(process, Closed):
        return process
    return slowed(process, mean_requests)[0]


def _restarted(
    trace: Trace,
    turns: session_times.Turns,
    chosen: Sessions,
    arrivals: Arrivals | None,
    content: Content,
    seed: int,
    duration_s: float | None = None,
) -> Loaded:
    """The sessions of a trace at other starts, or in another timing."""
    replayed = session_replay.place(trace, turns, chosen, arrivals, seed, duration_s)
    facts = {**replayed.describe(), "turns": text_of(turns, turns.name)}
    closed, begun_rps = isinstance(arrivals, Closed), None if arrivals is None else arrivals.mean_rate_rps
    open_rps = None if begun_rps is None else begun_rps * session_replay.mean_requests(trace, chosen, seed)
    name = "trace" if arrivals is None else registry.name_of(arrivals)
    return Loaded(
        name=str(trace.facts["file"]),
        workload=dataclasses.replace(replayed, facts=facts),
        content=_bound(content, trace, replayed.placed.row),
        arrivals_text=name if arrivals is None else text_of(arrivals, name),
        lengths_text="those of the trace",
        rate_rps=None if closed else trace.mean_rate_rps if arrivals is None else open_rps,
        requests=len(replayed),
        gap_cdf=arrivals.gap_cdf if isinstance(arrivals, GapLaw) else None,
        provenance=facts,
        operational_time=arrivals.operational_time if isinstance(arrivals, RateCurve) else None,
        arrivals_rps=None if closed else begun_rps,
        settles_s=0.0 if arrivals is None else settles_s(arrivals),
        warmup=replayed.warmup,
        timing="recorded" if arrivals is None else timing_of(arrivals),
    )


def _bound(content: Content, trace: Trace, rows: np.ndarray | None) -> Content:
    """The content of requests that are these `rows` of a trace (None: all of them)."""
    if not isinstance(content, RecordedPrompts) or trace.texts is None:
        return content
    return content.of(trace.texts.prompts(trace.table, rows))


def read(
    path: str,
    reader: str | None = None,
    *,
    start_s: float | None = None,
    stop_s: float | None = None,
    limit: int | None = None,
    where: str | None = None,
    texts: bool = False,
) -> Trace:
    """A slice of a trace file, filtered; `limit` counts the requests that pass, and with `texts` prompts can be read.

    Raises UsageError.
    """
    try:
        part = traces.Slice(start_s, stop_s, None if where else limit)
    except ValueError as error:
        raise UsageError(f"Trace '{path}': {error}") from None
    trace = traces.read(path, reader, part, texts=texts)
    if (origin := _origin(path)) is not None:
        trace = transforms.with_facts(trace, made_from=origin)
    return trace if where is None else transforms.first(transforms.filtered(trace, where), limit)


def _origin(path: str) -> Mapping[str, object] | None:
    """The origin of the rows in a Parquet file of a written trace; None for other files."""
    import pyarrow.parquet as pq  # heavy

    file = Path(path)
    if file.suffix != ".parquet":
        return None
    with pq.ParquetFile(file) as stored:
        text = (stored.metadata.metadata or {}).get(b"bench.source")
    try:
        origin = untrusted.parse_json(text, f"'{path}'") if text else None
    except ValueError:
        return None
    return origin if isinstance(origin, dict) else None


@lru_cache(maxsize=1)
def _read_again(path: str, state: object, **part: Any) -> Trace:  # noqa: ARG001  # a file that was changed is another
    """What was read last: the trials of a search all replay one trace."""
    return read(path, **part)


def _state(path: str) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of a file, or of all files in a folder; nothing where it cannot be read."""
    try:
        files = sorted(Path(path).rglob("*")) if Path(path).is_dir() else [Path(path)]
        return tuple((str(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in files)
    except (OSError, ValueError):  # a name with a null character
        return ()


def changed(trace: Trace, *, scale: str | None = None, jitter: str | None = None, seed: int = 0) -> Trace:
    """The trace jittered and scaled, from generators of `seed`: one cannot change the draws of the other.

    Jitter comes first: it is about the clock of the recorder, in recorded time.
    """
    scaling, jittering = np.random.SeedSequence(seed).spawn(2)
    if jitter is not None:
        trace = transforms.jittered(trace, jitter, np.random.default_rng(jittering))
    if scale is not None:
        trace = transforms.scaled(trace, scale, np.random.default_rng(scaling))
    return trace if scale is None and jitter is None else transforms.with_facts(trace, seed=seed)


@dataclass(frozen=True, slots=True)
class Replay:
    """The requests of a trace, in its order, at its times (s), whatever the seed.

    `turns` 'recorded': later turns of a conversation come at the recorded times too, and do not wait for the
    answer before. 'answered': each comes at its recorded time or when the turn before is answered, whichever is
    later. No one waits for the answers to rows with the tag `offline`.
    """

    trace: Trace
    turns: Turns = "recorded"

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:  # noqa: ARG002  # nothing is random here
        """All requests of the trace; ids are row numbers."""
        links = session_times.links_of(self.trace.table) if self.turns == "answered" else None
        for start in range(0, len(self.trace), CHUNK):
            yield self._chunk(self.trace.table.slice(start, CHUNK), start, links)

    def _chunk(self, part: pa.Table, start: int, links: session_times.Links | None) -> pa.Table:
        lengths = {name: part[name] for name in ("prompt_tokens", "output_tokens")}
        copied = {name: part[name] for name in ("prefix_ids", "session", "tag") if name in part.column_names}
        optional: dict[str, Any] = {**trace_rows.brought(part)}
        if "prefix_ids" in copied:
            optional["prefix_block_tokens"] = np.full(len(part), self.trace.block_tokens)
        if "turn" in part.column_names:
            optional["turn"] = part["turn"].fill_null(0)
        if links is not None:
            starts = links.starts[start : start + len(part) + 1]
            optional["after"] = listed(np.diff(starts), links.items[starts[0] : starts[-1]])
        if (extra := trace_rows.extras(part, copied.get("tag"))) is not None:
            optional["extra"] = extra
        ids = np.arange(start, start + len(part))
        return schedule_chunk(len(part), id=ids, scheduled_s=part["at_s"], **lengths, **copied, **optional)

    def describe(self) -> Mapping[str, object]:
        """File, hash, format, rows, what was left out, and what was done to the rest."""
        return {**self.trace.facts, "turns": self.turns}
