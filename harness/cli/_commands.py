"""The group of commands: each is a module of this package, loaded only when it is called."""

import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import click

from harness.errors import UsageError, no_such

COMMANDS = (
    "run", "sweep", "capacity", "place", "slo", "compare", "report", "serve", "trace", "theory", "fit", "validate",
    "policy", "list", "explain", "doctor", "init",
)  # fmt: skip


class Commands(click.Group):
    """The group `bench`: it knows the names of its commands and imports one when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """In the order in which a newcomer needs them."""
        return [*COMMANDS]  # Note: `list` is a command here, a module of this package

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's
        """The command of that name, None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"harness.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest known one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise no_such("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)


_EPILOG = """
\b
First steps
  bench doctor                 is this machine fit to measure?
  bench run                    a minute of chat on the built-in engine
  bench run --backend sim      the same traffic on a simulated GPU, in a second
  bench capacity --backend sim --hardware h100
                               how much of it that GPU carries, with an interval
  bench compare BASE HEAD      is HEAD worse? two stored runs, folders or files
  bench serve                  the built-in engine behind an OpenAI-compatible server
  bench trace info FILE        what is in recorded traffic; run it with --trace FILE
  bench list                   every workload, model, GPU and policy there is
  bench explain goodput        what a word of the result means

\b
Exit codes
  0 good                1 a bound failed (--fail-under), or a comparison      2 wrong usage
  3 the backend failed  4 not valid, not comparable, or terminated (SIGTERM)  5 inconclusive
  70 a bug, or exhausted memory       130 interrupted before there was a report
"""


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"bench {version('bench')}")
        ctx.exit()


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """How much of this traffic can this LLM serving system carry within these latency objectives?"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str] | None) -> int:
    """Run one command; returns its exit code. What is wrong with the line itself is one sentence, and 2.

    Not by click's own `main`: it ends with 1 where the reader of the output has left, and takes Ctrl-C for an abort.
    """
    words = sys.argv[1:] if arguments is None else [*arguments]
    try:
        with bench.make_context("bench", words) as context:
            code = bench.invoke(context)
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except click.UsageError as error:
        raise UsageError(_sentence(error)) from None
    except click.ClickException as error:
        raise UsageError(error.format_message()) from None
    return code if isinstance(code, int) else 0


def _sentence(error: click.UsageError) -> str:
    """click's complaint as one sentence with the nearest name and what to do next."""
    path = error.ctx.command_path if error.ctx is not None else "bench"
    if isinstance(error, click.NoSuchOption):
        params = error.ctx.command.get_params(error.ctx) if error.ctx is not None else []
        known = [option for param in params for option in param.opts]
        near = get_close_matches(error.option_name, known, n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return f"No option '{error.option_name}'.{hint} See '{path} --help'."
    message = error.format_message().rstrip(".")
    return f"{message[:1].upper()}{message[1:]}; see '{path} --help'."
