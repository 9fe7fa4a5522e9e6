"""What is decided before anything is written or sent: workload, SLO, backend and the drawn schedule."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from harness import api, registry
from harness.api import Backend, FollowUps, Loaded, RecordedContent, Remote, RequestRecord, Simulator, Slo, Source
from harness.data.dependencies import Releases
from harness.data.run_json import Workload
from harness.data.schedule import Schedule, links
from harness.errors import NotValid, UsageError
from harness.metrics.measure import metrics
from harness.metrics.objective import BROUGHT, parse_slo
from harness.options import RunSpec
from harness.runner.virtual import Capped
from harness.spec import convert, parse, types_of
from harness.stats.arrivals import Law

MOST_REQUESTS = 100_000_000
"""Requests that a run may have: their table takes some 10 GB."""

FILES = ("path", "tokenizer")
"""Arguments of plug-ins that name a file or folder of the user."""

DRAIN_S = 60.0
"""How long answers may take after the last departure, where neither the user nor the backend says how long."""

WALL_TRACE_S = 60.0
"""How much of a trace is replayed in real time when nothing says how much."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that can begin; `spec` has every default filled in that decides what is sent."""

    spec: RunSpec
    loaded: Loaded
    slo: Slo
    backend: Backend | Simulator
    schedule: Schedule
    history: str = "live"
    """What follow-ups repeat, as `--history` has it."""
    response_cache: api.ResponseCache | None = None

    @property
    def virtual(self) -> bool:
        """Whether the clock is a simulator's."""
        return isinstance(self.backend, Simulator)

    def redact(self, text: str) -> str:
        """A text without the secrets that the backend was given."""
        return self.backend.redact(text) if isinstance(self.backend, Remote) else text

    @property
    def drain_s(self) -> float:
        """How long answers may take after the last departure."""
        assert self.spec.drain is not None
        return self.spec.drain

    @property
    def recorded(self) -> bool:
        """Whether requests come at the times of a trace or a list."""
        return self.loaded.timing == "recorded"

    @property
    def rate_rps(self) -> float | None:
        """The mean request rate: that of the arrivals, or of the part of a recording that is sent.

        None where all requests come at one instant, and where users wait for their answers.
        """
        if self.loaded.timing == "closed":
            return None
        if not self.recorded:
            return self.loaded.rate_rps
        span_s = self.schedule.span_s
        return (len(self.schedule) - 1) / span_s if span_s > 0 else None

    @property
    def law(self) -> Law:
        """What the arrivals declare: their rate, and the law of their gaps where there is one."""
        begun_rps = None if self.recorded else self.loaded.arrivals_rps  # sessions, not their turns
        clock = self.loaded.operational_time
        settles_s = self.loaded.settles_s
        waiting = self.recorded and self.schedule.has_follow_ups  # the session rate of a trace is unknown
        return Law(None if waiting else begun_rps or self.rate_rps, self.loaded.gap_cdf, clock, settles_s=settles_s)

    @property
    def traffic(self) -> Workload:
        """What is sent, as stored in run.json."""
        return Workload(
            name=self.loaded.name,
            arrivals=self.loaded.arrivals_text,
            lengths=self.loaded.lengths_text,
            rate_rps=self.rate_rps,
            arrivals_rps=self.law.rate_rps,
            recorded=self.recorded,
            provenance=dict(self.loaded.provenance),
        )

    def follow_ups(self, drop: Callable[[RequestRecord], None]) -> FollowUps | None:
        """The follow-ups that answers release; None without any. `drop` gets records of those that cannot be sent."""
        return Releases(self.schedule, drop, self.spec.duration) if self.schedule.has_follow_ups else None


