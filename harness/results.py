"""The Python API: run, sweep, capacity, compare and load, with what the commands of the same names take and give.

    import harness

    run = harness.run(workload="chatbot", backend="sim", rate=2, requests=500, slo="ttft=0.25,tpot=0.1")
    print(run)                           # the summary that `bench run` prints
    run.frame()[["ttft", "tpot"]].describe()
    run.figure("latency_cdf").show()

Options are those of the commands with `_` for `-`, as Python values or as text. Nothing is imported before it is used.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from harness.errors import BenchError, UsageError, no_such
from harness.keywords import Options, RunOptions

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from harness.data.folder import Run
    from harness.experiments.answers import Answer
    from harness.experiments.compare.runner import Wanted
    from harness.options import RunSpec
    from harness.runner.progress import Display

P = ParamSpec("P")
R = TypeVar("R")

RESCORED = {"slo", "goal", "warmup"}
"""Options by which stored runs are scored again."""

_OPTION = re.compile(
    r"'bench [^']*'|--([a-z][a-z-]*)(?:[ =]('[^']*'|[A-Z]+\b|[^\s'();]*[\d=:][^\s'();]*[^\s'();.,:]|\d+))?"
)
"""A command in quotes, or an option as the command line spells it, with its value where one follows: a quoted one, a
placeholder, a spec."""


class _Shown:
    """A result that prints as its command does, and shows its summary in a notebook."""

    __slots__ = ()

    def _stored(self) -> tuple[Run | Answer, Path]:
        """Return the result, and where it is stored."""
        raise NotImplementedError

    def _rendered(self, form: str) -> str:
        from reports.document import rendered

        result, path = self._stored()
        return rendered.render(result, form, path=path)

    def _drawn(self) -> Mapping[str, Any]:
        from reports.document import rendered

        return rendered.figures(*self._stored())

    def figures(self) -> list[str]:
        """The names of its figures."""
        return list(self._drawn())

    def figure(self, name: str) -> go.Figure:
        """The figure of that name. Raises UsageError for an unknown one, and for one whose data are missing."""
        figures = self._drawn()
        if name not in figures:
            raise no_such("figure", name, figures)
        drawn = figures[name]()
        if isinstance(drawn, str):
            raise UsageError(f"Figure '{name}' has no data: {drawn}")
        return drawn.plotly()

    def report(self, path: str | Path) -> Path:
        """Write its HTML page."""
        from harness.data import files

        files.write(Path(path), self._rendered("html"))
        return Path(path)

    def __str__(self) -> str:
        return self._rendered("text")

    def _repr_markdown_(self) -> str:
        return self._rendered("markdown")


@dataclass(frozen=True, slots=True, repr=False)
class RunResult(_Shown):
    """One run. In a notebook it shows its summary.

    `data` holds run.json (`data.info`), the requests with all token times and the steps as pyarrow tables.
    """

    data: Run
    exit_code: int = 0

    def __repr__(self) -> str:
        return f"<RunResult {self.data.path}, {self.data.requests.num_rows:,} requests, exit code {self.exit_code}>"

    def frame(self) -> pd.DataFrame:
        """A row per measured request: what was sent and what came back, and every metric of a request (seconds).

        Of a metric of single gaps (itl) the largest of each request. Token times stay in `data.requests`.
        """
        import pyarrow as pa

        from harness.metrics.measure import per_request, placed

        table = self.data.measured
        plain = [name for name in table.column_names if not pa.types.is_nested(table.schema.field(name).type)]
        frame: pd.DataFrame = table.select(plain).to_pandas()
        return frame.assign(**{metric.name: per_request(metric, table) for metric in placed() if not metric.on_request})

    def _stored(self) -> tuple[Run | Answer, Path]:
        return self.data, self.data.path


@dataclass(frozen=True, slots=True, repr=False)
class AnswerResult(_Shown):
    """The answer of a sweep, a capacity search, a comparison or another command. In a notebook it shows its summary.

    `info` is the answer as --format json prints it; `path` the folder (or file) that holds it, where there is one.
    """

    answer: Answer
    path: Path | None = None

    def __repr__(self) -> str:
        return f"<{type(self.answer).__name__} of {self.path or 'stored results'}>"

    @property
    def info(self) -> Mapping[str, Any]:
        from harness.data.codec import encode

        return encode(self.answer)

    @property
    def exit_code(self) -> int:
        return int(self.info.get("exit_code", 0))

    def frame(self) -> pd.DataFrame:
        """A row per point of a sweep, goal of a search, metric of a comparison; seconds, and shares from 0 to 1."""
        import pandas as pd

        from reports import answers

        return pd.DataFrame(answers.rows(self.answer))

    def _stored(self) -> tuple[Run | Answer, Path]:
        return self.answer, self.path or Path()


def _as_arguments(sentence: str) -> str:
    """The sentence with the arguments of these functions for the options of the commands.

    >>> _as_arguments("'a' holds a run; give another --out, or --force to replace it.")
    "'a' holds a run; give another out, or force=True to replace it."
    >>> _as_arguments("--fail-under needs an SLO to judge by; give one, such as --slo ttft=0.25,tpot=0.1.")
    "fail_under needs an SLO to judge by; give one, such as slo='ttft=0.25,tpot=0.1'."
    >>> _as_arguments("write it as an argument of the backend, '--backend sim:kv=reserve-oracle'.")
    "write it as an argument of the backend, backend='sim:kv=reserve-oracle'."
    """

    def argument(option: re.Match[str]) -> str:
        if option[1] is None:
            return option[0]
        name, value = option[1].replace("-", "_"), option[2]
        if name == "force":
            return "force=True"
        if value is None:
            return name
        if name == "over" and "=" in value:
            swept, _, values = value.strip("'").partition("=")
            return f"over={{'{swept}': '{values}'}}"
        plain = value.isupper() or value.startswith("'") or value.replace(".", "", 1).isdigit()
        return f"{name}={value}" if plain else f"{name}='{value}'"

    # an option that stands in quotes gives them to its value
    return _OPTION.sub(argument, re.sub(r"'--([a-z][a-z-]*) ([^' ]+)'", r"--\1 '\2'", sentence))


def _advising_python(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors name its arguments, and whose signature has every option for completion."""
    named = [*signature(function).parameters.values()]
    if named[-1].kind is Parameter.VAR_KEYWORD:
        kinds = (RunOptions if function.__name__ in ("run", "compare") else Options).__annotations__.items()
        named[-1:] = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in kinds]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BenchError as error:
            error.args = (_for_python(error, [parameter.name for parameter in named]),)
            raise

    call.__signature__ = Signature(named)  # type: ignore[attr-defined]  # what help and notebooks read
    return call


