"""Options of commands: those of a run, from the table of `harness.options`, and those that several commands share.

Help shows options under headings, in the order in which the headings first occur.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import click

from harness import options as run
from harness import values
from harness.errors import UsageError, no_such
from harness.options import Given
from harness.values import Check

F = TypeVar("F", bound=Callable[..., Any])
OUTPUT, GENERAL = "Output", "General"
FORMATS = ("text", "markdown", "json", "csv")
"""The formats of every result, the default first."""
COMMON = {
    "workload", "trace", "rate", "requests", "duration", "slo", "goal", "fail-under", "backend", "model", "hardware",
    "policy", "wait",
}  # fmt: skip
"""Options of a run that most users need."""
RARE = {"quiet", "force", "no-html", "metrics-port"}
"""Other options, which the shorter help leaves out."""
MANY = 30
"""Options of a command above which --help shows its own and the common ones of a run; --help-all shows every one."""


class Value(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """Checks and converts a value by a function of (value, name of the option), which raises UsageError."""

    name = "value"

    def __init__(self, check: Check) -> None:
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002  # click's signature
        """The value in its final form."""
        assert param is not None
        return self.check(value, next((name for name in param.opts if name.startswith("--")), str(param.name)))


def _writable(path: object, name: str) -> str:  # noqa: ARG001  # the message names the file
    from harness.data import files

    files.check(str(path))
    return str(path)


def _answer_file(value: object, name: str) -> str:  # noqa: ARG001  # the message names the file
    from harness.cli import _terminal

    return _terminal.answer_file(str(value))


def _bounds(value: object, name: str) -> str:
    from harness.cli import _terminal
    from harness.validity.warnings import doubtful_text  # heavy

    text = values.text(value, name)
    for warning in doubtful_text(text):
        _terminal.note(f"warning: {warning.message}; {warning.remedy}")
    return text


def _config(value: object, _: str) -> str:
    from harness import configs

    bounds = configs.read(str(value)).given.values.get("slo")
    if bounds is not None:
        _bounds(bounds, f"slo in '{value}'")
    return str(value)


def _url(value: object, name: str) -> str:  # noqa: ARG001  # an argument has no name that a user gave
    if not values.is_url(str(value)):
        raise UsageError(f"'{value}' is not the URL of a server, such as http://HOST:8000; other values need the name "
                         f"of their option, as in --workload chatbot or --backend sim.")  # fmt: skip
    return str(value)


def port(value: object, name: str) -> int:
    text = str(value)
    if not text.isdecimal() or int(text) > 65_535:
        raise UsageError(f"{name} must be a whole number from 0 to 65535, got '{text}'.")
    return int(text)


def _address(value: object, name: str) -> tuple[str, int]:
    host, _, number = str(value).rpartition(":")
    return host.strip("[]") or "127.0.0.1", port(number, name)


def _format(value: object, name: str) -> str:  # noqa: ARG001  # the message names the format
    if value not in FORMATS:
        raise no_such("format", str(value), FORMATS, "Pages are written by --html, --out or bench report.")
    return str(value)


COUNT, SEED, RATE, SHARE = Value(values.count), Value(values.seed), Value(values.rate_rps), Value(values.share)
TIME, DURATION = Value(values.time_s), Value(values.duration_s)
NEW_FILE = Value(_writable)
"""A file that is to be written: refused before the work where it cannot be."""
BOUNDS = Value(_bounds)
"""An SLO, whose bounds are questioned where they were probably meant in another unit."""


class GroupedOption(click.Option):
    """An option with the heading under which help shows it."""

    def __init__(self, *args: Any, group: str = GENERAL, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


def option(*names: str, group: str = OUTPUT, **more: Any) -> Callable[[F], F]:
    """An option under a heading; `more` as for click.option."""
    return click.option(*names, cls=GroupedOption, group=group, **more)


class GroupedCommand(click.Command):
    """A command whose help shows its options under their headings; those without one come last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if len(self.params) > MANY:
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_help_all,
                    help=f"Show all {len(self.params)} options.",
                )
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups one below the other."""
        shows_all = len(self.params) <= MANY or ctx.meta.get(_help_all.__name__, False)
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            heading = param.group if isinstance(param, GroupedOption) else GENERAL
            name = param.opts[0].removeprefix("--")
            if not shows_all and (name in RARE or (heading in run.GROUPS and name not in COMMON)):
                continue
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None  # arguments: in the usage
            if record is not None:
                groups.setdefault(heading, []).append(record)
        for heading in sorted(groups, key=GENERAL.__eq__):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def _help_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_help_all.__name__] = True
        click.echo(ctx.get_help())
        ctx.exit()


# The options of a run


def run_options(
    only: Collection[str] = tuple(run.OPTIONS), without: Collection[str] = (), **changed: Mapping[str, Any]
) -> Callable[[F], F]:
    """Adds the options of a run, or some of them.

    `changed` maps an option to what differs in this command, such as its help.
    """

    def add(function: F) -> F:
        in_order = sorted(run.OPTIONS.items(), key=lambda item: run.GROUPS.index(item[1].group))
        for name, common in reversed(in_order):  # the last decorator comes first
            if name in only and name not in without:
                opt = replace(common, **changed.get(name.replace("-", "_"), {}))
                function = option(
                    f"--{name}", group=opt.group, metavar=opt.metavar, multiple=opt.repeated, help=opt.help,
                    type=BOUNDS if name == "slo" else Value(opt.check),
                )(function)  # fmt: skip
        return function

    return add


def given(options: Mapping[str, Any]) -> Given:
    """The options of a run that were given, in the form that `harness.options.run_spec` takes."""
    lines = {name: "\n".join(value) or None if isinstance(value, tuple) else value for name, value in options.items()}
    if (url := lines.pop("url", None)) is not None:
        if lines.get("backend") is not None:
            raise UsageError(f"The backend is given twice: '{url}' and --backend {lines['backend']}; leave one out.")
        lines["backend"] = url
    for name, value in options.items():
        if isinstance(value, tuple) and any("\n" in line or "\r" in line for line in value):
            raise UsageError(f"A value of --{name} holds a line break; give --{name} once for each.")
    return Given({name.replace("_", "-"): value for name, value in lines.items() if value is not None})


# Options that several commands share

server_url = click.argument("url", required=False, type=Value(_url), metavar="[URL]")
"""The server to measure, in place of --backend; `given` takes it for that."""
wait = option(
    "--wait", type=DURATION, metavar="TIME", group=run.ENDPOINT,
    help="Wait so long for a server that does not answer yet, is loading its model or limits requests.",
)  # fmt: skip
config = option(
    "--config", type=Value(_config), group=GENERAL, metavar="FILE",
    help="Options of a run from a TOML file (bench init), a named configuration (bench list configs) or a run.json; "
    "the command line overrides them.",
)  # fmt: skip
no_html = option("--no-html", is_flag=True, help="Do not write report.html.")
quiet = option("--quiet", is_flag=True, help="Suppress progress and notes; results are still printed.")
force = option("--force", is_flag=True, help="Overwrite existing output.")
metrics_port = option(
    "--metrics-port", type=Value(_address), metavar="[HOST:]PORT",
    help="While it runs, serve metrics in Prometheus' format there; on 127.0.0.1 without HOST, port 0: a free one.",
)  # fmt: skip
workers = option(
    "--workers", type=COUNT, metavar="N", group="Search", help="sim: trials at a time. Default: one per core."
)
formats = option(
    "--format", "form", type=Value(_format), metavar="NAME", default=FORMATS[0],
    help="Print as text (default), markdown, json or csv.",
)  # fmt: skip
"""How a command prints its result; the function takes `form`."""
answer_file = option("--out", type=Value(_answer_file), metavar="FILE",
                     help="Write to this file instead: .html, .md, .json, .csv or .txt.")  # fmt: skip


def max_requests(default: str) -> Callable[[F], F]:
    """The limit of a search in requests, beside --requests, which is always that of a run."""
    return option("--max-requests", metavar="N", type=COUNT, group="Search",
                  help=f"Limit for the whole search, in requests. Default: {default}.")  # fmt: skip


def workers_and_pool(function: F) -> F:
    """--workers and --pool: how many simulated trials there are at a time, and where."""
    return workers(
        option("--pool", "pool_name", default="processes", show_default=True, metavar="NAME", group="Search",
               help="sim: processes, ray (a cluster on this machine), or ray:ADDRESS (a running one).")(function)
    )  # fmt: skip


def out(help: str) -> Callable[[F], F]:  # noqa: A002  # the word of click
    """--out: the folder of what a command makes."""
    return option("--out", metavar="DIR", help=help)


def result_options(function: Callable[..., int]) -> Callable[..., int]:
    """--format, --no-html, --quiet and --metrics-port: how a command that measures shows what it does."""
    return formats(no_html(quiet(metrics_port(function))))
