"""run.json as a type: attributes inside, JSON at the border (`harness.data.codec`)."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import UNSET, UnsetType, field

from harness.api import VERSION
from harness.data import codec
from harness.data.codec import (
    Count,
    Damaged,
    Document,
    Facts,
    Flags,
    Number,
    Part,
    Percentile,
    Positive,
    Range,
    Share,
    Text,
    inner,
)
from harness.errors import UsageError

_Optional: TypeAlias = Number | UnsetType | None
Curve: TypeAlias = dict[str, Number | None]
"""A value by the width of the bins, in seconds."""


class Cut(Part, frozen=True):
    """Requests due before `at_s` stay in the table and in the load, and are left out of metrics.

    `requests` of them are left out. `stationary` is False where MSER-5 found no place to cut, so that nothing was.
    """

    rule: str
    at_s: Number
    requests: Count
    stationary: bool = True

    @property
    def since_s(self) -> float | None:
        """From when requests are measured; None where nothing was cut."""
        return self.at_s if self.requests else None


class Workload(Part, frozen=True, kw_only=True):
    """What is sent: name, laws, rates, where lengths and times come from."""

    name: Text = None
    arrivals: Text = None
    lengths: Text = None
    rate_rps: Number | None = None
    arrivals_rps: Number | None = None
    recorded: bool | None = None
    provenance: Facts = field(default_factory=dict)


class StoredBound(Part, frozen=True, kw_only=True):
    """A bound of the SLO, as `harness.api.Bound`."""

    metric: str
    limit: Positive
    tag: Text = None
    percentile: Percentile | None = None


class StoredSlo(Part, frozen=True, kw_only=True):
    """The SLO: the text for people, the bounds to score by; without bounds the text holds."""

    text: Text = None
    bounds: list[StoredBound] | None = None
    goal: Share | None = None


class Schedule(Part, frozen=True, kw_only=True):
    """What was to be sent. `sha256` tells whether two runs sent the same."""

    sha256: Text = None
    requests: Count | None = None
    span_s: Number | UnsetType | None = UNSET


class Source(Part, frozen=True, kw_only=True):
    """The tool that another file is of, and the columns and metrics that it cannot tell."""

    tool: Text = None
    version: Text = None
    missing: list[str] = field(default_factory=list)
    per_request: bool | None = None
    file: Text = None
    name: Text = None
    notes: list[str] = field(default_factory=list)


class Compared(Part, frozen=True):
    """One quantity as both sides tell it; None where a side says nothing, `within` None where nothing is compared.

    `why` says what keeps a row from being compared, or what its difference allows for.
    """

    name: Text = None
    unit: Text = None
    client: Number | None = None
    server: Number | None = None
    difference: Number | None = None
    allowed: Number | None = None
    within: bool | None = None
    why: Text = None


class Server(Part, frozen=True, kw_only=True):
    """A remote server by its own metrics: where they were read, its names for them, and what both sides tell."""

    kind: Text | UnsetType = UNSET
    metrics_url: list[str] | UnsetType = UNSET
    names: dict[str, str] | UnsetType = UNSET
    scrapes: Count | UnsetType = UNSET
    failed: Count | UnsetType = UNSET
    why: Text | UnsetType = UNSET
    compared: list[Compared] | UnsetType = UNSET


class FloorError(Part, frozen=True):
    """The client's own error: half of all, and 99 % of all stamps are nearer to the truth."""

    p50_s: Number | None = None
    p99_s: Number | None = None


class Floor(Part, frozen=True, kw_only=True):
    """The error of the client's stamps, the larger one of both measurements, and the load it was measured under."""

    ttft: FloorError | None = None
    itl: FloorError | None = None
    tpot: FloorError | None = None
    e2e: FloorError | None = None
    lateness: FloorError | None = None
    streams: Count | None = None
    rate_rps: Number | None = None
    seconds: Number | None = None
    before: Facts | None = None
    after: Facts | None = None

    def error(self, name: str) -> FloorError:
        """That of stamps of this kind; empty where it was not measured."""
        measured: FloorError | None = getattr(self, name)
        return measured or FloorError()


