"""The options of `bench run`: one table, from which the command line, TOML keys, run.json and help derive.

A field of `RunSpec` is an option; to add one is to add a field, and to use it where it acts. The command line wins over
a file (`harness.configs`). Parts of a backend (`--policy`, `--model`, ...) fill fields of its spec.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from harness import values as check
from harness.errors import UsageError, nearest
from harness.removed import ARGUMENTS, REMOVED, SERVER
from harness.spec import parse
from harness.values import Check

TRAFFIC, TRACE, LENGTH, OBJECTIVES = "Traffic", "Trace", "Run length", "Objectives"
SYSTEM = "System (all arguments: bench explain sim, bench explain engine)"
PARALLELISM = "Parallelism (sim)"
ENDPOINT = "Remote endpoint (all arguments: bench explain openai)"
GROUPS = (TRAFFIC, TRACE, LENGTH, OBJECTIVES, SYSTEM, PARALLELISM, ENDPOINT)
"""Headings in help, in this order."""

DEFAULT_WORKLOAD = "chatbot"
HIDDEN = "[hidden]"
"""What stands in a run.json in place of a secret."""
RESTARTING = ("arrivals", "rate", "sessions")
"""Options of a workload that replay the sessions of a trace at other starts."""


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option besides its name, type and default.

    `part`: it fills the field of the same name of the backend. `source`: it decides what is sent and when, from either
    source or from one of them only. `repeated`: given several times, the values are lines of one text. `commas`: one
    value may hold commas. `secret`: a value may hold a secret. `setting` is off where it changes neither what is
    sent nor the system nor what is measured: runs that differ in it alone are alike.
    """

    group: str
    metavar: str
    check: Check
    help: str
    part: bool = False
    source: Literal["either", "workload", "trace"] | None = None
    repeated: bool = False
    commas: bool = False
    secret: bool = False
    setting: bool = True


