"""The command line: each command is a module of this package, loaded only when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from difflib import get_close_matches

import click

from harness.errors import BenchError, no_such

COMMANDS = (
    "run", "sweep", "capacity", "place", "slo", "compare", "report", "serve", "trace", "theory", "fit", "validate",
    "policy", "list", "explain", "doctor", "init",
)  # fmt: skip
INTERRUPTED = 130
"""What a shell expects of a command that Ctrl-C ended before its report."""


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
  3 the backend failed  4 not valid, not comparable, or ended at once        5 inconclusive
  130 interrupted before there was a report
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. What the user can act on is one sentence on standard error."""
    try:
        code = bench.main(args=None if arguments is None else [*arguments], prog_name="bench", standalone_mode=False)
    except BenchError as error:
        return _complain(str(error), error.exit_code)
    except click.UsageError as error:
        return _complain(_sentence(error), 2)
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted before there was anything to report.", INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # click makes exit code 1 of a reader who has left, which is no failed bound
        from harness.cli import _terminal

        _terminal.detach()
        return 0
    except OSError as error:
        what = f"'{error.filename}': {error.strerror}" if error.filename else str(error)
        return _complain(f"the operating system refused: {what}.", 3)
    return code if isinstance(code, int) else 0


def _complain(sentence: str, code: int) -> int:
    from harness.cli import _terminal

    _terminal.complain(sentence)
    return code


def _sentence(error: click.UsageError) -> str:
    """click's complaint as one sentence with the nearest name and what to do next."""
    path = error.ctx.command_path if error.ctx is not None else "bench"
    if isinstance(error, click.NoSuchOption):
        params = error.ctx.command.get_params(error.ctx) if error.ctx is not None else []
        near = _near(error.option_name, [option for param in params for option in param.opts])
        return f"No option '{error.option_name}'.{near} See '{path} --help'."
    message = error.format_message().rstrip(".")
    return f"{message[:1].upper()}{message[1:]}; see '{path} --help'."


def _near(given: str, known: Sequence[str]) -> str:
    near = get_close_matches(given, known, n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""