class Sender(Part, frozen=True, kw_only=True):
    """What a sending process reports of itself; UNSET what its platform does not report.

    On another machine: its `host`; what its monotonic clock showed more than ours before the run, by how much more it
    did after it, and the largest error of its times against ours in between.
    """

    sender: _Optional = UNSET
    host: Text | UnsetType = UNSET
    clock_offset_s: _Optional = UNSET
    clock_drift_s: _Optional = UNSET
    clock_error_s: _Optional = UNSET
    sent: _Optional = UNSET
    loop: Text | UnsetType = UNSET
    priority: Text | UnsetType = UNSET
    cpu_s: _Optional = UNSET
    cpu_share: _Optional = UNSET
    cpu_share_max: _Optional = UNSET
    run_wait_share: _Optional = UNSET
    stall_max_s: _Optional = UNSET
    stall_p90_s: _Optional = UNSET
    gc_max_s: _Optional = UNSET
    stamps: Text | UnsetType = UNSET
    reads_by: Text | UnsetType = UNSET
    reads: _Optional = UNSET
    process_stamps: _Optional = UNSET
    read_lag_p50_s: _Optional = UNSET
    read_lag_p99_s: _Optional = UNSET
    read_lag_max_s: _Optional = UNSET
    clock_steps: _Optional = UNSET
    clock_slope_ppm: _Optional = UNSET
    connections_opened: _Optional = UNSET
    connections_most: _Optional = UNSET
    resent: _Optional = UNSET
    segments: _Optional = UNSET
    retransmits: _Optional = UNSET
    open_files: _Optional = UNSET
    open_files_limit: _Optional = UNSET
    other_load_cores: _Optional = UNSET
    follow_ups: _Optional = UNSET
    repeating: _Optional = UNSET


class Client(Part, frozen=True, kw_only=True):
    """The client of a run against a remote server; `scheduling`: the policy of the process that read the answers."""

    senders: Count | None = None
    scheduling: Text = None
    stamps: Text | UnsetType = UNSET
    per_sender: list[Sender] = field(default_factory=list)


class Resolution(Part, frozen=True, kw_only=True):
    """What holds with all limits a floor lower, and a floor higher.

    `attainment` (None where every bound is on a percentile) and `kept` (all bounds on percentiles) are pairs for the
    two cases, `passed` too. `unresolved` lists the bounds that hold in one case only, `undecided` says whether the goal
    of the run is one of those questions.
    """

    attainment: Range | None = None
    kept: Flags = (True, True)
    passed: Flags | None = None
    unresolved: list[str] = field(default_factory=list)
    undecided: bool = False


class Described(Part, frozen=True):
    """A metric over the requests that ended well; None where nothing was measured.

    `percentiles` are those of --percentiles, by name ('p95').
    """

    n: Count | None = None
    mean: Number | None = None
    std: Number | None = None
    p50: Number | None = None
    p90: Number | None = None
    p99: Number | None = None
    max: Number | None = None
    unit: Text = None
    percentiles: dict[str, Number | None] | UnsetType = UNSET

    def at(self, statistic: str) -> Number | None:
        """The mean, a percentile ('p95'), ...; None where it is not known."""
        stats = {"mean": self.mean, "std": self.std, "p50": self.p50, "p90": self.p90, "p99": self.p99, "max": self.max}
        quantiles = {} if self.percentiles is UNSET else self.percentiles
        return (stats | quantiles | {"n": self.n}).get(statistic)


class ScoredBound(Part, frozen=True, kw_only=True):
    """What a bound of the SLO found: the share of its requests, or the value of its percentile."""

    text: Text = None
    metric: str
    limit_s: Number | None = None
    tag: Text = None
    percentile: Percentile | None = None
    requests: Count | UnsetType = UNSET
    attainment: Share | None = None
    value_s: Number | None = None
    passed: bool | None = None