def option(group: str, metavar: str, check: Check, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002  # the word of click
    """The dataclass field of an option; `more` are the other fields of `Option`."""
    return field(default=default, metadata={"option": Option(group, metavar, check, help, **more)})


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that repeats a run; durations in seconds, None where an option is not given."""

    # fmt: off
    workload: str | None = option(
        TRAFFIC, "NAME", check.text, "Preset (bench list presets) or lengths spec. Default: chatbot.", source="either"
    )
    trace: str | None = option(
        TRACE, "FILE", check.text, "Replay this file (of agents: a folder) with its own times and lengths, or "
        "sessions drawn from a model of 'bench trace fit'.",
        source="either",
    )
    reader: str | None = option(
        TRACE, "NAME|MAP", check.text, "File format, or the columns of a plain trace: at=ts,prompt=in,output=out. "
        "Default: detected from the columns.", source="trace", commas=True,
    )
    start: float | None = option(
        TRACE, "TIME", check.time_s, "Only rows from this time after the first row on, e.g. 10min.", source="trace"
    )
    stop: float | None = option(
        TRACE, "TIME", check.duration_s, "Only rows up to this time after the first row, e.g. 30min.", source="trace"
    )
    limit: int | None = option(TRACE, "N", check.count, "Maximum number of rows.", source="trace")
    where: str | None = option(
        TRACE, "TEXT", check.text, "Only matching rows: 'prompt_tokens<=4096,output_tokens>=1'.",
        source="trace", commas=True,
    )
    scale: str | None = option(
        TRACE, "SPEC", check.text, "Change the load: compress:2, thin:0.5, superpose:3; or shorten sessions: "
        "context:96000.", source="trace",
    )
    jitter: str | None = option(
        TRACE, "TIME", check.text, "Spread timestamps at random within TIME, or the trace's resolution ('grain').",
        source="trace",
    )
    turns: str | None = option(
        TRACE, "WHEN", check.text, "Send follow-up turns at recorded times (recorded), not before the previous turn is "
        "answered (answered), their think time after it (think-only:cap=60s), or as if answers took a share of their "
        "recorded time (api-scaled:scale=0.5).", source="trace",
    )
    rate: float | None = option(
        TRAFFIC, "RPS", check.rate_rps,
        "Mean rate in requests per second. Default: that of the arrivals if they define one, else the preset's.",
        source="workload",
    )
    max_in_flight: int | None = option(
        TRAFFIC, "N", check.count, "Requests in flight at most. One more waits for a place, and the wait counts into "
        "its TTFT and E2E.",
    )
    arrivals: str | None = option(
        TRAFFIC, "SPEC", check.text, "Arrival process: poisson, gamma:cv=2, constant, ...; with --trace that of its "
        "sessions, such as closed:users=16.", source="workload",
    )
    lengths: str | None = option(
        TRAFFIC, "SPEC", check.text, "Prompt and output lengths: sharegpt, fixed:prompt=512,output=64, ...",
        source="workload",
    )
    sessions: str | None = option(
        TRAFFIC, "SPEC", check.text, "Multi-turn conversations: burstgpt, fixed:turns=3,think=10s, ...; with --trace "
        "which of its sessions: recorded:count=20,common=0.5 (of a model: fitted:count=20).", source="workload",
    )
    prefixes: str | None = option(
        TRAFFIC, "SPEC", check.text, "Shared prompt prefixes: shared:count=10,tokens=512,zipf=1.", source="workload"
    )
    content: str | None = option(
        TRAFFIC, "SPEC", check.text, "Prompt content. Default: tokens (random token ids).", source="either"
    )
    history: str | None = option(
        TRAFFIC, "WHAT", check.history, "What follow-up turns repeat: the system's own answers (live, default), "
        "recorded ones (default of --content recorded), or nothing but the lengths (lengths).", source="either",
    )
    requests: int | None = option(
        LENGTH, "N", check.count, "Number of requests to send. Default: the preset's, or the whole trace.",
        source="either",
    )
    duration: float | None = option(
        LENGTH, "TIME", check.duration_s,
        "Send the requests due within this time. Default for a trace on a real system: 60s.", source="either",
    )
    seed: int = option(
        LENGTH, "N", check.seed, "Seed of arrivals, lengths and content. Default: 0.", default=0, source="either"
    )
    backend: str = option(
        SYSTEM, "SPEC", check.backend, "engine (default), sim, null, the URL of a server, sim:model=opt-13b, ...",
        default="engine",
    )
    model: str | None = option(
        SYSTEM, "NAME", check.text, "sim: model name (bench list models), config.json or TOML file; engine: Hugging "
        "Face model folder; server: one of its models.", part=True,
    )
    hardware: str | None = option(
        SYSTEM, "NAME", check.text, "sim, paced engine: GPU (bench list hardware), or a TOML file.", part=True
    )
    latency: str | None = option(
        SYSTEM, "SPEC", check.text, "sim, paced engine: step latency model. Default: operators.", part=True
    )
    policy: str | None = option(
        SYSTEM, "SPEC", check.one_spec, "Batch scheduling policy: sarathi, vllm-v0, orca, static, ...", part=True
    )
    router: str | None = option(
        PARALLELISM, "SPEC", check.one_spec, "sim, engine: policy that assigns requests to replicas.", part=True
    )
    prefix_cache: str | None = option(
        SYSTEM, "ON", check.text, "on: share the KV of common prompt prefixes. Default: off.", part=True
    )
    response_cache: str | None = option(
        SYSTEM, "SPEC", check.one_spec, "Cache before the backend that answers requests in its place: semantic, ..."
    )
    replicas: int | None = option(PARALLELISM, "N", check.count, "sim, engine: number of model replicas.", part=True)
    tp: int | None = option(
        PARALLELISM, "N", check.count, "sim: tensor parallelism, GPUs per pipeline stage.", part=True
    )
    pp: int | None = option(PARALLELISM, "N", check.count, "sim: pipeline parallelism, stages per replica.", part=True)
    prefill: str | None = option(
        PARALLELISM, "SPEC", check.text, "sim, engine: prefill-only replicas: 2, or 2:tp=2,pp=1.", part=True
    )
    decode: str | None = option(
        PARALLELISM, "SPEC", check.text, "sim, engine: decode-only replicas: 1, or 1:tp=1,pp=2.", part=True
    )
    header: str | None = option(
        ENDPOINT, "K=V", check.text, "openai: HTTP header of every request. Repeatable.",
        part=True, repeated=True, commas=True, secret=True,
    )
    extra_body: str | None = option(
        ENDPOINT, "JSON", check.text, "openai: fields merged into every request body, overriding those of bench.",
        part=True, commas=True,
    )
    senders: str | None = option(
        ENDPOINT, "N", check.senders, "openai: number of sending processes, or hosts that send: ssh:HOST,ssh:HOST. "
        "Default: auto (as many as the rate needs).", commas=True,
    )
    calibrate: float | None = option(
        ENDPOINT, "TIME", check.calibration_s,
        "openai: time spent measuring this client before and after the run, or off. Default: 2s.",
    )
    priority: str | None = option(
        ENDPOINT, "WHAT", check.priority,
        "openai: raised has senders run before other processes where the system allows it (default), off does not.",
    )
    slo: str | None = option(
        OBJECTIVES, "BOUNDS", check.text, "Latency objectives, such as ttft=0.25,tpot=100ms. Default: the preset's.",
        commas=True,
    )
    warmup: str | None = option(
        LENGTH, "CUT", check.warmup,
        "Warm-up to discard: mser5 (detected), 30s, 200 (requests), or none. Default: none.",
    )
    goal: float = option(
        OBJECTIVES, "SHARE", check.share, "Share of requests that must meet the SLO. Default: 0.9.", default=0.9
    )
    scenario: str | None = option(
        OBJECTIVES, "NAME", check.text, "Warn of whatever differs from this configuration (bench list configs), which "
        "--config agentx-mvp sets.", setting=False,
    )
    percentiles: str | None = option(
        OBJECTIVES, "LIST", check.percentiles, "Percentiles of latencies in run.json and its reports. Default: "
        "50,90,99.", setting=False, commas=True,
    )
    fail_under: float | None = option(
        OBJECTIVES, "SHARE", check.share, "Exit with code 1 if fewer requests meet the SLO (for scripts).",
        setting=False,
    )
    max_failed: float | None = option(
        OBJECTIVES, "SHARE", check.share_or_zero,
        "Exit with code 3 if more requests fail for reasons other than load. Default: 1%; all with the failures that "
        "sim:fail= plans.", setting=False,
    )
    drain: float | None = option(
        LENGTH, "TIME", check.time_s, "Longest wait for responses after the last request is sent. Default: 60s; "
        "openai: its timeout; no effect on sim.",
    )
    # fmt: on

    def parts(self) -> dict[str, object]:
        """The parts of the backend that were given one by one."""
        names = [name.replace("-", "_") for name in PARTS]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def options(self) -> dict[str, object]:
        """Option name -> value, for run.json: every option that is set."""
        values = {name: getattr(self, name.replace("-", "_")) for name in OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {f.name.replace("_", "-"): f.metadata["option"] for f in fields(RunSpec)}
)
"""Name of an option, as on the command line and in TOML -> what is known of it."""
PARTS = tuple(name for name, known in OPTIONS.items() if known.part)
SCHEDULE = tuple(name for name, known in OPTIONS.items() if known.source is not None)
"""Options that decide what is sent and when."""
NO_SETTINGS = tuple(name for name, known in OPTIONS.items() if not known.setting)
"""Options in which runs may differ and still be runs of one system and its traffic."""


@dataclass(frozen=True, slots=True)
class Given:
    """Options with the place they come from, for messages: `--rate`, or `rate in bench.toml`."""

    values: Mapping[str, object]
    file: str | None = None

    def name(self, option: str) -> str:
        """How a message calls an option."""
        return f"--{option}" if self.file is None else f"{option} in '{self.file}'"


def run_spec(command_line: Given, file: Given | None = None) -> RunSpec:
    """The spec of a run from the options given; the command line wins over the file.

    Raises UsageError for unknown options, values of a wrong type or out of range, and options that do not go
    together.
    """
    values: dict[str, object] = {}
    for source in (file, command_line):
        if source is not None:
            _overlay(values, {option: _value(option, text, source) for option, text in source.values.items()})
    spec = RunSpec(**{name.replace("-", "_"): value for name, value in values.items()})  # type: ignore[arg-type]  # _value made them
    _check_together(spec)
    # A run.json holds no secrets, so what needed one must be given anew.
    for option, value in spec.options().items():
        if isinstance(value, str) and HIDDEN in value:
            raise UsageError(
                f"The run to repeat had a secret in --{option}, which was not stored; give --{option} again."
            )
    return replace(spec, workload=DEFAULT_WORKLOAD) if spec.trace is None and spec.workload is None else spec


def with_parts(spec: RunSpec, parts: Mapping[str, object]) -> RunSpec:
    """A spec with these parts of its backend, as options where there are such, else as its arguments; None: without."""
    options = {name: value for name, value in parts.items() if name.replace("_", "-") in PARTS}
    arguments = {name: value for name, value in parts.items() if name not in options}
    return replace(spec, **{**options, "backend": _with_arguments(spec.backend, arguments)})  # type: ignore[arg-type]  # names of fields


def _with_arguments(backend: str, more: Mapping[str, object]) -> str:
    spec = parse(backend)
    arguments = {**spec.args, **more}
    return str(replace(spec, args={name: str(value) for name, value in arguments.items() if value is not None}))


def _overlay(values: dict[str, object], more: dict[str, object]) -> None:
    """Put `more` over `values`: a new workload drops an old trace, a new backend the parts of the old one.

    A file of options for traces that names none keeps them for the one that is given.

    Of one backend arguments and parts stay unless they are given anew; the simulator and the paced engine count as one.
    A server never gets the arguments of another: they may hold a key.
    """
    for chosen, other in (("workload", "trace"), ("trace", "workload")):
        of_traces = chosen == "trace" and other not in values and any(OPTIONS[n].source == "trace" for n in values)
        if more.get(chosen) is not None and more.get(other) is None and not of_traces:
            for name in (other, *(name for name, entry in OPTIONS.items() if entry.source == other)):
                values.pop(name, None)
    old = values.get("backend")
    if "backend" in more and isinstance(old, str) and _system(old) != _system(str(more["backend"])):
        for option in PARTS:
            values.pop(option, None)
    elif "backend" in more:
        for option in parse(str(more["backend"])).args:
            values.pop(option, None)
    values.update(more)
    if isinstance(old, str):
        values["backend"] = _over(old, more)


def _over(old: str, more: Mapping[str, object]) -> str:
    """The backend `old` with what is given of it in `more`."""
    before = parse(old)
    backend = parse(str(more["backend"])) if "backend" in more else replace(before, args={})
    if "backend" in more and (backend.name == "openai" or _system(old) != _system(str(more["backend"]))):
        return str(backend)
    stays = before.args if backend.name == before.name else {k: v for k, v in before.args.items() if k in ARGUMENTS}
    replaced = {key.replace("-", "_") for key in (*backend.args, *(part for part in PARTS if part in more))}
    stays = {key: value for key, value in stays.items() if key.replace("-", "_") not in replaced}
    return str(replace(backend, args={**backend.args, **stays}))


def _system(backend: str) -> str:
    """Name of a backend; the paced engine has the parts of the simulator and counts as one."""
    spec = parse(backend)
    paced = spec.name == "engine" and parse(spec.args.get("executor", "llama")).name == "paced"
    return "sim" if paced else spec.name


def _check_together(spec: RunSpec) -> None:
    if spec.trace is not None and spec.workload is not None:
        raise UsageError("--workload and --trace exclude each other; give one of them.")
    for name in spec.options():
        if spec.trace is None and OPTIONS[name].source == "trace":
            raise UsageError(f"--{name} belongs to a trace; give --trace FILE too.")
        no_start = name not in RESTARTING or (name == "rate" and spec.arrivals is None)
        if spec.trace is not None and OPTIONS[name].source == "workload" and no_start:
            instead = "change its load with --scale" if name == "rate" else "use --workload"
            raise UsageError(f"--{name} does not go with --trace, which brings its own; {instead}.")
    if spec.start is not None and spec.stop is not None and spec.stop <= spec.start:
        raise UsageError(f"--stop must lie after --start, got {spec.stop:g} s and {spec.start:g} s.")
    for option in ("max-in-flight", "response-cache"):
        if getattr(spec, option.replace("-", "_")) is not None and spec.senders not in (None, "1", "auto"):
            raise UsageError(f"--{option} is kept by one sender, which sees all requests; leave --senders out.")
    args = parse(spec.backend).args
    for part in spec.parts():
        if part in args:
            raise UsageError(f"{part} is given twice: in --backend '{spec.backend}' and by --{part}.")


def _value(option: str, value: object, given: Given) -> object:
    if option not in OPTIONS:
        if (instead := REMOVED.get(("option", f"--{option}"))) is not None:
            raise UsageError(f"The option '{given.name(option)}' was removed: {instead}.")
        mark, place = ("--", "") if given.file is None else ("", f" (in '{given.file}')")
        if f"--{option}" in SERVER:
            raise UsageError(f"No option '{mark}{option}'{place}: give the server's URL as --backend http://HOST:PORT.")
        names = [f"{mark}{name}" for name in sorted(OPTIONS)]
        guess = nearest(f"{mark}{option.replace('_', '-')}", names)
        raise UsageError(f"No option '{mark}{option}'{place}.{guess} Known: {', '.join(names)}.")
    return OPTIONS[option].check(value, given.name(option))
