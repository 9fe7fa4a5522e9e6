"""`bench trace`: recorded traffic, looked at, checked, converted, scaled, cut, fitted, generated and fetched."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from harness.errors import no_such

SUBCOMMANDS = ("info", "check", "convert", "slice", "scale", "fit", "generate", "download")
F = TypeVar("F", bound=Callable[..., Any])


class Tools(click.Group):
    """The group `bench trace`: in the order in which they are needed, and an unknown name gets the nearest one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """In the order of `SUBCOMMANDS`."""
        return [*SUBCOMMANDS]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest known one."""
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            raise no_such("trace command", args[0], SUBCOMMANDS, "The file comes after it: bench trace info FILE.")
        return super().resolve_command(ctx, args)


_EPILOG = """
\b
For example
  bench trace download azure-2023-conversation
  bench trace info AzureLLMInferenceTrace_conv.csv
  bench trace scale AzureLLMInferenceTrace_conv.csv thin:0.5 -o half.parquet
  bench run --trace half.parquet --backend sim
"""


@click.group(
    "trace",
    cls=Tools,
    invoke_without_command=True,
    short_help="Look at, check, change, fit and fetch recorded traffic.",
    epilog=_EPILOG,
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Work with recorded traffic: a trace is a file with a row per request (time, prompt tokens, output tokens).

    Azure, BurstGPT, Mooncake, Qwen-Bailian and other public formats are known by their columns ('bench list
    readers'); any CSV, JSON lines or Parquet is read with --columns. Times in seconds, lengths in tokens.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def reading(function: F) -> F:
    """The options that say how a file is read."""
    for add in (
        click.option(
            "--columns", metavar="MAP", help="Names in a plain file: 'at=time,prompt=input_len,output=output_len'."
        ),
        click.option("--reader", metavar="NAME", help="Format of the file; default: told by its columns."),
    ):
        function = add(function)
    return function


def slicing(function: F) -> F:
    """The options that choose rows."""
    for add in (
        click.option("--where", metavar="CONDITIONS", help="Keep such rows: 'prompt_tokens<=4096,output_tokens>=1'."),
        click.option("--limit", metavar="N", help="At most so many requests."),
        click.option("--stop", metavar="TIME", help="Up to this time after the first row, e.g. 30min."),
        click.option("--start", metavar="TIME", help="From this time after the first row on, e.g. 10min."),
    ):
        function = add(function)
    return function


def writing(what: str) -> Callable[[F], F]:
    """The options of a command that writes a file."""

    def add(function: F) -> F:
        function = click.option("--force", is_flag=True, help="Replace the file if it is there.")(function)
        return click.option("-o", "--output", "target", required=True, metavar="FILE", help=what)(function)

    return add


TRACE_FILE = "The file to write: .parquet, .csv or .jsonl."


@command.command("info", short_help="Show rate, lengths, burstiness, sessions, prefixes.")
@click.argument("file")
@reading
@slicing
@click.option("--cache", "caches", multiple=True, metavar="SPEC", help="Replay prefixes: lru:tokens=3M. Repeatable.")
@click.option("--html", metavar="FILE", help="Draw pictures into one offline HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def info(file: str, caches: tuple[str, ...], html: str | None, as_json: bool, **options: str | None) -> int:
    """Show what is in the trace FILE: origin, rate, lengths, burstiness, conversations, shared prefixes."""
    from harness import compose
    from harness.cli import _trace_tools

    _trace_tools.page_to_write(html)
    trace = _trace_tools.read(file, **options)
    facts = compose.trace_facts(trace, caches)
    _trace_tools.show("document", facts, as_json)
    if html is not None:
        _trace_tools.draw(html, compose.trace_picture(trace, facts), f"Trace {trace.facts['file']}")
    return 0


@command.command("check", short_help="Say what is odd or wrong in a trace.")
@click.argument("file")
@reading
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(file: str, as_json: bool, **options: str | None) -> int:
    """Read the trace FILE from end to end and say everything that is odd about it.

    Exit code 0: clean, or only with what its format is known for; 1: something is odd; 2: it cannot be read.
    """
    from harness import compose
    from harness.cli import _trace_tools

    facts = compose.check_trace(file, **options)
    _trace_tools.show("check", facts, as_json)
    return 1 if facts["odd"] else 0


@command.command("convert", short_help="Write a trace as Parquet, CSV or JSON lines.")
@click.argument("file")
@writing(TRACE_FILE)
@reading
@click.option("--sort", is_flag=True, help="Order the rows by time, where they are not (needs them all in memory).")
def convert(file: str, target: str, force: bool, sort: bool, **options: str | None) -> int:
    """Write the trace FILE in another form, under the names that every trace has here, in bounded memory.

    Parquet holds where the rows come from (file, SHA-256, what was left out) and the units.
    """
    from harness import compose
    from harness.cli import _trace_tools

    rows, facts = compose.convert_trace(file, target, sort=sort, force=force, **options)
    _trace_tools.tell("written", target, rows, facts)
    return 0


@command.command("slice", short_help="Cut a part out of a trace.")
@click.argument("file")
@writing(TRACE_FILE)
@slicing
@click.option("--tag", metavar="NAME", help="Keep one class of traffic, e.g. api.")
@reading
def cut(file: str, target: str, force: bool, tag: str | None, **options: str | None) -> int:
    """Write a part of the trace FILE: a stretch of time, the first N requests, rows that keep conditions.

    Times count from the first row, or from --start where it is given. What is left out is told by reason.
    """
    from harness import compose
    from harness.cli import _trace_tools

    conditions = [*([options["where"]] if options["where"] else []), *([f"tag={tag}"] if tag else [])]
    options["where"] = ",".join(conditions) or None
    trace = compose.cut_trace(file, target, force=force, **_trace_tools.numbers(options))
    _trace_tools.tell("written", target, len(trace), trace.facts)
    return 0


@command.command("scale", short_help="Change the load of a trace, in a way that has a name.")
@click.argument("file")
@click.argument("steps", nargs=-1, required=True, metavar="STEP...")
@writing(TRACE_FILE)
@click.option("--seed", default="0", metavar="N", help="Seed of what is random (default 0).")
@slicing
@reading
def scale(file: str, steps: tuple[str, ...], target: str, force: bool, seed: str, **options: str | None) -> int:
    """Write the trace FILE under another load. A STEP is one of

    \b
      compress:2    time runs twice as fast: gap CV stays, bursts get shorter
      thin:0.5      each request (or whole conversation) stays with this probability
      superpose:3   three copies at once, two of them turned by a random time
                    (superpose:3,shift=1d: by whole days)

    Several STEPs are done in their order. The file tells what was done and by which law burstiness changed.
    """
    from harness import compose
    from harness.cli import _trace_tools

    chosen = _trace_tools.numbers(options)
    trace = compose.scale_trace(
        file, target, "+".join(steps), seed=_trace_tools.whole(seed, "--seed", 0), force=force, **chosen
    )
    _trace_tools.tell("written", target, len(trace), trace.facts)
    return 0


@command.command("fit", short_help="Fit a generator to a trace, and say how well it fits.")
@click.argument("file")
@writing("The model to write (JSON).")
@click.option(
    "--mode", default="parametric", metavar="NAME", help="parametric (default), or rate-following: its rate over time."
)
@click.option("--window", metavar="TIME", help="rate-following: the narrowest window; default: chosen from the trace.")
@click.option("--html", metavar="FILE", help="Draw the fit beside the trace into one offline HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print the quality as JSON.")
@reading
@slicing
def fit(
    file: str, target: str, force: bool, mode: str, window: str | None, html: str | None, as_json: bool,
    **options: str | None,
) -> int:  # fmt: skip
    """Fit rate, gaps, lengths and conversations of the trace FILE; 'bench trace generate' draws from the result.

    The quality is measured on 20 draws, and told in numbers beside what Poisson and gamma arrivals reach.
    """
    from harness.cli import _trace_fit

    return _trace_fit.fit(file, target, force=force, mode=mode, window=window, html=html, as_json=as_json, **options)


@command.command("generate", short_help="Draw a trace from a fitted model or a workload.")
@click.argument("source")
@writing(TRACE_FILE)
@click.option("--rate", metavar="RPS", help="Requests per second; default: that of the model or preset.")
@click.option("--requests", metavar="N", help="So many requests.")
@click.option("--duration", metavar="TIME", help="What is due within this time, e.g. 1h.")
@click.option("--seed", default="0", metavar="N", help="Seed of everything that is drawn (default 0).")
@click.option("--workers", default="1", metavar="N", help="Processes that draw from a model; the rows are the same.")
@click.option("--arrivals", metavar="SPEC", help="Workload only: gamma:cv=2, burstgpt:service=api, ...")
@click.option("--lengths", metavar="SPEC", help="Workload only: sharegpt, fixed:prompt=512,output=64, ...")
@click.option("--sessions", metavar="SPEC", help="Multi-turn conversations; of a model: fitted:FILE.")
@click.option("--prefixes", metavar="SPEC", help="Workload only: shared:count=10,tokens=512,zipf=1.")
def generate(source: str, target: str, force: bool, **options: str | None) -> int:
    """Draw requests from SOURCE, a model.json of 'bench trace fit' or a workload ('bench list presets'), into a trace.

    Equal options give equal rows, whatever the number of --workers.
    """
    from harness.cli import _trace_fit

    return _trace_fit.generate(source, target, force=force, **options)


@command.command("download", short_help="Fetch a public trace, and check its hash.")
@click.argument("name", required=False, metavar="[NAME|URL]")
@click.option("-o", "--output", "folder", default=".", metavar="FOLDER", help="Where to put it (default: here).")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option("--timeout", default="30s", metavar="TIME", help="Longest wait for the next bytes (default 30s).")
@click.option("--quiet", is_flag=True, help="No progress and no notes.")
def download(name: str | None, folder: str, force: bool, timeout: str, quiet: bool) -> int:
    """Fetch the public trace NAME, or any URL; without either, list the names.

    An interrupted download goes on where it stopped. A file whose SHA-256 is not that of the official one is kept
    aside as FILE.bad and the exit code is 4; one without a known hash is said to be unverified.
    """
    from harness.cli import _trace_fit

    if name is None:
        return _trace_fit.listed()
    return _trace_fit.fetch(name, folder, force=force, timeout=timeout, quiet=quiet)