def plan(spec: RunSpec, *, repeats: str | None = None) -> Plan:
    """Load, check and draw everything; writes nothing.

    `repeats` is the schedule hash of the run to repeat: another schedule raises NotValid. What is wrong with
    an option raises UsageError.
    """
    backend = make_backend(spec)
    cache = None if spec.response_cache is None else registry.make("caches", spec.response_cache, seed=spec.seed)
    if isinstance(backend, api.CachedSimulator):
        backend.response_cache = cache
    elif cache is not None and isinstance(backend, Simulator):
        raise UsageError(f"--response-cache does not apply to the backend '{spec.backend}', which knows of none.")
    remote = backend if isinstance(backend, Remote) else None
    spec = replace(spec, content=spec.content or (remote.default_content if remote is not None else None))
    if spec.drain is None:
        spec = replace(spec, drain=DRAIN_S if remote is None else remote.timeout_s)
    loaded = load_workload(spec, exact=True)
    spec = replace(spec, warmup=spec.warmup or loaded.warmup)
    objective = _measurable(spec, loaded, backend)
    spec = _with_limits(spec, loaded, virtual=isinstance(backend, Simulator))
    _check_size(spec, loaded)
    history = _history(spec, loaded, backend)
    schedule = Schedule.draw(
        loaded.workload, seed=spec.seed, requests=spec.requests, duration_s=spec.duration, live=history == "live"
    )
    if spec.max_in_flight is not None and isinstance(backend, Simulator):
        _, parents = links(schedule.table)
        if len(np.unique(parents)) < len(parents):
            raise UsageError(
                "--max-in-flight does not go with calls in parallel on a simulator, which could not order them as a "
                "client does; use a server or the engine, or sessions of one call at a time."
            )
        backend = Capped(backend, spec.max_in_flight)
    if (
        not isinstance(backend, Simulator)
        and "beams" in pc.struct_field(schedule.table["extra"], "kind").unique().to_pylist()
    ):
        raise UsageError("Beam searches are only simulated; give --backend sim, or a workload of separate answers.")
    if objective.bounds != parse_slo(loaded.slo_text).bounds:
        _check_classes(objective, schedule)
    if spec.fail_under is not None:
        columns = [schedule.table[name] for name in BROUGHT.values() if name in schedule.table.column_names]
        columns.append(pc.struct_field(schedule.table["extra"], ["slo", "e2e_s"]))
        if not objective.bounds and all(column.null_count == len(column) for column in columns):
            raise UsageError("--fail-under needs an SLO to judge by; give one, such as --slo ttft=0.25,tpot=0.1.")
    if repeats is not None and schedule.sha256 != repeats:
        raise NotValid(
            f"The schedule drawn now ({schedule.sha256[:12]}) is not that of the run to repeat "
            f"({repeats[:12]}); the trace, the preset or bench itself has changed since."
        )
    filled = _anywhere(replace(spec, slo=str(objective) or None, backend=_spelled(spec.backend, backend)))
    return Plan(filled, loaded, replace(objective, goal=spec.goal), backend, schedule, history, cache)


def _history(spec: RunSpec, loaded: Loaded, backend: Backend | Simulator) -> str:
    """What follow-ups repeat. Raises UsageError for recorded prompts, which hold their own history."""
    recorded = isinstance(backend, Remote) and isinstance(loaded.content, RecordedContent)
    if recorded and spec.history not in (None, "recorded"):
        raise UsageError(
            f"--history {spec.history} does not go with --content recorded: its prompts are sent as they are."
        )
    return spec.history or ("recorded" if recorded else "live")


def _measurable(spec: RunSpec, loaded: Loaded, backend: Backend | Simulator) -> Slo:
    """The SLO of a run; of answers that come whole, only bounds on whole answers can be judged."""
    objective = parse_slo(spec.slo if spec.slo is not None else loaded.slo_text)
    if not isinstance(backend, Remote) or backend.stream:
        return objective
    unknown = [bound for bound in objective.bounds if metrics()[bound.metric].needs_token_times]
    if unknown and spec.slo is not None:
        raise UsageError(f"--slo '{unknown[0]!s}': with stream=false there are no token times; bound e2e instead.")
    return replace(objective, bounds=tuple(bound for bound in objective.bounds if bound not in unknown))


def _anywhere(spec: RunSpec) -> RunSpec:
    """The spec with whole paths of files, so that its run.json repeats the run from any folder."""
    texts = {option: getattr(spec, option) for option in ("arrivals", "lengths", "sessions", "content", "workload")}
    resolved: dict[str, Any] = {o: _with_whole_paths(o, text) for o, text in texts.items() if text is not None}
    trace = None if spec.trace is None else str(Path(spec.trace).absolute())
    return replace(spec, trace=trace, **resolved)


def _spelled(text: str, backend: Backend | Simulator) -> str:
    """The spec of a backend with what it took from the environment, so that it means the same on another day."""
    from_env = backend.from_environment if isinstance(backend, Remote) else {}
    if not from_env:
        return text
    spec = parse(text)
    return str(replace(spec, args={**spec.args, **from_env}))


