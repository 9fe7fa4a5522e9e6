"""`bench trace`: inspects, checks, converts, fits, generates and downloads recorded traffic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from harness.cli import _terminal
from harness.cli._commands import Commands
from harness.cli._options import NEW_FILE, SEED, TIME, force, formats, quiet, run_options
from harness.data import files
from harness.errors import UsageError

if TYPE_CHECKING:
    from reports.document import Document
    from workloads.fit.command import Mode

F = TypeVar("F", bound=Callable[..., Any])
Progress = Callable[[int, int | None], None]

READING = ("reader",)
SLICING = ("start", "stop", "limit", "where")
OF_WORKLOADS = ("arrivals", "lengths", "sessions", "prefixes")
TRACE_FILE = "File to write: .parquet, .csv or .jsonl."
_EPILOG = """
\b
Examples
  bench trace download azure-2023-conversation
  bench trace info AzureLLMInferenceTrace_conv.csv
  bench trace convert AzureLLMInferenceTrace_conv.csv --scale thin:0.5 -o half.parquet
  bench run --trace half.parquet --backend sim
"""


@click.group(
    "trace", cls=Commands, what="trace command", hint="The file comes after it: bench trace info FILE.",
    invoke_without_command=True, short_help="Inspect, check, convert, fit and download recorded traffic.",
    epilog=_EPILOG,
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context) -> None:
    """Work with recorded traffic. A trace is a file with one row per request (time, prompt tokens, output tokens).

    Azure, BurstGPT, Mooncake, Qwen-Bailian and other public formats are detected by their columns ('bench list
    readers'); any CSV, JSON lines or Parquet file is read with --reader at=TIME,prompt=IN,output=OUT. Times in seconds,
    lengths in tokens.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def writing(help: str) -> Callable[[F], F]:  # noqa: A002  # the word of click
    """The options of a command that writes a file."""

    def add(function: F) -> F:
        return click.option("-o", "--output", "target", required=True, metavar="FILE", help=help)(force(function))

    return add


def _rows(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that choose rows, as `workloads.replay.read` takes them."""
    return {f"{name}_s" if name in ("start", "stop") else name: value for name, value in options.items()}


def _show(form: str, report: str, *about: Any, facts: object = None) -> Document:
    """Print and return the report of that name of `reports.answers.trace`; json and csv have its facts."""
    from reports.answers import trace
    from reports.document.rendered import Report

    facts = about[0] if facts is None else facts
    document: Document = getattr(trace, report)(*about)
    _terminal.show(form, Report(document, facts, tuple(trace.rows(facts))))
    return document


@command.command("info", short_help="Show rate, lengths, burstiness, sessions and prefixes.")
@click.argument("file")
@run_options((*READING, *SLICING))
@click.option("--cache", "caches", multiple=True, metavar="SPEC",
              help="Replay prefixes through a cache: lru:tokens=3M. Repeatable.")  # fmt: skip
@click.option("--html", type=NEW_FILE, metavar="FILE", help="Write charts into one offline HTML file.")
@formats
def info(file: str, caches: tuple[str, ...], html: str | None, form: str, **options: Any) -> int:
    """Summarize the trace FILE: origin, rate, lengths, burstiness, conversations, shared prefixes."""
    from workloads import replay
    from workloads.trace_rows import series
    from workloads.trace_tools import info as summary

    trace = replay.read(file, **_rows(options))
    facts = summary.of(trace, caches)
    document = _show(form, "document", facts)
    if html is not None:
        _terminal.draw(html, document, {**series(trace), **({"grain_s": facts["grain_s"]} if facts["ticks"] else {})})
    return 0


@command.command("check", short_help="Report anomalies and errors of a trace.")
@click.argument("file")
@run_options(READING)
@formats
def check(file: str, form: str, **options: str | None) -> int:
    """Read the trace FILE from end to end and report all anomalies.

    Exit code 0: clean, or only with known properties of its format; 1: anomalies found; 2: unreadable.
    """
    from workloads.trace_tools.info import check as checked

    facts = checked(file, **options)
    _show(form, "check", facts)
    return 1 if facts["odd"] else 0


@command.command("convert", short_help="Write a trace, a part of it, or another load, as Parquet, CSV or JSON lines.")
@click.argument("file")
@writing(TRACE_FILE)
@run_options((*READING, *SLICING, "scale", "jitter"))
@click.option("--seed", default="0", type=SEED, metavar="N", help="Random seed. Default: 0.")
@formats
def convert(file: str, target: str, force: bool, seed: int, form: str, **options: Any) -> int:
    """Write the trace FILE, or a part of it, with the column names of bench, perhaps at another load. --scale takes

    \b
      compress:2    compress time by 2: the CV of the gaps stays, bursts get shorter
      thin:0.5      keep each request (or whole conversation) with this probability
      superpose:3   overlay three copies, two of them rotated by a random time
                    (superpose:3,shift=1d: by whole days)
      context:96000 shorten the prompts of sessions with longer contexts

    or several, thin:0.5+compress:2, in order. Times count from the first row, or from --start. Parquet stores the
    origin of the rows (file, SHA-256, rows left out by reason), the units, and what --scale did to burstiness.
    """
    from workloads.trace_tools.write import convert as write_converted

    rows, facts = write_converted(file, target, seed=seed, force=force, **_rows(options))
    _show(form, "written", target, rows, facts, facts={"written": target, "requests": rows, "file": facts})
    return 0


@command.command("fit", short_help="Fit a traffic generator to a trace, with goodness of fit.")
@click.argument("file")
@writing("Model to write (JSON).")
@click.option("--mode", metavar="NAME",
              help="parametric, or rate-following: reproduces the rate over time. Default: what fits.")  # fmt: skip
@click.option("--window", type=TIME, metavar="TIME",
              help="rate-following: narrowest window. Default: chosen from the trace.")  # fmt: skip
@click.option("--html", type=NEW_FILE, metavar="FILE", help="Chart the fit against the trace in one offline HTML file.")
@formats
@run_options((*READING, *SLICING))
def fit(
    file: str, target: str, force: bool, mode: Mode | None, window: float | None, html: str | None, form: str,
    **options: Any,
) -> int:  # fmt: skip
    """Fit rate, inter-arrival times, lengths, conversations and shared prefixes of the trace FILE, for 'bench trace
    generate' and 'bench run --trace MODEL'.

    The goodness of fit is measured on 20 draws and compared with Poisson and gamma arrivals.
    """
    from workloads import replay
    from workloads.fit import command as fitted

    fitted.check(mode, window)
    files.check(target)  # before the work, not after it
    if Path(target).exists() and not force:
        raise UsageError(f"'{target}' is there already; --force replaces it.")
    trace = replay.read(file, **_rows(options))
    model = fitted.fit(trace, mode=mode, window_s=window)
    model.save(target)
    document = _show(form, "fitted", model.lines(), target, facts=model.quality)
    if html is not None:
        _terminal.draw(html, document, fitted.picture(model, trace))
    return 0


@command.command("generate", short_help="Generate a trace from a fitted model or a workload.")
@click.argument("source")
@writing(TRACE_FILE)
@run_options(
    ("rate", "requests", "duration", *OF_WORKLOADS),
    rate={"help": "Mean request rate per second. Default: that of the model or preset."},
    requests={"help": "Number of requests."},
    duration={"help": "Generate the requests due within this time, e.g. 1h."},
    sessions={"help": "Multi-turn conversations; for a model with whole sessions: single (requests)."},
)
@click.option("--seed", default="0", type=SEED, metavar="N", help="Random seed. Default: 0.")
@formats
def generate(
    source: str, target: str, force: bool, rate: float | None, requests: int | None, duration: float | None, seed: int,
    form: str, **options: str | None,
) -> int:  # fmt: skip
    """Generate a trace from SOURCE: a model.json of 'bench trace fit', or a workload ('bench list presets').

    Equal options give equal rows. --arrivals, --lengths and --prefixes apply to workloads only.
    """
    from workloads.trace_tools.write import write

    if requests is None and duration is None:
        raise UsageError("How much is to be drawn? Give --requests N or --duration TIME.")
    limits = {"requests": requests, "duration_s": duration, "seed": seed, "rate_rps": rate}
    parts = {name: value for name in OF_WORKLOADS if (value := options[name]) is not None}
    of_model = source.endswith(".json") or (Path(source).is_file() and not source.endswith(".toml"))
    drawn = (_from_model if of_model else _from_workload)(source, parts, limits)
    facts = {"made_by": f"bench trace generate {source}", **drawn.facts, "seed": seed}
    rows = write(target, drawn.tables, lambda: facts, block_tokens=drawn.block_tokens, force=force)
    written = {"written": target, "requests": rows, **facts, "dropped": [*drawn.dropped]}
    _show(form, "generated", target, rows, drawn.origin, seed, drawn.follow_ups, drawn.dropped, facts=written)
    return 0


class Generated(NamedTuple):
    """Requests that are to be written, and where they come from; `dropped` says what of it they do not have."""

    tables: Iterable[Any]
    facts: Mapping[str, object]
    origin: str
    block_tokens: int | None = None
    follow_ups: bool = False
    dropped: Sequence[str] = ()


def _from_model(source: str, parts: Mapping[str, str], limits: Mapping[str, Any]) -> Generated:
    """Whole sessions where the model has them, and --sessions single does not ask for requests."""
    from workloads.fit import _whole_draw
    from workloads.fit import command as fitted
    from workloads.fit.model import Model

    if other := [part for part, text in parts.items() if (part, text) != ("sessions", "single")]:
        raise UsageError(f"--{other[0]} belongs to a workload; the model '{source}' brings its own.")
    model, origin = Model.load(source), f"model {source}"
    facts: dict[str, object] = {"model": dict(model.source)}
    if parts or model.whole is None:
        return Generated(fitted.tables(model, **limits), facts, origin, dropped=fitted.dropped(model.source))
    trace = _whole_draw.drawn(model, **limits)
    facts |= {name: trace.facts[name] for name in ("clock", "think_times") if name in trace.facts}
    return Generated([trace.table], facts, origin, trace.block_tokens, dropped=fitted.left_out(model.source))


def _from_workload(source: str, parts: Mapping[str, Any], limits: Mapping[str, Any]) -> Generated:
    from harness.data.schedule import Schedule
    from workloads import catalog
    from workloads.blend import Blend
    from workloads.mixed import Mixed
    from workloads.trace_tools.write import block_tokens, trace_table

    loaded = catalog.load(source, **limits, **parts)  # as `bench run` does
    if loaded.timing == "closed":
        raise UsageError(
            f"'{source}' with arrivals {loaded.arrivals_text}: in a closed loop the answers decide when requests come, "
            "so there is no trace to draw; take other --arrivals, such as poisson."
        )
    workload = loaded.workload.as_recorded() if isinstance(loaded.workload, Mixed | Blend) else loaded.workload
    schedule = Schedule.draw(workload, **{name: limits[name] for name in ("requests", "duration_s", "seed")})
    facts = {
        "arrivals": loaded.arrivals_text, "lengths": loaded.lengths_text, "schedule_sha256": schedule.sha256,
    }  # fmt: skip
    origin = f"{loaded.name}: arrivals {loaded.arrivals_text}, lengths {loaded.lengths_text}"
    tables = [trace_table(schedule.table)]
    return Generated(tables, facts, origin, block_tokens(schedule.table), schedule.has_follow_ups)


@command.command("download", short_help="Download a public trace and verify its hash.")
@click.argument("name", required=False, metavar="[NAME|URL]")
@click.option(
    "-o", "--output", "folder", default=".", metavar="FOLDER", help="Target folder. Default: the current one."
)
@force
@click.option("--timeout", default="30s", type=TIME, metavar="TIME", help="Read timeout. Default: 30s.")
@quiet
@formats
def download(name: str | None, folder: str, force: bool, timeout: float, quiet: bool, form: str) -> int:
    """Download the public trace NAME, or any URL; without either, list the names.

    An interrupted download of known hash resumes. If the SHA-256 differs from the official one, the file is saved as
    FILE.bad and the exit code is 4; without a known one the file is reported as unverified.
    """
    from workloads.trace_tools import download as traces

    if name is None:
        catalogue = [*traces.sources().values()]
        _show(form, "sources", catalogue, facts=[asdict(entry) for entry in catalogue])
        return 0
    source = traces.find(name)
    note = _terminal.nothing if quiet else _terminal.note
    note(f"{source.url} ({source.licence})" if source.licence else source.url)
    with _shown(quiet=quiet) as progress:
        watch = traces.Watch(note=note, progress=progress)
        timeout_s = timeout or traces.TIMEOUT_S
        done = traces.download(name, Path(folder), force=force, watch=watch, timeout_s=timeout_s)
    _show(form, "fetched", done, source, facts=asdict(done))
    return 0


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