class OutputTokens(Part, frozen=True, kw_only=True):
    """Output tokens of the requests that ended well: those that were streamed, and those only counted by the server."""

    output: Count | None = None
    streamed: Count | None = None
    unseen: Count | None = None


class Summary(Part, frozen=True, kw_only=True):
    """The numbers of the requests after the warm-up; `tokens` where some of them were never streamed."""

    requests: Count | None = None
    status: dict[str, Count] = field(default_factory=dict)
    failed: Number | None = None
    window_s: Number | None = None
    throughput_rps: Number | None = None
    output_tps: Number | None = None
    goodput_rps: Number | None = None
    token_goodput_tps: Number | None = None
    preemptions: Count | None = None
    tokens: OutputTokens | UnsetType = UNSET
    metrics: dict[str, Described] = field(default_factory=dict)
    run_metrics: dict[str, Described] = field(default_factory=dict)
    slo: Text = None
    goal: Share | None = None
    attainment: Share | None = None
    passed: bool | None = None
    bounds: list[ScoredBound] = field(default_factory=list)
    binding: Text = None
    classes: dict[str, Share | None] = field(default_factory=dict)

    @property
    def percentiles_passed(self) -> list[bool | None]:
        """Which of the bounds on percentiles of the run hold."""
        return [bound.passed for bound in self.bounds if bound.percentile is not None]


class StageTime(Part, frozen=True, kw_only=True):
    """The time in a stage: its mean over the requests, and its share of the time of all of them."""

    mean_s: Number
    share: Number


class Stages(Part, frozen=True, kw_only=True):
    """Where the time of the `requests` that ended well went, by stage, and how many missed the SLO for each cause.

    A cause is a stage, "preempted", "unknown", or the status of a request that failed; `misses` is None where the SLO
    bounds no single request.
    """

    requests: Count = 0
    times: dict[str, StageTime] = field(default_factory=dict)
    misses: dict[str, Count] | None = None


class StepTimes(Part, frozen=True, kw_only=True):
    """How far the step times of a latency model on a GPU were from measurements.

    `tpot_error` and `ttft_error` are the medians over `rows` rows of `of_model` on `of_hardware` under `engine`, as
    shares (a factor of 1.08 is 0.08); `figures` is what a source says that has none of both. `badge`: "measured here",
    this model and GPU; "near", the same `generation` of GPU and class of model; "other", the same generation alone;
    "none", nothing of that; "yours", times that the user has measured.
    """

    latency: str
    hardware: str
    generation: Text = None
    badge: Literal["measured here", "near", "other", "none", "yours"] = "none"
    of_model: Text = None
    of_hardware: Text = None
    engine: Text = None
    format: Text = None
    rows: Count = 0
    tpot_error: Positive | None = None
    ttft_error: Positive | None = None
    figures: Text = None


class Interval(Part, frozen=True, kw_only=True):
    """An interval of a share."""

    low: Share
    high: Share


class Intervals(Part, frozen=True, kw_only=True):
    """Intervals of the mean and the p99 of a metric, None of too few requests."""

    mean: Range | None = None
    p99: Range | None = None


class Within(Part, frozen=True, kw_only=True):
    """Intervals within the run; `why_not` says why there are none."""

    confidence: Share | None = None
    resamples: Count | None = None
    block: Count | None = None
    sessions: Positive | None = None
    alike: Number | None = None
    attainment: Interval | None = None
    at_least: Share | None = None
    metrics: dict[str, Intervals] = field(default_factory=dict)
    why_not: Text = None


class Failures(Part, frozen=True, kw_only=True):
    """Requests that failed because of the backend; `text` is the message where they `exceeded` the allowed share."""

    requests: Count = 0
    share: Share | None = None
    at_most: Number = 0.0
    exceeded: bool = False
    text: Text = field(default=None, name="said")