def _with_whole_paths(option: str, text: str) -> str:
    kind, spec = "lengths" if option == "workload" else option, parse(text)
    if spec.name.endswith(".toml"):
        return str(replace(spec, name=str(Path(spec.name).absolute())))
    if spec.name not in registry.names(kind):  # a preset
        return text
    fields = [f.name for f in dataclasses.fields(registry.find(kind, spec.name)) if f.init]
    args = {k: str(Path(v).absolute()) if k in FILES and Path(v).exists() else v for k, v in spec.args.items()}
    first = spec.first
    if first is not None and fields[0] in FILES and Path(first).exists():
        first = str(Path(first).absolute())
    return text if (args, first) == (spec.args, spec.first) else str(replace(spec, args=args, first=first))


def _check_size(spec: RunSpec, loaded: Loaded) -> None:
    """Raises UsageError for a schedule too large to draw: it is held in memory as a whole before the run."""
    if loaded.timing == "recorded":  # what is there bounds it
        return
    in_time = None if spec.duration is None else (loaded.rate_rps or 0.0) * spec.duration
    most = min((n for n in (spec.requests, in_time) if n is not None), default=0)
    if most > MOST_REQUESTS:
        raise UsageError(
            f"A run can hold {MOST_REQUESTS:,} requests, and --requests and --duration allow more of them; "
            "give a smaller one."
        )


def _check_classes(objective: Slo, schedule: Schedule) -> None:
    """A bound for a class that has no request would hold whatever happens."""
    tags = sorted(tag for tag in schedule.table["tag"].unique().to_pylist() if tag is not None)
    for bound in objective.bounds:
        if bound.tag is not None and bound.tag not in tags:
            hint = f"classes there: {', '.join(tags)}" if tags else "the workload has no classes, so leave out the '@'"
            raise UsageError(f"--slo '{bound!s}': no request to send is of class '{bound.tag}'; {hint}.")


def load_workload(spec: RunSpec, *, exact: bool = False) -> Loaded:
    """The workload or trace that a spec names; `exact` where its rate must be that of a run as long as the spec's."""
    source: Source = registry.find("sources", "preset" if spec.trace is None else "trace")()
    if spec.trace is not None:
        return source.load(
            spec.trace, reader=spec.reader, start_s=spec.start or 0.0, stop_s=spec.stop,
            limit=spec.limit, where=spec.where, scale=spec.scale, jitter=spec.jitter, turns=spec.turns,
            arrivals=spec.arrivals, rate_rps=spec.rate, sessions=spec.sessions, content=spec.content, seed=spec.seed,
            duration_s=spec.duration,
        )  # fmt: skip
    assert spec.workload is not None
    part = {"requests": spec.requests, "duration_s": spec.duration} if exact else {}
    loaded = source.load(
        spec.workload, rate_rps=spec.rate, arrivals=spec.arrivals, lengths=spec.lengths, sessions=spec.sessions,
        prefixes=spec.prefixes, content=spec.content, seed=spec.seed, **part,
    )  # fmt: skip
    if exact and spec.requests is None and spec.duration is None and loaded.requests is not None:
        return load_workload(dataclasses.replace(spec, requests=loaded.requests), exact=True)
    return loaded


def make_backend(spec: RunSpec) -> Backend | Simulator:
    """The backend of a spec, its parts filled in. Raises UsageError for a part that it does not have."""
    backend = parse(spec.backend)
    name = backend.name
    cls = registry.find("backends", name)
    hints = types_of(cls)
    arguments = {f.name for f in dataclasses.fields(cls) if f.init}
    filled: dict[str, object] = {}
    for part, value in spec.parts().items():
        option = f"--{part.replace('_', '-')}"
        if part not in arguments:
            others = ", ".join(sorted(arguments)) or "none"
            raise UsageError(f"{option} does not apply to the backend '{name}'; its arguments are: {others}.")
        filled[part] = convert(str(value), hints[part], part, option)
    built: Any = registry.make("backends", backend, **filled)
    return built  # type: ignore[no-any-return]  # the registry cannot know


def _with_limits(spec: RunSpec, loaded: Loaded, *, virtual: bool) -> RunSpec:
    """Where nothing limits the run: the preset's number of requests, a whole trace, or its first minute."""
    if spec.requests is not None or spec.duration is not None:
        return spec
    if spec.trace is None:
        return replace(spec, requests=loaded.requests)
    if virtual or spec.limit is not None or spec.stop is not None:
        return spec
    return replace(spec, duration=WALL_TRACE_S)