def _for_python(error: BenchError, known: Sequence[str]) -> str:
    """The sentence of an error with arguments; of one that is `known` to be none of the function with the nearest."""
    unknown = re.match(r"No option '--([\w-]+)'\.", str(error))  # it knows those of a run alone
    return _as_arguments(str(no_such("option", unknown[1].replace("-", "_"), known) if unknown else error))


def _call(function: str, options: Mapping[str, object]) -> str:
    """The call, for run.json."""
    return f"harness.{function}({', '.join(f'{name}={value!r}' for name, value in options.items())})"


@_advising_python
def run(
    *,
    out: str | Path | None = None,
    force: bool = False,
    wait: float | str | None = None,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """One run of a workload or a trace, as `bench run`; its folder is `out`, by default a new one in bench-runs.

    An earlier run in `out` is only replaced with `force`; `progress` is shown on standard error (None: in a notebook).
    A frame in `trace` is stored below bench-runs. Raises UsageError for wrong options, BackendError where the backend
    cannot start.
    """
    from harness.data import folder
    from harness.options import Given, run_spec
    from harness.runner.run import execute

    given = _given(options)
    spec = run_spec(Given(_named(given)))
    _await_servers([spec], wait)
    result = execute(spec, out=out, force=force, display=_display(progress), command=_call("run", given))
    return RunResult(result.run if result.run.whole is None else folder.load(result.run.path), result.exit_code)


@_advising_python
def sweep(
    *,
    rate: str | Sequence[float] | None = None,
    over: Mapping[str, Sequence[object] | str] | None = None,
    seeds: int | Sequence[int] | None = None,
    goal: float | Sequence[float] | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    pool: str = "processes",
    wait: float | str | None = None,
    progress: bool | None = None,
    **options: Unpack[Options],
) -> AnswerResult:
    """Runs over rates, or over the values of any option, as `bench sweep`; run again with the same `out` to resume."""
    from harness.data.folder import new_folder
    from harness.experiments.sweep import axes
    from harness.experiments.sweep.execute import run_sweep
    from harness.experiments.sweep.plan import plan_sweep
    from harness.options import Given

    swept = [axes.over(f"{name}={_listed(values, '|')}") for name, values in (over or {}).items()]
    if rate is not None:
        swept.insert(0, axes.axis(axes.RATE, _listed(rate, ",")))
    given = _given(options)
    planned = plan_sweep(
        Given(_named(given)),
        None,
        swept,
        seeds=_text(seeds),
        goals=_text(goal),
    )
    _await_servers([task.spec for task in planned.tasks], wait)
    folder = new_folder(planned.home) if out is None else Path(out)
    command = _call("sweep", {"rate": rate, "over": over, "seeds": seeds, **given})
    info = run_sweep(planned, folder, workers=workers, pool_name=pool, display=_display(progress), command=command)
    return AnswerResult(info, folder)


@_advising_python
def capacity(
    *,
    goal: float | Sequence[float] | None = None,
    conditions: str | None = None,
    tolerance: float | str | None = None,
    max_requests: int | None = None,
    budget: float | str | None = None,
    at: float | None = None,
    rate_from: float | None = None,
    horizon: float | str | None = None,
    windows: float | str | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    pool: str = "processes",
    wait: float | str | None = None,
    progress: bool | None = None,
    **options: Unpack[Options],
) -> AnswerResult:
    """The highest rate that meets the SLO, with its interval, as `bench capacity`; `at` asks whether one rate does."""
    from harness import values
    from harness.experiments.capacity.conditions import settings
    from harness.experiments.capacity.execute import folder_of, run_search, set_up
    from harness.experiments.capacity.store import Store
    from harness.options import Given, run_spec

    at_rps, from_rps = (
        None if rate is None else values.rate_rps(rate, name) for rate, name in ((at, "at"), (rate_from, "rate_from"))
    )
    most = None if max_requests is None else values.count(max_requests, "max_requests")
    search = settings(
        _text(goal),
        conditions,
        _text(tolerance),
        _text(budget),
        at_rps,
        from_rps,
        most,
        _text(horizon),
        _text(windows),
    )
    setup = set_up(run_spec(Given(_named(_given(options)))), search)
    store = Store(folder_of(None if out is None else str(out), setup))
    _await_servers([setup.spec], wait)
    display = _display(progress)
    tell = (lambda _: None) if display.quiet else _note
    info = run_search(setup, store, workers=workers, pool_name=pool, tell=tell, display=display)
    return AnswerResult(info, store.path)


@_advising_python
def compare(
    base: str | Path | RunResult | AnswerResult,
    head: str | Path | RunResult | AnswerResult,
    *,
    gate: str | None = None,
    alpha: float | None = None,
    allow_different: str = "",
    pairs: int | str | None = None,
    out: str | Path | None = None,
    wait: float | str | None = None,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> AnswerResult:
    """A candidate against a baseline, paired by what was sent, as `bench compare`.

    Both are stored, or both are backends, which `pairs` ('auto': until they decide) or the traffic in `options` tells:
    then pairs of runs are made, into `out`. Of stored ones `slo`, `goal` and `warmup` score them again.
    """
    from harness import values
    from harness.experiments.compare import answer, live, pairing
    from harness.options import Given, run_spec

    given = _given(options)
    made = not all(isinstance(side, RunResult | AnswerResult) or Path(side).exists() for side in (base, head))
    made = made and (pairs is not None or bool({*given} - RESCORED) or all(map(values.is_url, map(str, (base, head)))))
    if not made and (foreign := [name for name in given if name not in RESCORED]):
        raise UsageError(f"{foreign[0]} is for runs that are made now: give two backends, not stored runs.")
    again = {name for name in given if name in RESCORED and not made}
    spec = run_spec(Given(_named({name: given[name] for name in again})))
    goal = spec.goal if "goal" in again else None
    settings = answer.settings(gate, alpha, allow_different, spec.slo, goal, spec.warmup)
    if made:
        display = _display(progress)
        say = (lambda _: None) if display.quiet else _note
        seed = None if "seed" not in given else values.seed(given["seed"], "seed")
        limit_s = None if wait is None else values.duration_s(wait, "wait")
        shared = Given(_named({name: value for name, value in given.items() if name != "seed"}))
        wanted: Wanted = None if pairs is None else "auto" if pairs == "auto" else values.count(pairs, "pairs")
        sides = live.backends(str(base), str(head), shared, None, wanted, seed=seed, wait_s=limit_s, say=say)
        return AnswerResult(*live.compare(sides, wanted, out, settings, say, first_seed=seed or 0))
    paths = str(_stored(base)), str(_stored(head))
    matched = pairing.stored(*paths, settings.goal, any_schedule="schedule" in settings.allowed)
    return AnswerResult(answer.compare(matched, settings, base=paths[0], head=paths[1]))


@_advising_python
def load(path: str | Path) -> RunResult | AnswerResult:
    """A stored run or answer, or one run of a result file of another tool. Raises UsageError for anything else."""
    from harness.experiments import answers, imports
    from harness.validity.conclude import completed

    if (info := answers.of(path)) is not None:
        return AnswerResult(info, Path(path))
    runs = [completed(run) for run in imports.open(Path(path))]
    if len(runs) != 1:
        raise UsageError(f"'{path}' holds {len(runs)} runs; load one of them.")
    return RunResult(runs[0])


def _await_servers(specs: Sequence[RunSpec], wait: float | str | None) -> None:
    """As --wait, with what it waits for on standard error."""
    from harness import values
    from harness.runner.remote.run import await_servers

    limit_s = None if wait is None else values.duration_s(wait, "wait")
    await_servers(specs, limit_s, _note)


def _note(line: str) -> None:
    """Print a line on standard error; below the cell of a notebook in the place of the one before."""
    if "ipykernel" in sys.modules:
        from IPython.display import clear_output

        clear_output(wait=True)  # type: ignore[no-untyped-call]
    print(line, file=sys.stderr)  # noqa: T201


def _display(progress: bool | None) -> Display:
    """What shows runs under way on standard error; for None, in a notebook."""
    from harness.runner.progress import Display

    return Display(quiet="ipykernel" not in sys.modules if progress is None else not progress, terminal_only=False)


def _given(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are set, a frame as the name of the file that it is stored in."""
    if isinstance(options.get("slo"), str):
        from harness.validity.warnings import doubtful_text

        for warning in doubtful_text(str(options["slo"])):
            warnings.warn(f"{warning.message}; {warning.remedy}", stacklevel=4)
    values = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    trace = values.get("trace")
    if trace is not None and not isinstance(trace, str):
        import pandas as pd

        if isinstance(trace, pd.DataFrame):
            values["trace"] = _on_disk(trace)
    return {name: value for name, value in values.items() if value is not None}


def _named(given: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in given.items()}


def _on_disk(frame: pd.DataFrame) -> str:
    """Store a frame under a name of what it holds, so that the run can be repeated."""
    import hashlib
    import io

    from harness.data import files
    from harness.runner.run import RUNS

    content = io.BytesIO()
    if frame.empty:
        raise UsageError("The frame in trace has no row.")
    try:
        frame.to_parquet(content, index=False)
    except (TypeError, ValueError) as error:  # of pandas, and of pyarrow below it
        raise UsageError(f"The frame in trace cannot be stored as a table: {' '.join(str(error).split())}.") from None
    path = Path(RUNS, "frames", f"{hashlib.sha256(content.getvalue()).hexdigest()[:12]}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content.getvalue())
    return str(path)


def _text(value: object) -> str | None:
    return None if value is None else _listed(value, ",")


def _listed(values: object, separator: str) -> str:
    """Values as --rate and --over take them."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        return str(values)
    return separator.join(map(str, values)) + (separator if separator == "|" and len(values) == 1 else "")


def _stored(side: str | Path | RunResult | AnswerResult) -> Path:
    if isinstance(side, RunResult):
        return side.data.path
    if isinstance(side, AnswerResult):
        if side.path is None:
            raise UsageError("An answer that is not stored cannot be compared; give out=FOLDER when it is made.")
        return side.path
    return Path(side)