class OutputLengths(Part, frozen=True, kw_only=True):
    """Mean output tokens of the answers that ended well, empty ones too, and of what was requested of them.

    Failed, truncated and cancelled requests play no part: they miss the SLO and count as failed. `by` is "request"
    where something in the request makes the answer that long, "server" where it may end anywhere. `requests` are those
    whose tokens the server counted (`counted`), else all of them.
    """

    by: Text = None
    requests: Count | None = None
    output_tokens: Number | None = None
    requested_tokens: Number | None = None
    share: Number | None = None
    counted: bool | None = None


class Check(Part, frozen=True):
    """One check: what was found, and the remedy where it failed."""

    check: Text = None
    state: Text = None
    text: Text = field(default=None, name="said")
    remedy: Text = ""


class Burstiness(Part, frozen=True, kw_only=True):
    """Spread of the gaps; dispersion and memory of the counts by the width of their bins in seconds."""

    gap_cv: Number | None = None
    dispersion: Curve = field(default_factory=dict)
    autocorrelation: Curve = field(default_factory=dict)


class AllSent(Part, frozen=True, kw_only=True):
    """Everything that was sent, follow-ups included, with its burstiness; `scatter` is the standard error of its number
    as a share, for sessions that are independent of one another."""

    sent: Count | None = None
    rps: Number | None = None
    scatter: Number | None = None
    gap_cv: Number | None = None
    dispersion: Curve = field(default_factory=dict)
    autocorrelation: Curve = field(default_factory=dict)


class FollowUps(Part, frozen=True, kw_only=True):
    """What waited for answers: how many there were, left, were dropped with their session, or never came to be due.

    `closed` says that they are those of users who ask again and again, and not of sessions.
    """

    planned: Count | None = None
    sent: Count | None = None
    dropped: Count | None = None
    not_sent: Count | None = None
    closed: bool = False


class RateCurve(Part, frozen=True, kw_only=True):
    """The course of the declared rate."""

    end_s: Number | None = None
    rps: list[Number] = field(default_factory=list)


class Fidelity(Part, frozen=True, kw_only=True):
    """How the sending agreed with the schedule, and the schedule with its law; None for what is unknown.

    Rates are gaps per second; `gap_cv`, `dispersion` (variance by mean of counts) and `autocorrelation` (of
    neighbouring counts) are those of the sending, under `drawn` those of the schedule. Stamps on a grid (`tick_s`) are
    counted in whole ticks. `law` says what was declared: "clock", "operational", "none" or "unknown"; `ks` and `ks_p`
    compare the gaps with it. `expected_rps` is the declared rate over the time of this schedule, where it may be
    another than the long-run mean, `rate_curve` its course, and `rate_z` how many standard errors the drawn rate is
    from it. `follow_ups` counts what waited for answers, `all` describes everything that was sent, where there are any.
    """

    requested_rps: Number | None = None
    drawn_rps: Number | None = None
    achieved_rps: Number | None = None
    scheduled: Count | None = None
    sent: Count | None = None
    gap_cv: Number | None = None
    dispersion: Curve = field(default_factory=dict)
    autocorrelation: Curve = field(default_factory=dict)
    drawn: Burstiness = Burstiness()
    tick_s: Number | None = None
    law: Text = None
    ks: Number | None = None
    ks_p: Number | None = None
    expected_rps: Number | None = None
    rate_curve: RateCurve | None = None
    rate_z: Number | None = None
    follow_ups: FollowUps | None = None
    all: AllSent | None = None
    lateness_p50_s: Number | None = None
    lateness_p99_s: Number | None = None
    lateness_max_s: Number | None = None
    late_share: Share | None = None


class Warned(Part, frozen=True, kw_only=True):
    """Something a reader of the result must know, with a remedy."""

    code: Text = None
    message: Text = None
    remedy: Text = None


