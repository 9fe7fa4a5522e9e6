"""The group of commands: each is a module of this package, loaded only when it is called."""

import errno
import importlib
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from harness import untrusted
from harness.cli import _installed
from harness.errors import BenchError, UsageError, nearest, no_such
from harness.removed import REMOVED, SERVER
from harness.spec import size_bytes
from harness.version import __version__

GROUPS = {
    "Measure": ("quick", "run", "sweep", "capacity", "agents"),
    "Compare": ("compare", "slo", "report", "reproduce"),
    "Plan": ("place", "theory"),
    "Traffic": ("trace",),
    "Simulate": ("fit", "validate"),
    "Tools": ("serve", "list", "explain", "doctor", "init", "sender"),
}
"""Headings of `bench --help` and their commands, in the order in which a newcomer needs them."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
BESIDE_RUN = {name: f"harness.cli.run:{name}" for name in ("init", "sender")}
"""Commands in the module of another."""

ADDRESS_BYTES = 1 << 30
SERVER_AT = {
    "url": "http://HOST:PORT",
    "--base": "--base http://HOST:PORT --head http://HOST:PORT",
    "--url": "--url http://HOST:PORT",
}
"""Where a command takes its URL: by a parameter that it has."""

HINTS = {
    "bench theory": "Parameters stand with the name of the form: 'bench theory slo:model=yi-34b'; --over varies them."
}
"""What to do instead of an option that a command does not have."""
_EPILOG = """
\b
First steps
  bench doctor                 check this machine and the installation
  bench quick                  find a server on this machine and its capacity, in three minutes
  bench run                    one minute of chat traffic on the built-in engine
  bench run --backend sim      the same traffic on a simulated GPU, in a second
  bench capacity --backend sim --hardware h100
                               the highest rate that GPU sustains, with an interval
  bench compare BASE HEAD      test HEAD for a regression: two stored runs, folders or files
  bench serve                  the built-in engine as an OpenAI-compatible server
  bench trace info FILE        summarize recorded traffic; replay it with bench run --trace FILE
  bench list                   all workloads, models, GPUs and policies
  bench explain goodput        definition of a metric or term

\b
Exit codes
  0 success             1 a bound (--fail-under) or a comparison failed       2 wrong usage
  3 the backend failed  4 not valid, not comparable, or terminated (SIGTERM)  5 inconclusive
  70 a bug, or exhausted memory       130 interrupted before the report
"""


class Commands(click.Group):
    """A group that lists its commands in the order of their definition and answers an unknown name with the nearest.

    `modules` maps names of commands to the modules that hold them, which are imported when they are needed; `groups`
    maps headings of the help to names.
    """

    def __init__(
        self,
        *args: Any,
        what: str,
        hint: str = "",
        modules: Mapping[str, str] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._what, self._hint, self._modules, self._groups = what, hint, modules or {}, groups or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """All names, in the order in which a newcomer needs them."""
        return [*self._modules, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None if there is none."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        name, _, attribute = self._modules[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(name), attribute or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, names in (self._groups or {"Commands": self.list_commands(ctx)}).items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(100))
                        for name, command in commands
                        if command is not None
                    ]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest known one."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            raise no_such(self._what, args[0], names, self._hint)
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"bench {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    what="command",
    modules={name: f"harness.cli.{name}" for name in COMMANDS} | BESIDE_RUN,
    groups=GROUPS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
@click.option("--max-json", metavar="SIZE", default="64MiB", show_default=True,
              help="Maximum size of a JSON file that is read.")  # fmt: skip
@click.pass_context
def bench(ctx: click.Context, max_json: str) -> None:
    """Benchmark LLM serving: the request rate that a system sustains within latency objectives."""
    before = untrusted.MOST_JSON_BYTES.set(int(size_bytes(max_json, "--max-json")))
    ctx.call_on_close(lambda: untrusted.MOST_JSON_BYTES.reset(before))
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str] | None) -> int:
    """Run one command; returns its exit code. What is wrong with the line itself is one sentence, and 2.

    Not by click's own `main`: it ends with 1 where the reader of the output has left, and takes Ctrl-C for an abort.
    """
    words = sys.argv[1:] if arguments is None else [*arguments]
    if arguments is None and (code := _completed(Path(sys.argv[0]).name)) is not None:
        return code
    try:
        with bench.make_context("bench", words) as context:
            _check_memory()
            _installed.check()
            code = bench.invoke(context)
    except click.exceptions.Exit as end:  # --help, --version
        if end.exit_code:  # no command of bench ends so, and 1 has a meaning
            raise
        return 0
    except click.UsageError as error:
        raise UsageError(_sentence(error)) from None
    except click.ClickException as error:
        raise UsageError(error.format_message()) from None
    return code if isinstance(code, int) else 0


def _completed(program: str) -> int | None:
    """The exit code after answering a shell that asks for completions as click does; None where none asks."""
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    if not (instruction := os.environ.get(variable)):
        return None
    from click.shell_completion import shell_complete

    with suppress(BenchError):  # a wrong word before the cursor has no completions
        return shell_complete(bench, {}, program, variable, instruction)
    return 0


def _check_memory() -> None:
    """Raise MemoryError where the limit of this process leaves too little address space for numpy, scipy and pyarrow.

    Without it OpenBLAS ends the process by exit(1), and Arrow may wait for ever for a thread that did not start.
    """
    try:
        mmap.mmap(-1, ADDRESS_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ).close()
    except (AttributeError, OSError) as error:  # AttributeError: a system without such limits
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError("bench needs 1 GiB of address space, see 'ulimit -v'") from None


def _sentence(error: click.UsageError) -> str:
    """click's complaint as one sentence with the nearest name and what to do next."""
    path = error.ctx.command_path if error.ctx is not None else "bench"
    if isinstance(error, click.NoSuchOption):
        params = error.ctx.command.get_params(error.ctx) if error.ctx is not None else []
        options = [option for param in params for option in param.opts]
        removed = ((f"option of {path}", error.option_name), ("option", error.option_name))
        if (instead := next((REMOVED[key] for key in removed if key in REMOVED), None)) is not None:
            return f"The option '{error.option_name}' was removed: {instead}."
        if error.option_name in SERVER and (
            place := next((SERVER_AT[name] for name in SERVER_AT if name in options), None)
        ):
            return f"No option '{error.option_name}': give the server's URL as '{path} {place}'."
        hint = f" {HINTS[path]}" if path in HINTS else ""
        return f"No option '{error.option_name}'.{nearest(error.option_name, options)}{hint} See '{path} --help'."
    message = error.format_message().rstrip(".")
    return f"{message[:1].upper()}{message[1:]}; see '{path} --help'."