class Verdict(Part, frozen=True, kw_only=True):
    """Whether the run proves anything, and the sentences that say why not. `queue_grew`: all through the run, be the
    SLO met or not."""

    valid: bool | None = None
    overloaded: bool | None = None
    queue_grew: bool | None = None
    unresolved: bool | None = None
    reasons: list[str] = field(default_factory=list)
    text: Text = None


class Ending(Part, frozen=True, kw_only=True):
    """How the run ended, as `harness.api.Outcome`."""

    ended: Text = None
    sent: Count | None = None
    not_sent: Number | None = None
    cut: Count | None = None
    error: Text = None


class _Begun(Document, frozen=True, kw_only=True, omit_defaults=True):
    """What is known before the first answer, and of the client of a remote server."""

    schema: int
    spec: Facts = field(default_factory=dict)
    command: Text = None
    versions: Facts = field(default_factory=dict)
    host: Facts = field(default_factory=dict)
    clock: Text = None
    started: Text = None
    workload: Workload = Workload()
    backend: Facts = field(default_factory=dict)
    slo: StoredSlo = StoredSlo()
    schedule: Schedule = Schedule()
    source: Source = Source()
    aggregates: Facts = field(default_factory=dict)
    state: Text = None
    content: Facts | UnsetType = UNSET
    server: Server = Server()
    floor: Floor | UnsetType | None = UNSET
    floor_why: Text = None
    startup_s: Number | UnsetType | None = UNSET
    client: Client = Client()


_NO_SUMMARY, _NO_VERDICT = Summary(), Verdict()


class RunInfo(_Begun, frozen=True, kw_only=True, omit_defaults=True):
    """run.json: what was requested, of which system, and the results. Missing parts are empty, and false.

    `duration` and the throughputs reach up to the last answer, as those of vLLM do.
    """

    duration: _Optional = UNSET
    request_throughput: _Optional = UNSET
    output_throughput: _Optional = UNSET
    resolution: Resolution = Resolution()
    warmup: Cut = Cut("none", 0.0, 0)
    summary: Summary = _NO_SUMMARY
    stages: Stages = Stages()
    step_times: list[StepTimes] = field(default_factory=list)
    within: Within = Within()
    failures: Failures = Failures()
    output_lengths: OutputLengths = OutputLengths()
    checks: list[Check] | UnsetType = UNSET
    fidelity: Fidelity = Fidelity()
    warnings: list[Warned] | UnsetType = UNSET
    verdict: Verdict = _NO_VERDICT
    outcome: Ending | UnsetType | None = UNSET

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> "RunInfo":
        """The run.json of these facts, in their order. Raises UsageError as `decode` does."""
        return decode({"schema": VERSION, **facts})

    @property
    def concluded(self) -> bool:
        """Whether there is a summary and a verdict; a run that was killed, or still goes on, has none."""
        return self.summary is not _NO_SUMMARY and self.verdict is not _NO_VERDICT

    @property
    def virtual(self) -> bool:
        """Whether the clock was a simulator's."""
        return self.clock == "virtual"

    @property
    def seed(self) -> object:
        """The seed of all random streams; None where it is unknown."""
        return self.spec.get("seed")

    @property
    def capabilities(self) -> Mapping[str, object]:
        """The request fields and metrics that a remote server was found to support."""
        return inner(self.backend, "capabilities")

    def warning(self, code: str) -> Warned | None:
        """The run's warning with that code, or None."""
        return next((warned for warned in self.warnings or () if warned.code == code), None)


def decode(read: object) -> RunInfo:
    """The run.json in a JSON object. Raises UsageError, with the place of the first value that is of another kind."""
    present = {key: value for key, value in read.items() if value is not None} if isinstance(read, dict) else read
    try:
        return codec.decode(RunInfo, present).change(as_read=read)
    except Damaged as error:
        raise UsageError(f"its run.json is damaged at '{error}'") from None
